//! How often something else than DMA has happened at a device.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a device has counted besides DMA since it was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceEvents {
    /// Interrupts that it has signalled to its client, as MSI-X messages or by the INTx pin.
    pub interrupts: u64,
    /// Faults that its rules have injected.
    pub injected_faults: u64,
    /// By the number of the queue, how often its client has written a doorbell of it: QEMU for a processor of the guest, or for another
    /// device whose write came by way of the root. Writes of peers below the same switch are not among them, and neither are stores to
    /// a shadow buffer, which is guest memory. Queues from [`DeviceEvents::LAST_QUEUE`] on are counted as that one. `None` for a
    /// device that cannot count them: only NVMe controllers do, unless the client may store into the page of the doorbells.
    pub doorbells: Option<BTreeMap<u16, u64>>,
}

impl DeviceEvents {
    /// The last queue that is counted by itself.
    pub const LAST_QUEUE: u16 = 255;
}
