//! Memory that somebody else reads or writes for the function, such as the kernel, and who waits for the end of that.
//!
//! A copy is over when the lock of what routes depend on is let go. A transfer that goes on by itself pins its addresses
//! instead, and a change that takes one of them away is answered only when the transfer has ended.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use peerbar_dma_log::{Completer, Direction, Route};

use crate::done::Done;
use crate::error::DmaFault;
use crate::memory::Span;
use crate::requester::Requester;
use crate::tag::Tag;

/// All transfers of a function that go on by themselves.
#[derive(Default)]
pub(crate) struct Pins {
    table: Mutex<Table>,
    /// A transfer has ended for which somebody waits.
    ended: Condvar,
}

#[derive(Default)]
struct Table {
    /// By their places in the table, which are used again.
    transfers: Vec<Transfer>,
    free: Vec<usize>,
    /// Pieces of transfers that have ended, without the pieces: no transfer need allocate any.
    spare: Vec<Vec<Piece>>,
    /// How many transfers have begun so far.
    begun: u64,
    waiting: usize,
}

/// The addresses of a transfer.
#[derive(Default)]
struct Transfer {
    /// Its number, while it goes on.
    number: Option<u64>,
    /// First and last address of each piece.
    spans: Vec<(u64, u64)>,
}

impl Transfer {
    fn meets(&self, (first, last): (u64, u64), begun: u64) -> bool {
        self.number.is_some_and(|number| number <= begun)
            && self
                .spans
                .iter()
                .any(|span| span.0 <= last && first <= span.1)
    }
}

/// First and last address of `size` bytes at `address`.
pub(crate) fn span(address: u64, size: u64) -> (u64, u64) {
    (address, address.saturating_add(size.saturating_sub(1)))
}

/// A part of a transfer that is memory at one place, and reached by one route.
pub(crate) struct Piece {
    pub(crate) address: u64,
    pub(crate) len: usize,
    pub(crate) span: Span,
    pub(crate) route: Route,
    pub(crate) completer: Completer,
}

impl Pins {
    /// A transfer begins: its place, and an empty list for the pieces of the next. To be called with the lock held under which
    /// its route was found.
    fn begin(&self, pieces: &[Piece]) -> (usize, Vec<Piece>) {
        let mut table = self.table.lock();
        table.begun += 1;
        let number = Some(table.begun);
        let place = table.free.pop().unwrap_or(table.transfers.len());
        if place == table.transfers.len() {
            table.transfers.push(Transfer::default());
        }
        if let Some(transfer) = table.transfers.get_mut(place) {
            transfer.number = number;
            transfer.spans.clear();
            let spans = pieces
                .iter()
                .map(|piece| span(piece.address, piece.len as u64));
            transfer.spans.extend(spans);
        }
        (place, table.spare.pop().unwrap_or_default())
    }

    fn end(&self, place: usize, mut pieces: Vec<Piece>) {
        pieces.clear();
        let mut table = self.table.lock();
        table.spare.push(pieces);
        if let Some(transfer) = table.transfers.get_mut(place) {
            transfer.number = None;
            table.free.push(place);
        }
        if table.waiting > 0 {
            self.ended.notify_all();
        }
    }

    /// Whether a transfer goes on that meets this span.
    pub(crate) fn meet(&self, span: (u64, u64)) -> bool {
        let table = self.table.lock();
        let begun = table.begun;
        table.transfers.iter().any(|t| t.meets(span, begun))
    }

    /// Waits until every transfer that has begun by now and meets this span has ended.
    pub(crate) fn wait(&self, span: (u64, u64)) {
        let mut table = self.table.lock();
        let begun = table.begun;
        table.waiting += 1;
        while table.transfers.iter().any(|t| t.meets(span, begun)) {
            self.ended.wait(&mut table);
        }
        table.waiting -= 1;
    }

    /// How many wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.table.lock().waiting
    }
}

