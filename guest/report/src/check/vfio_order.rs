//! `vfio-order`: data arrives before its completion.

use super::{Keys, VfioBackend, check};

check! {
    /// Puts the disk's queues and the data into the memory of a GPU, by a driver in user space. The
    /// driver polls there for the completion of each of 256 reads, and compares the data as soon as
    /// the entry is there, before it writes the head doorbell. The check fails if the data is not
    /// complete.
    "vfio-order": "data of {disk} are in {gpu} before their completions, {backend}, but for {late}"
    pub struct VfioOrder {
        /// Name of an `[[nvme]]`. Its data is lost.
        pub disk: String = Keys::disk_name,
        /// Name of a `[[gpu]]`. The contents of its memory are lost.
        pub gpu: String = Keys::gpu_with_p2pmem,
        /// The kernel's interface: `"type1"`, which maps the GPU's BAR, or `"iommufd"`, which maps a dma-buf of it.
        #[default = "`\"type1\"`"]
        #[serde(default)]
        pub backend: VfioBackend = Keys::or_default,
        /// Reads whose data must arrive after their completion, because a rule of the disk breaks
        /// the order (`reorder data`). The disk's first 256 reads of 4 KiB from block 0 on count.
        #[default = "`0`"]
        #[serde(default)]
        pub late: u16 = Keys::or_default,
    }

    const ON_DEMAND: &'static [&'static str] = VfioBackend::DEBIAN_MODULES;

    fn modules_on_demand(&self) -> &'static [&'static str] {
        self.backend.modules()
    }
}
