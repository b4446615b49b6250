//! The devices' DMA counters, which the launcher reads on the host's side and the agent asks for.

use std::collections::BTreeMap;

use peerbar_dma_log::{DeviceEvents, Entry};
use serde::{Deserialize, Serialize};

/// The launcher's answer to a [`crate::Line::Counters`], one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// The number of the request, so that a late answer is not taken for the next one's.
    pub request: u64,
    /// The host's CLOCK_MONOTONIC in nanoseconds, between the request and the answer.
    #[serde(default)]
    pub host_ns: u64,
    /// Nanoseconds that the host's processors have worked as those of the guest, if the host knows.
    #[serde(default)]
    pub processors_ns: Option<u64>,
    /// The counters of each device under test, by its name in the plan.
    pub devices: BTreeMap<String, DeviceCounters>,
}

/// The counters of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceCounters {
    /// What it has counted since its server started.
    Counted {
        /// One entry for each kind of DMA that has occurred.
        dma: Vec<Entry>,
        /// What else has happened.
        events: DeviceEvents,
    },
    /// There are none, and why.
    None(String),
}
