//! Counts of a device's events other than DMA.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The counts of a device's events other than DMA since it was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceEvents {
    /// Interrupts that it has signalled to its client, as MSI-X messages or by the INTx pin.
    pub interrupts: u64,
    /// Faults that its rules have injected.
    pub injected_faults: u64,
    /// The number of writes of its client to the doorbells of each queue, by the queue's number: by
    /// QEMU for a processor of the guest, or for another device whose write came through the root.
    /// Writes of peers below the same switch are not counted, nor are stores to a shadow buffer,
    /// which is guest memory. Queues from [`DeviceEvents::LAST_QUEUE`] on are counted as that one.
    /// `None` for a device that cannot count them: only NVMe controllers do, unless the client may
    /// store into the page of the doorbells.
    pub doorbells: Option<BTreeMap<u16, u64>>,
}

impl DeviceEvents {
    /// The last queue that is counted separately.
    pub const LAST_QUEUE: u16 = 255;
}
