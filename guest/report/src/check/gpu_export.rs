//! `gpu-export`: dma-bufs of a GPU for importers of each kind.

use super::{CheckKind, Keys, Pair, TableError, check};

check! {
    /// A kernel module imports dma-bufs of the GPU as each kind of importer, by each policy, and holds them while they are revoked,
    /// while their program is killed, and while the GPU's driver is unbound.
    "gpu-export": "dma-bufs of {gpu} for importers of each kind on {importer}"
    pub struct GpuExport {
        /// Name of a `[[gpu]]`.
        pub gpu: String,
        /// Name of another `[[gpu]]`, which imports.
        pub importer: String,
    }
}

impl CheckKind for GpuExport {
    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let gpu = keys.gpu_name("gpu")?;
        let importer = keys.required::<String>("importer")?;
        let at = importer.span();
        let importer = keys.inventory.gpu(importer)?.name.clone();
        if importer == gpu {
            let message =
                format!("`{gpu}` cannot import its own memory as a peer: name another GPU");
            return Err(TableError::new(at, message));
        }
        Ok(GpuExport {
            gpu,
            importer,
            seconds: keys.seconds,
        })
    }

    fn pairs(&self) -> Vec<Pair> {
        vec![Pair::of(&self.gpu, &self.importer)]
    }

    fn modules(&self) -> &'static [&'static str] {
        &["peerbar_gpu_import_test"]
    }
}
