//! A memory file that another process lends, before it is mapped.

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, fcntl_get_seals, makedev, statx};

use crate::memory_error::MemoryError;

/// A descriptor of a memory file that the client or a peer lends, and the result of one statx(2)
/// call.
#[derive(Debug)]
pub(crate) struct LentFile {
    fd: OwnedFd,
    pub(crate) status: rustix::io::Result<Statx>,
}

impl LentFile {
    /// Takes a descriptor. Asks no other process or host about the file, since that might not
    /// answer.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let wanted = StatxFlags::INO | StatxFlags::SIZE | StatxFlags::TYPE;
        let status = statx(&fd, "", flags, wanted);
        Self { fd, status }
    }

    /// Returns the number of the file's device, or 0 if it is unknown.
    pub(crate) fn device(&self) -> u64 {
        self.status.map_or(0, |status| {
            makedev(status.stx_dev_major, status.stx_dev_minor)
        })
    }

    /// Returns the file's inode number, or 0 if it is unknown.
    pub(crate) fn inode(&self) -> u64 {
        self.status.map_or(0, |status| status.stx_ino)
    }

    /// Returns the numbers of the file's device and inode.
    pub(crate) fn id(&self) -> (u64, u64) {
        (self.device(), self.inode())
    }

    /// Returns `true` if the file's size is a limit. Devices that can be mapped have no size.
    pub(crate) fn is_regular(&self) -> bool {
        self.status
            .is_ok_and(|status| FileType::from_raw_mode(status.stx_mode.into()).is_file())
    }

    /// Returns `true` if page faults in the file wait only for this host's memory and disks. Only
    /// files in memory have seals (fcntl(2), F_GET_SEALS). File systems without a block device,
    /// such as FUSE and NFS, have the major number 0.
    fn is_local(&self) -> bool {
        let on_disk = self.status.is_ok_and(|status| status.stx_dev_major != 0);
        on_disk || fcntl_get_seals(&self.fd).is_ok()
    }

    /// Returns the file if page faults in it wait only for this host's memory.
    pub(crate) fn in_memory(self) -> Result<File, MemoryError> {
        match fcntl_get_seals(&self.fd) {
            Ok(_) => Ok(File::from(self.fd)),
            Err(_) => Err(MemoryError::NotInMemory),
        }
    }

    /// Returns the file if it may be mapped.
    pub(crate) fn local(self) -> Result<File, MemoryError> {
        if self.is_local() {
            Ok(File::from(self.fd))
        } else {
            Err(MemoryError::NotLocal)
        }
    }
}
