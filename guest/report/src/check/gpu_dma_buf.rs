//! `gpu-dma-buf`: memory of another exporter.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Buffer, CheckKind, Key, Keys, TableError};

/// The GPU's copy engine reads and writes memory that another exporter shares as a dma-buf.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuDmaBuf {
    /// A GPU's name.
    pub gpu: String,
    /// The exported memory.
    pub with: Buffer,
}

impl fmt::Display for GpuDmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and a dma-buf of {}", self.gpu, self.with)
    }
}

impl CheckKind for GpuDmaBuf {
    const KIND: &'static str = "gpu-dma-buf";
    const ABOUT: &'static str = "The GPU's copy engine reads and writes memory that another exporter shares as a dma-buf: \
        a program's, or, in a guest with an IOMMU, the aperture of another GPU, which vfio-pci exports.";
    const KEYS: &'static [Key] = &[
        Key::GPU,
        Key::required(
            "with",
            "The exported memory: `\"guest-ram\"`, or `{ p2pmem = \"NAME\" }` with the name of another `[[gpu]]`.",
        ),
    ];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let gpu = keys.gpu()?.name.clone();
        let with = keys.buffer("with")?;
        let at = with.span();
        let with = with.into_inner();
        match with.provider() {
            Some(name) if *name == gpu || keys.inventory.find_gpu(name).is_none() => {
                let message = format!(
                    "vfio-pci exports the aperture of another GPU than `{gpu}`, and `{name}` is none"
                );
                Err(TableError::new(at, message))
            }
            _ => Ok(GpuDmaBuf { gpu, with }),
        }
    }

    fn modules_on_demand(&self) -> &'static [&'static str] {
        match self.with {
            Buffer::P2pmem(_) => &["vfio_iommu_type1", "vfio_pci"],
            Buffer::GuestRam => &[],
        }
    }
}
