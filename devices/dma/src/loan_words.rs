//! The words of what a function lends to one other process, in a small file that both sides write.
//!
//! With it the reader gets the means to see that the lender lives ([`liveness`](crate::liveness)): the words of one that was killed stay as
//! they are.
//!
//! Neither side trusts the other. A lender that finds a copy in progress waits for it, as long as the change that waits has time and there is
//! [`WaitBudget`] left. By the words of a reader whose copy lasts longer nothing is lent any more. A reader that finds anything but an open
//! loan copies nothing.

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::SealFlags;
use rustix::mm::ProtFlags;
use rustix::thread::futex;

use crate::lent_file::LentFile;
use crate::liveness::{LenderLiveness, OwnLiveness};
use crate::loan_word::{self, LAST_GENERATION, LoanState, advance, is};
use crate::memory::MemoryFile;
use crate::memory_error::MemoryError;
use crate::wait_budget::{Bucket, OF_ONE, WaitBudget};

/// Bytes of the file, and of a word.
const BYTES: u64 = 4096;
const WORD: u64 = 4;
/// How many loans there are at most at a time.
const MOST: u32 = 1024;

const _: () = assert!(MOST as u64 * WORD == BYTES);

/// Neither private, as the other side is another process, nor by another clock.
const SHARED: futex::Flags = futex::Flags::empty();

/// How long a change waits in tests that nothing else than the reader should end.
#[cfg(test)]
pub(crate) const LONG: Duration = Duration::from_secs(24 * 3600);

/// The words of what is lent to one other process.
#[derive(Debug)]
pub struct LoanWords {
    file: MemoryFile,
    liveness: OwnLiveness,
    slots: Mutex<Slots>,
    has_hung: AtomicBool,
    /// How long one change waits.
    change_time: Duration,
    /// For how long all changes may still wait for this reader, and for all readers of the lender.
    reader_budget: Bucket,
    lender_budget: WaitBudget,
    /// How many threads wait.
    #[cfg(test)]
    waiting: AtomicU32,
}

#[derive(Debug)]
struct Slots {
    free: Vec<u32>,
    generations: Vec<u32>,
}

/// Which loan it is: where its word is, for its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoanId {
    /// The word's number in the file.
    pub slot: u32,
    /// What tells the loan from others by the same word.
    pub generation: u32,
}

/// How a loan has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// Nothing of it was copied that counts.
    Unused,
    /// All of it has been copied.
    Copied,
    /// A copy has begun and does not end.
    Hangs,
}

impl LoanWords {
    /// Words of no loan. Waiting for their reader spends the lender's budget.
    ///
    /// # Errors
    /// [`MemoryError::Os`] if there is no memory for them, or no descriptor.
    pub fn new(lender_budget: &WaitBudget) -> Result<Self, MemoryError> {
        let file = MemoryFile::create_sealed("loans", BYTES, SealFlags::empty())?;
        let slots = Slots {
            free: (0..MOST).rev().collect(),
            generations: vec![0; MOST as usize],
        };
        Ok(Self {
            file,
            liveness: OwnLiveness::new()?,
            slots: Mutex::new(slots),
            has_hung: AtomicBool::new(false),
            change_time: OF_ONE,
            reader_budget: Bucket::new(OF_ONE),
            lender_budget: lender_budget.clone(),
            #[cfg(test)]
            waiting: AtomicU32::new(0),
        })
    }

    /// Words for whose reader a change waits for as long as it takes.
    #[cfg(test)]
    pub(crate) fn of_long_waits() -> Self {
        let words = Self::new(&WaitBudget::of(LONG)).unwrap();
        Self {
            change_time: LONG,
            reader_budget: Bucket::new(LONG),
            ..words
        }
    }

