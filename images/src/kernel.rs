//! The kernel that the guest runs.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cache::Kind;
use crate::error::io_error;
use crate::kernel_tree::BUILT_IMAGE;
use crate::modules::Tree;
use crate::{Cache, ImageError, KernelConfig, KernelTree, Root, bzimage, cache};

/// The rule by which kernels are unpacked: another rule makes other cache entries.
const UNPACKING: &str = "without KASAN";

/// A kernel and its modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The image, as it was given or found.
    pub image: PathBuf,
    /// Its release, as in `uname -r`.
    pub release: String,
    /// The folder with its modules: `lib/modules/RELEASE`, or its build tree; `None` if no modules
    /// are known.
    pub modules: Option<PathBuf>,
    /// Modules that were built for it outside its tree: files `NAME.ko`, which take precedence over
    /// its own.
    pub added: Vec<PathBuf>,
    /// Its configuration, if that of a user's kernel is known.
    pub config: Option<KernelConfig>,
}

impl Kernel {
    /// Returns the kernel of `root`.
    #[must_use]
    pub fn from_root(root: &Root) -> Self {
        let release = root.manifest().kernel.clone();
        let modules = root.path().join("usr/lib/modules").join(&release);
        Self {
            image: modules.join("vmlinuz"),
            release,
            modules: Some(modules),
            added: Vec::new(),
            config: None,
        }
    }

