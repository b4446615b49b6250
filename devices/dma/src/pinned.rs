//! Memory that the kernel reads or writes for the function.

use std::iter;
use std::sync::Arc;

use peerbar_dma_log::Direction;
use peerbar_pci::Iova;
use thiserror::Error;

use crate::error::DmaFault;
use crate::memory::Span;
use crate::pins::PinnedRange;
use crate::requester::Requester;
use crate::segment_result::{DmaSegment, SegmentResult};
use crate::tag::Tag;

/// The reason why a copy between pinned memories failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CopyError {
    /// The memory that is read.
    #[error("the memory that is read: {0}")]
    Source(DmaFault),
    /// The memory that is written.
    #[error("the memory that is written: {0}")]
    Destination(DmaFault),
    /// Their lengths differ: nothing was copied.
    #[error("{from} bytes cannot be copied to a memory of {to} bytes")]
    Lengths {
        /// Bytes of the memory that is read.
        from: usize,
        /// Bytes of the memory that is written.
        to: usize,
    },
}

/// Memory on which the kernel may execute a request, until it is [ended](Pinned::end) or dropped.
///
/// Until then no change that takes one of its addresses away is answered: no unmap, no move of the
/// function's own window, no reset. A peer that closes its window waits for at most 250 ms.
pub struct Pinned {
    requester: Arc<Requester>,
    key: usize,
    tag: Tag,
    direction: Direction,
    started: u64,
    ranges: Vec<PinnedRange>,
}

impl Pinned {
    /// Pins the ranges of a request, while the lock under which their routes were found is still
    /// held. Leaves an empty list for the ranges of the next request.
    pub(crate) fn new(
        requester: Arc<Requester>,
        tag: Tag,
        direction: Direction,
        started: u64,
        ranges: &mut Vec<PinnedRange>,
    ) -> Self {
        let (key, spare) = requester.pins().begin(direction, ranges);
        Self {
            requester,
            key,
            tag,
            direction,
            started,
            ranges: std::mem::replace(ranges, spare),
        }
    }

    /// Returns the direction: the memory is read or written.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Returns the memory, and the number of bytes from the start of each span.
    pub fn memory(&self) -> impl Iterator<Item = (&Span, usize)> {
        self.ranges.iter().map(|range| (&range.span, range.len))
    }

    /// Fails if the memory was lent and taken away. Must be called after the kernel has used it. In
    /// that case the transferred data is lost.
    pub fn intact(&self) -> Result<(), DmaFault> {
        let mut memory = self.memory();
        memory
            .try_for_each(|(span, _)| span.file.intact())
            .map_err(|_| DmaFault::NoMemory)
    }

    /// Reads `data.len()` bytes of the memory from `offset` on.
    pub fn read(&self, mut offset: usize, mut data: &mut [u8]) -> Result<(), DmaFault> {
        for (span, len) in self.memory() {
            let skipped = offset.min(len);
            offset -= skipped;
            let (part, rest) = data.split_at_mut(data.len().min(len - skipped));
            let read = span.file.read(span.offset + skipped as u64, part);
            read.map_err(|_| DmaFault::NoMemory)?;
            data = rest;
        }
        data.is_empty().then_some(()).ok_or(DmaFault::NoMemory)
    }

    /// Copies the memory to `to`, which must have the same length, by one copy, and ends both
    /// requests.
    pub fn copy_to(self, to: Self) -> Result<(), CopyError> {
        let mut moved = Moved::default();
        let bytes = |pinned: &Self| pinned.memory().map(|(_, len)| len).sum();
        let lengths: (usize, usize) = (bytes(&self), bytes(&to));
        let copied = if lengths.0 == lengths.1 {
            copy_spans(self.memory(), to.memory(), &mut moved)
        } else {
            let (from, to) = lengths;
            Err(CopyError::Lengths { from, to })
        };
        let (from_fault, to_fault) = match copied {
            Ok(()) | Err(CopyError::Lengths { .. }) => (None, None),
            Err(CopyError::Source(fault)) => (Some(fault), None),
            Err(CopyError::Destination(fault)) => (None, Some(fault)),
        };
        self.end(moved.read, from_fault);
        to.end(moved.written, to_fault);
        copied
    }

