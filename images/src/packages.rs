//! Packages beyond the root's: a separate tree, which a guest lays over its root.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use crate::cache::{BuildLock, Kind};
use crate::error::io_error;
use crate::progress::Progress;
use crate::{Cache, ImageError, bootstrap, cache, recipe};

const MANIFEST: &str = "packages.json";
const TREE: &str = "tree";

/// Parts of a tree that are not packages' files: those of apt and mmdebstrap, and copies of the
/// host's.
const FOREIGN: [&str; 12] = [
    "dev",
    "etc/apt",
    "etc/fstab",
    "etc/hostname",
    "etc/resolv.conf",
    "proc",
    "run",
    "sys",
    "tmp",
    "var/cache/apt",
    "var/lib/apt",
    "var/lib/dpkg",
];

/// Debian packages and their dependencies, unpacked. Their maintainer scripts have not run.
#[derive(Clone, Debug)]
pub struct PackageTree {
    path: PathBuf,
    versions: BTreeMap<String, String>,
}

impl PackageTree {
    /// Returns the packages `names`, in any order, of the suites of the root. Fetches and unpacks
    /// them if the cache lacks them.
    ///
    /// # Errors
    /// [`ImageError::NoPackage`] for a name that Debian does not have, and other failures of
    /// mmdebstrap.
    pub fn get(cache: &Cache, names: &[String]) -> Result<Self, ImageError> {
        let (names, key) = names_and_key(names);
        let entry = cache.entry(Kind::Packages, &key, |entry, lock| {
            build(entry, &names, cache, lock)
        })?;
        Self::read(&entry)
    }

    /// Returns the same tree, or its future path if the cache lacks it. Does not fetch anything.
    ///
    /// # Errors
    /// A tree of the cache that cannot be read.
    pub fn planned(cache: &Cache, names: &[String]) -> Result<Self, ImageError> {
        let (_, key) = names_and_key(names);
        match cache.known(Kind::Packages, &key)? {
            Some(entry) => Self::read(&entry),
            None => Ok(Self {
                path: cache.path_of(Kind::Packages, &key).join(TREE),
                versions: BTreeMap::new(),
            }),
        }
    }

    /// Returns `true` if the cache has these packages, so that [`PackageTree::get`] needs no
    /// network.
    #[must_use]
    pub fn is_cached(cache: &Cache, names: &[String]) -> bool {
        cache.has(Kind::Packages, &names_and_key(names).1)
    }

    fn read(entry: &Path) -> Result<Self, ImageError> {
        let path = entry.join(MANIFEST);
        let file = File::open(&path).map_err(io_error("open", &path))?;
        let versions = serde_json::from_reader(BufReader::new(file)).map_err(|source| {
            ImageError::Manifest {
                path,
                entry: entry.to_owned(),
                source,
            }
        })?;
        let path = entry.join(TREE);
        Ok(Self { path, versions })
    }

    /// Returns the tree's top folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the version of every package in it, by name.
    #[must_use]
    pub fn versions(&self) -> &BTreeMap<String, String> {
        &self.versions
    }
}

/// Returns the names in order, each once, and the key of their tree.
fn names_and_key(names: &[String]) -> (Vec<&str>, String) {
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let inputs = recipe::SOURCES.iter().chain(&FOREIGN).chain(&names);
    let key = cache::key(inputs);
    (names, key)
}

fn build(entry: &Path, names: &[&str], cache: &Cache, lock: &BuildLock) -> Result<(), ImageError> {
    let progress = Progress::start(&format!(
        "getting {} from Debian {}, once, into {}",
        names.join(", "),
        recipe::SUITE,
        cache.path().display()
    ));
    let tree = entry.join(TREE);
    fs::create_dir(entry).map_err(io_error("create", entry))?;
    let made = bootstrap::run(&tree, names, cache, lock, &progress)?;
    strip(&tree)?;
    let path = entry.join(MANIFEST);
    let text = format!("{:#}\n", serde_json::json!(made.packages));
    fs::write(&path, text).map_err(io_error("write", &path))
}

/// Removes all but packages' files, so that no other file hides a file of the root.
fn strip(tree: &Path) -> Result<(), ImageError> {
    for foreign in FOREIGN {
        let path = tree.join(foreign);
        let removed = match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => fs::remove_dir_all(&path),
            Ok(_) => fs::remove_file(&path),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        };
        removed.map_err(io_error("remove", &path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planned_tree_is_where_it_will_be_and_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let planned = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            PackageTree::planned(&cache, &names).unwrap()
        };
        let tree = planned(&["b", "a", "b"]);
        assert!(tree.path().starts_with(cache.path()) && !tree.path().exists());
        let entry = tree.path().parent().unwrap();
        fs::create_dir(entry).unwrap();
        fs::write(entry.join(MANIFEST), r#"{"a":"1"}"#).unwrap();
        assert_eq!(planned(&["a", "b"]).versions()["a"], "1");
        let is_cached = |names: [&str; 2]| PackageTree::is_cached(&cache, &names.map(String::from));
        assert!(is_cached(["b", "a"]) && !is_cached(["a", "c"]));
        assert!(planned(&["a"]).versions().is_empty());
    }

    #[test]
    fn tree_is_stripped_to_the_files_of_packages() {
        let tree = tempfile::tempdir().unwrap();
        for file in ["usr/bin/hello", "etc/apt/sources.list", "etc/hello.conf"] {
            let path = tree.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        fs::write(tree.path().join("etc/resolv.conf"), "").unwrap();
        strip(tree.path()).unwrap();
        let is_there = |path: &str| tree.path().join(path).exists();
        assert!(is_there("usr/bin/hello") && is_there("etc/hello.conf"));
        assert!(!is_there("etc/apt") && !is_there("etc/resolv.conf"));
    }
}
