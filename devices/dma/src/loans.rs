//! Memory that this function lends to another process, which reads it: one copy, made by the other side.
//!
//! A loan keeps nothing from changing. A change that takes one of its addresses away ends it instead, and waits for nothing but a copy that
//! the other process has begun ([`LoanWords`](crate::LoanWords)). What was read under a loan that has ended means nothing, and the lender is
//! the one that says so.

use std::sync::Arc;

use parking_lot::Mutex;
use peerbar_dma_log::Direction;
use slab::Slab;

use crate::address::AddressRange;
use crate::error::DmaFault;
use crate::loan_words::{Closed, LoanPlace, LoanWord};
use crate::memory::Span;
use crate::pins::PinnedRange;
use crate::requester::Requester;
use crate::segment_result::SegmentResult;
use crate::tag::Tag;

/// The loans of a function that nobody has given back.
#[derive(Default)]
pub(crate) struct Loans {
    open: Mutex<Slab<OpenLoan>>,
}

struct OpenLoan {
    addresses: Vec<AddressRange>,
    /// The first of its ranges that a change has taken away.
    over: Option<usize>,
    word: Arc<LoanWord>,
}

impl OpenLoan {
    fn meets(&self, range: AddressRange) -> bool {
        self.first_met(range).is_some()
    }

    fn first_met(&self, range: AddressRange) -> Option<usize> {
        self.addresses.iter().position(|own| own.meets(range))
    }
}

impl Loans {
    /// Ends every loan that meets this range: no copy of it begins any more. To be called with the lock held under which the range is
    /// taken away.
    pub(crate) fn end(&self, range: AddressRange) {
        for (_, loan) in self.open.lock().iter_mut() {
            if let Some(met) = loan.first_met(range) {
                loan.over = Some(loan.over.map_or(met, |over| over.min(met)));
                loan.word.cancel();
            }
        }
    }

    /// Whether memory of this range is being copied under loans that have ended.
    pub(crate) fn are_copied(&self, range: AddressRange) -> bool {
        let open = self.open.lock();
        let mut ended = open.iter().filter(|(_, loan)| loan.over.is_some());
        ended.any(|(_, loan)| loan.meets(range) && loan.word.is_copying())
    }

    /// Waits until nothing of this range is copied under loans that have ended. To be called without locks.
    pub(crate) fn wait(&self, range: AddressRange) {
        let open = self.open.lock();
        let ended = open.iter().filter(|(_, loan)| loan.over.is_some());
        let copied = ended.filter(|(_, loan)| loan.meets(range) && loan.word.is_copying());
        let copied: Vec<_> = copied.map(|(_, loan)| loan.word.clone()).collect();
        drop(open);
        for word in copied {
            word.wait();
        }
    }
}

/// A request to read memory that another process carries out.
///
/// Dropped, it waits for a copy in progress, and counts as a request only if all was copied.
pub struct Loan {
    requester: Arc<Requester>,
    key: usize,
    word: Arc<LoanWord>,
    is_recorded: bool,
    tag: Tag,
    started: u64,
    ranges: Vec<PinnedRange>,
}

impl Loan {
    /// Lends the ranges of a request; the lock under which their routes were found is still held.
    pub(crate) fn new(
        requester: Arc<Requester>,
        word: LoanWord,
        (tag, started): (Tag, u64),
        ranges: Vec<PinnedRange>,
    ) -> Self {
        let word = Arc::new(word);
        let of = |range: &PinnedRange| AddressRange::new(range.address, range.len as u64);
        let key = requester.loans().open.lock().insert(OpenLoan {
            addresses: ranges.iter().map(of).collect(),
            over: None,
            word: word.clone(),
        });
        Self {
            requester,
            key,
            word,
            is_recorded: false,
            tag,
            started,
            ranges,
        }
    }

    /// The memory, and how much of it from the start of each span on.
    pub fn memory(&self) -> impl Iterator<Item = (&Span, usize)> {
        self.ranges.iter().map(|range| (&range.span, range.len))
    }

    /// Where the word is by which the other process begins to read.
    pub fn place(&self) -> LoanPlace {
        self.word.place
    }

    /// The other process has read all of it: counts and records the request.
    ///
    /// # Errors
    /// [`DmaFault::NoMemory`] if a change has taken some of it away meanwhile, or its owner has: what was read means nothing. The same if
    /// nobody has read it, or the function has met a fault.
    pub fn end(mut self) -> Result<(), DmaFault> {
        self.is_recorded = true;
        let closed = self.word.close();
        // Locked until all is recorded: an unmap that comes later is recorded later.
        let open = self.requester.loans().open.lock();
        let over = open.get(self.key).map_or(Some(0), |loan| loan.over);
        if closed == Closed::Unused && over.is_none() || self.requester.injects() {
            return Err(DmaFault::NoMemory);
        }
        let lost = self
            .memory()
            .position(|(span, _)| span.file.intact().is_err());
        let unfinished = (closed == Closed::Hangs).then_some(0);
        let failed = [over, lost, unfinished].into_iter().flatten().min();
        self.record(failed);
        drop(open);
        failed.map_or(Ok(()), |_| Err(DmaFault::NoMemory))
    }

