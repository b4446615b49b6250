//! `vfio-nvme`: a driver in user space.

use serde::{Deserialize, Serialize};

use super::{Buffer, CheckKind, Keys, TableError, VfioBackend, check};

check! {
    /// Drives the disk from user space by vfio-pci, with its queues in the driver's own memory:
    /// Identify, then writes and reads between the disk and that memory or the memory of a GPU that
    /// vfio-pci has, too. Afterwards both devices have their own drivers again.
    "vfio-nvme": "{disk} and {with} from user space, {backend}{}{}" with (
        queues.naming("queues"),
        lists.naming("PRP lists")
    )
    pub struct VfioNvme {
        /// Name of an `[[nvme]]`. Its data is lost.
        pub disk: String,
        /// The data's memory: `"guest-ram"`, or `{ p2pmem = "NAME" }` with the name of a `[[gpu]]`.
        pub with: Buffer,
        /// The kernel's interface: `"type1"`, which maps the GPU's BAR, or `"iommufd"`, which maps a dma-buf of it.
        #[default = "`\"type1\"`"]
        #[serde(default)]
        pub backend: VfioBackend,
        /// Memory of the disk's I/O queues: `"guest-ram"`, or `"vram"`, the GPU's memory in
        /// addition to the data.
        #[default = "`\"guest-ram\"`"]
        #[serde(default)]
        pub queues: QueueLocation,
        /// Memory of the PRP lists of its commands: `"guest-ram"` or `"vram"`, as for `queues`.
        #[default = "`\"guest-ram\"`"]
        #[serde(default)]
        pub lists: QueueLocation,
    }
}

/// The memory of queues or PRP lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueLocation {
    /// The guest's memory.
    #[default]
    GuestRam,
    /// A GPU's memory.
    Vram,
}

impl QueueLocation {
    /// Describes an unusual location of `what`, for a check's name.
    fn naming(self, what: &str) -> String {
        match self {
            Self::GuestRam => String::new(),
            Self::Vram => format!(", {what} in VRAM"),
        }
    }
}

impl CheckKind for VfioNvme {
    const ON_DEMAND: &'static [&'static str] = VfioBackend::DEBIAN_MODULES;

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let disk = keys.disk_name("disk")?;
        let with = keys.buffer("with")?;
        let at = with.span();
        let with = with.into_inner();
        let provider = with.provider();
        if let Some(name) = provider.filter(|name| keys.inventory.find_gpu(name).is_none()) {
            let message = format!("`with` requires the memory of a GPU, and `{name}` is not one");
            return Err(TableError::new(at, message));
        }
        let backend = keys.or_default("backend")?;
        let queues = keys.or_default("queues")?;
        let lists = keys.or_default("lists")?;
        for (key, location) in [("queues", queues), ("lists", lists)] {
            if location == QueueLocation::Vram && with == Buffer::GuestRam {
                let message =
                    format!("`{key} = \"vram\"` requires the memory of a GPU: name it by `with`");
                return Err(TableError::new(at, message));
            }
        }
        Ok(VfioNvme {
            disk,
            with,
            backend,
            queues,
            lists,
            seconds: keys.seconds,
        })
    }

    fn modules_on_demand(&self) -> &'static [&'static str] {
        self.backend.modules()
    }
}