    /// Fills the pinned memory from the start of `from`, and ends the request.
    ///
    /// # Errors
    /// [`CopyError::Source`] if `from` is too short or was taken away; [`CopyError::Destination`],
    /// which is recorded, if the pinned memory was taken away.
    pub fn copy_from(self, from: &Span) -> Result<(), CopyError> {
        let mut moved = Moved::default();
        let copied = copy_spans(iter::once((from, usize::MAX)), self.memory(), &mut moved);
        let fault = match copied {
            Err(CopyError::Destination(fault)) => Some(fault),
            _ => None,
        };
        self.end(moved.written, fault);
        copied
    }

    /// Copies the pinned memory to the start of `to`, and ends the request.
    ///
    /// # Errors
    /// [`CopyError::Destination`] if `to` is too short or was taken away; [`CopyError::Source`],
    /// which is recorded, if the pinned memory was taken away.
    pub fn copy_into(self, to: &Span) -> Result<(), CopyError> {
        let mut moved = Moved::default();
        let bytes = self.memory().map(|(_, len)| len).sum();
        let copied = copy_spans(self.memory(), iter::once((to, bytes)), &mut moved);
        let fault = match copied {
            Err(CopyError::Source(fault)) => Some(fault),
            _ => None,
        };
        self.end(moved.read, fault);
        copied
    }

    /// Ends the request. Its first `moved` bytes have been moved, and are recorded as copies would
    /// be. With a fault, the rest has failed.
    pub fn end(self, mut moved: usize, fault: Option<DmaFault>) {
        for range in &self.ranges {
            let len = range.len.min(moved);
            moved -= len;
            if len > 0 {
                self.account(range, range.addresses.first(), len, Ok(()));
            }
            if len < range.len {
                if let Some(fault) = fault {
                    let address = range.addresses.first().saturating_add(len as u64);
                    self.account(range, address, range.len - len, Err(fault));
                }
                break;
            }
        }
    }

    fn account(
        &self,
        range: &PinnedRange,
        address: Iova,
        len: usize,
        outcome: Result<(), DmaFault>,
    ) {
        let result = SegmentResult {
            route: range.route,
            completer: range.completer,
            outcome,
        };
        let segment = DmaSegment {
            address,
            len,
            direction: self.direction,
            started: self.started,
        };
        // The caller of `end` knows of the fault.
        let _ = self.requester.ledger().account(self.tag, segment, &result);
    }
}

/// The number of bytes that a copy has read and written.
#[derive(Default)]
struct Moved {
    read: usize,
    written: usize,
}