    /// Counts the ranges up to the one that failed.
    fn record(&self, failed: Option<usize>) {
        for (index, range) in self.ranges.iter().enumerate() {
            let outcome = match failed {
                Some(failed) if failed == index => Err(DmaFault::NoMemory),
                _ => Ok(()),
            };
            let result = SegmentResult {
                route: range.route,
                completer: range.completer,
                outcome,
            };
            let extent = (Direction::Read, range.len);
            let place = (range.address, self.started);
            // The caller learns of the fault once.
            let _ = self.requester.account(self.tag, place, extent, &result);
            if outcome.is_err() {
                break;
            }
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // A change that meets it waits until the copy is over, too.
        let is_copied = self.word.close() == Closed::Copied;
        let mut open = self.requester.loans().open.lock();
        let loan = open.try_remove(self.key);
        if is_copied && !self.is_recorded {
            self.record(loan.map_or(Some(0), |loan| loan.over));
        }
    }
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::Purpose;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::loan_words::LentWords;
    use crate::{
        Buffer, LoanWords, MemoryFile, PeerError, PeerId, PeerMemory, PeerRouting, PeerWindow,
        Peers, Session, WindowId,
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
        let mapped = requester.map(0x1000, 0x2000, (true, true), Some((fd, 0)));
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

    fn lend(requester: &Arc<Requester>, places: &[(u64, usize)]) -> Option<Loan> {
        lend_by(&Arc::new(LoanWords::new().unwrap()), requester, places)
    }

    fn lend_by(
        words: &Arc<LoanWords>,
        requester: &Arc<Requester>,
        places: &[(u64, usize)],
    ) -> Option<Loan> {
        let mut session = Session::new(requester.clone());
        session.lend(Purpose::Payload, words, places.iter().copied())
    }

    /// A loan that the other side has copied.
    fn copied(requester: &Arc<Requester>, places: &[(u64, usize)]) -> Loan {
        let words = Arc::new(LoanWords::new().unwrap());
        let loan = lend_by(&words, requester, places).unwrap();
        let lent = LentWords::new(words.file().try_clone().unwrap().into()).unwrap();
        assert!(lent.loan(loan.place()).begin().unwrap().finish());
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
        assert!(requester.loans().open.lock().is_empty());
    }

    #[test]
    fn change_ends_the_loans_that_it_meets_and_no_other() {
        type Change = fn(&Requester);
        let met: [(u64, Change); 8] = [
            (0x1000, |it| it.unmap(0x1fff, 0x1fff)),
            (0x1000, |it| it.set_bus_master(false)),
            (0x1000, |it| drop(it.halt())),
            (0xc000, |it| it.set_peer(PeerId(1), vec![])),
            (0xc000, |it| it.lose_peers()),
            (0xc000, |it| {
                it.set_switch(PeerRouting::Redirect, Arc::new(NoPeers))
            }),
            (0x1000, |it| it.set_link_down(None)),
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
        for (index, (address, change)) in met.into_iter().enumerate() {
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
        let mapped = requester.map(0, 0x1000, (true, true), Some(lent));
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
        let words = Arc::new(LoanWords::new().unwrap());
        let lent = LentWords::new(words.file().try_clone().unwrap().into()).unwrap();
        let [first, second] = [0x1000, 0x2000]
            .map(|address| lend_by(&words, &requester, &[(address, 0x1000)]).unwrap());
        requester.unmap(0x1000, 0x1fff);
        assert!(lent.loan(first.place()).begin().is_none());
        assert!(lent.loan(second.place()).begin().is_some());
    }

    /// The reader is never over, so each change returns as it waits no longer than it should.
    #[test]
    fn copy_that_hangs_delays_one_change() {
        let requester = requester();
        let words = Arc::new(LoanWords::new().unwrap());
        let lent = LentWords::new(words.file().try_clone().unwrap().into()).unwrap();
        let loans = [0x1000, 0x1800, 0x2000]
            .map(|address| lend_by(&words, &requester, &[(address, 0x800)]).unwrap());
        let borrowed = loans.each_ref().map(|loan| lent.loan(loan.place()));
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
    fn memory_that_is_not_mapped_here_is_not_lent() {
        let requester = requester();
        for places in [&[(0x2f00, 0x200)][..], &[(0x1000, 1), (0x8000, 1)]] {
            assert!(lend(&requester, places).is_none(), "{places:?}");
        }
        requester.set_bus_master(false);
        assert!(lend(&requester, &[(0x1000, 1)]).is_none());
    }
}
