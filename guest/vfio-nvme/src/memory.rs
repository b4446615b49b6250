//! Memory that devices may change at any time, mapped into this process.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::error::{Error, Result};

/// Width of the accesses of a copy in bytes, where alignment allows it.
const WORD: usize = size_of::<u64>();

/// A mapped span of memory, page-aligned: this process' own, or a BAR's. There are no references to it; loads and stores
/// are volatile, 8 bytes at a time in the middle of a copy and single bytes at its odd ends.
///
/// A BAR that is reset, closed or no longer decoded raises SIGBUS or reads as all ones.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the span stays mapped as long as the value lives, whichever thread has it.
unsafe impl Send for Memory {}
// SAFETY: all accesses are volatile; nothing relies on the contents to stay.
unsafe impl Sync for Memory {}

impl Memory {
    /// `length` bytes of new memory, zeroed and present.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn new(length: u64) -> Result<Self> {
        Self::mapped(length, |length| {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::POPULATE;
            // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
            unsafe { mmap_anonymous(ptr::null_mut(), length, access, flags) }
        })
    }

    /// `length` bytes of `file` from `offset` on, such as a region of a device.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn of_file(file: impl AsFd, offset: u64, length: u64) -> Result<Self> {
        Self::mapped(length, |length| {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: as above.
            unsafe {
                mmap(
                    ptr::null_mut(),
                    length,
                    access,
                    MapFlags::SHARED,
                    file,
                    offset,
                )
            }
        })
    }

    fn mapped(
        length: u64,
        map: impl FnOnce(usize) -> rustix::io::Result<*mut c_void>,
    ) -> Result<Self> {
        let map = |length| Ok(map(length)?);
        let start = usize::try_from(length)
            .map_err(io::Error::other)
            .and_then(map);
        let failed = |source| Error::Memory { length, source };
        let start = NonNull::new(start.map_err(failed)?.cast());
        Ok(Self {
            start: start.ok_or_else(|| failed(io::ErrorKind::OutOfMemory.into()))?,
            // It has been mapped with this length.
            length: usize::try_from(length).unwrap_or(usize::MAX),
        })
    }

    /// Size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.length as u64
    }

    /// Its address in this process, for the kernel.
    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    /// Copies from `offset` on into all of `into`.
    ///
    /// # Errors
    /// A span beyond its end.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
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

    /// Copies all of `from` to `offset`.
    ///
    /// # Errors
    /// As for [`Memory::read`].
    pub fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
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

    /// Reads the 4 bytes at `offset`, a multiple of 4, in one access. What is read after it is not older.
    pub(crate) fn load32(&self, offset: u64) -> io::Result<u32> {
        self.load_word(offset)
    }

    /// Reads the 8 bytes at `offset`, a multiple of 8, in one access. What is read after it is not older.
    pub(crate) fn load64(&self, offset: u64) -> io::Result<u64> {
        self.load_word(offset)
    }

    /// Writes the 4 bytes at `offset`, a multiple of 4, in one access. What was written before it is seen before it.
    pub(crate) fn store32(&self, offset: u64, value: u32) -> io::Result<()> {
        let mut at = self.check_word(offset, size_of::<u32>())?;
        fence(Ordering::Release);
        self.store(&mut at, value);
        Ok(())
    }

    fn load_word<T: Copy>(&self, offset: u64) -> io::Result<T> {
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

    fn check_word(&self, offset: u64, size: usize) -> io::Result<usize> {
        let at = self.check(offset, size)?;
        match at.is_multiple_of(size) {
            true => Ok(at),
            false => Err(io::Error::other(format!(
                "no word of {size} bytes at {offset:#x}"
            ))),
        }
    }

    fn check(&self, offset: u64, length: usize) -> io::Result<usize> {
        let at = usize::try_from(offset).map_err(io::Error::other)?;
        let end = at.checked_add(length).filter(|end| *end <= self.length);
        match end {
            Some(_) => Ok(at),
            None => Err(io::Error::other(format!(
                "{length} bytes at {offset:#x} are not within {:#x} bytes of memory",
                self.length
            ))),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the span was mapped by `mapped`, and nothing refers to it any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "munmap of a mapping failed");
    }
}

/// Bytes from `at` to the next word.
fn distance_to_word(at: usize) -> usize {
    at.wrapping_neg() % WORD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_at_odd_places_are_read_back() {
        let memory = Memory::new(4096).unwrap();
        memory.write(5, b"0123456789abcdefghij").unwrap();
        let mut seen = [0; 22];
        memory.read(4, &mut seen).unwrap();
        assert_eq!(&seen, b"\x000123456789abcdefghij\x00");
        assert_eq!(memory.load64(8).unwrap(), u64::from_le_bytes(*b"3456789a"));
        memory.store32(8, 7).unwrap();
        assert_eq!(memory.load32(8).unwrap(), 7);
    }

    #[test]
    fn span_beyond_the_end_is_refused() {
        let memory = Memory::new(4096).unwrap();
        let error = memory.write(4090, &[0; 8]).unwrap_err().to_string();
        assert_eq!(
            error,
            "8 bytes at 0xffa are not within 0x1000 bytes of memory"
        );
        assert!(memory.read(u64::MAX, &mut [0]).is_err());
        assert!(memory.load32(4096).is_err() && memory.load64(4).is_err());
    }
}