/// Copies range by range, and counts the bytes moved. A source that is lost during the copy reads
/// as zeros, which then fill the destination: they count as written.
fn copy_spans<'a>(
    mut sources: impl Iterator<Item = (&'a Span, usize)>,
    to: impl Iterator<Item = (&'a Span, usize)>,
    moved: &mut Moved,
) -> Result<(), CopyError> {
    let mut source: Option<(&Span, usize, usize)> = None;
    for (span, len) in to {
        let mut done = 0;
        while done < len {
            let next = source.take().filter(|(_, at, len)| at < len);
            let next = next.or_else(|| sources.next().map(|(span, len)| (span, 0, len)));
            let Some((from, at, from_len)) = next else {
                return Ok(());
            };
            let part = (len - done).min(from_len - at);
            let offsets = (from.offset + at as u64, span.offset + done as u64);
            if from.file.check_access(offsets.0, part).is_err() {
                return Err(CopyError::Source(DmaFault::NoMemory));
            }
            if span.file.check_access(offsets.1, part).is_err() {
                return Err(CopyError::Destination(DmaFault::NoMemory));
            }
            let copied = from.file.copy_to(offsets.0, &span.file, offsets.1, part);
            if copied.is_err() {
                return Err(match from.file.check_access(offsets.0, part) {
                    Err(_) => {
                        moved.written += part;
                        CopyError::Source(DmaFault::NoMemory)
                    }
                    Ok(()) => {
                        moved.read += part;
                        CopyError::Destination(DmaFault::NoMemory)
                    }
                });
            }
            done += part;
            moved.read += part;
            moved.written += part;
            source = Some((from, at + part, from_len));
        }
    }
    Ok(())
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let ranges = std::mem::take(&mut self.ranges);
        self.requester.pins().end(self.key, ranges);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use peerbar_dma_log::{DmaKind, Purpose, Route};
    use peerbar_pci::{BusAddress, Range};

    use super::*;
    use crate::counters::Count;
    use crate::map_access::MapAccess;
    use crate::{
        MemoryFile, OwnWindow, OwnWindowMemory, PeerId, PeerMemory, PeerWindow, Session, WindowId,
    };

    /// RAM at 0x1000..0x3000 in two mappings, own memory at 0x9000..0xa000, a peer's at
    /// 0xc000..0xd000.
    fn requester() -> Arc<Requester> {
        let requester = Arc::new(Requester::new());
        let ram = MemoryFile::create("ram", 0x2000).unwrap();
        for offset in [0, 0x1000] {
            let fd = ram.file().try_clone().unwrap().into();
            requester
                .map(
                    Range::new(Iova(0x1000 + offset), 0x1000).unwrap(),
                    MapAccess::READ_WRITE,
                    Some((fd, offset)),
                )
                .unwrap();
        }
        requester.set_window(WindowId::Cmb, Some(window(0x9000)));
        let peer = PeerWindow {
            range: Range::new(BusAddress(0xc000), 0x1000).unwrap(),
            claim: 0,
            memory: PeerMemory::Span(memory()),
        };
        requester.set_peer(PeerId(1), vec![peer]);
        requester.set_bus_master(true);
        requester
    }

    fn memory() -> Span {
        Span {
            file: Arc::new(MemoryFile::create("memory", 0x1000).unwrap()),
            offset: 0,
        }
    }

    fn window(address: u64) -> OwnWindow {
        OwnWindow {
            range: Range::new(BusAddress(address), 0x1000).unwrap(),
            memory: OwnWindowMemory::Span(memory()),
        }
    }

    fn pin(requester: &Arc<Requester>, list: &[(Iova, usize)]) -> Option<Pinned> {
        let mut session = Session::new(requester.clone());
        session.pin(Purpose::Payload, Direction::Write, list.iter().copied())
    }

    fn counts(requester: &Requester) -> Vec<(Route, Count)> {
        let counts = requester.ledger().counters().snapshot();
        let counts = counts.into_iter();
        counts
            .map(|(DmaKind { route, .. }, count)| (route, count))
            .collect()
    }

    #[test]
    fn ended_transfer_records_moved_bytes_by_route() {
        let requester = requester();
        let list = [
            (Iova(0x1800), 0x1000),
            (Iova(0x9000), 0x100),
            (Iova(0xc000), 0x100),
        ];
        let pinned = pin(&requester, &list).unwrap();
        let lens: Vec<_> = pinned.memory().map(|(_, len)| len).collect();
        assert_eq!(lens, [0x800, 0x800, 0x100, 0x100]);
        pinned.end(0x1080, None);
        let count = |requests, bytes| Count {
            requests,
            bytes,
            failures: 0,
        };
        assert_eq!(
            counts(&requester),
            [
                (Route::OwnBar, count(1, 0x80)),
                (Route::GuestRam, count(2, 0x1000)),
            ]
        );
    }

    #[test]
    fn pinned_memory_is_read_at_any_offset_up_to_its_end() {
        let requester = requester();
        let data: Vec<u8> = (0..=255).collect();
        let mut session = Session::new(requester.clone());
        for (address, part) in [
            (0x1f80, 0..0x80),
            (0x2000, 0x80..0xc0),
            (0x9000, 0xc0..0x100),
        ] {
            let write = requester.write(Purpose::Payload, Iova(address), &data[part]);
            write.unwrap();
        }
        let list = [(Iova(0x1f80), 0xc0), (Iova(0x9000), 0x40)];
        let pinned = session.pin(Purpose::Payload, Direction::Read, list);
        let pinned = pinned.unwrap();
        for (offset, len) in [
            (0, 0x100),
            (0x40, 0x90),
            (0x80, 0x40),
            (0xbf, 2),
            (0x100, 0),
        ] {
            let mut read = vec![0; len];
            assert_eq!(pinned.read(offset, &mut read), Ok(()));
            assert_eq!(read, data[offset..offset + len], "{offset:#x}+{len:#x}");
        }
        for offset in [0xff, 0x100, usize::MAX] {
            let read = pinned.read(offset, &mut [0; 2]);
            assert_eq!(read, Err(DmaFault::NoMemory), "{offset:#x}");
        }
    }

    #[test]
    fn a_transfer_that_the_memory_fails_is_a_request_that_failed() {
        let requester = requester();
        let pinned = pin(&requester, &[(Iova(0xc000), 0x100)]).unwrap();
        pinned.end(0x40, Some(DmaFault::NoMemory));
        let [(Route::Peer, count), (Route::Peer, failed)] = counts(&requester)[..] else {
            panic!("{:?}", counts(&requester));
        };
        let all = (count.bytes + failed.bytes, count.failures + failed.failures);
        assert_eq!(all, (0x40, 1));
    }

    #[test]
    fn pinned_memory_is_copied_from_and_into_other_memory() {
        let requester = requester();
        let (from, to) = (memory(), memory());
        let data: Vec<u8> = (0..0x180u32).map(|at| (at % 251) as u8).collect();
        from.file.write(0x10, &data).unwrap();
        let part = |span: &Span, offset| Span {
            file: span.file.clone(),
            offset,
        };
        let list = [(Iova(0x1f80), 0x100), (Iova(0x9000), 0x80)];
        let pinned = pin(&requester, &list).unwrap();
        assert_eq!(pinned.copy_from(&part(&from, 0x10)), Ok(()));
        let mut found = vec![0; data.len()];
        let read = requester.gather(Purpose::Payload, list, &mut found);
        read.unwrap();
        assert_eq!(found, data);
        let mut session = Session::new(requester.clone());
        let pin_read = |session: &mut Session, list: &[(Iova, usize)]| {
            let pinned = session.pin(Purpose::Payload, Direction::Read, list.iter().copied());
            pinned.unwrap()
        };
        let pinned = pin_read(&mut session, &list);
        assert_eq!(pinned.copy_into(&part(&to, 0x20)), Ok(()));
        to.file.read(0x20, &mut found).unwrap();
        assert_eq!(found, data);
        session.release();
        let before = counts(&requester);
        let pinned = pin(&requester, &[(Iova(0x1000), 2)]).unwrap();
        let lost = CopyError::Source(DmaFault::NoMemory);
        assert_eq!(pinned.copy_from(&part(&from, 0xfff)), Err(lost));
        let pinned = pin_read(&mut session, &[(Iova(0x1000), 2)]);
        let lost = CopyError::Destination(DmaFault::NoMemory);
        assert_eq!(pinned.copy_into(&part(&to, 0xfff)), Err(lost));
        assert_eq!(
            counts(&requester),
            before,
            "the function's memory did not fail"
        );
    }

    #[test]
    fn pinned_memory_is_copied_wherever_its_ranges_end() {
        let requester = requester();
        let data: Vec<u8> = (0..0x180u32).map(|at| (at % 251) as u8).collect();
        requester
            .write(Purpose::Payload, Iova(0x1f80), &data)
            .unwrap();
        let mut session = Session::new(requester.clone());
        let before = counts(&requester);
        let from = [(Iova(0x1f80), 0x101), (Iova(0x2081), 0x7f)];
        let to = [
            (Iova(0x9000), 0x80),
            (Iova(0xc010), 0xc0),
            (Iova(0x9100), 0x40),
        ];
        let from = session.pin(Purpose::Payload, Direction::Read, from);
        let to = session.pin(Purpose::Payload, Direction::Write, to);
        assert_eq!(from.unwrap().copy_to(to.unwrap()), Ok(()));
        session.release();
        let moved = |route| {
            let count = |counts: &[(Route, Count)]| -> u64 {
                let of = counts.iter().filter(|(it, _)| *it == route);
                of.map(|(_, count)| count.bytes).sum()
            };
            count(&counts(&requester)) - count(&before)
        };
        let routes = [Route::GuestRam, Route::OwnBar, Route::Peer];
        assert_eq!(routes.map(moved), [0x180, 0xc0, 0xc0]);
        let mut back = vec![0; 0x180];
        let list = [
            (Iova(0x9000), 0x80),
            (Iova(0xc010), 0xc0),
            (Iova(0x9100), 0x40),
        ];
        requester.gather(Purpose::Payload, list, &mut back).unwrap();
        assert_eq!(back, data);
    }

    #[test]
    fn pinned_memory_of_another_length_is_not_copied() {
        let requester = requester();
        for (from, to) in [(0x100, 0x80), (0x80, 0x100)] {
            let before: u64 = counts(&requester).iter().map(|(_, it)| it.bytes).sum();
            let mut session = Session::new(requester.clone());
            let source = session.pin(Purpose::Payload, Direction::Read, [(Iova(0x1000), from)]);
            let destination = session.pin(Purpose::Payload, Direction::Write, [(Iova(0x9000), to)]);
            let copied = source.unwrap().copy_to(destination.unwrap());
            assert_eq!(copied, Err(CopyError::Lengths { from, to }));
            let after: u64 = counts(&requester).iter().map(|(_, it)| it.bytes).sum();
            assert_eq!(after, before);
        }
    }

    #[test]
    fn copy_names_the_side_whose_memory_was_taken_away() {
        let sides: [(u64, u64, CopyError); 2] = [
            (0x5000, 0x9000, CopyError::Source(DmaFault::NoMemory)),
            (0x9000, 0x5000, CopyError::Destination(DmaFault::NoMemory)),
        ];
        for (from, to, error) in sides {
            let requester = requester();
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            let lent = rustix::fs::memfd_create("lent", flags).unwrap();
            rustix::fs::ftruncate(&lent, 0x1000).unwrap();
            let fd = lent.try_clone().unwrap();
            requester
                .map(
                    Range::new(Iova(0x5000), 0x1000).unwrap(),
                    MapAccess::READ_WRITE,
                    Some((fd, 0)),
                )
                .unwrap();
            let mut session = Session::new(requester.clone());
            let mut pin = |address, direction| {
                let pinned = session.pin(Purpose::Payload, direction, [(Iova(address), 0x100)]);
                pinned.unwrap()
            };
            let (from, to) = (
                pin(Iova(from).0, Direction::Read),
                pin(Iova(to).0, Direction::Write),
            );
            rustix::fs::ftruncate(&lent, 0).unwrap();
            assert_eq!(from.copy_to(to), Err(error));
            let counted = counts(&requester);
            let failures: u64 = counted.iter().map(|(_, it)| it.failures).sum();
            let bytes: u64 = counted.iter().map(|(_, it)| it.bytes).sum();
            // The memory of the other side was read, or written with zeros.
            assert_eq!((failures, bytes), (1, 0x100));
        }
    }

    #[test]
    fn what_is_not_memory_here_as_a_whole_is_not_pinned() {
        let requester = requester();
        for list in [
            [(Iova(0x1000), 8), (Iova(0x5000), 8)],
            [(Iova(0x2ff8), 16), (Iova(0x1000), 8)],
            [(Iova(u64::MAX), 2), (Iova(0x1000), 8)],
        ] {
            assert!(pin(&requester, &list).is_none(), "{list:x?}");
        }
        requester.set_bus_master(false);
        assert!(pin(&requester, &[(Iova(0x1000), 8)]).is_none());
        assert!(!requester.pins().meet(Range::all()));
        assert_eq!(counts(&requester), []);
    }

    type Change = fn(&Requester);

    /// The address of the function's own memory.
    const OWN: u64 = 0x9000;

    /// Changes that take 0x1000, 0x9000 and 0xc000 away.
    const CHANGES: [(u64, Change); 8] = [
        (0x1000, |requester| {
            requester.unmap(Range::from_bounds(Iova(0x1800), Iova(0x1fff)).unwrap())
        }),
        (0x1000, Requester::unmap_all),
        (0x1000, |requester| requester.set_bus_master(false)),
        (0x1000, |requester| drop(requester.halt())),
        (0x9000, |requester| {
            drop(requester.set_window(WindowId::Cmb, None));
        }),
        (0x9000, |requester| {
            drop(requester.set_window(WindowId::Cmb, Some(window(0xa000))));
        }),
        (0xc000, |requester| {
            drop(requester.set_peer(PeerId(1), vec![]));
        }),
        (0xc000, |requester| drop(requester.lose_peers())),
    ];

    #[test]
    fn change_waits_for_pinned_transfers_and_stops_new_ones() {
        for (index, (address, change)) in CHANGES.into_iter().enumerate() {
            let requester = requester();
            if address == OWN {
                // The function's own memory is not given up.
                requester.limit_transfers(Duration::ZERO);
            }
            let pinned = pin(&requester, &[(Iova(address), 0x1000)]).unwrap();
            let answered = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    change(&requester);
                    answered.store(true, Ordering::Release);
                });
                while requester.pins().waiting() == 0 {
                    std::thread::yield_now();
                }
                let new = pin(&requester, &[(Iova(address + 0x800), 0x100)]);
                assert!(new.is_none(), "change {index}");
                assert!(!answered.load(Ordering::Acquire), "change {index}");
                pinned.end(0x1000, None);
            });
            assert!(answered.load(Ordering::Acquire));
        }
    }

    #[test]
    fn change_gives_up_a_transfer_that_goes_on() {
        for (_, change) in CHANGES
            .into_iter()
            .filter(|(address, _)| *address == 0x1000)
        {
            let requester = requester();
            requester.limit_transfers(Duration::ZERO);
            let pinned = pin(&requester, &[(Iova(0x1800), 0x1000)]).unwrap();
            change(&requester);
            assert!(!requester.pins().meet(Range::all()));
            assert_eq!(pinned.intact(), Err(DmaFault::NoMemory));
        }
    }

    #[test]
    fn a_change_does_not_wait_for_what_it_does_not_meet() {
        let requester = requester();
        let pinned = pin(&requester, &[(Iova(0x1000), 0x1000), (Iova(0xc000), 0x100)]).unwrap();
        requester.unmap(Range::from_bounds(Iova(0x2000), Iova(0x2fff)).unwrap());
        requester.unmap(Range::from_bounds(Iova(0xd000), Iova(u64::MAX)).unwrap());
        requester.set_window(WindowId::Cmb, None);
        requester.set_peer(PeerId(2), vec![]);
        requester.set_bus_master(true);
        pinned.end(0x1100, None);
        requester.unmap_all();
    }
}
