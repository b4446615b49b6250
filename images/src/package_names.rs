//! The names of Debian's packages, from the lists that each mmdebstrap fetches, so that a mistyped
//! name is found without a download.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::Path;

use tempfile::NamedTempFile;

use crate::error::io_error;
use crate::{Cache, ImageError};

/// Folder of apt's lists in a tree.
const LISTS: &str = "var/lib/apt/lists";
/// The end of the name of a list of packages.
const LIST: &str = "_Packages";
/// The file of the cache that has the names, one in a line.
const NAMES: &str = "package-names";

/// Returns the names of all packages of the suites for a root, or `None` before the first download.
///
/// # Errors
/// The cache cannot be read.
pub fn package_names(cache: &Cache) -> Result<Option<BTreeSet<String>>, ImageError> {
    for folder in cache.folders() {
        let path = folder.join(NAMES);
        match fs::read_to_string(&path) {
            Ok(names) => return Ok(Some(names.lines().map(str::to_owned).collect())),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(io_error("read", &path)(error)),
        }
    }
    Ok(None)
}

/// Moves the names in apt's lists of `tree` into `cache`.
pub(crate) fn keep(tree: &Path, cache: &Path) -> Result<(), ImageError> {
    let lists = tree.join(LISTS);
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(&lists).map_err(io_error("read", &lists))? {
        let path = entry.map_err(io_error("read", &lists))?.path();
        if path.to_string_lossy().ends_with(LIST) {
            add(&path, &mut names)?;
        }
    }
    fs::remove_dir_all(&lists).map_err(io_error("remove", &lists))?;
    fs::create_dir(&lists).map_err(io_error("create", &lists))?;
    let path = cache.join(NAMES);
    let write = || -> std::io::Result<()> {
        let mut file = NamedTempFile::new_in(cache)?;
        for name in &names {
            writeln!(file, "{name}")?;
        }
        file.persist(&path)?;
        Ok(())
    };
    write().map_err(io_error("write", &path))
}

/// Adds the names of a list (Debian repository format, "Packages Indices").
fn add(list: &Path, names: &mut BTreeSet<String>) -> Result<(), ImageError> {
    let file = File::open(list).map_err(io_error("open", list))?;
    for line in BufReader::new(file).split(b'\n') {
        let line = line.map_err(io_error("read", list))?;
        if let Some(name) = line.strip_prefix(b"Package: ") {
            names.insert(String::from_utf8_lossy(name).into_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept_and_lists_are_not() {
        let (tree, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let lists = tree.path().join(LISTS);
        fs::create_dir_all(&lists).unwrap();
        let list = "Package: perf\nVersion: 1\nDescription: \n Package: no\n\nPackage: gdb\n";
        fs::write(lists.join("a_main_binary-amd64_Packages"), list).unwrap();
        fs::write(lists.join("a_InRelease"), "Package: signed\n").unwrap();
        let kept = Cache::at(cache.path()).unwrap();
        assert_eq!(package_names(&kept).unwrap(), None);
        keep(tree.path(), cache.path()).unwrap();
        let names = package_names(&kept).unwrap().unwrap();
        assert_eq!(Vec::from_iter(&names), ["gdb", "perf"]);
        assert_eq!(fs::read_dir(&lists).unwrap().count(), 0);
        let above = tempfile::tempdir().unwrap();
        let above = Cache::at(above.path()).unwrap().over(cache.path());
        assert_eq!(package_names(&above).unwrap(), Some(names));
    }
}
