//! Memory that this function lends to another process, which reads it: one copy, made by the other side.
//!
//! A loan keeps nothing from changing: a change ends it ([`Loans`](crate::loans::Loans)). What was read under a loan that has ended means
//! nothing, and the lender is the one that says so.

use std::sync::Arc;
use std::time::Instant;

use peerbar_dma_log::Direction;

use crate::address::AddressRange;
use crate::error::DmaFault;
use crate::loan_words::{Closed, LoanId, LoanWord};
use crate::memory::Span;
use crate::pins::PinnedRange;
use crate::requester::Requester;
use crate::segment_result::{DmaSegment, SegmentResult};
use crate::tag::Tag;

/// A request to read memory that another process carries out.
///
/// Dropped, it waits for a copy in progress, and counts as a request only if all was copied.
pub struct Loan {
    requester: Arc<Requester>,
    key: usize,
    word: Arc<LoanWord>,
    is_recorded: bool,
    /// When the change began that drops it, if it drops others, too.
    dropped: Option<Instant>,
    request: LoanRequest,
}

/// What a loan is for.
pub(crate) struct LoanRequest {
    pub(crate) tag: Tag,
    /// When the request began, by the clock of the flight recorder.
    pub(crate) started: u64,
    /// How often the link had gone down when it was found to be up.
    pub(crate) link_downs: u64,
    /// What is lent.
    pub(crate) ranges: Vec<PinnedRange>,
}

impl Loan {
    /// Lends the ranges of a request; the lock under which their routes were found is still held.
    pub(crate) fn new(requester: Arc<Requester>, word: LoanWord, request: LoanRequest) -> Self {
        let word = Arc::new(word);
        let of = |range: &PinnedRange| AddressRange::new(range.address, range.len as u64);
        let addresses = request.ranges.iter().map(of).collect();
        let key = requester.loans().add(addresses, word.clone());
        Self {
            requester,
            key,
            word,
            is_recorded: false,
            dropped: None,
            request,
        }
    }

    /// Drops loans, and waits for the copies of them all as long as for one.
    pub fn drop_all(loans: impl IntoIterator<Item = Self>) {
        let loans: Vec<_> = loans.into_iter().collect();
        loans.iter().for_each(|loan| loan.word.cancel());
        let now = Instant::now();
        for mut loan in loans {
            loan.dropped = Some(now);
            drop(loan);
        }
    }

    /// The memory, and how much of it from the start of each span on.
    pub fn memory(&self) -> impl Iterator<Item = (&Span, usize)> {
        self.request
            .ranges
            .iter()
            .map(|range| (&range.span, range.len))
    }

    /// Where the word is by which the other process begins to read.
    pub fn id(&self) -> LoanId {
        self.word.id
    }

    /// The other process says that it has read all of it: counts and records the request. One that reads still is not waited for.
    ///
    /// # Errors
    /// [`DmaFault::NoMemory`] if a change has taken some of it away meanwhile, or its owner has: what was read means nothing. The same if
    /// it was never read, which is not recorded, or if a fault is to be injected into the function's DMA.
    pub fn end(mut self) -> Result<(), DmaFault> {
        self.is_recorded = true;
        let closed = self.word.close_at_once();
        if closed == Closed::Unused {
            return Err(DmaFault::NoMemory);
        }
        // Locked until all is recorded: an unmap that comes later is recorded later.
        let open = self.requester.loans().lock();
        let over = open.get(self.key).map_or(Some(0), |loan| loan.over);
        let failed = self.failed(closed, over);
        self.record(failed);
        drop(open);
        failed.map_or(Ok(()), |_| Err(DmaFault::NoMemory))
    }

    /// The range that failed of a loan that was read. `over` is the one that a change has taken away.
    fn failed(&self, closed: Closed, over: Option<usize>) -> Option<usize> {
        let lost = self
            .memory()
            .position(|(span, _)| span.file.intact().is_err());
        // The link may have gone down, and ended all loans, just before this one was made.
        let is_link_as_before = self.requester.link_downs() == self.request.link_downs;
        let is_whole = closed == Closed::Copied && is_link_as_before && !self.requester.injects();
        let all = (!is_whole).then_some(0);
        [over, lost, all].into_iter().flatten().min()
    }

