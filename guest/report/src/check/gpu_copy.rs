//! `gpu-copy`: copies by a GPU's own engine.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Buffer, CheckKind, Key, Keys, PAGE, Pair, TableError};

/// Copies by a GPU's own engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuCopy {
    /// A GPU's name.
    pub gpu: String,
    /// What its memory is copied to, and from.
    pub with: Buffer,
    /// Size of each single copy in bytes.
    pub sizes: Vec<u64>,
}

impl fmt::Display for GpuCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "copy engine of {}: VRAM and {}", self.gpu, self.with)
    }
}

impl CheckKind for GpuCopy {
    const KIND: &'static str = "gpu-copy";
    const ABOUT: &'static str =
        "The GPU's copy engine copies from its memory to other memory and back.";
    const KEYS: &'static [Key] = &[
        Key::GPU,
        Key::required(
            "with",
            "The other memory: `\"guest-ram\"`, or `{ p2pmem = \"NAME\" }` with the name of a device that has p2pmem.",
        ),
        Key::SIZES,
    ];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let gpu = keys.gpu()?.name.clone();
        let with = keys.buffer("with")?.into_inner();
        let sizes = keys.sizes("sizes", PAGE, 1)?;
        let at = sizes.span();
        let sizes = sizes.into_inner();
        keys.inventory
            .holds(&with, &sizes, 1)
            .map_err(|message| TableError::new(at, message))?;
        Ok(GpuCopy { gpu, with, sizes })
    }

    fn pairs(&self) -> Vec<Pair> {
        let provider = self.with.provider();
        let pair = provider.map(|provider| Pair::of(provider, &self.gpu));
        pair.into_iter().collect()
    }
}
