//! `vfio-nvme`: a driver in user space.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Buffer, CheckKind, Keys, TableError, VfioBackend, check};

check! {
    /// A driver in user space has the disk by vfio-pci, with its queues in its own memory: Identify, then writes and reads
    /// between the disk and its own memory or the memory of a GPU that vfio-pci has too. Afterwards both devices have their
    /// own drivers again.
    "vfio-nvme": "{disk} and {with} from user space, {backend}{queues}"
    pub struct VfioNvme {
        /// Name of an `[[nvme]]`. Its data are lost.
        pub disk: String,
        /// The data's memory: `"guest-ram"`, or `{ p2pmem = "NAME" }` with the name of a `[[gpu]]`.
        pub with: Buffer,
        /// The kernel's interface: `"type1"`, which maps the GPU's BAR, or `"iommufd"`, which maps a dma-buf of it.
        #[default = "`\"type1\"`"]
        #[serde(default)]
        pub backend: VfioBackend,
        /// Where the disk's I/O queues lie: `"guest-ram"`, or `"vram"`, which is the GPU's memory beside the data.
        #[default = "`\"guest-ram\"`"]
        #[serde(default)]
        pub queues: QueuePlace,
    }
}

/// Where queues lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueuePlace {
    /// The guest's memory.
    #[default]
    GuestRam,
    /// A GPU's memory.
    Vram,
}

impl fmt::Display for QueuePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GuestRam => "",
            Self::Vram => ", queues in VRAM",
        })
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
        let backend = keys.or_default("backend")?;
        let queues = keys.or_default("queues")?;
        if queues == QueuePlace::Vram && with == Buffer::GuestRam {
            let message = "`queues = \"vram\"` takes the memory of a GPU: name it by `with`";
            return Err(TableError::new(at, message));
        }
        Ok(VfioNvme {
            disk,
            with,
            backend,
            queues,
            seconds: keys.seconds,
        })
    }

    fn modules_on_demand(&self) -> &'static [&'static str] {
        self.backend.modules()
    }
}
