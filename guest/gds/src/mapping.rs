//! Memory that a device may change at any time, mapped into this process.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::{Error, Result};

/// Width of the accesses in bytes, where alignment allows it.
const WORD: usize = size_of::<u64>();

/// A mapped span of memory, page-aligned. Devices and other processes may change it meanwhile, so there are no
/// references to it: the processor's loads and stores are volatile ones of 8 bytes, and of 1 byte at odd ends.
///
/// Once the memory is revoked or its GPU gone, an access ends the process with SIGBUS, as with any mapping of a device.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the span stays mapped as long as the value lives, whichever thread has it.
unsafe impl Send for Mapping {}
// SAFETY: all accesses are volatile or the kernel's; nothing relies on the contents to stay.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `length` bytes of `file` from `offset` on, shared.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn of_file(file: impl AsFd, offset: u64, length: u64) -> io::Result<Self> {
        let length = usize::try_from(length).map_err(io::Error::other)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let start = unsafe {
            mmap(
                ptr::null_mut(),
                length,
                access,
                MapFlags::SHARED,
                file,
                offset,
            )?
        };
        Mapping::new(start, length)
    }

    /// `length` bytes of new host memory, zeroed, shared with children.
    pub(crate) fn anonymous(length: u64) -> io::Result<Self> {
        Mapping::of_memory(length, MapFlags::SHARED)
    }

    /// `length` bytes of new host memory for this process alone, zeroed and present.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn private(length: u64) -> io::Result<Self> {
        Mapping::of_memory(length, MapFlags::PRIVATE | MapFlags::POPULATE)
    }

    fn of_memory(length: u64, flags: MapFlags) -> io::Result<Self> {
        let length = usize::try_from(length).map_err(io::Error::other)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), length, access, flags)? };
        Mapping::new(start, length)
    }

    fn new(start: *mut c_void, length: usize) -> io::Result<Self> {
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, length })
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.length as u64
    }

    /// Loads from `offset` on into all of `into`, by the processor.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let mut at = self.check(offset, into.len())?;
        let (head, body) = into.split_at_mut(distance_to_word(at).min(into.len()));
        let (words, tail) = body.as_chunks_mut::<WORD>();
        for byte in head {
            *byte = self.load(&mut at);
        }
        for word in words {
            *word = self.load::<u64>(&mut at).to_ne_bytes();
        }
        for byte in tail {
            *byte = self.load(&mut at);
        }
        Ok(())
    }

    /// Stores all of `from` at `offset`, by the processor.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        let mut at = self.check(offset, from.len())?;
        let (head, body) = from.split_at(distance_to_word(at).min(from.len()));
        let (words, tail) = body.as_chunks::<WORD>();
        for byte in head {
            self.store(&mut at, *byte);
        }
        for word in words {
            self.store(&mut at, u64::from_ne_bytes(*word));
        }
        for byte in tail {
            self.store(&mut at, *byte);
        }
        Ok(())
    }

    fn load<T: Copy>(&self, at: &mut usize) -> T {
        // SAFETY: `read` has checked that the span from its offset on is mapped, and walks it in steps that keep words
        // at their alignment, for the mapping starts at a page.
        let value = unsafe { self.start.add(*at).cast::<T>().read_volatile() };
        *at = at.wrapping_add(size_of::<T>());
        value
    }

    fn store<T: Copy>(&self, at: &mut usize, value: T) {
        // SAFETY: as for `load`, with `write`.
        unsafe { self.start.add(*at).cast::<T>().write_volatile(value) };
        *at = at.wrapping_add(size_of::<T>());
    }

    /// One `pread` of the kernel into `range`; returns how many bytes there were.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], and those of the system call.
    pub fn read_file(&self, range: Range<u64>, file: &File, offset: u64) -> io::Result<u64> {
        let (address, length) = self.place(range)?;
        let offset = i64::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: `place` has found the span inside the mapping, and there are no references to it.
        let count =
            unsafe { libc::pread(file.as_raw_fd(), address.as_ptr().cast(), length, offset) };
        u64::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// One `pwrite` of the kernel from `range`; returns how many bytes it took.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], and those of the system call.
    pub fn write_file(&self, range: Range<u64>, file: &File, offset: u64) -> io::Result<u64> {
        let (address, length) = self.place(range)?;
        let offset = i64::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: as for `read_file`.
        let count =
            unsafe { libc::pwrite(file.as_raw_fd(), address.as_ptr().cast(), length, offset) };
        u64::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Where `range` lies in this process, and how long it is.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn place(&self, range: Range<u64>) -> io::Result<(NonNull<u8>, usize)> {
        let length = range.end.saturating_sub(range.start);
        let length = usize::try_from(length).map_err(io::Error::other)?;
        let at = self.check(range.start, length).map_err(io::Error::other)?;
        // SAFETY: `check` has found the span inside the mapping.
        Ok((unsafe { self.start.add(at) }, length))
    }

    /// The number of the first byte's address, for the driver.
    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    fn check(&self, offset: u64, length: usize) -> Result<usize> {
        let error = Error::OutOfBounds {
            start: offset,
            end: offset.saturating_add(length as u64),
            size: self.size(),
        };
        let Ok(at) = usize::try_from(offset) else {
            return Err(error);
        };
        match at.checked_add(length) {
            Some(end) if end <= self.length => Ok(at),
            _ => Err(error),
        }
    }
}

/// Bytes from `at` up to the next multiple of a word.
fn distance_to_word(at: usize) -> usize {
    at.next_multiple_of(WORD).wrapping_sub(at)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the span was mapped by this value, and this is its last user.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_ranges_are_written_and_read_back() {
        let mapping = Mapping::anonymous(4096).unwrap();
        let bytes: Vec<u8> = (0..100).collect();
        for (offset, length) in [(0, 100), (3, 2), (5, 3), (7, 17), (4090, 6), (13, 0)] {
            mapping.write(offset, &bytes[..length]).unwrap();
            let mut seen = vec![0; length];
            mapping.read(offset, &mut seen).unwrap();
            assert_eq!(seen, bytes[..length], "{length} bytes at {offset}");
        }
    }

    #[test]
    fn nothing_reaches_beyond_the_end() {
        let mapping = Mapping::anonymous(4096).unwrap();
        assert!(mapping.write(4095, &[0; 2]).is_err());
        assert!(mapping.read(u64::MAX, &mut [0]).is_err());
        assert!(mapping.place(4096..4097).is_err());
        let error = mapping.read(4000, &mut [0; 100]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "bytes 4000 to 4100 are not within a buffer of 4096 bytes"
        );
    }
}
