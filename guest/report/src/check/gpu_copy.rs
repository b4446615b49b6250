//! `gpu-copy`: copies by a GPU's own engine.

use super::{Buffer, CheckKind, Keys, PAGE, Pair, TableError, check};

check! {
    /// The GPU's copy engine copies from its memory to other memory and back.
    "gpu-copy": "copy engine of {gpu}: VRAM and {with}"
    pub struct GpuCopy {
        /// Name of a `[[gpu]]`.
        pub gpu: String,
        /// The other memory: `"guest-ram"`, or `{ p2pmem = "NAME" }` with the name of a device that has p2pmem.
        pub with: Buffer,
        /// Sizes of the single transfers, a list such as `["4K", "1M"]`: multiples of 4K.
        pub sizes: Vec<u64>,
    }
}

impl CheckKind for GpuCopy {
    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let gpu = keys.gpu_name("gpu")?;
        let with = keys.buffer("with")?.into_inner();
        let sizes = keys.sizes("sizes", PAGE, 1)?;
        let at = sizes.span();
        let sizes = sizes.into_inner();
        keys.inventory
            .holds(&with, &sizes, 1)
            .map_err(|message| TableError::new(at, message))?;
        Ok(GpuCopy {
            gpu,
            with,
            sizes,
            seconds: keys.seconds,
        })
    }

    fn pairs(&self) -> Vec<Pair> {
        let provider = self.with.provider();
        let pair = provider.map(|provider| Pair::of(provider, &self.gpu));
        pair.into_iter().collect()
    }
}
