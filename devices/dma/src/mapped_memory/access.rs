//! Accesses to mapped memory: copies, single words, and zeros.

use std::sync::atomic::{AtomicU64, Ordering};

use vm_memory::{AtomicAccess, Bytes, VolatileMemory, VolatileMemoryError, VolatileSlice};

use super::MappedMemory;
use crate::buffer::Buffer;
use crate::hints;
use crate::memory_error::MemoryError;

/// Aligned accesses up to this size are done word by word in ascending order, as a bus does them:
/// the last word of a completion entry holds its phase tag and must become visible last.
const ORDERED_LIMIT: usize = 64;
const QUADWORD: usize = 8;
/// An EFA queue entry has its phase in a word of 4 bytes.
const DOUBLEWORD: usize = 4;

/// Size of a cache line, and the number of bytes that are prefetched before a copy. The processor's
/// own prefetcher finds the rest.
const LINE: usize = 64;
const AHEAD: usize = 512;

/// Page size of memory files, and the size of a write where pages cannot be returned to the host.
const PAGE: u64 = 4096;
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

impl MappedMemory {
    /// Copies between the bytes at `offset` and `data`, as [`Self::read`] and [`Self::write`] do.
    pub fn access(&self, offset: u64, data: Buffer<'_>) -> Result<(), MemoryError> {
        match data {
            Buffer::Read(data) => self.read(offset, data),
            Buffer::Write(data) => self.write(offset, data),
        }
    }