/// A change after which nothing new goes by the addresses that it took away. When this is dropped, which waits, transfers
/// that began there before have ended, too.
///
/// It is **not to be dropped with a lock held** that a thread needs which carries such transfers to their end.
pub struct Ending<'a> {
    pub(crate) pins: &'a Pins,
    /// First and last address of what was taken away.
    pub(crate) spans: Vec<(u64, u64)>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.spans.drain(..).for_each(|span| self.pins.wait(span));
    }
}

/// Memory that a request may be carried out on by somebody else, until it is [ended](Pinned::end) or dropped.
///
/// Until then no change is answered that takes an address of it away: no unmap, no move of a window, no reset.
pub struct Pinned {
    requester: Arc<Requester>,
    place: usize,
    tag: Tag,
    direction: Direction,
    started: u64,
    pieces: Vec<Piece>,
}

impl Pinned {
    /// Pins what the pieces of a request are, whose routes were found under a lock that is still held. Leaves an empty list for
    /// the pieces of the next.
    pub(crate) fn new(
        requester: Arc<Requester>,
        tag: Tag,
        direction: Direction,
        started: u64,
        pieces: &mut Vec<Piece>,
    ) -> Self {
        let (place, spare) = requester.pins().begin(pieces);
        Self {
            requester,
            place,
            tag,
            direction,
            started,
            pieces: std::mem::replace(pieces, spare),
        }
    }

