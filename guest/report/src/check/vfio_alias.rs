//! `vfio-alias`: an I/O address that is also a bus address.

use super::{Keys, VfioBackend, check};

check! {
    /// Maps a user-space driver's own memory at an I/O address that is also the bus address of a
    /// GPU's memory, and lets the disk read there. Below a common switch the data goes to the GPU,
    /// since a switch routes first; through the root it goes to the driver's memory. The check
    /// fails if it goes anywhere else.
    "vfio-alias": "an I/O address of {disk} that is one of {gpu}, {backend}"
    pub struct VfioAlias {
        /// Name of an `[[nvme]]`. Its data is lost.
        pub disk: String = Keys::disk_name,
        /// Name of a `[[gpu]]`. The contents of its memory are lost.
        pub gpu: String = Keys::gpu_with_p2pmem,
        /// The kernel's interface: `"type1"` or `"iommufd"`.
        #[default = "`\"type1\"`"]
        #[serde(default)]
        pub backend: VfioBackend = Keys::or_default,
    }

    const ON_DEMAND: &'static [&'static str] = VfioBackend::DEBIAN_MODULES;

    fn modules_on_demand(&self) -> &'static [&'static str] {
        self.backend.modules()
    }
}
