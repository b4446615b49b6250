//! The mark of a cache entry that a process uses: a shared lock of its file or folder.
//!
//! A process removes an entry only under an exclusive lock of it. So an entry in use stays, and a
//! process that asks for a removed entry finds it missing.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};

/// The possibility of a removal of the entry at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    /// A process may be about to remove it.
    Possible,
    /// The caller holds the build lock, under which entries are removed. A lock that is taken for a
    /// moment is waited for.
    Excluded,
}

/// Marks the entry at `path` as used, until the result is dropped. Returns `None` if it is missing,
/// or about to be.
pub(crate) fn mark(path: &Path, removal: Removal) -> io::Result<Option<File>> {
    let entry = match File::open(path) {
        Ok(entry) => entry,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let how = match removal {
        Removal::Possible => FlockOperation::NonBlockingLockShared,
        Removal::Excluded => FlockOperation::LockShared,
    };
    // Another error means a file system without locks: its cache has no marks.
    if retry_on_intr(|| flock(&entry, how)) == Err(Errno::WOULDBLOCK) {
        return Ok(None);
    }
    // The entry may have been removed, or replaced, between the two calls.
    let locked = identity(&entry.metadata()?);
    let is_same = fs::symlink_metadata(path).is_ok_and(|now| identity(&now) == locked);
    Ok(is_same.then_some(entry))
}

/// Keeps others from marking the entry at `path`, until the result is dropped. Returns `None` if a
/// process uses it, or if it has vanished.
pub(crate) fn exclude(path: &Path) -> io::Result<Option<File>> {
    let entry = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let excluded = flock(&entry, FlockOperation::NonBlockingLockExclusive);
    Ok((excluded != Err(Errno::WOULDBLOCK)).then_some(entry))
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_in_use_cannot_be_excluded() {
        let dir = tempfile::tempdir().unwrap();
        assert!(exclude(&dir.path().join("gone")).unwrap().is_none());
        for path in [dir.path().join("file"), dir.path().join("folder")] {
            assert!(mark(&path, Removal::Possible).unwrap().is_none());
            if path.ends_with("file") {
                fs::write(&path, "").unwrap();
            } else {
                fs::create_dir(&path).unwrap();
            }
            let users =
                [Removal::Possible, Removal::Excluded].map(|removal| mark(&path, removal).unwrap());
            assert!(users.iter().all(Option::is_some));
            assert!(exclude(&path).unwrap().is_none());
            drop(users);
            let excluded = exclude(&path).unwrap();
            assert!(excluded.is_some());
            assert!(mark(&path, Removal::Possible).unwrap().is_none());
        }
    }
}