    /// Copies from the memory at `offset` into `data`.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), MemoryError> {
        let slice = self.slice(offset, data.len())?;
        if data.len() <= ORDERED_LIMIT && is_words::<QUADWORD>(offset, data.len()) {
            for (index, word) in data.chunks_exact_mut(QUADWORD).enumerate() {
                let value: u64 = slice
                    .load(index * QUADWORD, Ordering::Acquire)
                    .map_err(|_| self.out_of_range(offset, QUADWORD))?;
                word.copy_from_slice(&value.to_ne_bytes());
            }
        } else {
            slice.copy_to(data);
        }
        self.intact()
    }

    /// Copies `data` into the memory at `offset`.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        if data.len() <= ORDERED_LIMIT {
            return self.write_in_order(offset, data);
        }
        self.slice(offset, data.len())?.copy_from(data);
        self.intact()
    }

    /// Copies `data` into the memory at `offset`. If both are multiples of 4 bytes, a reader that
    /// sees a word of 4 bytes of the data also sees all words before it and all earlier writes.
    pub(crate) fn write_in_order(&self, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        let slice = self.slice(offset, data.len())?;
        let stored = if is_words::<QUADWORD>(offset, data.len()) {
            store_in_order(&slice, data, u64::from_ne_bytes)
        } else if is_words::<DOUBLEWORD>(offset, data.len()) {
            store_in_order(&slice, data, u32::from_ne_bytes)
        } else {
            slice.copy_from(data);
            Ok(())
        };
        stored.map_err(|_| self.out_of_range(offset, data.len()))?;
        self.intact()
    }

    /// Zeroes `len` bytes at `offset`. Calls `give_back` with offset and length for whole pages.
    pub(crate) fn zero_by(
        &self,
        offset: u64,
        len: u64,
        give_back: impl FnOnce(u64, u64) -> rustix::io::Result<()>,
    ) -> Result<(), MemoryError> {
        self.check(offset, len)?;
        let end = offset.saturating_add(len);
        let first = offset.next_multiple_of(PAGE).min(end);
        let last = (end / PAGE * PAGE).max(first);
        if first == last || give_back(first, last - first).is_err() {
            return self.write_zeros(offset, end);
        }
        self.write_zeros(offset, first)?;
        self.write_zeros(last, end)
    }

    fn write_zeros(&self, mut offset: u64, end: u64) -> Result<(), MemoryError> {
        while offset < end {
            let len = usize::try_from(end - offset).unwrap_or(ZEROS.len());
            let (zeros, _) = ZEROS.split_at(len.min(ZEROS.len()));
            self.write(offset, zeros)?;
            offset = offset.saturating_add(zeros.len() as u64);
        }
        Ok(())
    }

    /// Copies `len` bytes at `offset` to `to_offset` of another memory.
    pub(crate) fn copy_to(
        &self,
        offset: u64,
        to: &MappedMemory,
        to_offset: u64,
        len: usize,
    ) -> Result<(), MemoryError> {
        // Lost memory already reads as zeros, which must not be copied.
        self.intact()?;
        let from = self.slice(offset, len)?;
        from.copy_to_volatile_slice(to.slice(to_offset, len)?);
        self.intact()?;
        to.intact()
    }

    /// Checks that the `len` bytes at `offset` may be accessed now.
    pub(crate) fn check_access(&self, offset: u64, len: usize) -> Result<(), MemoryError> {
        self.slice(offset, len)?;
        self.intact()
    }

    /// Prefetches the first of the `len` bytes at `offset`, which will be copied soon. Does nothing
    /// if they are out of range.
    pub fn prefetch(&self, offset: u64, len: u64) {
        let len = usize::try_from(len).map_or(AHEAD, |len| len.min(AHEAD));
        if let Ok(slice) = self.slice(offset, len) {
            let start = slice.ptr_guard().as_ptr();
            let lines = (0..len).step_by(LINE);
            lines.for_each(|at| hints::line(start.wrapping_add(at)));
        }
    }

    /// Reads the 4 bytes at `offset`, a multiple of 4, in one access. Later reads see memory that
    /// is no older.
    pub fn load(&self, offset: u64) -> Result<u32, MemoryError> {
        self.load_word(offset).map(u32::from_le)
    }

    /// Writes the 4 bytes at `offset`, a multiple of 4, in one access. Earlier writes become
    /// visible first.
    pub fn store(&self, offset: u64, value: u32) -> Result<(), MemoryError> {
        self.slice(offset, size_of::<u32>())?
            .store(value.to_le(), 0, Ordering::Release)
            .map_err(|_| self.out_of_range(offset, size_of::<u32>()))?;
        self.intact()
    }

    /// Reads the 8 bytes at `offset`, a multiple of 8, in one access.
    pub(crate) fn load_long(&self, offset: u64) -> Result<u64, MemoryError> {
        self.load_word(offset).map(u64::from_le)
    }

    fn load_word<T: AtomicAccess>(&self, offset: u64) -> Result<T, MemoryError> {
        let word = self
            .slice(offset, size_of::<T>())?
            .load(0, Ordering::Acquire)
            .map_err(|_| self.out_of_range(offset, size_of::<T>()))?;
        self.intact()?;
        Ok(word)
    }

    /// Replaces the 8 bytes at `offset`, a multiple of 8, by `next` of their value, in one atomic
    /// step. Returns the new value.
    pub(crate) fn update(
        &self,
        offset: u64,
        next: impl Fn(u64) -> u64,
    ) -> Result<u64, MemoryError> {
        let slice = self.slice(offset, size_of::<u64>())?;
        let word: &AtomicU64 = slice
            .get_atomic_ref(0)
            .map_err(|_| self.out_of_range(offset, size_of::<u64>()))?;
        let mut was = word.load(Ordering::Acquire);
        loop {
            let will = next(was);
            match word.compare_exchange_weak(was, will, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return self.intact().map(|()| will),
                Err(now) => was = now,
            }
        }
    }
}

/// Stores `data` in words of `N` bytes, in order.
fn store_in_order<T: AtomicAccess, const N: usize>(
    slice: &VolatileSlice<'_>,
    data: &[u8],
    word: fn([u8; N]) -> T,
) -> Result<(), VolatileMemoryError> {
    let words = data.chunks_exact(N).filter_map(<[u8]>::first_chunk);
    for (index, bytes) in words.enumerate() {
        slice.store(word(*bytes), index * N, Ordering::Release)?;
    }
    Ok(())
}

