//! A page table: each page of a window is mapped to a part of a memory file, or to nothing.

use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard};
use thiserror::Error;

use crate::buffer::Buffer;
use crate::memory::MemoryFile;
use crate::memory_error::MemoryError;

/// The reason why a page table refuses a request.
#[derive(Debug, Error)]
pub enum PageError {
    /// The page has no memory at this moment.
    #[error("no page at {offset:#x} of the window")]
    Missing {
        /// Offset in the window.
        offset: u64,
    },
    /// The window has no page of that number.
    #[error("page {index} of a window of {pages}")]
    Index {
        /// Number of the page.
        index: u64,
        /// Number of pages in the window.
        pages: u64,
    },
    /// The page, or the access to it, would leave the memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// A mapping of each page of a window. Every lookup is one step. The table can be changed at any
/// time.
///
/// A change waits for the copies in progress: once it returns, no access uses the previous entry.
#[derive(Debug)]
pub struct PageTable {
    file: Arc<MemoryFile>,
    page_bytes: u64,
    entries: RwLock<Vec<Option<u64>>>,
}

impl PageTable {
    /// Makes a table without entries for a window of `pages` pages of `page_bytes` bytes (not 0)
    /// over `file`.
    pub fn new(file: Arc<MemoryFile>, pages: usize, page_bytes: u64) -> Self {
        Self {
            file,
            page_bytes,
            entries: RwLock::new(vec![None; pages]),
        }
    }

    /// Maps page `index` to the page of the file that starts at `offset`, or unmaps it with `None`.
    /// A page that cannot be mapped is left unmapped.
    pub fn set(&self, index: u64, offset: Option<u64>) -> Result<(), PageError> {
        let mut entries = self.entries.write();
        let pages = entries.len() as u64;
        let entry = usize::try_from(index)
            .ok()
            .and_then(|index| entries.get_mut(index))
            .ok_or(PageError::Index { index, pages })?;
        *entry = None;
        if let Some(offset) = offset {
            self.file.check(offset, self.page_bytes)?;
            *entry = Some(offset);
        }
        Ok(())
    }

    /// Returns the offset in the file of page `index`, or `None` if the page is unmapped.
    pub fn get(&self, index: u64) -> Option<u64> {
        let index = usize::try_from(index).ok()?;
        self.entries().get(index).copied().flatten()
    }

    /// Unmaps every page.
    pub fn clear(&self) {
        self.entries.write().fill(None);
    }

    /// Returns the number of bytes from `offset` of the window to the end of its page.
    pub(crate) fn left_in_page(&self, offset: u64) -> u64 {
        self.page_bytes - offset % self.page_bytes
    }

    /// Splits an access at `offset` of the window into parts within one page, each with its offset.
    pub fn parts<'b>(
        &self,
        mut offset: u64,
        mut data: Buffer<'b>,
    ) -> impl Iterator<Item = (u64, Buffer<'b>)> {
        std::iter::from_fn(move || {
            let left = usize::try_from(self.left_in_page(offset)).unwrap_or(usize::MAX);
            let (at, part) = (offset, data.take(left));
            offset = at.saturating_add(part.len() as u64);
            (!part.is_empty()).then_some((at, part))
        })
    }

    /// Copies between `data`, which must not reach beyond the page, and the page at `offset` of the
    /// window.
    pub fn access(&self, offset: u64, data: Buffer<'_>) -> Result<(), PageError> {
        let entries = self.entries();
        let offset = self.file_offset(&entries, offset, data.len() as u64)?;
        Ok(self.file.access(offset, data)?)
    }

    /// Returns the offset in the file of `len` bytes at `offset` of the window, valid for as long
    /// as `entries` is held.
    fn file_offset(
        &self,
        entries: &[Option<u64>],
        offset: u64,
        len: u64,
    ) -> Result<u64, PageError> {
        let missing = PageError::Missing { offset };
        let index = usize::try_from(offset / self.page_bytes).unwrap_or(usize::MAX);
        match entries.get(index) {
            Some(Some(page)) if len <= self.left_in_page(offset) => {
                Ok(page + offset % self.page_bytes)
            }
            _ => Err(missing),
        }
    }