    /// Counts the ranges up to the one that failed.
    fn record(&self, failed: Option<usize>) {
        for (index, range) in self.request.ranges.iter().enumerate() {
            let outcome = match failed {
                Some(failed) if failed == index => Err(DmaFault::NoMemory),
                _ => Ok(()),
            };
            let result = SegmentResult {
                route: range.route,
                completer: range.completer,
                outcome,
            };
            let segment = DmaSegment {
                address: range.address,
                len: range.len,
                direction: Direction::Read,
                started: self.request.started,
            };
            let tag = self.request.tag;
            // The caller learns of the fault once.
            let _ = self.requester.account(tag, segment, &result);
            if outcome.is_err() {
                break;
            }
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // A change that meets it waits until the copy is over, too.
        let closed = self.word.close(self.dropped.unwrap_or_else(Instant::now));
        let mut open = self.requester.loans().lock();
        let loan = open.try_remove(self.key);
        if closed == Closed::Copied && !self.is_recorded {
            let over = loan.map_or(Some(0), |loan| loan.over);
            self.record(self.failed(closed, over));
        }
    }
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::Purpose;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::loan_words::{LONG, LentWords};
    use crate::map_access::MapAccess;
    use crate::{
        Buffer, LoanWords, MemoryFile, PeerError, PeerId, PeerMemory, PeerRouting, PeerWindow,
        Peers, Session, WaitBudget, WindowId,
    };

    struct NoPeers;

    impl Peers for NoPeers {
        fn access(&self, _: PeerId, _: u64, _: Buffer<'_>) -> Result<(), PeerError> {
            Err(PeerError::Unsupported)
        }
    }

    /// RAM at 0x1000..0x3000, a peer's memory at 0xc000..0xd000.
    fn requester() -> Arc<Requester> {
        let requester = Arc::new(Requester::new());
        let ram = MemoryFile::create("ram", 0x2000).unwrap();
        let fd = ram.file().try_clone().unwrap().into();
        let mapped = requester.map(0x1000, 0x2000, MapAccess::READ_WRITE, Some((fd, 0)));
        mapped.unwrap();
        let memory = Arc::new(MemoryFile::create("vram", 0x1000).unwrap());
        let peer = PeerWindow {
            address: 0xc000,
            size: 0x1000,
            claim: 0,
            memory: PeerMemory::Span(Span {
                file: memory,
                offset: 0,
            }),
        };
        requester.set_peer(PeerId(1), vec![peer]);
        requester.set_bus_master(true);
        requester
    }

    fn lend(requester: &Arc<Requester>, list: &[(u64, usize)]) -> Option<Loan> {
        lend_by(
            &Arc::new(LoanWords::new(&WaitBudget::default()).unwrap()),
            requester,
            list,
        )
    }

    fn lend_by(
        words: &Arc<LoanWords>,
        requester: &Arc<Requester>,
        list: &[(u64, usize)],
    ) -> Option<Loan> {
        let mut session = Session::new(requester.clone());
        session.lend(Purpose::Payload, words, list.iter().copied())
    }

    /// A loan that the other side has copied.
    fn copied(requester: &Arc<Requester>, list: &[(u64, usize)]) -> Loan {
        let words = Arc::new(LoanWords::new(&WaitBudget::default()).unwrap());
        let loan = lend_by(&words, requester, list).unwrap();
        let lent = LentWords::of(&words);
        assert!(lent.loan(loan.id()).begin().unwrap().finish());
        loan
    }

    fn bytes_and_failures(requester: &Requester) -> (u64, u64) {
        let counts = requester.counters().snapshot().into_iter();
        counts.fold((0, 0), |(bytes, failures), (_, count)| {
            (bytes + count.bytes, failures + count.failures)
        })
    }

    #[test]
    fn ended_loan_is_recorded_as_a_read_of_each_memory() {
        let requester = requester();
        let loan = copied(&requester, &[(0x1800, 0x100), (0xc000, 0x80)]);
        let lens: Vec<_> = loan.memory().map(|(_, len)| len).collect();
        assert_eq!(lens, [0x100, 0x80]);
        assert_eq!(bytes_and_failures(&requester), (0, 0));
        assert_eq!(loan.end(), Ok(()));
        assert_eq!(bytes_and_failures(&requester), (0x180, 0));
        let unread = lend(&requester, &[(0x1800, 0x100)]).unwrap();
        assert_eq!(unread.end(), Err(DmaFault::NoMemory));
        drop(lend(&requester, &[(0x1800, 0x100)]).unwrap());
        assert_eq!(bytes_and_failures(&requester), (0x180, 0));
        // What was read is in the record, though it is of no use.
        drop(copied(&requester, &[(0x1800, 0x10)]));
        assert_eq!(bytes_and_failures(&requester), (0x190, 0));
        assert!(requester.loans().lock().is_empty());
    }

    type Change = fn(&Requester);

    /// Changes that meet a loan of this address, and wait for a copy of it.
    const CHANGES: [(u64, Change); 7] = [
        (0x1000, |it| it.unmap(0x1fff, 0x1fff)),
        (0x1000, |it| it.set_bus_master(false)),
        (0x1000, |it| drop(it.halt())),
        (0xc000, |it| drop(it.set_peer(PeerId(1), vec![]))),
        (0xc000, |it| drop(it.lose_peers())),
        (0xc000, |it| {
            it.set_switch(PeerRouting::Redirect, Arc::new(NoPeers))
        }),
        (0x1000, |it| {
            let own = MemoryFile::create("own", 0x1000).unwrap();
            let memory = crate::OwnWindowMemory::Span(Span {
                file: Arc::new(own),
                offset: 0,
            });
            let window = crate::OwnWindow {
                address: 0x1000,
                size: 0x1000,
                memory,
            };
            drop(it.set_window(WindowId::Cmb, Some(window)));
        }),
    ];

    #[test]
    fn change_ends_the_loans_that_it_meets_and_no_other() {
        let link_down: (u64, Change) = (0x1000, |it| it.set_link_down(None));
        let met = CHANGES.into_iter().chain([link_down]);
        for (index, (address, change)) in met.enumerate() {
            let requester = requester();
            let loan = copied(&requester, &[(address, 0x1000)]);
            change(&requester);
            requester.set_link_up();
            assert_eq!(loan.end(), Err(DmaFault::NoMemory), "change {index}");
            assert_eq!(bytes_and_failures(&requester), (0, 1), "change {index}");
        }
        let requester = requester();
        let loan = copied(&requester, &[(0x1000, 0x1000), (0xc000, 0x100)]);
        requester.unmap(0x2000, 0x2fff);
        requester.set_peer(PeerId(2), vec![]);
        requester.set_bus_master(true);
        assert_eq!(loan.end(), Ok(()));
    }

    #[test]
    fn range_that_was_taken_away_is_the_one_that_fails() {
        let requester = requester();
        let ranges = [(0x1000, 0x400), (0xc000, 0x80), (0x1800, 0x100)];
        let [ended, dropped] = [(); 2].map(|()| copied(&requester, &ranges));
        requester.set_peer(PeerId(1), vec![]);
        assert_eq!(ended.end(), Err(DmaFault::NoMemory));
        assert_eq!(bytes_and_failures(&requester), (0x400, 1));
        drop(dropped);
        assert_eq!(bytes_and_failures(&requester), (0x800, 2));
    }

    #[test]
    fn loan_of_lost_memory_does_not_end_well() {
        let requester = Arc::new(Requester::new());
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 0x1000).unwrap();
        let lent = (fd.try_clone().unwrap(), 0);
        let mapped = requester.map(0, 0x1000, MapAccess::READ_WRITE, Some(lent));
        mapped.unwrap();
        requester.set_bus_master(true);
        let loan = copied(&requester, &[(0, 0x100)]);
        ftruncate(&fd, 0).unwrap();
        let read = requester.read(Purpose::Payload, 0, &mut [0; 8]);
        assert!(read.is_err());
        assert_eq!(loan.end(), Err(DmaFault::NoMemory));
    }

