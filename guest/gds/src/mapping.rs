//! Memory that devices may change at any time, mapped into this process: host memory for DMA, BARs,
//! memory of GPUs.
//!
//! [`Mapping`] copies bytes, accesses single words as registers and queues require it, and serves
//! as a buffer for the kernel's file I/O. There are never references to the memory, only volatile
//! accesses of checked spans.
//!
//! Not included: I/O addresses, which address spaces assign, and protection against other
//! processes.

#![expect(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::{OutOfBounds, WordError};

/// Width of the accesses of a copy in bytes, if alignment allows it.
const WORD: usize = size_of::<u64>();

/// A mapped span of memory, page-aligned: this process's own, or a device's. Devices and other
/// processes may change it at any time, so there are no references to it: loads and stores are
/// volatile, 8 bytes at a time in the middle of a copy and single bytes at its unaligned ends.
///
/// Once memory of a GPU is revoked, or a BAR is reset, closed or no longer decoded, an access ends
/// the process with SIGBUS or reads as all ones, as with any mapping of a device.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the span stays mapped as long as the value lives, whichever thread has it.
unsafe impl Send for Mapping {}
// SAFETY: all accesses are volatile or the kernel's; nothing relies on the contents to stay
// unchanged.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of `file` from `offset` on, such as a region of a device, shared.
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

    /// Maps `length` bytes of new host memory, zeroed and present, shared with children. It stays
    /// the memory of a DMA across fork(2).
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn anonymous(length: u64) -> io::Result<Self> {
        Mapping::of_memory(length, MapFlags::SHARED | MapFlags::POPULATE)
    }

    /// Maps `length` bytes of new host memory for this process alone, zeroed and present.
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
    #[must_use]
    pub fn size(&self) -> u64 {
        self.length as u64
    }

    /// Loads from `offset` on into all of `into`, by the processor.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let mut at = self.check(offset, into.len())?;
        let (head, body) = into.split_at_mut(distance_to_word(at).min(into.len()));
        for byte in head {
            *byte = self.load(&mut at);
        }
        let mut words = body.chunks_exact_mut(WORD);
        for word in words.by_ref() {
            word.copy_from_slice(&self.load::<u64>(&mut at).to_ne_bytes());
        }
        for byte in words.into_remainder() {
            *byte = self.load(&mut at);
        }
        Ok(())
    }

    /// Stores all of `from` at `offset`, by the processor.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutOfBounds> {
        let mut at = self.check(offset, from.len())?;
        let (head, body) = from.split_at(distance_to_word(at).min(from.len()));
        for byte in head {
            self.store(&mut at, *byte);
        }
        let words = body.chunks_exact(WORD);
        let tail = words.remainder();
        for word in words.filter_map(<[u8]>::first_chunk) {
            self.store(&mut at, u64::from_ne_bytes(*word));
        }
        for byte in tail {
            self.store(&mut at, *byte);
        }
        Ok(())
    }

    /// Reads the 4 bytes at `offset`, a multiple of 4, in one access. Later reads see memory that
    /// is no older.
    ///
    /// # Errors
    /// A word that is unaligned or beyond the end.
    pub fn load32(&self, offset: u64) -> Result<u32, WordError> {
        self.load_word(offset)
    }

    /// Reads the 8 bytes at `offset`, a multiple of 8, in one access. Later reads see memory that
    /// is no older.
    ///
    /// # Errors
    /// As for [`Mapping::load32`].
    pub fn load64(&self, offset: u64) -> Result<u64, WordError> {
        self.load_word(offset)
    }

    /// Writes the 4 bytes at `offset`, a multiple of 4, in one access. Earlier writes become
    /// visible first.
    ///
    /// # Errors
    /// As for [`Mapping::load32`].
    pub fn store32(&self, offset: u64, value: u32) -> Result<(), WordError> {
        let mut at = self.check_word(offset, size_of::<u32>())?;
        fence(Ordering::Release);
        self.store(&mut at, value);
        Ok(())
    }

    fn load_word<T: Copy>(&self, offset: u64) -> Result<T, WordError> {
        let mut at = self.check_word(offset, size_of::<T>())?;
        let value = self.load(&mut at);
        fence(Ordering::Acquire);
        Ok(value)
    }

    fn load<T: Copy>(&self, at: &mut usize) -> T {
        // SAFETY: the callers have checked that the span is mapped, and that `at` is a multiple of the size of `T`; the
        // mapping starts at a page.
        let value = unsafe { self.start.add(*at).cast::<T>().read_volatile() };
        *at = at.wrapping_add(size_of::<T>());
        value
    }

    fn store<T: Copy>(&self, at: &mut usize, value: T) {
        // SAFETY: as for `load`.
        unsafe { self.start.add(*at).cast::<T>().write_volatile(value) };
        *at = at.wrapping_add(size_of::<T>());
    }

    /// Makes one `pread` of the kernel into `range`. Returns the number of bytes read.
    ///
    /// # Errors
    /// [`OutOfBounds`], and those of the system call.
    pub fn read_file(&self, range: Range<u64>, file: &File, offset: u64) -> io::Result<u64> {
        let (address, length) = self.pointer(range)?;
        let offset = i64::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: `pointer` has found the span inside the mapping, and there are no references to it.
        let count =
            unsafe { libc::pread(file.as_raw_fd(), address.as_ptr().cast(), length, offset) };
        u64::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Makes one `pwrite` of the kernel from `range`. Returns the number of bytes written.
    ///
    /// # Errors
    /// [`OutOfBounds`], and those of the system call.
    pub fn write_file(&self, range: Range<u64>, file: &File, offset: u64) -> io::Result<u64> {
        let (address, length) = self.pointer(range)?;
        let offset = i64::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: as for `read_file`.
        let count =
            unsafe { libc::pwrite(file.as_raw_fd(), address.as_ptr().cast(), length, offset) };
        u64::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Returns the address of `range` in this process, and its length.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn pointer(&self, range: Range<u64>) -> io::Result<(NonNull<u8>, usize)> {
        let length = range.end.saturating_sub(range.start);
        let length = usize::try_from(length).map_err(io::Error::other)?;
        let at = self.check(range.start, length)?;
        // SAFETY: `check` has found the span inside the mapping.
        Ok((unsafe { self.start.add(at) }, length))
    }

    /// Returns the first byte's address as a number, for the kernel.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    fn check_word(&self, offset: u64, size: usize) -> Result<usize, WordError> {
        let at = self.check(offset, size)?;
        match at % size == 0 {
            true => Ok(at),
            false => Err(WordError::Unaligned { offset, size }),
        }
    }

    fn check(&self, offset: u64, length: usize) -> Result<usize, OutOfBounds> {
        let at = usize::try_from(offset).ok();
        let is_within = |at: &usize| at.checked_add(length).is_some_and(|end| end <= self.length);
        at.filter(is_within).ok_or(OutOfBounds {
            start: offset,
            end: offset.saturating_add(length as u64),
            size: self.size(),
        })
    }
}

/// Returns the number of bytes from `at` to the next multiple of a word.
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
        assert!(mapping.pointer(4096..4097).is_err());
        assert!(mapping.load32(4096).is_err() && mapping.store32(u64::MAX, 1).is_err());
        let error = mapping.read(4000, &mut [0; 100]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "bytes 4000 to 4100 are not within a buffer of 4096 bytes"
        );
    }

    #[test]
    fn words_are_those_that_were_copied() {
        let mapping = Mapping::private(4096).unwrap();
        mapping.write(5, b"0123456789abcdefghij").unwrap();
        let word = u64::from_ne_bytes(*b"3456789a");
        assert_eq!(mapping.load64(8), Ok(word));
        mapping.store32(8, 7).unwrap();
        assert_eq!(mapping.load32(8), Ok(7));
    }

    #[test]
    fn unaligned_word_is_refused() {
        let mapping = Mapping::anonymous(4096).unwrap();
        let error = mapping.load64(4).unwrap_err();
        assert_eq!(error, WordError::Unaligned { offset: 4, size: 8 });
        assert_eq!(
            error.to_string(),
            "a word of 8 bytes cannot be at 0x4: take a multiple of its size"
        );
        assert!(mapping.store32(2, 1).is_err());
    }
}
