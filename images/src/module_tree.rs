//! The modules of a user's kernel as a folder that modprobe understands.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::cache::Kind;
use crate::error::io_error;
use crate::modules::Tree;
use crate::{Cache, ImageError, Kernel, Root, cache, depmod};

/// Files that depmod reads in addition to the modules.
const LISTS: [&str; 3] = [
    "modules.builtin",
    "modules.builtin.modinfo",
    "modules.order",
];

/// Returns a folder with `usr/lib/modules/RELEASE`: all modules of `kernel` and their index, for a
/// guest that lays it over `root`. Returns `None` if the root itself has them, or if there are no
/// modules.
///
/// # Errors
/// [`ImageError::Depmod`], and [`ImageError::Io`].
pub fn module_tree(
    cache: &Cache,
    kernel: &Kernel,
    root: &Root,
) -> Result<Option<PathBuf>, ImageError> {
    let Some(modules) = kernel.modules.as_deref() else {
        return Ok(None);
    };
    if modules.starts_with(root.path()) {
        return Ok(None);
    }
    let tree = Tree::read(modules)?;
    let key = cache::key([kernel.release.as_str(), &tree.stamp]);
    let entry = cache.entry(Kind::ModuleTree, &key, |path, _| {
        let folder = path.join("usr/lib/modules").join(&kernel.release);
        fs::create_dir_all(&folder).map_err(io_error("create", &folder))?;
        let link = path.join("lib");
        symlink("usr/lib", &link).map_err(io_error("create", &link))?;
        for from in tree.paths() {
            let name = from.strip_prefix(modules).unwrap_or(from);
            link_or_copy(from, &folder.join(name))?;
        }
        for list in LISTS {
            let from = modules.join(list);
            if from.is_file() {
                link_or_copy(&from, &folder.join(list))?;
            }
        }
        depmod::run(root.path(), path, &kernel.release)
    })?;
    Ok(Some(entry))
}

/// Makes the file `from` available as `to`, too: as a link, or as a copy if that is on another file
/// system.
fn link_or_copy(from: &Path, to: &Path) -> Result<(), ImageError> {
    let folder = to.parent().unwrap_or(to);
    fs::create_dir_all(folder).map_err(io_error("create", folder))?;
    fs::hard_link(from, to)
        .or_else(|_| fs::copy(from, to).map(drop))
        .map_err(io_error("create", to))
}
