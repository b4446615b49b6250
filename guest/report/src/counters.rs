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

/// In words, what was not counted but inferred of `bytes` of DMA of the device behind QEMU's virtio-iommu that `device` names, if anything.
pub fn inference(device: &str, bytes: u64) -> Option<String> {
    (bytes > 0).then(|| {
        format!(
            "{device} does not know whose the memory of {bytes} bytes of its DMA is: QEMU's virtio-iommu tells devices of all mappings but \
             those of other devices' memory and registers, so it was no guest RAM"
        )
    })
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