    /// How many threads wait for the reader.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Acquire)
    }

    /// The file, for the reader.
    pub fn file(&self) -> &File {
        self.file.file()
    }

    /// The pipe by which the reader sees that this process lives, and that the words count.
    pub fn liveness(&self) -> BorrowedFd<'_> {
        self.liveness.shown()
    }

    /// Whether a copy of the reader did not end in time, or was not over when the reader said so. Nothing is lent by these words any more.
    pub fn has_hung(&self) -> bool {
        self.has_hung.load(Ordering::Relaxed)
    }

    /// Opens a loan. `None` if there are too many, or one has hung.
    pub(crate) fn open(self: &Arc<Self>) -> Option<LoanWord> {
        let mut slots = self.slots.lock();
        let slot = slots.free.pop().filter(|_| !self.has_hung())?;
        let generation = slots.generations.get_mut(slot as usize)?;
        *generation += 1;
        let id = LoanId {
            slot,
            generation: *generation,
        };
        let open = loan_word::value(id.generation, LoanState::Open)?;
        let offset = u64::from(slot) * WORD;
        let store = |word: &AtomicU32| word.store(open, Ordering::Release);
        self.file.with_word(offset, store).ok()?;
        Some(LoanWord {
            words: self.clone(),
            id,
        })
    }
}

/// The word of one loan, at its lender.
#[derive(Debug)]
pub(crate) struct LoanWord {
    words: Arc<LoanWords>,
    pub(crate) id: LoanId,
}

impl LoanWord {
    fn with<T>(&self, access: impl FnOnce(&AtomicU32) -> T) -> Option<T> {
        let offset = u64::from(self.id.slot) * WORD;
        self.words.file.with_word(offset, access).ok()
    }

    fn is(&self, state: LoanState) -> bool {
        let is = |word: &AtomicU32| is(word, self.id.generation, state);
        self.with(is).unwrap_or(false)
    }

    /// Has no copy begin any more. One may be in progress.
    pub(crate) fn cancel(&self) {
        self.with(|word| loan_word::cancel(word, self.id.generation));
    }

    /// Whether a copy is in progress, for the end of which it is worth to wait.
    pub(crate) fn is_copying(&self) -> bool {
        !self.words.has_hung() && self.is(LoanState::Copying)
    }

    /// Ends the loan, and waits for a copy in progress, for a change that began at this moment.
    pub(crate) fn close(&self, began: Instant) -> Closed {
        self.cancel();
        let is_over = self.wait(began);
        self.closed(is_over)
    }

    /// Ends the loan of a reader that says that it has copied. One that copies still breaks the rules, and is not waited for.
    pub(crate) fn close_at_once(&self) -> Closed {
        self.cancel();
        let is_over = !self.is(LoanState::Copying);
        if !is_over {
            self.hang();
        }
        self.closed(is_over)
    }

    fn closed(&self, is_over: bool) -> Closed {
        if !is_over {
            Closed::Hangs
        } else if self.is(LoanState::Done) {
            Closed::Copied
        } else {
            Closed::Unused
        }
    }

    /// Waits until no copy is in progress, for a change that began at this moment. False if one goes on: its words have hung.
    pub(crate) fn wait(&self, began: Instant) -> bool {
        let generation = self.id.generation;
        let Some(copying) = loan_word::value(generation, LoanState::Copying) else {
            return true;
        };
        if !self.is(LoanState::Copying) {
            return true;
        }
        let words = &self.words;
        let start = Instant::now();
        let left = (words.change_time.checked_sub(start - began)).unwrap_or_default();
        let buckets = [&words.reader_budget, words.lender_budget.bucket()];
        let left = buckets
            .iter()
            .fold(left, |left, it| left.min(it.left(start)));
        let is_over = self.wait_until(start + left, copying);
        let end = Instant::now();
        for bucket in buckets {
            // What the host made it longer is not the reader's doing.
            bucket.spend(end, left.min(end - start));
        }
        if !is_over {
            self.hang();
        }
        is_over
    }

