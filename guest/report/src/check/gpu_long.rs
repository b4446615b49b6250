//! `gpu-long`: commands on much memory.

use super::{Keys, TableError, check};
use crate::Size;

check! {
    /// Commands on more memory than the device takes at once.
    "gpu-long": "commands of {gpu} on more than 1 GiB"
    pub struct GpuLong {
        /// Name of a `[[gpu]]` with a `vram` and an `aperture` of more than 1G.
        pub gpu: String = large,
    }
}

/// Most bytes that the GPU's driver moves with one command.
const LONGEST_COMMAND: u64 = 1 << 30;

fn large(keys: &mut Keys<'_, '_>, key: &str) -> Result<String, TableError> {
    let gpu = keys.gpu(key)?;
    if gpu.aperture_bytes > LONGEST_COMMAND {
        return Ok(gpu.name.clone());
    }
    Err(keys.refused(format!(
        "the aperture of `{}` has {}: give it a `vram` and an `aperture` of more than {}",
        gpu.name,
        Size(gpu.aperture_bytes),
        Size(LONGEST_COMMAND)
    )))
}
