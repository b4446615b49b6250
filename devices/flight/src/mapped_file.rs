//! A file that a device writes through a mapping, for other processes to read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags, fallocate, flock, open};
use thiserror::Error;
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

/// The reason why the file cannot be made.
#[derive(Debug, Error)]
#[error("{name}: cannot {action}")]
pub struct MappedFileError {
    name: &'static str,
    action: &'static str,
    source: io::Error,
}

/// A file that is mapped and locked.
#[derive(Debug)]
pub struct MappedFile {
    /// Its bytes.
    pub region: MmapRegion,
    /// Holds the lock. It is separate from the mapping, which a forked child process keeps.
    _lock: File,
}

/// Makes a file of `bytes` bytes at `path`, replaces an existing file, writes `header` at its
/// start, and maps it. It is locked as long as it is mapped. `name` names the file in an error.
///
/// All its blocks are allocated, because a store into a hole of a full file system would kill the
/// process (SIGBUS). So would a store after the file was shortened.
pub fn create_mapped(
    name: &'static str,
    path: &Path,
    bytes: u64,
    header: &[u8],
) -> Result<MappedFile, MappedFileError> {
    let step = |action| {
        move |source| MappedFileError {
            name,
            action,
            source,
        }
    };
    // A device that still writes to the old file keeps it.
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(step("replace the file")(error));
        }
        _ => {}
    }
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(path);
    let file = file.map_err(step("make the file"))?;
    let lock = lock_of(&file, path).map_err(step("open the file"))?;
    let locked = flock(&lock, FlockOperation::NonBlockingLockExclusive);
    locked.map_err(|error| step("lock the file")(error.into()))?;
    if let Err(error) = fallocate(&file, FallocateFlags::empty(), 0, bytes) {
        // A file without its blocks is useless as a record.
        let _ = fs::remove_file(path);
        return Err(step("reserve its blocks")(error.into()));
    }
    let region = map(file, bytes).map_err(step("map the file"))?;
    let written = region.as_volatile_slice().write_slice(header, 0);
    written.map_err(|error| step("write the file")(io::Error::other(error)))?;
    Ok(MappedFile {
        region,
        _lock: lock,
    })
}

/// Opens another file description of `file`, which is at `path` unless another process has replaced
/// it.
fn lock_of(file: &File, path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = File::from(open(path, flags, Mode::empty())?);
    let [ours, there] = [file.metadata()?, lock.metadata()?].map(|it| (it.dev(), it.ino()));
    match ours == there {
        true => Ok(lock),
        false => Err(io::Error::other("it was replaced")),
    }
}

fn map(file: File, bytes: u64) -> io::Result<MmapRegion> {
    let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
    MmapRegion::from_file(FileOffset::new(file, 0), bytes).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_its_blocks_and_header() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("shared");
        let _region = create_mapped("record", &path, 1 << 20, b"header").unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert!(metadata.blocks() * 512 >= 1 << 20, "{metadata:?}");
        assert!(fs::read(&path).unwrap().starts_with(b"header\0"));
    }

    #[test]
    fn lock_ends_with_the_file_although_its_mapping_stays() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("shared");
        let MappedFile { region, _lock } = create_mapped("record", &path, 4096, &[]).unwrap();
        let other = File::open(&path).unwrap();
        let lock = || flock(&other, FlockOperation::NonBlockingLockShared);
        assert_eq!(lock(), Err(rustix::io::Errno::WOULDBLOCK));
        drop(_lock);
        lock().unwrap();
        drop(region);
    }

    #[test]
    fn file_without_space_is_an_error_and_removed() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("shared");
        // More than any file system can hold.
        let error = create_mapped("record", &path, 1 << 62, &[]).unwrap_err();
        assert_eq!(error.to_string(), "record: cannot reserve its blocks");
        assert!(!path.exists());
    }
}
