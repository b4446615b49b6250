//! Which kernel the guest runs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::error::io_error;
use crate::{Cache, ImageError, Root, bzimage, cache};

/// Where a build of the kernel leaves its image, below the build tree.
const BUILT_IMAGE: &str = "arch/x86/boot/bzImage";

/// A kernel and its modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The image, as it was given or found.
    pub image: PathBuf,
    /// Its release, as `uname -r` says it.
    pub release: String,
    /// The folder with its modules: `lib/modules/RELEASE`, or its build tree. None if it has none that are known.
    pub modules: Option<PathBuf>,
}

impl Kernel {
    /// The kernel of `root`.
    #[must_use]
    pub fn from_root(root: &Root) -> Self {
        let release = root.manifest().kernel.clone();
        let modules = root.path().join("usr/lib/modules").join(&release);
        Self {
            image: modules.join("vmlinuz"),
            release,
            modules: Some(modules),
        }
    }

    /// The user's own kernel: a bzImage, a vmlinux, or a build tree. `modules` is `lib/modules/RELEASE`, a folder that
    /// contains it, or a build tree; without it, the modules are looked for in the build tree and in `/lib/modules`.
    ///
    /// # Errors
    /// [`ImageError::NoKernel`], [`ImageError::NotAKernel`], [`ImageError::NoPvh`] or [`ImageError::NoModules`], each
    /// about an argument.
    pub fn user(kernel: &Path, modules: Option<&Path>) -> Result<Self, ImageError> {
        let image = if kernel.is_dir() {
            kernel.join(BUILT_IMAGE)
        } else {
            kernel.to_path_buf()
        };
        if !image.is_file() {
            return Err(ImageError::NoKernel {
                path: kernel.to_path_buf(),
            });
        }
        let image = image.canonicalize().map_err(io_error("find", &image))?;
        let release = release(&image)?;
        let modules = match modules {
            Some(dir) => Some(named_modules(dir, &release)?),
            None => known_modules(&image, &release),
        };
        Ok(Self {
            image,
            release,
            modules,
        })
    }

    /// What QEMU should be given as `-kernel`: the kernel proper, unpacked, if it can be started so, since a guest under
    /// emulation takes seconds to unpack itself; else the image as it is.
    ///
    /// # Errors
    /// [`ImageError::Io`] if the image cannot be read or the cache cannot be written.
    pub fn boot_image(&self, cache: &Cache) -> Result<PathBuf, ImageError> {
        let name = format!("kernel-{}", cache::key([cache::stamp(&self.image)?]));
        cache.entry(&name, |path, _| {
            let image = fs::read(&self.image).map_err(io_error("read", &self.image))?;
            match bzimage::vmlinux(&image) {
                Ok(kernel) => fs::write(path, kernel).map_err(io_error("write", path)),
                Err(reason) => {
                    log::info!("{} is booted as it is: {reason}", self.image.display());
                    symlink(&self.image, path).map_err(io_error("create", path))
                }
            }
        })
    }
}

fn release(path: &Path) -> Result<String, ImageError> {
    let image = fs::read(path).map_err(io_error("read", path))?;
    if let Some(release) = bzimage::release(&image) {
        return Ok(release);
    }
    let release = bzimage::release_of_elf(&image).ok_or_else(|| ImageError::NotAKernel {
        path: path.to_path_buf(),
    })?;
    match bzimage::has_pvh_entry(&image) {
        Some(true) => Ok(release),
        _ => Err(ImageError::NoPvh {
            path: path.to_path_buf(),
        }),
    }
}

fn named_modules(dir: &Path, release: &str) -> Result<PathBuf, ImageError> {
    let dir = dir.canonicalize().map_err(|_| no_modules(dir, release))?;
    [
        dir.join("lib/modules").join(release),
        dir.join("usr/lib/modules").join(release),
        dir.join(release),
        dir.clone(),
    ]
    .into_iter()
    .find(|dir| holds_modules(dir))
    .ok_or_else(|| no_modules(&dir, release))
}

fn no_modules(dir: &Path, release: &str) -> ImageError {
    ImageError::NoModules {
        path: dir.to_path_buf(),
        release: release.to_owned(),
    }
}

/// The build tree that `image` was made in, or the folder that the host has installed for that release.
fn known_modules(image: &Path, release: &str) -> Option<PathBuf> {
    let build_tree = image
        .ancestors()
        .find(|dir| dir.join(BUILT_IMAGE).is_file());
    let installed = Path::new("/lib/modules").join(release);
    [build_tree.map(Path::to_path_buf), Some(installed)]
        .into_iter()
        .flatten()
        .find(|dir| holds_modules(dir))
}

fn holds_modules(dir: &Path) -> bool {
    dir.join("modules.builtin").is_file() || dir.join("modules.order").is_file()
}