    fn wait_until(&self, until: Instant, copying: u32) -> bool {
        while self.is(LoanState::Copying) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.words.has_hung() {
                return false;
            }
            let left = futex::Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            #[cfg(test)]
            self.words.waiting.fetch_add(1, Ordering::Release);
            // Whatever it says, the word and the time are looked at.
            self.with(|word| futex::wait(word, SHARED, copying, Some(&left)));
            #[cfg(test)]
            self.words.waiting.fetch_sub(1, Ordering::Release);
        }
        true
    }

    /// The copy does not end: whatever it does is void, and there is no other one.
    fn hang(&self) {
        self.with(|word| loan_word::abandon(word, self.id.generation));
        let words = &self.words;
        if words.has_hung.swap(true, Ordering::Relaxed) {
            return;
        }
        let is_first = words.lender_budget.is_first_report();
        let level = if is_first {
            log::Level::Warn
        } else {
            log::Level::Debug
        };
        log::log!(
            level,
            "a copy of lent memory does not end in time: that adapter gets payload in packets for a while"
        );
    }
}

impl Drop for LoanWord {
    fn drop(&mut self) {
        self.cancel();
        if self.id.generation < LAST_GENERATION && !self.words.has_hung() {
            self.words.slots.lock().free.push(self.id.slot);
        }
    }
}

/// The words of a lender, at its reader.
#[derive(Clone, Debug)]
pub(crate) struct LentWords(Arc<Lent>);

#[derive(Debug)]
struct Lent {
    file: MemoryFile,
    lender: LenderLiveness,
}

impl LentWords {
    /// The words in this file, for as long as the pipe has an end for writing.
    ///
    /// # Errors
    /// Those of mapping the file; [`MemoryError::NotInMemory`], [`MemoryError::NotAPipe`].
    pub(crate) fn new(fd: OwnedFd, liveness: OwnedFd) -> Result<Self, MemoryError> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let file = LentFile::new(fd).in_memory()?;
        let file = MemoryFile::of_other(file, 0, BYTES, access)?;
        let lender = LenderLiveness::new(liveness)?;
        Ok(Self(Arc::new(Lent { file, lender })))
    }

    #[cfg(test)]
    pub(crate) fn of(words: &LoanWords) -> Self {
        let liveness = words.liveness().try_clone_to_owned().unwrap();
        Self::new(words.file().try_clone().unwrap().into(), liveness).unwrap()
    }

    pub(crate) fn loan(&self, id: LoanId) -> BorrowedLoan {
        BorrowedLoan {
            words: self.clone(),
            id,
        }
    }
}

/// A loan of another process, which may be copied once.
#[derive(Clone, Debug)]
pub struct BorrowedLoan {
    words: LentWords,
    id: LoanId,
}

impl BorrowedLoan {
    /// Begins to copy, with all locks held and all memory pinned that the copy needs: the lender waits for its end. `None` if the
    /// loan is over, or its lender has ended.
    pub fn begin(&self) -> Option<Copying<'_>> {
        let begins = self.advance(LoanState::Open, LoanState::Copying);
        let copying = begins.then(|| Copying(self))?;
        // After the word is taken: a lender that ends its loans itself lives until it has seen that.
        self.is_of_a_living_lender().then_some(copying)
    }

    fn is_of_a_living_lender(&self) -> bool {
        !self.words.0.lender.is_over()
    }

    fn advance(&self, from: LoanState, to: LoanState) -> bool {
        let generation = self.id.generation;
        let offset = u64::from(self.id.slot) * WORD;
        let advance = |word: &AtomicU32| {
            let is_advanced = advance(word, generation, from, to);
            // The page may have gone meanwhile; then no thread waits there.
            let _ = (from == LoanState::Copying).then(|| futex::wake(word, SHARED, u32::MAX >> 1));
            is_advanced
        };
        self.words
            .0
            .file
            .with_word(offset, advance)
            .unwrap_or(false)
    }
}

/// A copy of lent memory in progress. Dropped, it has failed.
#[must_use]
pub struct Copying<'a>(&'a BorrowedLoan);

