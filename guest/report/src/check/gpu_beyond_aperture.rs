//! `gpu-beyond-aperture`: VRAM that the aperture does not show.

use super::{Keys, TableError, check};
use crate::Size;

check! {
    /// VRAM that the aperture does not show is reached, through a window that is moved to it or by commands.
    "gpu-beyond-aperture": "VRAM of {gpu} beyond its aperture"
    pub struct GpuBeyondAperture {
        /// Name of a `[[gpu]]` whose `aperture` is smaller than its `vram`.
        pub gpu: String = partly_shown,
    }
}

fn partly_shown(keys: &mut Keys<'_, '_>, key: &str) -> Result<String, TableError> {
    let gpu = keys.gpu(key)?;
    if gpu.vram_bytes > gpu.aperture_bytes {
        return Ok(gpu.name.clone());
    }
    Err(keys.refused(format!(
        "the aperture of `{}` shows all of its VRAM, {}: give it a smaller `aperture`",
        gpu.name,
        Size(gpu.vram_bytes)
    )))
}
