//! The devices' DMA counters, which the launcher reads on the host's side and the agent requests.

use std::collections::BTreeMap;

use peerbar_dma_log::{DeviceEvents, Entry};
use serde::{Deserialize, Serialize};

/// The launcher's answer to a [`crate::Line::Counters`], one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// The number of the request, so that a late answer is not mistaken for the next one's.
    pub request: u64,
    /// The host's CLOCK_MONOTONIC in nanoseconds, between the request and the answer.
    #[serde(default)]
    pub host_ns: u64,
    /// Nanoseconds that the host's processors have worked as those of the guest, if the host knows
    /// it.
    #[serde(default)]
    pub processors_ns: Option<u64>,
    /// The counters of each device under test, by its name in the plan.
    pub devices: BTreeMap<String, DeviceCounters>,
}

/// Describes the part of the DMA of `device`, which is behind QEMU's virtio-iommu, that was not
/// counted but inferred: `bytes`, if not 0.
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
    /// Its counts since its server started.
    Counted {
        /// One entry for each kind of DMA that has occurred.
        dma: Vec<Entry>,
        /// Other events.
        events: DeviceEvents,
    },
    /// It has no counters, for this reason.
    None(String),
}
