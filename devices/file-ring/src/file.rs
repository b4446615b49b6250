//! A file that a ring uses.

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, StatxFlags, statx};

use crate::zeroing::Zeroing;

/// FUSE_SUPER_MAGIC (Linux, fs/fuse/inode.c), which FUSE on a block device has, too.
const FUSE: libc::__fsword_t = 0x6573_5546;

/// A file between which and memory a ring moves data.
#[derive(Clone, Debug)]
pub struct RingFile {
    file: Arc<File>,
    in_memory: bool,
}

impl RingFile {
    /// Wraps this file.
    pub fn new(file: File) -> Self {
        Self {
            in_memory: is_in_memory(&file),
            file: Arc::new(file),
        }
    }

    /// Returns the file itself.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Makes `len` bytes from `offset` on read as zero, like [`crate::FileRing::zero`], and waits
    /// for it.
    pub fn zero(&self, range: (u64, u64), deallocate: bool) -> io::Result<()> {
        Zeroing::new(range, deallocate).finish(&self.file)
    }

    /// Returns `true` if the kernel moves its data between the page cache and virtual addresses. A
    /// file system in user space or of a network may instead keep the pages behind the addresses,
    /// and still move data when the addresses have been mapped elsewhere.
    pub fn is_cached(&self) -> bool {
        let flags = (AtFlags::EMPTY_PATH, StatxFlags::TYPE);
        let status = statx(&*self.file, "", flags.0, flags.1);
        let system = rustix::fs::fstatfs(&*self.file);
        self.in_memory
            || status.is_ok_and(|status| {
                let kind = FileType::from_raw_mode(status.stx_mode.into());
                // File systems without a block device have the major number 0.
                kind.is_block_device() || status.stx_dev_major != 0
            }) && system.is_ok_and(|system| system.f_type != FUSE)
    }

    /// Returns `true` if all of its data is in memory, so that transfers do not wait and no data is
    /// ever on stable storage.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.in_memory
    }
}

/// Returns `true` if this is a file of tmpfs (statfs(2)), and not only the name of a device there,
/// like those in `/dev`.
fn is_in_memory(file: &File) -> bool {
    file.metadata().is_ok_and(|about| about.is_file())
        && rustix::fs::fstatfs(file).is_ok_and(|about| about.f_type == libc::TMPFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_memory_is_known() {
        let memory = peerbar_dma::MemoryFile::create("image", 4096).unwrap();
        let memory = memory.file().try_clone().unwrap();
        assert!(RingFile::new(memory).is_in_memory());
        let elsewhere = File::open("/proc/self/exe").unwrap();
        assert!(!RingFile::new(elsewhere).is_in_memory());
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        assert!(!RingFile::new(pipe.into()).is_in_memory());
        // If /dev is a tmpfs, this is the name of a device in it.
        let device = File::open("/dev/null").unwrap();
        assert!(!RingFile::new(device).is_in_memory());
    }
}
