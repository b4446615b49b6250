//! What a check measured.

use std::collections::BTreeMap;

use peerbar_dma_log::{Completer, Direction, Route};
use serde::{Deserialize, Serialize};

use crate::{Probed, Subtest};

/// Figures of one check; a row of the table that the launcher prints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Measure {
    /// Sizes of the transfers, as a person reads them ("4K-8M"); empty where it has no meaning.
    pub sizes: String,
    /// Payload bytes that the check moved from its source to its destination.
    pub bytes: u64,
    /// Time that the transfers took.
    pub seconds: f64,
    /// Payload bytes of successful DMA by route, summed over the devices under test.
    pub routes: BTreeMap<Route, u64>,
    /// The same, divided by device, completer and direction.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<PayloadFlow>,
    /// Payload bytes whose completer was a device's memory: a BAR of its own or of a peer.
    pub peer_bytes: u64,
    /// Payload bytes whose completer was guest RAM.
    pub ram_bytes: u64,
    /// DMA requests that failed.
    #[serde(default)]
    pub failures: u64,
    /// Exit status of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    /// What a probe found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<Probed>,
    /// Results that a program has reported by itself. They come as nested KTAP, not with the figures.
    #[serde(skip)]
    pub subtests: Vec<Subtest>,
}

/// Payload of one device by one route in one direction, as the device counted it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PayloadFlow {
    /// The device, by its name in the plan.
    pub requester: String,
    /// The owner of the memory.
    pub completer: Completer,
    /// The way that the bytes took.
    pub route: Route,
    /// Whether the requester read or wrote.
    pub direction: Direction,
    /// Payload bytes of successful DMA.
    pub bytes: u64,
}

#[cfg(test)]
impl PayloadFlow {
    /// One that took the way from device to device.
    pub(crate) fn to_peer(
        requester: &str,
        completer: Completer,
        direction: Direction,
        bytes: u64,
    ) -> Self {
        Self {
            requester: requester.to_owned(),
            completer,
            route: Route::Peer,
            direction,
            bytes,
        }
    }
}
