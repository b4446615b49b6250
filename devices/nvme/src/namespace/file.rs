//! Blocks in a raw image file or on a block device of the host.

use std::fs::OpenOptions;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use peerbar_file_ring::RingFile;
use peerbar_host::socket_file::file_lock;
use rustix::io::Errno;
use thiserror::Error;

use super::backend::{Backend, DirectAccess};

/// Errors of an image.
#[derive(Debug, Error)]
pub enum ImageError {
    /// The image does not exist.
    #[error("image {}: not found; `truncate -s 64M {}` makes an empty one", .0.display(), .0.display())]
    Missing(PathBuf),
    /// The image cannot be opened for reading and writing.
    #[error("image {}: must be readable and writable by this user", path.display())]
    Open {
        /// The image.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another process has locked the image.
    #[error("image {}: in use by another run; stop that one or name another image", .0.display())]
    InUse(PathBuf),
    /// Two namespaces of one disk use the image.
    #[error("image {}: used by two namespaces; name another image for one of them", .0.display())]
    Twice(PathBuf),
    /// The path is neither a file nor a block device.
    #[error("image {}: neither a regular file nor a block device", .0.display())]
    Kind(PathBuf),
}

/// A raw image, locked against other runs as long as it is open.
pub(crate) struct FileBackend {
    file: RingFile,
    size: u64,
}

impl FileBackend {
    /// Opens and locks the image at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self, ImageError> {
        Self::open_within(path, file_lock::LONGEST_AFTER_A_KILL)
    }

    fn open_within(path: &Path, timeout: Duration) -> Result<Self, ImageError> {
        let open = |source| ImageError::Open {
            path: path.into(),
            source,
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => ImageError::Missing(path.into()),
                _ => open(source),
            })?;
        let kind = rustix::fs::fstat(&file)
            .map_err(|e| open(e.into()))?
            .st_mode;
        let kind = rustix::fs::FileType::from_raw_mode(kind);
        if !kind.is_file() && !kind.is_block_device() {
            return Err(ImageError::Kind(path.into()));
        }
        file_lock::acquire(&file, timeout).map_err(|error| match error {
            Errno::TIMEDOUT => ImageError::InUse(path.into()),
            error => open(error.into()),
        })?;
        let size = file.seek(SeekFrom::End(0)).map_err(open)?;
        Ok(Self {
            file: RingFile::new(file),
            size,
        })
    }
}

impl Backend for FileBackend {
    fn size(&self) -> u64 {
        self.size
    }

    fn direct(&self) -> DirectAccess<'_> {
        DirectAccess::File(&self.file)
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.file.file().read_exact_at(data, offset)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.file().write_all_at(data, offset)
    }

    fn zero(&self, range: (u64, u64), deallocate: bool) -> io::Result<()> {
        self.file.zero(range, deallocate)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.file().sync_data()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn image(size: u64) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        File::create(&path).unwrap().set_len(size).unwrap();
        (folder, path)
    }

    #[test]
    fn written_data_is_in_the_file() {
        let (_folder, path) = image(1 << 20);
        let disk = FileBackend::open(&path).unwrap();
        assert_eq!(disk.size(), 1 << 20);
        disk.write(0x1000, &[1; 0x1000]).unwrap();
        disk.write(0x2000, &[2; 0x1000]).unwrap();
        disk.flush().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes[0x1000..0x2000], [1; 0x1000]);
        assert_eq!(bytes[0x2000..0x3000], [2; 0x1000]);
        let mut back = [0; 0x2000];
        disk.read(0x1000, &mut back).unwrap();
        assert_eq!(back[..0x1000], [1; 0x1000]);
    }

    #[test]
    fn zeroed_blocks_read_as_zero_deallocated_ones_free_storage() {
        let (_folder, path) = image(1 << 20);
        let disk = FileBackend::open(&path).unwrap();
        for deallocate in [false, true] {
            disk.write(0, &[7; 1 << 20]).unwrap();
            disk.flush().unwrap();
            disk.zero((0x10000, 0xe0000), deallocate).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            assert!(
                bytes[..0x10000]
                    .iter()
                    .chain(&bytes[0xf0000..])
                    .all(|byte| *byte == 7)
            );
            assert!(bytes[0x10000..0xf0000].iter().all(|byte| *byte == 0));
            assert_eq!(bytes.len(), 1 << 20);
        }
        assert!(path.metadata().unwrap().blocks() * 512 <= 0x40000);
    }

    #[test]
    fn an_image_in_use_is_refused_and_left_alone() {
        let (_folder, path) = image(4096);
        let first = FileBackend::open(&path).unwrap();
        assert!(matches!(
            FileBackend::open_within(&path, Duration::ZERO),
            Err(ImageError::InUse { .. })
        ));
        drop(first);
        assert!(FileBackend::open_within(&path, Duration::ZERO).is_ok());
    }

    #[test]
    fn image_that_is_unlocked_soon_is_waited_for() {
        let (_folder, path) = image(4096);
        let first = FileBackend::open(&path).unwrap();
        std::thread::scope(|scope| {
            let (begins, begun) = std::sync::mpsc::channel();
            let path = &path;
            let second = scope.spawn(move || {
                begins.send(()).unwrap();
                FileBackend::open_within(path, Duration::from_secs(20))
            });
            begun.recv().unwrap();
            drop(first);
            assert!(second.join().unwrap().is_ok());
        });
    }

    #[test]
    fn path_that_is_no_image_is_refused_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing.img");
        let error = FileBackend::open(&missing).err().unwrap();
        assert!(error.to_string().contains("missing.img"), "{error}");
        assert!(!missing.exists());
        // The folder might hold data, so the error must not advise to create an image.
        let error = FileBackend::open(folder.path()).err().unwrap();
        assert!(!error.to_string().contains("truncate"), "{error}");
    }
}
