//! Options for opening a file.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::alignment::{Alignment, PAGES};
use crate::{Error, Gpu, GpuFile, Policy, Result};

/// Options for opening a file. The defaults are reading only, and peer to peer only.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileOptions {
    write: bool,
    create: bool,
    policy: Policy,
}

impl FileOptions {
    /// Returns the defaults.
    pub fn new() -> Self {
        FileOptions::default()
    }

    /// Also allows writes.
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Creates the file, empty, if it does not exist. Requires [`FileOptions::write`].
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Sets the routes that its bytes may take.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Opens a block device, or a file of any file system that accepts O_DIRECT, without the page
    /// cache.
    ///
    /// Some file systems accept O_DIRECT and copy through the page cache all the same: tmpfs, 9p,
    /// ext4 with journalled data. A file is peer to peer only if the kernel reports that it is
    /// really read and written without the page cache (STATX_DIOALIGN, which ext4, XFS, F2FS and
    /// block devices report). All bytes of any other file bounce.
    ///
    /// # Errors
    /// [`Error::OpenFile`]; [`Error::NotDirect`] if all bytes would bounce and must not.
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
        let found = Alignment::of(&file);
        let policy = match (self.policy, found) {
            (policy, Some(_)) => policy,
            (Policy::PeerOnly, None) => {
                return Err(Error::NotDirect(path.to_owned()));
            }
            (Policy::AllowBounce | Policy::BounceOnly, None) => Policy::BounceOnly,
        };
        let alignment = found.unwrap_or(PAGES);
        Ok(GpuFile::new(gpu, file, path.to_owned(), policy, alignment))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::Traffic;
    use crate::fake::{bytes_of, gpu_with};

    #[test]
    fn copies_of_a_file_system_never_count_as_peer_to_peer() {
        let (_, gpu) = gpu_with(1 << 20);
        let buffer = gpu.allocate(8192).unwrap();
        let memory = File::from(memfd_create("tmpfs", MemfdFlags::CLOEXEC).unwrap());
        std::io::Write::write_all(&mut &memory, &[7; 8192]).unwrap();
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let file = match FileOptions::new().open(&gpu, &path) {
            // Before Linux 6.6 tmpfs does not accept O_DIRECT at all.
            Err(Error::OpenFile { .. }) => return,
            Err(Error::NotDirect(_)) => {
                let options = FileOptions::new().policy(Policy::AllowBounce);
                options.open(&gpu, &path).unwrap()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(file.read_at(&buffer, .., 0).unwrap(), 8192);
        assert_eq!(bytes_of(&buffer, 0, 8192), [7; 8192]);
        let bounced = Traffic {
            peer_bytes: 0,
            bounced_bytes: 8192,
        };
        assert_eq!(file.traffic(), bounced);
    }
}
