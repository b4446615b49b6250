//! `vfio-nvme`: a driver in user space.

use super::{Buffer, CheckKind, Keys, TableError, VfioBackend, check};

check! {
    /// A driver in user space has the disk by vfio-pci, with its queues in its own memory: Identify, then writes and reads
    /// between the disk and its own memory or the memory of a GPU that vfio-pci has too. Afterwards both devices have their
    /// own drivers again.
    "vfio-nvme": "{disk} and {with} from user space, {backend}"
    pub struct VfioNvme {
        /// Name of an `[[nvme]]`. Its data are lost.
        pub disk: String,
        /// The data's memory: `"guest-ram"`, or `{ p2pmem = "NAME" }` with the name of a `[[gpu]]`.
        pub with: Buffer,
        /// The kernel's interface: `"type1"`, which maps the GPU's BAR, or `"iommufd"`, which maps a dma-buf of it.
        #[default = "`\"type1\"`"]
        #[serde(default)]
        pub backend: VfioBackend,
    }
}

impl CheckKind for VfioNvme {
    const ON_DEMAND: &'static [&'static str] = VfioBackend::DEBIAN_MODULES;

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let disk = keys.disk_name("disk")?;
        let with = keys.buffer("with")?;
        let at = with.span();
        let with = with.into_inner();
        if let Some(name) = with.provider()
            && keys.inventory.find_gpu(name).is_none()
        {
            let message = format!("`with` takes the memory of a GPU, and `{name}` is none");
            return Err(TableError::new(at, message));
        }
        Ok(VfioNvme {
            disk,
            with,
            backend: keys.or_default("backend")?,
            seconds: keys.seconds,
        })
    }

    fn modules_on_demand(&self) -> &'static [&'static str] {
        self.backend.modules()
    }
}
