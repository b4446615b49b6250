//! Kernel trees: sources in which a kernel is built, or the folder of a separate build (`make O=`).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::ImageError;
use crate::error::io_error;

/// Path of the built image, below the build tree.
pub(crate) const BUILT_IMAGE: &str = "arch/x86/boot/bzImage";
/// The same kernel, uncompressed and with its symbols.
const SYMBOLS: &str = "vmlinux";
const CONFIG: &str = ".config";

/// A folder in which a kernel is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTree {
    path: PathBuf,
}

impl KernelTree {
    /// Returns the tree that contains `folder`, or `None`.
    #[must_use]
    pub fn around(folder: &Path) -> Option<Self> {
        let path = folder.ancestors().find(|dir| is_tree(dir))?.to_path_buf();
        Some(Self { path })
    }

    /// Returns the tree's top folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the kernel that was built in it: its bzImage, otherwise its vmlinux.
    ///
    /// # Errors
    /// [`ImageError::NotBuilt`] if there is no kernel, [`ImageError::StaleBuild`] if `.config` has
    /// changed since.
    pub fn image(&self) -> Result<PathBuf, ImageError> {
        let image = [BUILT_IMAGE, SYMBOLS]
            .map(|image| self.path.join(image))
            .into_iter()
            .find(|image| image.is_file())
            .ok_or_else(|| ImageError::NotBuilt {
                tree: self.path.clone(),
            })?;
        let config = self.path.join(CONFIG);
        if config.is_file() && self.is_stale(&config, &image)? {
            return Err(ImageError::StaleBuild { image, config });
        }
        Ok(image)
    }

    /// Returns `true` if no make has read `config` since it was changed. A make without work leaves
    /// an older image, but it updates `auto.conf` (Linux, `scripts/kconfig/confdata.c`,
    /// `conf_write_autoconf`).
    fn is_stale(&self, config: &Path, image: &Path) -> Result<bool, ImageError> {
        let read = self.path.join("include/config/auto.conf");
        let changed = modified(config)?;
        let is_newer = |file: &Path| Ok(file.is_file() && modified(file)? >= changed);
        Ok(!is_newer(image)? && !is_newer(&read)?)
    }
}

fn modified(path: &Path) -> Result<SystemTime, ImageError> {
    let metadata = path.metadata().map_err(io_error("read", path))?;
    metadata.modified().map_err(io_error("read", path))
}

fn is_tree(dir: &Path) -> bool {
    let is_build = || dir.join(CONFIG).is_file() && dir.join("source/Kconfig").is_file();
    dir.join("Makefile").is_file() && (is_source(dir) || is_build())
}

/// Returns `true` for the source of a kernel. Other projects have a Kconfig and a Makefile, too.
fn is_source(dir: &Path) -> bool {
    dir.join("Kconfig").is_file()
        && dir.join("arch/x86").is_dir()
        && fs::read_to_string(dir.join("Makefile")).is_ok_and(|text| {
            ["VERSION = ", "PATCHLEVEL = "]
                .iter()
                .all(|start| text.lines().any(|line| line.starts_with(start)))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::time::Duration;

    fn write(path: &Path, content: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Returns sources of a kernel, with a folder `drivers/nvme`.
    fn sources() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("linux");
        for folder in ["arch/x86", "drivers/nvme"] {
            fs::create_dir_all(tree.join(folder)).unwrap();
        }
        write(&tree.join("Makefile"), "VERSION = 7\nPATCHLEVEL = 3\n");
        write(&tree.join("Kconfig"), "");
        (dir, tree)
    }

    fn age(path: &Path, seconds: u64) {
        let time = SystemTime::now() - Duration::from_secs(seconds);
        File::open(path).unwrap().set_modified(time).unwrap();
    }

    #[test]
    fn tree_is_found_from_a_folder_inside_it() {
        let (dir, tree) = sources();
        for inside in ["", "drivers/nvme"] {
            let found = KernelTree::around(&tree.join(inside)).unwrap();
            assert_eq!(found.path(), tree);
        }
        assert_eq!(KernelTree::around(dir.path()), None);
        let build = dir.path().join("build");
        write(&build.join("Makefile"), "include ../linux/Makefile\n");
        write(&build.join(CONFIG), "");
        assert_eq!(KernelTree::around(&build), None);
        std::os::unix::fs::symlink(&tree, build.join("source")).unwrap();
        assert_eq!(KernelTree::around(&build).unwrap().path(), build);
    }

    #[test]
    fn other_project_with_kconfig_is_no_kernel_tree() {
        let (_dir, tree) = sources();
        write(&tree.join("Makefile"), "PROJECT = busybox\n");
        assert_eq!(KernelTree::around(&tree), None);
    }

    #[test]
    fn tree_without_build_is_named_with_the_way_out() {
        let (_dir, tree) = sources();
        let error = KernelTree::around(&tree).unwrap().image().unwrap_err();
        let text = error.to_string();
        assert!(text.contains("peerbar kernel build --tree"), "{text}");
        write(&tree.join(SYMBOLS), "");
        let found = KernelTree::around(&tree).unwrap().image().unwrap();
        assert_eq!(found, tree.join(SYMBOLS));
    }

    #[test]
    fn build_older_than_its_config_is_stale() {
        let (_dir, tree) = sources();
        let kernel = KernelTree::around(&tree).unwrap();
        let [image, config] = [BUILT_IMAGE, CONFIG].map(|name| tree.join(name));
        write(&image, "");
        write(&config, "");
        age(&image, 60);
        assert!(matches!(kernel.image(), Err(ImageError::StaleBuild { .. })));
        age(&config, 90);
        assert_eq!(kernel.image().unwrap(), image);
        age(&config, 30);
        let read = tree.join("include/config/auto.conf");
        write(&read, "");
        assert_eq!(kernel.image().unwrap(), image);
        age(&read, 45);
        assert!(kernel.image().is_err());
    }
}
