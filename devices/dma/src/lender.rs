//! Memory that another adapter's process lends to this one, which only reads it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::lease::Lease;
use crate::lent_file::LentFile;
use crate::lent_memory::MOST_FILES_OF_A_LENDER;
use crate::loan_words::{BorrowedLoan, LentWords, LoanId};
use crate::memory::{MemoryFile, Span};
use crate::memory_error::MemoryError;
use crate::memory_pool::MemoryPool;

/// What one other process lends here, by numbers of its own.
///
/// It may lend what it likes: no more than a few files are kept, and no more than a part of the address space is mapped. Files whose pages
/// a disk, another process or host would have to supply are refused, and one that loses pages fails the accesses to it.
#[derive(Debug)]
pub struct Lender {
    pool: MemoryPool,
    /// The newest is last. The oldest goes if there are too many.
    files: VecDeque<File>,
    /// The words of its loans, by their number.
    words: Option<(u32, LentWords)>,
}

#[derive(Debug)]
struct File {
    number: u32,
    fd: OwnedFd,
    /// It is read only for as long as this lasts.
    lease: Option<Lease>,
    /// The part of it that was used last stays mapped.
    mapped: Option<Arc<MemoryFile>>,
}

impl Default for Lender {
    fn default() -> Self {
        Self {
            pool: MemoryPool::of_lender(),
            files: VecDeque::new(),
            words: None,
        }
    }
}

impl Lender {
    /// Takes the words of its loans, which have this number from now on, and the pipe by which it is seen that the lender lives
    /// ([`LoanWords::liveness`](crate::LoanWords::liveness)).
    ///
    /// # Errors
    /// [`MemoryError::NotInMemory`], [`MemoryError::NotAPipe`], and those of mapping them.
    pub fn take_words(
        &mut self,
        number: u32,
        (words, liveness): (OwnedFd, OwnedFd),
    ) -> Result<(), MemoryError> {
        self.words = Some((number, LentWords::new(words, liveness)?));
        Ok(())
    }

    /// A loan, by the words of this number. `None` if these are not there, or not any more.
    pub fn loan(&self, words: u32, id: LoanId) -> Option<BorrowedLoan> {
        let known = self.words.as_ref().filter(|(known, _)| *known == words);
        known.map(|(_, words)| words.loan(id))
    }

    /// Takes a file, which has this number from now on, and the lease under which the lender uses it, if there is one.
    ///
    /// # Errors
    /// [`MemoryError::NotInMemory`].
    pub fn take(
        &mut self,
        number: u32,
        fd: OwnedFd,
        lease: Option<Lease>,
    ) -> Result<(), MemoryError> {
        let fd = LentFile::new(fd).in_memory()?.into();
        self.files.retain(|file| file.number != number);
        if self.files.len() >= MOST_FILES_OF_A_LENDER {
            self.files.pop_front();
        }
        self.files.push_back(File {
            number,
            fd,
            lease,
            mapped: None,
        });
        Ok(())
    }

    /// The span of `size` bytes at `offset` of the file of this number, for reading.
    ///
    /// # Errors
    /// [`MemoryError::NotLent`] if it has lent no such file or it was too long ago, and those of mapping it.
    pub fn span(&mut self, number: u32, offset: u64, size: u64) -> Result<Span, MemoryError> {
        let file = self.files.iter_mut().find(|file| file.number == number);
        let file = file.ok_or(MemoryError::NotLent { number })?;
        if let Some(span) = file.mapped.as_ref().and_then(|it| part(it, offset, size)) {
            return Ok(span);
        }
        let fd = file.fd.try_clone().map_err(|source| MemoryError::Os {
            action: "share it",
            size,
            source,
        })?;
        let lent = LentFile::new(fd);
        let span = match file.lease.clone() {
            Some(lease) => self.pool.leased(lent, lease, offset, size)?,
            None => self.pool.span(lent, offset, size)?,
        };
        file.mapped = Some(span.file.clone());
        Ok(span)
    }
}

