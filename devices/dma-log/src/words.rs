//! The words in which a DMA is recorded.

use serde::{Deserialize, Serialize};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// What a DMA was for, in words that fit any command-driven device.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    TryFromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Purpose {
    /// Fetching a command (NVMe: a submission queue entry).
    Command = 0,
    /// Telling an outcome (NVMe: a completion queue entry).
    Completion = 1,
    /// Walking a list of addresses (NVMe: a PRP list).
    List = 2,
    /// Data of a management command (NVMe: an admin command's, and the ranges of Dataset Management).
    Control = 3,
    /// The data that the device exists to move (NVMe: an I/O command's).
    Payload = 4,
}

/// The way that a DMA took.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    TryFromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Route {
    /// Inside the requester's own CMB or BAR.
    OwnBar = 0,
    /// Straight to a peer below the same switch.
    Peer = 1,
    /// Straight into guest RAM.
    GuestRam = 2,
    /// Asked of the client (QEMU).
    Upstream = 3,
    /// Not done at all.
    Refused = 4,
}

/// The owner of the memory that a DMA met.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    TryFromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Completer {
    /// The requester itself.
    OwnMemory = 0,
    /// Guest RAM.
    GuestRam = 1,
    /// A BAR of another device.
    PeerBar = 2,
    /// Nobody: the DMA failed.
    Nobody = 3,
    /// Unknown: the client found memory at an address that it has not mapped for the device.
    Unknown = 4,
}

/// Which way the data of a DMA went.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    TryFromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Direction {
    /// The requester reads.
    Read = 0,
    /// The requester writes.
    Write = 1,
}
