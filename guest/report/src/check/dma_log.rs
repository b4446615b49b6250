//! `dma-log`: counters as the guest sees them.

use super::{Keys, check};

check! {
    /// Compares the DMA counters that the device shows the guest, in a log page of a disk or in a
    /// BAR of a GPU, with those that the host reads.
    "dma-log": "{device} shows the guest its DMA counters"
    pub struct DmaLog {
        /// Name of an `[[nvme]]` or a `[[gpu]]`.
        pub device: String = Keys::device,
    }
}
