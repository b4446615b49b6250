//! The names of the modules of the kernels in the cache, so that a mistyped name is found without a
//! boot.

use std::collections::BTreeSet;

use crate::cache::Kind;
use crate::modules::Tree;
use crate::{Cache, ImageError, Kernel, Root, in_tree};

/// Returns the names of all modules that a kernel in the cache has or that are built for it, or
/// `None` before the first download or build of a kernel.
///
/// # Errors
/// The cache cannot be read.
pub fn module_names(cache: &Cache) -> Result<Option<BTreeSet<String>>, ImageError> {
    let mut folders = cache.paths(Kind::BuiltKernel)?;
    let is_cached = Root::is_cached(cache);
    if is_cached {
        folders.extend(Kernel::from_root(&Root::get(cache)?).modules);
    }
    if folders.is_empty() {
        return Ok(None);
    }
    let mut names = BTreeSet::new();
    for folder in folders {
        names.extend(Tree::read(&folder)?.into_names());
    }
    if is_cached {
        names.extend(in_tree::names().map(str::to_owned));
    }
    Ok(Some(names))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn names_are_those_of_all_kernels_in_the_cache() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).unwrap();
        assert_eq!(module_names(&cache).unwrap(), None);
        let built = folder.path().join("built-kernel-0123456789abcdef");
        fs::create_dir(&built).unwrap();
        fs::write(built.join("modules.builtin"), "kernel/fs/ext4/ext4.ko\n").unwrap();
        fs::write(built.join("nvme-core.ko.xz"), "").unwrap();
        let names = module_names(&cache).unwrap().unwrap();
        assert_eq!(Vec::from_iter(names), ["ext4", "nvme_core"]);
    }
}
