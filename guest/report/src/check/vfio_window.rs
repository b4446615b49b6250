//! `vfio-window`: a disk that a program drives by vfio-pci reaches a GPU's VRAM at another root
//! port, where the GPU has its own driver.

use super::{Keys, TableError, VfioBackend, check};

check! {
    /// Maps VRAM for a disk that a program drives by vfio-pci: by type 1, through the program's
    /// mapping of a GPU's window. The GPU has its own driver, and drives a pair of the disk's
    /// queues there. Type 1 accepts such a mapping because it has no pages; it refuses p2pmem.
    ///
    /// The contents must be right, and nothing of it may be in guest RAM. Then the program
    /// - frees the memory, which must stay the disk's;
    /// - revokes some, which type 1 does not notice. The disk must then reach no owner's memory, and
    ///   its addresses in the window must be given out again once they are no longer mapped.
    ///
    /// Requires a GPU with `mode = "window"`, and a machine with an IOMMU.
    "vfio-window": "{gpu} reads {disk}, which a program has, into its window"
    pub struct VfioWindow {
        /// Name of a `[[gpu]]` with `mode = "window"`.
        pub gpu: String = window,
        /// Name of an `[[nvme]]`. Its data is lost.
        pub disk: String = Keys::disk_name,
    }

    const ON_DEMAND: &'static [&'static str] = VfioBackend::DEBIAN_MODULES;

    fn modules_on_demand(&self) -> &'static [&'static str] {
        VfioBackend::DEBIAN_MODULES
    }
}

fn window(keys: &mut Keys<'_, '_>, key: &str) -> Result<String, TableError> {
    let gpu = keys.gpu(key)?;
    if gpu.window {
        return Ok(gpu.name.clone());
    }
    Err(keys.refused(format!(
        "type 1 maps no p2pmem, which `{0}` has: give [[gpu]] {0} `mode = \"window\"`",
        gpu.name
    )))
}