fn is_words<const N: usize>(offset: u64, len: usize) -> bool {
    len % N == 0 && offset % N as u64 == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryFile;

    #[test]
    fn a_copy_lands_where_it_was_sent_at_any_size_and_alignment() {
        let memory = MemoryFile::create("test", 8192).unwrap();
        for (offset, len) in [
            (0, 16),
            (8, 64),
            (3, 16),
            (8, 7),
            (4, 28),
            (12, 4),
            (8, 12),
            (100, 4000),
            (8176, 16),
        ] {
            let data: Vec<u8> = (0..len).map(|i: u16| i.to_le_bytes()[0] ^ 0x5a).collect();
            memory.write(offset, &data).unwrap();
            let mut back = vec![0; data.len()];
            memory.read(offset, &mut back).unwrap();
            assert_eq!(back, data, "{offset}+{len}");
        }
    }

    #[test]
    fn zeros_are_where_they_were_asked_for_and_take_no_memory() {
        use std::os::unix::fs::MetadataExt;

        const ALL: usize = 16 << 12;

        let memory = MemoryFile::create("test", 16 * PAGE).unwrap();
        let mapped_elsewhere =
            MemoryFile::of_own_file(memory.file().try_clone().unwrap(), 16 * PAGE).unwrap();
        let pages = || memory.file().metadata().unwrap().blocks() * 512 / PAGE;
        for (offset, len, left) in [
            (0, 16 * PAGE, 0),
            (PAGE, 2 * PAGE, 14),
            (PAGE - 8, 2 * PAGE, 15),
            (5, PAGE - 5, 16),
            (100, 200, 16),
            (2 * PAGE, 0, 16),
        ] {
            memory.write(0, &[0xff; ALL]).unwrap();
            memory.zero(offset, len).unwrap();
            assert_eq!(pages(), left, "{offset:#x}+{len:#x}");
            let mut seen = vec![0; ALL];
            mapped_elsewhere.read(0, &mut seen).unwrap();
            let wanted = |at| {
                if (offset..offset + len).contains(&at) {
                    0
                } else {
                    0xff
                }
            };
            assert!((0..).zip(&seen).all(|(at, byte)| *byte == wanted(at)));
        }
        assert!(memory.zero(16 * PAGE, 1).is_err());
        assert!(memory.zero(PAGE, u64::MAX).is_err());
    }

    #[test]
    fn zeros_are_written_where_no_page_can_be_given_back() {
        const ALL: usize = 20 << 12;
        let memory = MemoryFile::create("test", 20 * PAGE).unwrap();
        memory.write(0, &[0xff; ALL]).unwrap();
        memory.write_zeros(3, 20 * PAGE - 3).unwrap();
        let mut seen = vec![0; ALL];
        memory.read(0, &mut seen).unwrap();
        let last = seen.len() - 3;
        assert_eq!(
            (&seen[..3], &seen[last..]),
            (&[0xff; 3][..], &[0xff; 3][..])
        );
        assert!(seen[3..last].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_word_is_loaded_and_stored_whole_and_little_endian() {
        let memory = MemoryFile::create("test", 4096).unwrap();
        memory.store(4092, 0x1234_5678).unwrap();
        let mut bytes = [0; 4];
        memory.read(4092, &mut bytes).unwrap();
        assert_eq!(bytes, [0x78, 0x56, 0x34, 0x12]);
        assert_eq!(memory.load(4092).unwrap(), 0x1234_5678);
        for offset in [4093, 4096, 2, u64::MAX] {
            assert!(memory.load(offset).is_err(), "{offset:#x}");
            assert!(memory.store(offset, 1).is_err(), "{offset:#x}");
        }
    }

    #[test]
    fn what_is_fetched_ahead_stays_as_it_is_and_may_be_no_memory() {
        let memory = MemoryFile::create("test", 4096).unwrap();
        memory.write(0, &[7; 4096]).unwrap();
        for (offset, len) in [
            (0, 4096),
            (4095, 1),
            (4095, 2),
            (4096, 0),
            (u64::MAX, u64::MAX),
        ] {
            memory.prefetch(offset, len);
        }
        let mut back = [0; 4096];
        memory.read(0, &mut back).unwrap();
        assert_eq!(back, [7; 4096]);
    }
}
