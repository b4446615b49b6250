//! How a file is opened.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::{Error, Gpu, GpuFile, Policy, Result};

/// How a file is opened: by default to read only, and peer to peer only.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileOptions {
    write: bool,
    create: bool,
    policy: Policy,
}

impl FileOptions {
    /// The defaults.
    pub fn new() -> Self {
        FileOptions::default()
    }

    /// Whether it is also written.
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Whether it is created, empty, if it is not there; takes [`FileOptions::write`].
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Which way its bytes may go.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Opens a file of any file system that takes O_DIRECT, or a block device, past the page cache.
    ///
    /// # Errors
    /// [`Error::OpenFile`].
    pub fn open(self, gpu: &Gpu, path: impl AsRef<Path>) -> Result<GpuFile> {
        let path = path.as_ref();
        let file = OpenOptions::new()
            .read(true)
            .write(self.write)
            .create(self.create)
            .custom_flags(libc::O_DIRECT)
            .open(path)
            .map_err(|source| Error::OpenFile {
                path: path.to_owned(),
                source,
            })?;
        Ok(GpuFile::new(gpu, file, path.to_owned(), self.policy))
    }
}