    #[test]
    fn copy_of_a_loan_does_not_begin_after_a_change() {
        let requester = requester();
        let words = Arc::new(LoanWords::new(&WaitBudget::default()).unwrap());
        let lent = LentWords::of(&words);
        let [first, second] = [0x1000, 0x2000]
            .map(|address| lend_by(&words, &requester, &[(address, 0x1000)]).unwrap());
        requester.unmap(0x1000, 0x1fff);
        assert!(lent.loan(first.id()).begin().is_none());
        assert!(lent.loan(second.id()).begin().is_some());
    }

    #[test]
    fn change_waits_for_a_copy_that_has_begun() {
        for (index, (address, change)) in CHANGES.into_iter().enumerate() {
            let requester = requester();
            let words = Arc::new(LoanWords::of_long_waits());
            let lent = LentWords::of(&words);
            let loan = lend_by(&words, &requester, &[(address, 0x1000)]).unwrap();
            let borrowed = lent.loan(loan.id());
            let copying = borrowed.begin().unwrap();
            let (done, changed) = std::sync::mpsc::channel();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    change(&requester);
                    done.send(()).unwrap();
                });
                while words.waiting() == 0 {
                    assert!(changed.try_recv().is_err(), "change {index} waits not");
                    std::thread::yield_now();
                }
                assert!(changed.try_recv().is_err(), "change {index}");
                assert!(copying.finish(), "change {index}");
            });
            changed.recv().unwrap();
            assert!(!words.has_hung(), "change {index}");
            assert_eq!(loan.end(), Err(DmaFault::NoMemory), "change {index}");
        }
    }

    /// Six readers that never end: the time of one change is over for all of them.
    #[test]
    fn readers_of_one_change_get_the_time_of_one() {
        let requester = requester();
        let words = [(); 6].map(|()| Arc::new(LoanWords::of_long_waits()));
        let loans = words
            .each_ref()
            .map(|words| lend_by(words, &requester, &[(0x1000, 0x100)]).unwrap());
        let borrowed = [0, 1, 2, 3, 4, 5].map(|index| {
            let lent = LentWords::of(&words[index]);
            lent.loan(loans[index].id())
        });
        let _copies = borrowed.each_ref().map(|loan| loan.begin().unwrap());
        let range = AddressRange::new(0x1000, 1);
        requester.loans().end(range);
        let long_ago = Instant::now() - LONG;
        requester.loans().wait_since(&[range], long_ago);
        assert!(words.iter().all(|words| words.has_hung()));
    }

    #[test]
    fn copy_that_hangs_delays_one_change() {
        let requester = requester();
        let words = Arc::new(LoanWords::new(&WaitBudget::default()).unwrap());
        let lent = LentWords::of(&words);
        let loans = [0x1000, 0x1800, 0x2000]
            .map(|address| lend_by(&words, &requester, &[(address, 0x800)]).unwrap());
        let borrowed = loans.each_ref().map(|loan| lent.loan(loan.id()));
        let _copies = borrowed.each_ref().map(|loan| loan.begin().unwrap());
        requester.unmap(0x1000, 0x1fff);
        assert!(words.has_hung());
        requester.unmap(0x2000, 0x2fff);
        for loan in loans {
            assert_eq!(loan.end(), Err(DmaFault::NoMemory));
        }
        assert!(lend_by(&words, &requester, &[(0xc000, 1)]).is_none());
    }

    #[test]
    fn reader_that_answers_before_its_copy_is_over_hangs() {
        let requester = requester();
        let words = Arc::new(LoanWords::of_long_waits());
        let lent = LentWords::of(&words);
        let loan = lend_by(&words, &requester, &[(0x1000, 0x800)]).unwrap();
        let borrowed = lent.loan(loan.id());
        let copying = borrowed.begin().unwrap();
        assert_eq!(loan.end(), Err(DmaFault::NoMemory));
        assert!(words.has_hung() && !copying.finish());
        assert_eq!(bytes_and_failures(&requester), (0, 1));
    }

    #[test]
    fn loan_that_comes_after_the_link_went_down_ends_badly() {
        let requester = requester();
        let words = Arc::new(LoanWords::new(&WaitBudget::default()).unwrap());
        let lent = LentWords::of(&words);
        // As the lender that found the link up finds no loans ended that it has not made.
        let before = requester.link_downs();
        requester.set_link_down(None);
        requester.set_link_up();
        let mut loan = lend_by(&words, &requester, &[(0x1000, 0x800)]).unwrap();
        loan.request.link_downs = before;
        assert!(lent.loan(loan.id()).begin().unwrap().finish());
        assert_eq!(loan.end(), Err(DmaFault::NoMemory));
        let loan = lend_by(&words, &requester, &[(0x1000, 0x800)]).unwrap();
        assert!(lent.loan(loan.id()).begin().unwrap().finish());
        assert_eq!(loan.end(), Ok(()));
    }

    #[test]
    fn copied_loan_of_a_fault_is_recorded_and_unread_is_not() {
        let requester = requester();
        let loan = copied(&requester, &[(0x1000, 0x100)]);
        let rule = "fail dma".parse();
        requester.add_fault(rule.unwrap()).unwrap();
        assert_eq!(loan.end(), Err(DmaFault::NoMemory));
        assert_eq!(bytes_and_failures(&requester), (0, 1));
        let requester = self::requester();
        let unread = lend(&requester, &[(0x1000, 0x100)]).unwrap();
        requester.unmap(0x1000, 0x1fff);
        assert_eq!(unread.end(), Err(DmaFault::NoMemory));
        assert_eq!(bytes_and_failures(&requester), (0, 0));
    }

    #[test]
    fn memory_that_is_not_mapped_here_is_not_lent() {
        let requester = requester();
        for list in [&[(0x2f00, 0x200)][..], &[(0x1000, 1), (0x8000, 1)]] {
            assert!(lend(&requester, list).is_none(), "{list:?}");
        }
        requester.set_bus_master(false);
        assert!(lend(&requester, &[(0x1000, 1)]).is_none());
    }
}
