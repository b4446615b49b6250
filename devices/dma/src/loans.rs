//! Memory that this function lends to another process, which reads it: one copy, made by the other side.
//!
//! A loan keeps nothing from changing. A change that takes one of its addresses away ends it instead, so no unmap waits for another
//! process. What was read under a loan that has ended means nothing, and the lender is the one that says so.

use std::sync::Arc;

use parking_lot::Mutex;
use peerbar_dma_log::Direction;
use slab::Slab;

use crate::address::AddressRange;
use crate::error::DmaFault;
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
    /// A change has taken one of its addresses away.
    is_over: bool,
}

impl Loans {
    /// Ends every loan that meets this range. To be called with the lock held under which the range is taken away.
    pub(crate) fn end(&self, range: AddressRange) {
        for (_, loan) in self.open.lock().iter_mut() {
            loan.is_over |= loan.addresses.iter().any(|own| own.meets(range));
        }
    }
}

/// A request to read memory that another process carries out.
///
/// Dropped, it counts as no request: nobody read anything that anybody uses.
pub struct Loan {
    requester: Arc<Requester>,
    key: usize,
    tag: Tag,
    started: u64,
    ranges: Vec<PinnedRange>,
}

impl Loan {
    /// Lends the ranges of a request; the lock under which their routes were found is still held.
    pub(crate) fn new(
        requester: Arc<Requester>,
        tag: Tag,
        started: u64,
        ranges: Vec<PinnedRange>,
    ) -> Self {
        let of = |range: &PinnedRange| AddressRange::new(range.address, range.len as u64);
        let key = requester.loans().open.lock().insert(OpenLoan {
            addresses: ranges.iter().map(of).collect(),
            is_over: false,
        });
        Self {
            requester,
            key,
            tag,
            started,
            ranges,
        }
    }

    /// The memory, and how much of it from the start of each span on.
    pub fn memory(&self) -> impl Iterator<Item = (&Span, usize)> {
        self.ranges.iter().map(|range| (&range.span, range.len))
    }

    /// The other process has read all of it: counts and records the request.
    ///
    /// # Errors
    /// [`DmaFault::NoMemory`] if a change has taken some of it away meanwhile, or its owner has: what was read means nothing.
    pub fn end(self) -> Result<(), DmaFault> {
        // Locked until all is recorded: an unmap that comes later is recorded later.
        let open = self.requester.loans().open.lock();
        let is_over = open.get(self.key).is_none_or(|loan| loan.is_over);
        let is_intact = self.memory().all(|(span, _)| span.file.intact().is_ok());
        let outcome = if is_over || !is_intact {
            Err(DmaFault::NoMemory)
        } else {
            Ok(())
        };
        for range in &self.ranges {
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
        drop(open);
        outcome
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.requester.loans().open.lock().try_remove(self.key);
    }
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::Purpose;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::{MemoryFile, PeerId, PeerMemory, PeerWindow, Session, WindowId};

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
        let mut session = Session::new(requester.clone());
        session.lend(Purpose::Payload, places.iter().copied())
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
        let loan = lend(&requester, &[(0x1800, 0x100), (0xc000, 0x80)]).unwrap();
        let lens: Vec<_> = loan.memory().map(|(_, len)| len).collect();
        assert_eq!(lens, [0x100, 0x80]);
        assert_eq!(bytes_and_failures(&requester), (0, 0));
        assert_eq!(loan.end(), Ok(()));
        assert_eq!(bytes_and_failures(&requester), (0x180, 0));
        drop(lend(&requester, &[(0x1800, 0x100)]).unwrap());
        assert_eq!(bytes_and_failures(&requester), (0x180, 0));
        assert!(requester.loans().open.lock().is_empty());
    }

    /// The loan is open meanwhile, so a change that waited for its end would never return.
    #[test]
    fn change_ends_the_loans_that_it_meets_and_no_other() {
        type Change = fn(&Requester);
        let met: [(u64, Change); 6] = [
            (0x1000, |it| it.unmap(0x1fff, 0x1fff)),
            (0x1000, |it| it.set_bus_master(false)),
            (0x1000, |it| drop(it.halt())),
            (0xc000, |it| it.set_peer(PeerId(1), vec![])),
            (0xc000, |it| it.lose_peers()),
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
            let loan = lend(&requester, &[(address, 0x1000)]).unwrap();
            change(&requester);
            assert_eq!(loan.end(), Err(DmaFault::NoMemory), "change {index}");
            assert_eq!(bytes_and_failures(&requester), (0, 1), "change {index}");
        }
        let requester = requester();
        let loan = lend(&requester, &[(0x1000, 0x1000), (0xc000, 0x100)]).unwrap();
        requester.unmap(0x2000, 0x2fff);
        requester.set_peer(PeerId(2), vec![]);
        requester.set_bus_master(true);
        assert_eq!(loan.end(), Ok(()));
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
        let loan = lend(&requester, &[(0, 0x100)]).unwrap();
        ftruncate(&fd, 0).unwrap();
        let read = requester.read(Purpose::Payload, 0, &mut [0; 8]);
        assert!(read.is_err());
        assert_eq!(loan.end(), Err(DmaFault::NoMemory));
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
