//! `vfio-revocation`: memory that is taken away during I/O.

use super::{Keys, VfioBackend, check};

check! {
    /// Lets the disk read continuously into the memory of a GPU, by a driver in user space, while
    /// that memory is taken away: its decoding is turned off, the GPU is reset, the mapping is
    /// removed, the GPU is closed, the disk is reset. Commands must end with errors and nothing may
    /// hang. Afterwards the counters must show no data to the GPU, and a mark in its memory must
    /// stay as it is. If the memory survives, it must contain the data of all reads that ended with
    /// success.
    "vfio-revocation": "{disk} loses the memory of {gpu} during reads, {backend}"
    pub struct VfioRevocation {
        /// Name of an `[[nvme]]`. Its data is lost.
        pub disk: String = Keys::disk_name,
        /// Name of a `[[gpu]]`. The contents of its memory are lost.
        pub gpu: String = Keys::gpu_with_p2pmem,
        /// The kernel's interface: `"type1"`, which maps the GPU's BAR, or `"iommufd"`, which maps a dma-buf of it.
        #[default = "`\"type1\"`"]
        #[serde(default)]
        pub backend: VfioBackend = Keys::or_default,
    }

    const ON_DEMAND: &'static [&'static str] = VfioBackend::DEBIAN_MODULES;

    fn modules_on_demand(&self) -> &'static [&'static str] {
        self.backend.modules()
    }
}