    /// Whether the memory is written or read.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The memory, and how much of it from the start of each span on.
    pub fn memory(&self) -> impl Iterator<Item = (&Span, usize)> {
        self.pieces.iter().map(|piece| (&piece.span, piece.len))
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

    /// The request is over: its first `moved` bytes have been moved, and recorded as copies would be, and what came next
    /// failed if there is a fault.
    pub fn end(self, mut moved: usize, fault: Option<DmaFault>) {
        for piece in &self.pieces {
            let len = piece.len.min(moved);
            moved -= len;
            if len > 0 {
                self.account(piece, piece.address, len, Ok(()));
            }
            if len < piece.len {
                if let Some(fault) = fault {
                    let address = piece.address.saturating_add(len as u64);
                    self.account(piece, address, piece.len - len, Err(fault));
                }
                break;
            }
        }
    }

    fn account(&self, piece: &Piece, address: u64, len: usize, outcome: Result<(), DmaFault>) {
        let done = Done {
            route: piece.route,
            completer: piece.completer,
            outcome,
        };
        let extent = (self.direction, len);
        // Whoever ends the request knows of the fault.
        let _ = self
            .requester
            .account(self.tag, (address, self.started), extent, &done);
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let pieces = std::mem::take(&mut self.pieces);
        self.requester.pins().end(self.place, pieces);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use peerbar_dma_log::{DmaKind, Purpose};

    use super::*;
    use crate::counters::Count;
    use crate::{
        MemoryFile, PeerId, PeerMemory, PeerWindow, Session, Window, WindowId, WindowMemory,
    };

    /// RAM at 0x1000..0x3000 in two mappings, own memory at 0x9000..0xa000, a peer's at 0xc000..0xd000.
    fn requester() -> Arc<Requester> {
        let requester = Arc::new(Requester::new());
        let ram = MemoryFile::create("ram", 0x2000).unwrap();
        for offset in [0, 0x1000] {
            let fd = ram.file().try_clone().unwrap().into();
            requester
                .map(0x1000 + offset, 0x1000, (true, true), Some((fd, offset)))
                .unwrap();
        }
        requester.set_window(WindowId::Cmb, Some(window(0x9000)));
        let peer = PeerWindow {
            address: 0xc000,
            size: 0x1000,
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

    fn window(address: u64) -> Window {
        Window {
            address,
            size: 0x1000,
            memory: WindowMemory::Span(memory()),
        }
    }

    fn pin(requester: &Arc<Requester>, places: &[(u64, usize)]) -> Option<Pinned> {
        let mut session = Session::new(requester.clone());
        session.pin(Purpose::Payload, Direction::Write, places.iter().copied())
    }

    fn counts(requester: &Requester) -> Vec<(Route, Count)> {
        let counts = requester.counters().snapshot();
        let counts = counts.into_iter();
        counts
            .map(|(DmaKind { route, .. }, count)| (route, count))
            .collect()
    }

    #[test]
    fn what_was_moved_is_recorded_by_its_routes_and_the_rest_is_not() {
        let requester = requester();
        let places = [(0x1800, 0x1000), (0x9000, 0x100), (0xc000, 0x100)];
        let pinned = pin(&requester, &places).unwrap();
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
    fn pinned_memory_is_read_from_any_place_on_and_not_beyond_its_end() {
        let requester = requester();
        let data: Vec<u8> = (0..=255).collect();
        let mut session = Session::new(requester.clone());
        for (address, part) in [
            (0x1f80, 0..0x80),
            (0x2000, 0x80..0xc0),
            (0x9000, 0xc0..0x100),
        ] {
            let write = requester.write(Purpose::Payload, address, &data[part]);
            write.unwrap();
        }
        let places = [(0x1f80, 0xc0), (0x9000, 0x40)];
        let pinned = session.pin(Purpose::Payload, Direction::Read, places);
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
        let pinned = pin(&requester, &[(0xc000, 0x100)]).unwrap();
        pinned.end(0x40, Some(DmaFault::NoMemory));
        let [(Route::Peer, count), (Route::Peer, failed)] = counts(&requester)[..] else {
            panic!("{:?}", counts(&requester));
        };
        let all = (count.bytes + failed.bytes, count.failures + failed.failures);
        assert_eq!(all, (0x40, 1));
    }

    #[test]
    fn what_is_not_memory_here_as_a_whole_is_not_pinned() {
        let requester = requester();
        for places in [
            [(0x1000, 8), (0x5000, 8)],
            [(0x2ff8, 16), (0x1000, 8)],
            [(u64::MAX, 2), (0x1000, 8)],
        ] {
            assert!(pin(&requester, &places).is_none(), "{places:x?}");
        }
        requester.set_bus_master(false);
        assert!(pin(&requester, &[(0x1000, 8)]).is_none());
        assert!(!requester.pins().meet((0, u64::MAX)));
        assert_eq!(counts(&requester), []);
    }

    type Change = fn(&Requester);

    /// Changes that take 0x1000, 0x9000 and 0xc000 away.
    const CHANGES: [(u64, Change); 8] = [
        (0x1000, |requester| requester.unmap(0x1800, 0x1fff)),
        (0x1000, Requester::unmap_all),
        (0x1000, |requester| requester.set_bus_master(false)),
        (0x1000, |requester| drop(requester.halt())),
        (0x9000, |requester| {
            drop(requester.set_window(WindowId::Cmb, None));
        }),
        (0x9000, |requester| {
            drop(requester.set_window(WindowId::Cmb, Some(window(0xa000))));
        }),
        (0xc000, |requester| requester.set_peer(PeerId(1), vec![])),
        (0xc000, Requester::lose_peers),
    ];

    #[test]
    fn a_change_is_answered_once_what_it_meets_has_ended_and_new_transfers_do_not_go_there() {
        for (index, (address, change)) in CHANGES.into_iter().enumerate() {
            let requester = requester();
            let pinned = pin(&requester, &[(address, 0x1000)]).unwrap();
            let answered = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    change(&requester);
                    answered.store(true, Ordering::Release);
                });
                while requester.pins().waiting() == 0 {
                    std::thread::yield_now();
                }
                let new = pin(&requester, &[(address + 0x800, 0x100)]);
                assert!(new.is_none(), "change {index}");
                assert!(!answered.load(Ordering::Acquire), "change {index}");
                pinned.end(0x1000, None);
            });
            assert!(answered.load(Ordering::Acquire));
        }
    }

    #[test]
    fn a_change_does_not_wait_for_what_it_does_not_meet() {
        let requester = requester();
        let pinned = pin(&requester, &[(0x1000, 0x1000), (0xc000, 0x100)]).unwrap();
        requester.unmap(0x2000, 0x2fff);
        requester.unmap(0xd000, u64::MAX);
        requester.set_window(WindowId::Cmb, None);
        requester.set_peer(PeerId(2), vec![]);
        requester.set_bus_master(true);
        pinned.end(0x1100, None);
        requester.unmap_all();
    }
}