/// The span of a file's bytes in this part of it, if they are there and not lost.
fn part(file: &Arc<MemoryFile>, offset: u64, size: u64) -> Option<Span> {
    let offset = offset.checked_sub(file.first())?;
    let is_inside = file.check(offset, size).is_ok() && !file.is_lost();
    is_inside.then(|| Span {
        file: file.clone(),
        offset,
    })
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    fn memfd(size: u64) -> OwnedFd {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, size).unwrap();
        fd
    }

    #[test]
    fn lent_file_is_read_where_it_was_asked_for_and_not_beyond() {
        let fd = memfd(8192);
        rustix::io::pwrite(&fd, &[7; 16], 4096).unwrap();
        let mut lender = Lender::default();
        lender.take(3, fd, None).unwrap();
        for _ in 0..2 {
            let span = lender.span(3, 4096, 16).unwrap();
            let mut found = [0; 16];
            span.file.read(span.offset, &mut found).unwrap();
            assert_eq!(found, [7; 16]);
        }
        for (offset, size) in [(0, 8193), (8192, 1), (u64::MAX, 2)] {
            let refused = lender.span(3, offset, size);
            assert!(matches!(refused, Err(MemoryError::OutOfRange { .. })));
        }
        let unknown = lender.span(4, 0, 1);
        assert!(matches!(unknown, Err(MemoryError::NotLent { number: 4 })));
    }

    #[test]
    fn file_that_shrinks_fails_its_readers() {
        let fd = memfd(4096);
        let mut lender = Lender::default();
        lender.take(1, fd.try_clone().unwrap(), None).unwrap();
        let span = lender.span(1, 0, 4096).unwrap();
        ftruncate(&fd, 0).unwrap();
        assert!(span.file.read(span.offset, &mut [0; 64]).is_err());
        assert!(lender.span(1, 0, 4096).is_err());
        ftruncate(&fd, 4096).unwrap();
        let span = lender.span(1, 0, 4096).unwrap();
        span.file.read(span.offset, &mut [0; 64]).unwrap();
    }

    #[test]
    fn file_under_a_lease_is_read_until_that_ends() {
        let leases = crate::Leases::new().unwrap();
        let fd = memfd(4096);
        let mut lender = Lender::default();
        let words = || leases.file().try_clone().unwrap().into();
        for offset in [1, 2, 4096, u64::MAX] {
            assert!(Lease::passed_on(words(), offset, 0).is_err(), "{offset}");
        }
        let lease = Lease::passed_on(words(), 8, leases.generation(2)).unwrap();
        lender.take(1, fd, Some(lease)).unwrap();
        let span = lender.span(1, 0, 4096).unwrap();
        let read = |span: &Span| span.file.read(span.offset, &mut [0; 64]);
        leases.end(1);
        read(&span).unwrap();
        leases.end(2);
        assert!(read(&span).is_err());
        let again = lender.span(1, 0, 64).unwrap();
        assert!(read(&again).is_err());
    }

    #[test]
    fn lender_of_many_files_keeps_a_few() {
        let mut lender = Lender::default();
        for number in 0..100 {
            lender.take(number, memfd(4096), None).unwrap();
            lender.span(number, 0, 4096).unwrap();
        }
        let kept = (0..100).filter(|number| lender.span(*number, 0, 1).is_ok());
        assert_eq!(kept.count(), MOST_FILES_OF_A_LENDER);
        lender.take(200, memfd(1 << 62), None).unwrap();
        let refused = lender.span(200, 0, 1 << 61);
        assert!(matches!(refused, Err(MemoryError::TooMuch { .. })));
    }

    #[test]
    fn file_of_a_disk_or_another_process_is_refused() {
        let mut lender = Lender::default();
        let program = std::env::current_exe().unwrap();
        let remote = std::path::Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
        for path in [program.as_path(), remote] {
            let open = || std::fs::File::open(path).unwrap().into();
            let refused = lender.take(1, open(), None);
            assert!(matches!(refused, Err(MemoryError::NotInMemory)));
            let (pipe, _held) = rustix::pipe::pipe().unwrap();
            let refused = lender.take_words(1, (open(), pipe));
            assert!(matches!(refused, Err(MemoryError::NotInMemory)));
        }
        let unknown = lender.span(1, 0, 16);
        assert!(matches!(unknown, Err(MemoryError::NotLent { number: 1 })));
        let refused = lender.take_words(1, (memfd(4096), memfd(4096)));
        assert!(matches!(refused, Err(MemoryError::NotAPipe)));
    }
}
