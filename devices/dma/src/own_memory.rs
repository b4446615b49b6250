//! The memory files of this process: creating, mapping and replacing them.
#![expect(unsafe_code)]

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{DupFlags, Errno, dup3};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use vm_memory::MmapRegion;
use vm_memory::mmap::MmapRegionError;

/// The action that failed, and the reason.
pub(crate) type Failure = (&'static str, Errno);

/// Reserves a range of addresses for a memory file, without memory and without access.
pub(crate) fn reserve(length: usize) -> Result<MmapRegion, Failure> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    MmapRegion::build(None, length, libc::PROT_NONE, flags).map_err(|error| {
        let os = match &error {
            MmapRegionError::Mmap(error) => Errno::from_io_error(error),
            _ => None,
        };
        ("map it", os.unwrap_or(Errno::INVAL))
    })
}

/// Creates a memory file of `size` zeroed bytes, not sealed yet.
pub(crate) fn create(name: &str, size: u64) -> Result<OwnedFd, Failure> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create(name, flags).map_err(|error| ("create it", error))?;
    ftruncate(&file, size).map_err(|error| ("size it", error))?;
    Ok(file)
}

/// Maps a file over the present mapping of `region`. A concurrent access meets one of the two.
pub(crate) fn map_over(region: &MmapRegion, file: &OwnedFd) -> Result<(), Failure> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the region has that range mapped until it is dropped, and all access to it is
    // volatile.
    let mapped = unsafe {
        mmap(
            region.as_ptr().cast(),
            region.size(),
            access,
            flags,
            file,
            0,
        )
    };
    mapped.map(drop).map_err(|error| ("map it", error))
}

/// Makes the descriptor of `file` refer to another file. Its number stays.
pub(crate) fn replace(file: &File, by: &OwnedFd) -> Result<(), Failure> {
    // SAFETY: the number is that of an open descriptor, which `file` keeps and closes. A concurrent
    // borrower meets one of the two files.
    let mut same = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(file.as_raw_fd()) });
    dup3(by, &mut same, DupFlags::CLOEXEC).map_err(|error| ("replace it", error))
}