    fn entries(&self) -> RwLockReadGuard<'_, Vec<Option<u64>>> {
        self.entries.read()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: u64 = 0x1000;

    /// Returns a window of 4 pages over a file of 8, each filled with its number.
    fn table() -> PageTable {
        let file = MemoryFile::create("test", 8 * PAGE).unwrap();
        for page in 0..8u8 {
            file.write(u64::from(page) * PAGE, &[page; 0x1000]).unwrap();
        }
        PageTable::new(Arc::new(file), 4, PAGE)
    }

    fn byte(table: &PageTable, offset: u64) -> Option<u8> {
        let mut data = [0xee];
        table
            .access(offset, Buffer::Read(&mut data))
            .ok()
            .map(|()| data[0])
    }

    #[test]
    fn a_page_shows_what_it_was_put_over_last() {
        let table = table();
        assert_eq!(byte(&table, 0), None);
        table.set(1, Some(5 * PAGE)).unwrap();
        assert_eq!(byte(&table, PAGE), Some(5));
        assert_eq!(byte(&table, 2 * PAGE - 1), Some(5));
        table.set(1, Some(3 * PAGE)).unwrap();
        assert_eq!(byte(&table, PAGE), Some(3));
        table.set(1, None).unwrap();
        assert_eq!((byte(&table, PAGE), table.get(1)), (None, None));
    }

    #[test]
    fn two_pages_may_lie_over_the_same_memory() {
        let table = table();
        table.set(0, Some(2 * PAGE)).unwrap();
        table.set(3, Some(2 * PAGE)).unwrap();
        table.access(7, Buffer::Write(&[0xaa])).unwrap();
        assert_eq!(byte(&table, 3 * PAGE + 7), Some(0xaa));
        table.clear();
        assert!((0..4).all(|page| table.get(page).is_none()));
    }

    #[test]
    fn a_page_that_leaves_the_memory_is_left_over_nothing() {
        let table = table();
        for offset in [8 * PAGE, 7 * PAGE + 1, u64::MAX, u64::MAX - PAGE] {
            table.set(0, Some(0)).unwrap();
            let error = table.set(0, Some(offset)).unwrap_err();
            assert!(matches!(error, PageError::Memory(_)), "{offset:#x}");
            assert_eq!(table.get(0), None);
        }
        for index in [4, u64::MAX] {
            let error = table.set(index, Some(0)).unwrap_err();
            assert!(matches!(error, PageError::Index { pages: 4, .. }));
            assert_eq!(table.get(index), None);
        }
    }

    #[test]
    fn an_access_never_reaches_the_next_page() {
        let table = table();
        table.set(0, Some(0)).unwrap();
        table.set(1, Some(PAGE)).unwrap();
        assert!(table.access(PAGE - 1, Buffer::Read(&mut [0; 2])).is_err());
        assert!(table.access(u64::MAX, Buffer::Write(&[0])).is_err());
        assert_eq!(table.left_in_page(PAGE + 1), PAGE - 1);
    }

    proptest! {
        #[test]
        fn agrees_with_a_list_of_pages(
            steps in prop::collection::vec((0usize..5, prop::option::of(0u64..9)), 1..40),
            offset in 0u64..5 * PAGE,
        ) {
            let table = table();
            let mut model = [None; 4];
            for (index, page) in steps {
                let possible = index < 4 && page.is_none_or(|page| page < 8);
                prop_assert_eq!(table.set(index as u64, page.map(|page| page * PAGE)).is_ok(), possible);
                if let Some(entry) = model.get_mut(index) {
                    *entry = page.filter(|page| *page < 8);
                }
                let expected = usize::try_from(offset / PAGE).ok().and_then(|page| model.get(page).copied().flatten());
                prop_assert_eq!(byte(&table, offset).map(u64::from), expected);
            }
        }
    }
}