    /// Returns the user's own kernel: a bzImage, a vmlinux, or a build tree. `modules` is
    /// `lib/modules/RELEASE`, a folder that contains it, or a build tree; without it, the modules
    /// are looked for in the build tree and in `/lib/modules`.
    ///
    /// # Errors
    /// [`ImageError::NoKernel`], [`ImageError::NotBuilt`], [`ImageError::StaleBuild`],
    /// [`ImageError::NotAKernel`], [`ImageError::CutOff`], [`ImageError::NoPvh`] or
    /// [`ImageError::NoModules`], each about an argument.
    pub fn user(kernel: &Path, modules: Option<&Path>) -> Result<Self, ImageError> {
        let tree = KernelTree::around(kernel).filter(|tree| tree.path() == kernel);
        let image = match tree {
            Some(tree) => tree.image()?,
            None if kernel.is_dir() => kernel.join(BUILT_IMAGE),
            None => kernel.to_path_buf(),
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
        let config = KernelConfig::find(&image, modules.as_deref(), &release)?;
        Ok(Self {
            image,
            release,
            modules,
            added: Vec::new(),
            config,
        })
    }

    /// Returns the kernel with its symbols, from its build tree or from the place where
    /// distributions install it, or `None` if there is none.
    #[must_use]
    pub fn symbols(&self) -> Option<PathBuf> {
        let of_tree = self
            .image
            .ancestors()
            .take(5)
            .map(|dir| dir.join("vmlinux"));
        let installed = Path::new("/usr/lib/debug");
        let installed = [
            installed
                .join("boot")
                .join(format!("vmlinux-{}", self.release)),
            installed
                .join("lib/modules")
                .join(&self.release)
                .join("vmlinux"),
        ];
        of_tree.chain(installed).find(|path| path.is_file())
    }

    /// Returns `true` if it has the module `name`, as a file or built in.
    ///
    /// # Errors
    /// [`ImageError::Io`] if its modules cannot be listed.
    pub fn has_module(&self, name: &str) -> Result<bool, ImageError> {
        let tree = self.modules.as_deref().map(Tree::read).transpose()?;
        let is_in_tree = tree.is_some_and(|tree| tree.find(name).is_some());
        let config = self.config.as_ref();
        Ok(is_in_tree || config.is_some_and(|config| config.builds_in(name)))
    }

    /// Returns the file for `-kernel`: the kernel proper, unpacked, if QEMU can start that, since a
    /// guest under emulation takes seconds to unpack itself; otherwise the unchanged image.
    ///
    /// # Errors
    /// [`ImageError::Io`] if the image cannot be read or the cache cannot be written.
    pub fn boot_image(&self, cache: &Cache) -> Result<PathBuf, ImageError> {
        let key = cache::key([UNPACKING, &cache::stamp(&self.image)?]);
        let unpacked = cache.entry(Kind::Kernel, &key, |path, _| {
            let image = fs::read(&self.image).map_err(io_error("read", &self.image))?;
            let kernel = bzimage::vmlinux(&image).unwrap_or_else(|reason| {
                log::info!("{} is booted as it is: {reason}", self.image.display());
                // Remembered as an empty entry, so that the next run need not try again.
                Vec::new()
            });
            fs::write(path, kernel).map_err(io_error("write", path))
        })?;
        let metadata = unpacked.metadata().map_err(io_error("read", &unpacked))?;
        Ok(if metadata.len() == 0 {
            self.image.clone()
        } else {
            unpacked
        })
    }
}

fn release(path: &Path) -> Result<String, ImageError> {
    let image = fs::read(path).map_err(io_error("read", path))?;
    if let Some(needed) = bzimage::cut(&image) {
        return Err(ImageError::CutOff {
            path: path.to_path_buf(),
            bytes: image.len(),
            needed,
        });
    }
    if let Some(release) = bzimage::release(&image) {
        return Ok(release);
    }
    let release = bzimage::release_of_elf(&image).ok_or_else(|| ImageError::NotAKernel {
        path: path.to_path_buf(),
    })?;
    let path = path.to_path_buf();
    match bzimage::has_pvh_entry(&image) {
        Some(true) if bzimage::has_kasan(&image) => Err(ImageError::KasanWithoutLoader { path }),
        Some(true) => Ok(release),
        _ => Err(ImageError::NoPvh { path }),
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

/// Returns the build tree in which `image` was made, or the folder that the host has installed for
/// that release.
fn known_modules(image: &Path, release: &str) -> Option<PathBuf> {
    let is_build_tree =
        |dir: &Path| dir.join(BUILT_IMAGE).is_file() || dir.join("vmlinux") == image;
    let build_tree = image.ancestors().find(|dir| is_build_tree(dir));
    let installed = Path::new("/lib/modules").join(release);
    [build_tree.map(Path::to_path_buf), Some(installed)]
        .into_iter()
        .flatten()
        .find(|dir| holds_modules(dir))
}

fn holds_modules(dir: &Path) -> bool {
    dir.join("modules.builtin").is_file() || dir.join("modules.order").is_file()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bzimage::tests::{bzimage, elf};
    use crate::unpack::tests::gzip;

    fn write(path: &Path, content: &[u8]) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    #[test]
    fn build_tree_is_a_kernel_with_its_modules() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().canonicalize().unwrap();
        write(&tree.join(BUILT_IMAGE), &bzimage(b"x", 1));
        write(&tree.join("modules.order"), b"");
        let kernel = Kernel::user(&tree, None).unwrap();
        assert_eq!(kernel.release, "7.2.12-x");
        assert_eq!(kernel.modules.as_deref(), Some(tree.as_path()));
        assert_eq!(Kernel::user(&tree.join(BUILT_IMAGE), None).unwrap(), kernel);
    }

    #[test]
    fn modules_are_found_at_each_of_their_usual_paths() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("bzImage");
        write(&image, &bzimage(b"x", 1));
        for modules in [
            "a/lib/modules/7.2.12-x",
            "b/usr/lib/modules/7.2.12-x",
            "c/7.2.12-x",
            "d",
        ] {
            write(&dir.path().join(modules).join("modules.builtin"), b"");
            let given = dir.path().join(&modules[..1]);
            let found = Kernel::user(&image, Some(&given)).unwrap().modules.unwrap();
            assert_eq!(found, dir.path().join(modules).canonicalize().unwrap());
        }
        for missing in ["e", "."] {
            let error = Kernel::user(&image, Some(&dir.path().join(missing))).unwrap_err();
            assert!(matches!(error, ImageError::NoModules { .. }), "{error}");
        }
        assert_eq!(Kernel::user(&image, None).unwrap().modules, None);
    }

    #[test]
    fn file_that_is_no_kernel_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kernel");
        assert!(matches!(
            Kernel::user(&path, None),
            Err(ImageError::NoKernel { .. })
        ));
        assert!(matches!(
            Kernel::user(dir.path(), None),
            Err(ImageError::NoKernel { .. })
        ));
        write(&path, b"#!/bin/sh\n");
        assert!(matches!(
            Kernel::user(&path, None),
            Err(ImageError::NotAKernel { .. })
        ));
        write(&path, &elf(b"GNU\0", 1));
        assert!(matches!(
            Kernel::user(&path, None),
            Err(ImageError::NoPvh { .. })
        ));
        let kasan = [&elf(b"Xen\0", 18)[..], b"BUG: KASAN: %s in %pS"].concat();
        write(&path, &kasan);
        assert!(matches!(
            Kernel::user(&path, None),
            Err(ImageError::KasanWithoutLoader { .. })
        ));
        write(&path, &elf(b"Xen\0", 18));
        assert_eq!(
            Kernel::user(&path, None).unwrap().release,
            "7.2.12+deb13-amd64"
        );
    }

    #[test]
    fn boot_image_is_unpacked_if_qemu_can_start_it() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(&dir.path().join("cache")).unwrap();
        let fit = elf(b"Xen\0", 18);
        let unfit = elf(b"GNU\0", 1);
        let kasan = [&fit[..], b"BUG: KASAN: %s in %pS"].concat();
        for (name, image, boots) in [
            ("fit", bzimage(&gzip(&fit), 1), Some(&fit)),
            ("unfit", bzimage(&unfit, 1), None),
            ("kasan", bzimage(&gzip(&kasan), 1), None),
            ("uncompressed", fit.clone(), None),
        ] {
            let path = dir.path().join(name);
            write(&path, &image);
            let kernel = Kernel {
                image: path.clone(),
                release: String::new(),
                modules: None,
                added: Vec::new(),
                config: None,
            };
            let boot = kernel.boot_image(&cache).unwrap();
            assert_eq!(kernel.boot_image(&cache).unwrap(), boot);
            match boots {
                Some(unpacked) => assert_eq!(&fs::read(boot).unwrap(), unpacked),
                None => assert_eq!(boot, path),
            }
        }
    }
}