impl Copying<'_> {
    /// All has been copied; whether the lender has waited for that, and lives.
    pub fn finish(self) -> bool {
        self.0.is_of_a_living_lender() && self.0.advance(LoanState::Copying, LoanState::Done)
    }
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        self.0.advance(LoanState::Copying, LoanState::Over);
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    fn two() -> (Arc<LoanWords>, LentWords) {
        let words = Arc::new(LoanWords::new(&WaitBudget::default()).unwrap());
        let lent = LentWords::of(&words);
        (words, lent)
    }

    #[test]
    fn loan_is_copied_once_and_not_after_its_end() {
        let (words, lent) = two();
        let word = words.open().unwrap();
        let loan = lent.loan(word.id);
        let copying = loan.begin().unwrap();
        assert!(word.is_copying() && loan.begin().is_none());
        assert!(copying.finish() && loan.begin().is_none());
        assert_eq!(word.close(Instant::now()), Closed::Copied);
        let word = words.open().unwrap();
        word.cancel();
        assert!(lent.loan(word.id).begin().is_none());
        assert_eq!(word.close(Instant::now()), Closed::Unused);
        let word = words.open().unwrap();
        drop(lent.loan(word.id).begin().unwrap());
        assert_eq!(word.close(Instant::now()), Closed::Unused);
    }

    /// The state of a thread of this process (proc(5)): `S` is asleep.
    fn state_of(thread: rustix::thread::Pid) -> char {
        let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
        let stat = std::fs::read_to_string(path).unwrap();
        let (_, behind) = stat.rsplit_once(") ").unwrap();
        behind.chars().next().unwrap()
    }

    #[test]
    fn end_sleeps_until_a_copy_that_has_begun_is_over() {
        let words = Arc::new(LoanWords::of_long_waits());
        let lent = LentWords::of(&words);
        let word = words.open().unwrap();
        let loan = lent.loan(word.id);
        let copying = loan.begin().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let end = scope.spawn(|| {
                tell.send(rustix::thread::gettid()).unwrap();
                word.close(Instant::now())
            });
            let waiter = told.recv().unwrap();
            while words.waiting() == 0 || state_of(waiter) != 'S' {
                assert!(!end.is_finished());
                std::thread::yield_now();
            }
            assert!(!end.is_finished());
            assert!(copying.finish());
            assert_eq!(end.join().unwrap(), Closed::Copied);
        });
    }

    #[test]
    fn copy_that_hangs_delays_one_end_and_is_the_last() {
        let (words, lent) = two();
        let [first, second] = [(); 2].map(|()| words.open().unwrap());
        let loans = [&first, &second].map(|word| lent.loan(word.id));
        let copies = loans.each_ref().map(|loan| loan.begin().unwrap());
        let began = Instant::now();
        assert_eq!(first.close(Instant::now()), Closed::Hangs);
        assert!(began.elapsed() >= OF_ONE && words.has_hung());
        // Longer than it takes on any machine, had it waited again a thousand times.
        assert_eq!(second.close(Instant::now()), Closed::Hangs);
        for _ in 0..1000 {
            assert_eq!(second.close(Instant::now()), Closed::Unused);
            assert!(!first.is_copying() && !second.is_copying());
        }
        assert!(words.open().is_none());
        assert!(copies.into_iter().all(|copy| !copy.finish()));
    }

    #[test]
    fn reader_that_has_hung_is_not_waited_for() {
        let words = Arc::new(LoanWords::of_long_waits());
        let lent = LentWords::of(&words);
        let word = words.open().unwrap();
        let loan = lent.loan(word.id);
        let copying = loan.begin().unwrap();
        words.has_hung.store(true, Ordering::Relaxed);
        assert_eq!(word.close(Instant::now()), Closed::Hangs);
        assert!(!copying.finish());
    }

    #[test]
    fn copies_that_end_late_are_waited_for_within_a_budget() {
        let (words, lent) = two();
        let lender = words.lender_budget.clone();
        let other = Arc::new(LoanWords::new(&lender).unwrap());
        // The reader has made changes wait, each for less than the time of one.
        words.reader_budget.spend(Instant::now(), 1000 * OF_ONE);
        let word = words.open().unwrap();
        let loan = lent.loan(word.id);
        let copying = loan.begin().unwrap();
        assert_eq!(word.close(Instant::now()), Closed::Hangs);
        assert!(words.has_hung() && !copying.finish());
        assert!(!other.has_hung() && lender.is_enough());
        // All readers together have.
        lender.bucket().spend(Instant::now(), 1000 * OF_ONE);
        let lent = LentWords::of(&other);
        let word = other.open().unwrap();
        let loan = lent.loan(word.id);
        let copying = loan.begin().unwrap();
        assert_eq!(word.close(Instant::now()), Closed::Hangs);
        assert!(other.has_hung() && !copying.finish());
    }

    #[test]
    fn whatever_a_reader_writes_ends_the_loan_at_once() {
        let (words, lent) = two();
        for value in [0, 1, 3, u32::MAX, 0x7fff_fffa] {
            let word = words.open().unwrap();
            let offset = u64::from(word.id.slot) * WORD;
            lent.0.file.store(offset, value).unwrap();
            assert_eq!(word.close(Instant::now()), Closed::Unused, "{value:#x}");
        }
        assert!(!words.has_hung());
    }

    #[test]
    fn whatever_a_lender_writes_fails_the_copy_alone() {
        let (words, lent) = two();
        let word = words.open().unwrap();
        let loan = lent.loan(word.id);
        let copying = loan.begin().unwrap();
        words.file.store(u64::from(word.id.slot) * WORD, 0).unwrap();
        assert!(!copying.finish());
        for id in [(MOST, 1), (u32::MAX, 1), (0, 0), (0, u32::MAX)] {
            let (slot, generation) = id;
            let loan = lent.loan(LoanId { slot, generation });
            assert!(loan.begin().is_none(), "{id:?}");
        }
        let fd = memfd_create("words", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, BYTES).unwrap();
        let liveness = words.liveness().try_clone_to_owned().unwrap();
        let lent = LentWords::new(fd.try_clone().unwrap(), liveness).unwrap();
        ftruncate(&fd, 0).unwrap();
        let id = LoanId {
            slot: 0,
            generation: 1,
        };
        assert!(lent.loan(id).begin().is_none());
    }

    #[test]
    fn loan_of_a_lender_that_was_killed_is_copied_no_more() {
        // The words stay open, as those of a process that had no time to end its loans.
        let words = Arc::new(LoanWords::new(&WaitBudget::default()).unwrap());
        let (liveness, held) = rustix::pipe::pipe().unwrap();
        let file = words.file().try_clone().unwrap().into();
        let lent = LentWords::new(file, liveness).unwrap();
        let [first, second] = [(); 2].map(|()| words.open().unwrap());
        let loan = lent.loan(first.id);
        let copying = loan.begin().unwrap();
        drop(held);
        assert!(!copying.finish(), "it may have copied what is another's");
        assert!(first.is(LoanState::Over));
        assert!(second.is(LoanState::Open));
        assert!(lent.loan(second.id).begin().is_none());
        assert!(second.is(LoanState::Over), "no thread waits for it");
    }

    #[test]
    fn words_are_used_again_in_another_generation() {
        let (words, lent) = two();
        let first = words.open().unwrap();
        let late = lent.loan(first.id);
        drop(first);
        let all: Vec<_> = (0..MOST).map(|_| words.open().unwrap()).collect();
        assert!(words.open().is_none() && late.begin().is_none());
        let same = all.iter().find(|word| word.id.slot == late.id.slot);
        assert_eq!(same.unwrap().id.generation, 2);
        drop(all);
        assert!(words.open().is_some());
    }
}
