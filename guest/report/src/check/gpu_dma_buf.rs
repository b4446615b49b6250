//! `gpu-dma-buf`: memory of another exporter.

use super::{Buffer, CheckKind, Keys, TableError, check};

check! {
    /// The GPU's copy engine reads and writes memory that another exporter shares as a dma-buf: a program's, or, in a
    /// guest with an IOMMU, the aperture of another GPU, which vfio-pci exports.
    "gpu-dma-buf": "{gpu} and a dma-buf of {with}"
    pub struct GpuDmaBuf {
        /// Name of a `[[gpu]]`.
        pub gpu: String,
        /// The exported memory: `"guest-ram"`, or `{ p2pmem = "NAME" }` with the name of another `[[gpu]]`.
        pub with: Buffer,
    }
}

impl CheckKind for GpuDmaBuf {
    const ON_DEMAND: &'static [&'static str] = &["vfio_iommu_type1", "vfio_pci"];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let gpu = keys.gpu_name("gpu")?;
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
            _ => Ok(GpuDmaBuf {
                gpu,
                with,
                seconds: keys.seconds,
            }),
        }
    }

    fn modules_on_demand(&self) -> &'static [&'static str] {
        match self.with {
            Buffer::P2pmem(_) => Self::ON_DEMAND,
            Buffer::GuestRam => &[],
        }
    }
}
