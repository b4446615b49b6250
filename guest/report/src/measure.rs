//! The measurements of a check.

use std::collections::BTreeMap;

use peerbar_dma_log::{Completer, Direction, Route};
use serde::{Deserialize, Serialize};

use crate::{Probed, Subtest};

/// Figures of one check; a row of the table that the launcher prints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Measure {
    /// Sizes of the transfers for readers ("4K-8M"), or empty if they have no meaning.
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
    /// Payload bytes whose completer was a device's memory: a BAR of the device itself or of a
    /// peer.
    pub peer_bytes: u64,
    /// Payload bytes whose completer was guest RAM.
    pub ram_bytes: u64,
    /// Devices of the check whose server maps the memory that they access, so that nobody counts
    /// these accesses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mapped_not_counted: Vec<String>,
    /// DMA requests that failed.
    #[serde(default)]
    pub failures: u64,
    /// Exit status of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    /// The result of a probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<Probed>,
    /// Results that a program has reported by itself. They are sent as nested KTAP, not with the
    /// figures.
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
    /// The route of the bytes.
    pub route: Route,
    /// The direction: the requester read or wrote.
    pub direction: Direction,
    /// Payload bytes of successful DMA.
    pub bytes: u64,
}

#[cfg(test)]
impl PayloadFlow {
    /// Makes a flow from device to device.
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
