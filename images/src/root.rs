//! The root: a Debian tree with QEMU, the guest kernel and the tools that a guest runs.

use std::fs::{self, File};
use std::io::BufReader;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::cache::{BuildLock, Kind};
use crate::error::io_error;
use crate::manifest::Manifest;
use crate::progress::Progress;
use crate::qemu::Qemu;
use crate::version::Version;
use crate::{Cache, ImageError, bootstrap, depmod, recipe, toolchain};

const MANIFEST: &str = "manifest.json";
const TREE: &str = "root";

/// A Debian tree, which is also the guest's tools root: a guest that mounts it read-only can
/// `chroot` into it.
#[derive(Clone, Debug)]
pub struct Root {
    path: PathBuf,
    manifest: Manifest,
}

impl Root {
    /// Returns the root of this version of peerbar. Makes it if the cache has none, which needs a
    /// Debian archive, some 300 MB of download and some 900 MB of disk. Does not use the network if
    /// the cache has it.
    ///
    /// # Errors
    /// Failures of mmdebstrap, and [`ImageError::Io`] or [`ImageError::Manifest`] if the cache is
    /// damaged.
    pub fn get(cache: &Cache) -> Result<Self, ImageError> {
        let entry = cache.entry(Kind::Root, &recipe::key(), |entry, lock| {
            build(entry, cache, lock)
        })?;
        let path = entry.join(MANIFEST);
        let file = File::open(&path).map_err(io_error("open", &path))?;
        let manifest = serde_json::from_reader(BufReader::new(file)).map_err(|source| {
            ImageError::Manifest {
                path,
                entry: entry.clone(),
                source,
            }
        })?;
        Ok(Self {
            path: entry.join(TREE),
            manifest,
        })
    }

    /// Returns `true` if the cache has it, so that [`Root::get`] needs neither network nor time.
    #[must_use]
    pub fn is_cached(cache: &Cache) -> bool {
        cache.has(Kind::Root, &recipe::key())
    }

    /// Returns the tree's top folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the tree's manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }
}

fn build(entry: &Path, cache: &Cache, lock: &BuildLock) -> Result<(), ImageError> {
    let progress = Progress::start(&format!(
        "getting QEMU, a guest kernel and tools from Debian {} and {}, once, into {}",
        recipe::SUITE,
        recipe::BACKPORTS,
        cache.path().display()
    ));
    let tree = entry.join(TREE);
    let log = bootstrap::log(cache);
    fs::create_dir(entry).map_err(io_error("create", entry))?;
    let packages: Vec<_> = recipe::packages().collect();
    let made = bootstrap::run(&tree, &packages, cache, lock, &progress)?;
    finish(&tree)?;
    let release = kernel_release(&tree, &log)?;
    depmod::run(&tree, &tree, &release)?;
    let manifest = Manifest {
        qemu: qemu_version(&tree, &log)?,
        kernel: release,
        expired: made.expired,
        packages: made.packages,
    };
    let path = entry.join(MANIFEST);
    fs::write(&path, format!("{:#}\n", serde_json::json!(manifest)))
        .map_err(io_error("write", &path))?;
    progress.say(&format!("got {manifest}"));
    Ok(())
}

/// Does the work that Debian leaves to maintainer scripts, and removes files that were needed only
/// for unpacking.
fn finish(tree: &Path) -> Result<(), ImageError> {
    for (path, target) in recipe::LINKS {
        let path = tree.join(path);
        symlink(target, &path).map_err(io_error("create", &path))?;
    }
    for (path, text) in recipe::FILES {
        let path = tree.join(path);
        fs::write(&path, text).map_err(io_error("write", &path))?;
    }
    for path in recipe::MOUNT_POINTS {
        let path = tree.join(path);
        fs::create_dir_all(&path).map_err(io_error("create", &path))?;
    }
    Ok(())
}

fn qemu_version(tree: &Path, log: &Path) -> Result<Version, ImageError> {
    let broken = |what| ImageError::BrokenRoot {
        what,
        log: log.to_path_buf(),
    };
    let probe = Qemu::in_tree(tree, Version::default())
        .probe()
        .map_err(|_| broken("a QEMU that starts"))?;
    if probe.is_fit() {
        Ok(probe.version)
    } else {
        Err(broken("a QEMU that has vfio-user-pci"))
    }
}

/// Returns the release of the kernel, which must have its headers in the root.
fn kernel_release(tree: &Path, log: &Path) -> Result<String, ImageError> {
    let broken = |what| ImageError::BrokenRoot {
        what,
        log: log.to_path_buf(),
    };
    let release = fs::read_dir(tree.join("usr/lib/modules"))
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .find(|found| found.path().join("vmlinuz").is_file())
        .and_then(|found| found.file_name().into_string().ok())
        .ok_or_else(|| broken("a kernel"))?;
    if toolchain::is_in(tree, &release) {
        Ok(release)
    } else {
        Err(broken("its kernel's headers and their compiler"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("root");
        for path in [
            "usr/bin",
            "etc/ssh",
            "tmp",
            "usr/lib/modules/6.1.0-x",
            "usr/lib/modules/7.2.12-y",
        ] {
            fs::create_dir_all(tree.join(path)).unwrap();
        }
        (dir, tree)
    }

    #[test]
    fn finishing_makes_what_maintainer_scripts_would() {
        let (_dir, tree) = tree();
        finish(&tree).unwrap();
        assert_eq!(
            fs::read_link(tree.join("usr/bin/awk")).unwrap(),
            Path::new("mawk")
        );
        assert!(
            fs::read_to_string(tree.join("etc/passwd"))
                .unwrap()
                .starts_with("root:x:0:0:")
        );
        assert!(tree.join("proc").is_dir() && tree.join("run").is_dir());
    }

    #[test]
    fn kernel_of_the_root_is_the_one_with_an_image() {
        let (_dir, tree) = tree();
        let log = Path::new("the log");
        assert!(matches!(
            kernel_release(&tree, log),
            Err(ImageError::BrokenRoot {
                what: "a kernel",
                ..
            })
        ));
        fs::write(tree.join("usr/lib/modules/7.2.12-y/vmlinuz"), "").unwrap();
        assert!(matches!(
            kernel_release(&tree, log),
            Err(ImageError::BrokenRoot { .. })
        ));
        for file in [
            "usr/src/linux-headers-7.2.12-y/Module.symvers",
            "usr/libexec/gcc/x86_64-linux-gnu/14/cc1",
            "usr/bin/make",
        ] {
            let path = tree.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        assert_eq!(kernel_release(&tree, log).unwrap(), "7.2.12-y");
    }

    #[test]
    fn root_without_qemu_is_an_error() {
        let (_dir, tree) = tree();
        let error = qemu_version(&tree, Path::new("the log")).unwrap_err();
        assert!(
            matches!(
                error,
                ImageError::BrokenRoot {
                    what: "a QEMU that starts",
                    ..
                }
            ),
            "{error}"
        );
    }
}
