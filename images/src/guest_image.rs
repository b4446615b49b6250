//! The files that a guest boots from.

use std::path::{Path, PathBuf};

use crate::{Cache, ImageError, Kernel, initramfs};

/// The two files that QEMU loads into a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestImage {
    /// For `-kernel`.
    pub kernel: PathBuf,
    /// The bzImage from which it was unpacked, if it was: QEMU starts a bzImage differently.
    pub packed: Option<PathBuf>,
    /// For `-initrd`.
    pub initramfs: PathBuf,
    /// The kernel's release, as in `uname -r`.
    pub release: String,
    /// The kernel with its symbols, for a debugger, if it is known.
    pub symbols: Option<PathBuf>,
}

impl GuestImage {
    /// Makes the files for `kernel` with the static program `agent` as the guest's init, and
    /// `modules` with their dependencies.
    ///
    /// # Errors
    /// Those of [`Kernel::boot_image`] and [`initramfs`].
    pub fn prepare(
        cache: &Cache,
        kernel: &Kernel,
        modules: &[String],
        agent: &Path,
    ) -> Result<Self, ImageError> {
        let image = kernel.boot_image(cache)?;
        Ok(Self {
            initramfs: initramfs(cache, kernel, &image, modules, agent)?,
            packed: (image != kernel.image).then(|| kernel.image.clone()),
            kernel: image,
            release: kernel.release.clone(),
            symbols: kernel.symbols(),
        })
    }
}
