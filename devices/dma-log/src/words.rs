//! The words that describe a DMA.

use serde::{Deserialize, Serialize};
use strum::{FromRepr, IntoStaticStr, VariantArray};

/// Enums whose numbers are those of the page and of the flight record: in their order, from 0 on.
macro_rules! words {
    ($($(#[$about:meta])* $name:ident { $($(#[$meaning:meta])* $word:ident,)+ })+) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(Serialize, Deserialize, FromRepr, IntoStaticStr, VariantArray)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "kebab-case")]
        #[strum(serialize_all = "kebab-case")]
        #[repr(u8)]
        pub enum $name {
            $($(#[$meaning])* $word,)+
        }

        impl $name {
            /// Returns its word in results and messages.
            pub fn word(self) -> &'static str {
                self.into()
            }
        }
    )+};
}

words! {
    /// The purpose of a DMA, in words that fit any command-driven device.
    Purpose {
        /// Fetching a command (NVMe: a submission queue entry).
        Command,
        /// Reporting an outcome (NVMe: a completion queue entry).
        Completion,
        /// Walking a list of addresses (NVMe: a PRP list or SGL segment).
        List,
        /// Data of a management command (NVMe: an admin command's, and the ranges of Dataset Management).
        Control,
        /// The data that the device exists to move (NVMe: an I/O command's).
        Payload,
        /// Writing a register of another device (NVMe: a doorbell).
        Register,
    }

    /// The route of a DMA.
    Route {
        /// Inside the requester's own CMB or BAR.
        OwnBar,
        /// Directly to a peer below the same switch.
        Peer,
        /// Directly into guest RAM.
        GuestRam,
        /// By a request to the client (QEMU).
        Upstream,
        /// Not performed.
        Refused,
    }

    /// The owner of the memory that a DMA accessed.
    Completer {
        /// The requester itself.
        OwnMemory,
        /// Guest RAM.
        GuestRam,
        /// A BAR of another device.
        PeerBar,
        /// No memory: the DMA failed.
        #[serde(alias = "nobody")]
        None,
        /// Unknown: the client found memory at an address that it has not mapped for the device.
        Unknown,
    }

    /// The direction of a DMA's data.
    Direction {
        /// The requester reads.
        Read,
        /// The requester writes.
        Write,
    }
}
