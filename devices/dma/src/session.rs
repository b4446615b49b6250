//! DMA by one thread: many requests under one read lock, by the routes of the last ones.

use std::sync::Arc;

use peerbar_dma_log::{Direction, Purpose};
use peerbar_pci::{Iova, Range};

use crate::counters::CounterSlot;
use crate::direct::DirectRoute;
use crate::error::{DmaError, DmaFault};
use crate::mapped_memory::MappedMemory;
use crate::memory::{MemoryFile, Span};
use crate::memory_error::MemoryError;
use crate::peer_changes::PeerChanges;
use crate::pinned::Pinned;
use crate::pins::PinnedRange;
use crate::reader_lock::ReaderSlot;
use crate::requester::Requester;
use crate::segment_result::{DmaSegment, SegmentResult};
use crate::tag::Tag;

/// The number of bytes that are copied before a waiting change of the memory map is let in.
const HOLD: usize = 256 << 10;

const PURPOSES: usize = 5;
const DIRECTIONS: usize = 2;

/// One thread's access to memory. Its requests take the same routes and are recorded like those of the [`Requester`];
/// direct copies cost less.
///
/// A session remembers the last direct route for each purpose and direction, and keeps the routes'
/// state from changing between requests. No change of the memory map, of a window or of bus
/// mastering is therefore answered until the session has been [released](Session::release), or has
/// moved some 100 KiB. From then on no earlier route is used. **Release it before waiting for
/// anything**: another lock, another thread, a disk.
pub struct Session {
    requester: Arc<Requester>,
    /// Locked while the session relies on its routes.
    reader: ReaderSlot,
    /// The generation of the routes when these were found.
    generation: u64,
    last_routes: [[Option<DirectRoute>; DIRECTIONS]; PURPOSES],
    /// The knowledge of the peers' windows at that time. `None` without a switch.
    changes: Option<Arc<PeerChanges>>,
    /// `true` if the knowledge was complete when the request began ([`Session::learn`],
    /// [`Session::reaches`]).
    has_learned: bool,
    /// The routes of the last words, by direction.
    words: [Option<DirectRoute>; DIRECTIONS],
    /// Bytes that have been moved since the session was locked.
    moved: usize,
    /// An empty list for the ranges of the next transfer, so that commands do not allocate one.
    ranges: Vec<PinnedRange>,
    /// The counters' slot for its copies.
    slot: CounterSlot,
}

impl Session {
    /// Makes a session without routes, which keeps nothing from changing.
    pub fn new(requester: Arc<Requester>) -> Self {
        Self {
            reader: requester.reader_slot(),
            slot: requester.ledger().counters().open(),
            requester,
            generation: 0,
            last_routes: [const { [const { None }; DIRECTIONS] }; PURPOSES],
            changes: None,
            has_learned: false,
            words: [const { None }; DIRECTIONS],
            moved: 0,
            ranges: Vec::new(),
        }
    }

    /// Returns the requester of the session.
    pub fn requester(&self) -> &Requester {
        &self.requester
    }

    /// Lets changes of the routes happen.
    pub fn release(&mut self) {
        self.reader.unlock();
        self.moved = 0;
        self.has_learned = false;
    }

    /// Releases the session and forgets its routes, and with them memory that may have been
    /// unmapped.
    pub fn forget(&mut self) {
        self.release();
        self.last_routes = Default::default();
        self.words = Default::default();
    }

    /// Reads `data.len()` bytes at `address`.
    pub fn read(
        &mut self,
        tag: impl Into<Tag>,
        address: Iova,
        data: &mut [u8],
    ) -> Result<(), DmaError> {
        let tag = tag.into();
        let len = data.len();
        let done = self.copy(tag, address, len, Direction::Read, |memory, offset| {
            memory.read(offset, data)
        });
        self.has_learned = false;
        done.unwrap_or_else(|| self.requester.read(tag, address, data))
    }

    /// Writes entries of `entry_bytes` bytes (not 0), one after the other at `address`. A reader
    /// that sees an aligned word of an entry also sees all earlier bytes of the entry, and earlier
    /// DMA is counted by then. In memory that is mapped here the entries become visible in order.
    /// Entries that the client writes are sent to it together, so a reader must look at them in
    /// turn.
    pub fn write_entries(
        &mut self,
        tag: impl Into<Tag>,
        address: Iova,
        data: &[u8],
        entry_bytes: usize,
    ) -> Result<(), DmaError> {
        let tag = tag.into();
        let len = data.len();
        let done = self.copy(tag, address, len, Direction::Write, |memory, offset| {
            memory.write_in_order(offset, data)
        });
        self.has_learned = false;
        done.unwrap_or_else(|| {
            let offsets = (0..).step_by(entry_bytes);
            let addresses = offsets.map(|offset| address.wrapping_add(offset));
            let list = addresses.zip(data.chunks(entry_bytes).map(<[u8]>::len));
            self.requester.scatter(tag, list, data)
        })
    }

    /// Moves `len` bytes between `address` and `memory` from `offset` on by one copy, if all memory
    /// at the address is mapped here. A read fills `memory`. Does nothing and returns `None` if it
    /// is not, or if not all windows of the peers are known.
    pub fn transfer(
        &mut self,
        tag: impl Into<Tag>,
        direction: Direction,
        address: Iova,
        (memory, offset): (&MappedMemory, u64),
        len: usize,
    ) -> Option<Result<(), DmaError>> {
        self.copy(
            tag.into(),
            address,
            len,
            direction,
            |there, at| match direction {
                Direction::Read => there.copy_to(at, memory, offset, len),
                Direction::Write => memory.copy_to(offset, there, at, len),
            },
        )
    }

    /// Waits until all windows of the peers are known, for as long as a request of the
    /// [`Requester`] does. Must be called when a request begins. Later changes delay no part of the
    /// request, until the session is released or the next request begins. A window that is closed
    /// where this thread has pinned memory delays it by 250 ms, since the pin does not end during
    /// the wait.
    pub fn learn(&mut self) {
        self.hold();
        if self.misses_changes() {
            self.release();
            self.requester.learn_changes();
            self.hold();
        }
        self.has_learned = true;
    }

    /// Returns `true` if all of `len` bytes at `address` is memory that is mapped here and may be
    /// read or written, and all windows of the peers are known. This remains so until the session
    /// is released, and the request that begins this way needs no message.
    pub fn reaches(
        &mut self,
        purpose: Purpose,
        direction: Direction,
        (address, len): (Iova, usize),
    ) -> bool {
        if self.requester.injects() {
            self.has_learned = false;
            return false;
        }
        self.hold();
        let is_known = self.has_learned || !self.misses_changes();
        let is_reached = is_known && self.find(purpose, address, len, direction).is_some();
        self.has_learned = is_reached;
        is_reached
    }

    /// Pins the memory of a scatter-gather list, addresses and lengths, for a request that the
    /// kernel executes. Returns `None` if not all of it is memory that is mapped here, or not all
    /// windows of the peers are known.
    pub fn pin(
        &mut self,
        tag: impl Into<Tag>,
        direction: Direction,
        list: impl IntoIterator<Item = (Iova, usize)>,
    ) -> Option<Pinned> {
        let tag = tag.into();
        let started = self.collect(tag.purpose, direction, list)?;
        let requester = self.requester.clone();
        let ranges = &mut self.ranges;
        Some(Pinned::new(requester, tag, direction, started, ranges))
    }

    /// Collects the ranges of a request in `self.ranges`, and keeps their routes from changing.
    /// Returns the time at which the request began, or `None` if not all of it is memory that is
    /// mapped here.
    fn collect(
        &mut self,
        purpose: Purpose,
        direction: Direction,
        list: impl IntoIterator<Item = (Iova, usize)>,
    ) -> Option<u64> {
        if self.requester.injects() {
            return None;
        }
        self.hold();
        if !self.has_learned && self.misses_changes() {
            return None;
        }
        let started = self.requester.ledger().started();
        let mut ranges = std::mem::take(&mut self.ranges);
        let all = list
            .into_iter()
            .try_for_each(|entry| self.cut(purpose, direction, entry, &mut ranges));
        if all.is_none() {
            ranges.clear();
        }
        self.ranges = ranges;
        all.map(|()| started)
    }

    /// Splits an entry of the list into ranges where the memory changes. Returns `None` if some of
    /// it is not mapped here.
    fn cut(
        &mut self,
        purpose: Purpose,
        direction: Direction,
        (mut address, mut len): (Iova, usize),
        ranges: &mut Vec<PinnedRange>,
    ) -> Option<()> {
        while len > 0 {
            let (direct, offset) = self.find(purpose, address, 1, direction)?;
            let left = direct.range.clip(address, len);
            direct.span.file.check(offset, left as u64).ok()?;
            ranges.push(PinnedRange {
                addresses: Range::new(address, left as u64)?,
                len: left,
                span: Span {
                    file: direct.span.file.clone(),
                    offset,
                },
                route: direct.route,
                completer: direct.completer,
            });
            len -= left;
            if len > 0 {
                address = address.checked_add(left as u64)?;
            }
        }
        Some(())
    }

    /// Reads the 4 bytes at `address`, a multiple of 4, if they are memory that is mapped here.
    /// This is for polled words, such as doorbells in guest memory: it is not a request and not
    /// recorded, takes no time on any link, and the function does not translate its address. A
    /// peer's window that is opened at the same time is seen a moment later. Returns `None` while
    /// the link is down.
    pub fn load(&mut self, address: Iova) -> Option<u32> {
        self.word(address, Direction::Read, |memory, offset| {
            memory.load(offset).ok()
        })
    }

    /// Writes the 4 bytes at `address`, a multiple of 4, if they are memory that is mapped here.
    /// Returns `true` if they are. It is not a request and not recorded, as with [`Session::load`].
    pub fn store(&mut self, address: Iova, value: u32) -> bool {
        let store = |memory: &MemoryFile, offset| memory.store(offset, value).ok();
        self.word(address, Direction::Write, store).is_some()
    }

    /// Prefetches `len` bytes at `address`, which may be read soon, if the session is locked and
    /// the last read for the same purpose was from memory around them. It is not a request and not
    /// recorded.
    pub fn prefetch(&self, purpose: Purpose, address: Iova, len: u64) {
        let known = self.last_routes.get(purpose as usize);
        let known = known.and_then(|routes| routes.get(Direction::Read as usize)?.as_ref());
        let last = address.checked_add(len);
        if let (true, Some(direct), Some(last)) = (self.reader.is_locked(), known, last) {
            let offset = direct.offset(address, last);
            offset
                .into_iter()
                .for_each(|offset| direct.span.file.prefetch(offset, len));
        }
    }

    fn word<T>(
        &mut self,
        address: Iova,
        direction: Direction,
        access: impl FnOnce(&MemoryFile, u64) -> Option<T>,
    ) -> Option<T> {
        if !self.requester.link_is_up() {
            return None;
        }
        self.hold();
        let last = address.checked_add(size_of::<u32>() as u64 - 1)?;
        let known = self.words.get_mut(direction as usize)?;
        known.take_if(|direct| direct.offset(address, last).is_none());
        if known.is_none() {
            *known = self.requester.route_table().word(address, direction);
        }
        let direct = known.as_ref()?;
        access(&direct.span.file, direct.offset(address, last)?)
    }

    /// Executes a request by one copy, if possible. Otherwise releases the session.
    fn copy(
        &mut self,
        tag: Tag,
        address: Iova,
        len: usize,
        direction: Direction,
        copy: impl FnOnce(&MemoryFile, u64) -> Result<(), MemoryError>,
    ) -> Option<Result<(), DmaError>> {
        if self.requester.injects() {
            self.release();
            return None;
        }
        self.hold();
        if !self.has_learned && self.misses_changes() {
            self.release();
            return None;
        }
        let started = self.requester.ledger().started();
        let Some((direct, offset)) = self.find(tag.purpose, address, len, direction) else {
            self.release();
            return None;
        };
        let result = SegmentResult {
            route: direct.route,
            completer: direct.completer,
            outcome: copy(&direct.span.file, offset).map_err(|_| DmaFault::NoMemory),
        };
        let segment = DmaSegment {
            address,
            len,
            direction,
            started,
        };
        let outcome = if result.outcome.is_ok() {
            self.requester.ledger().record(tag, segment, &result);
            let (counters, kind) = (
                self.requester.ledger().counters(),
                result.kind(tag, direction),
            );
            self.slot.succeeded(counters, kind, len as u64);
            Ok(())
        } else {
            self.requester.ledger().account(tag, segment, &result)
        };
        self.moved = self.moved.saturating_add(len);
        if self.moved >= HOLD {
            self.release();
        }
        Some(outcome)
    }

    /// Keeps the routes from changing, and forgets the session's routes if they have changed.
    #[inline]
    fn hold(&mut self) {
        if self.reader.is_locked() {
            return;
        }
        let generation = self.reader.lock();
        if self.generation != generation {
            self.generation = generation;
            self.last_routes = Default::default();
            self.words = Default::default();
            let changes = self.requester.route_table().compared_changes().cloned();
            self.changes = changes;
        }
    }

    /// Returns `true` if the peers' windows have changed in a way that is not known yet.
    #[inline]
    fn misses_changes(&self) -> bool {
        let changes = self.changes.as_ref();
        changes.is_some_and(|changes| changes.missed().is_some())
    }

    /// Returns the direct route for a request, and the offset of the request in its memory.
    #[inline]
    fn find(
        &mut self,
        purpose: Purpose,
        address: Iova,
        len: usize,
        direction: Direction,
    ) -> Option<(&DirectRoute, u64)> {
        let last = address.checked_add((len as u64).checked_sub(1)?)?;
        let routes = self.last_routes.get_mut(purpose as usize)?;
        let known = routes.get_mut(direction as usize)?;
        let fits = |direct: &DirectRoute| direct.offset(address, last).is_some();
        if !known.as_ref().is_some_and(fits) {
            *known = self.requester.route_table().direct(address, direction);
        }
        let direct = known.as_ref()?;
        Some((direct, direct.offset(address, last)?))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.requester.ledger().counters().close(&self.slot);
    }
}

#[cfg(test)]
mod tests {
    use peerbar_pci::BusAddress;

    use super::*;
    use crate::counters::Count;
    use crate::{DmaKind, MapAccess, OwnWindow, OwnWindowMemory, Route, WindowId};

    /// RAM at 0x1000..0x3000 in two mappings of one file, read-only RAM at 0x3000, own memory at
    /// 0x9000..0xa000.
    fn requester() -> (Arc<Requester>, MemoryFile) {
        let requester = Arc::new(Requester::new());
        let ram = MemoryFile::create("ram", 0x4000).unwrap();
        for (iova, access) in [
            (0x1000, MapAccess::READ_WRITE),
            (0x2000, MapAccess::READ_WRITE),
            (0x3000, MapAccess::READ_ONLY),
        ] {
            let fd = ram.file().try_clone().unwrap().into();
            requester
                .map(
                    Range::new(Iova(iova), 0x1000).unwrap(),
                    access,
                    Some((fd, iova)),
                )
                .unwrap();
        }
        let own = Span {
            file: Arc::new(MemoryFile::create("own", 0x1000).unwrap()),
            offset: 0,
        };
        let window = OwnWindow {
            range: Range::new(BusAddress(0x9000), 0x1000).unwrap(),
            memory: OwnWindowMemory::Span(own),
        };
        requester.set_window(WindowId::Cmb, Some(window));
        requester.set_bus_master(true);
        (requester, ram)
    }

    fn disk() -> MemoryFile {
        let disk = MemoryFile::create("disk", 0x2000).unwrap();
        disk.write(0, &[7; 0x2000]).unwrap();
        disk
    }

    fn payload(requester: &Requester, route: Route, direction: Direction) -> Count {
        let is = |entry: &DmaKind| {
            (entry.purpose, entry.route, entry.direction) == (Purpose::Payload, route, direction)
        };
        let found = requester.ledger().counters().snapshot();
        let found = found.into_iter().find(|(entry, _)| is(entry));
        found.map(|(_, count)| count).unwrap_or_default()
    }

    #[test]
    fn transfer_copies_between_memories_and_is_recorded() {
        let (requester, ram) = requester();
        let mut session = Session::new(requester.clone());
        let disk = disk();
        for (address, route) in [(0x1800, Route::GuestRam), (0x9100, Route::OwnBar)] {
            let moved = session.transfer(
                Purpose::Payload,
                Direction::Write,
                Iova(address),
                (&*disk, 0x10),
                0x100,
            );
            assert_eq!(moved, Some(Ok(())));
            disk.write(0x1000, &[0; 0x100]).unwrap();
            let moved = session.transfer(
                Purpose::Payload,
                Direction::Read,
                Iova(address),
                (&*disk, 0x1000),
                0x100,
            );
            assert_eq!(moved, Some(Ok(())));
            let mut back = [0; 0x100];
            disk.read(0x1000, &mut back).unwrap();
            assert_eq!(back, [7; 0x100]);
            session.release();
            for direction in [Direction::Read, Direction::Write] {
                let count = payload(&requester, route, direction);
                assert_eq!((count.requests, count.bytes), (1, 0x100));
            }
        }
        let mut there = [0; 0x100];
        ram.read(0x1800, &mut there).unwrap();
        assert_eq!(there, [7; 0x100]);
    }

    #[test]
    fn what_is_no_single_memory_is_not_copied_at_once() {
        let (requester, _) = requester();
        let mut session = Session::new(requester.clone());
        let disk = disk();
        let list = [(0x1f00, 0x200), (0x3000, 8), (0x5000, 8), (0x8ff8, 16)];
        for (address, len) in list {
            let moved = session.transfer(
                Purpose::Payload,
                Direction::Write,
                Iova(address),
                (&*disk, 0),
                len,
            );
            assert_eq!(moved, None, "{address:#x}");
        }
        let moved = session.transfer(
            Purpose::Payload,
            Direction::Write,
            Iova(u64::MAX),
            (&*disk, 0),
            2,
        );
        assert_eq!(moved, None);
        assert_eq!(requester.ledger().counters().snapshot(), []);
        session
            .write_entries(Purpose::Payload, Iova(0x1ff8), &[9; 16], 8)
            .unwrap();
        let mut back = [0; 16];
        session
            .read(Purpose::Payload, Iova(0x1ff8), &mut back)
            .unwrap();
        assert_eq!(back, [9; 16], "by more ranges");
        let last = session.write_entries(Purpose::Payload, Iova(u64::MAX - 7), &[9; 8], 8);
        assert!(last.is_err(), "the address space ends with it");
    }

    #[test]
    fn failed_pin_keeps_no_memory_and_reuses_its_list() {
        let (requester, _) = requester();
        let mut session = Session::new(requester);
        for _ in 0..2 {
            let list = [(Iova(0x1000), 8), (Iova(0x5000), 8)];
            let pinned = session.pin(Purpose::Payload, Direction::Write, list);
            assert!(pinned.is_none());
            assert!(session.ranges.is_empty() && session.ranges.capacity() > 0);
        }
        let list = session.ranges.as_ptr();
        for _ in 0..2 {
            let pinned = session.pin(Purpose::Payload, Direction::Write, [(Iova(0x1000), 8)]);
            pinned.unwrap().end(8, None);
        }
        assert_eq!(session.ranges.as_ptr(), list, "two lists take turns");
    }

    #[test]
    fn once_a_change_is_answered_no_route_of_before_is_used() {
        let (requester, ram) = requester();
        let mut session = Session::new(requester.clone());
        let disk = disk();
        let write = |session: &mut Session, address| {
            session.transfer(Purpose::Payload, Direction::Write, address, (&*disk, 0), 8)
        };
        assert_eq!(write(&mut session, Iova(0x1000)), Some(Ok(())));
        let session_holds = std::thread::scope(|scope| {
            let change = scope
                .spawn(|| requester.unmap(Range::from_bounds(Iova(0x1000), Iova(0x1fff)).unwrap()));
            // The change is answered only once the session is released: until then the copies
            // continue.
            let before = write(&mut session, Iova(0x1008));
            session.release();
            change.join().unwrap();
            before
        });
        assert_eq!(session_holds, Some(Ok(())));
        ram.write(0x1000, &[0; 16]).unwrap();
        assert_eq!(write(&mut session, Iova(0x1000)), None);
        assert_eq!(write(&mut session, Iova(0x2000)), Some(Ok(())));
        session.release();
        requester.halt();
        assert_eq!(write(&mut session, Iova(0x2008)), None);
        let mut back = [1; 8];
        ram.read(0x2008, &mut back).unwrap();
        assert_eq!(back, [0; 8]);
    }

    #[test]
    fn loads_and_stores_of_words_are_not_recorded() {
        let (requester, ram) = requester();
        let mut session = Session::new(requester.clone());
        assert!(session.store(Iova(0x1004), 7));
        assert_eq!(
            (session.load(Iova(0x1004)), ram.load(0x1004).unwrap()),
            (Some(7), 7)
        );
        assert!(!session.store(Iova(0x3000), 7), "read-only");
        assert_eq!(session.load(Iova(0x3000)), Some(0));
        for address in [0x5000, 0x1001, 0x0fff, u64::MAX] {
            assert_eq!(session.load(Iova(address)), None, "{address:#x}");
        }
        session.release();
        requester.unmap(Range::from_bounds(Iova(0x1000), Iova(0x1fff)).unwrap());
        assert_eq!(session.load(Iova(0x1004)), None);
        assert_eq!(requester.ledger().counters().snapshot(), []);
    }

    #[test]
    fn what_is_fetched_ahead_is_no_request_wherever_it_is() {
        let (requester, _) = requester();
        let mut session = Session::new(requester.clone());
        let addresses = [0x1000, 0x1fff, 0x2000, 0x5000, u64::MAX];
        let fetch = |session: &Session| {
            addresses.map(|address| session.prefetch(Purpose::Command, Iova(address), 64))
        };
        fetch(&session);
        session
            .read(Purpose::Command, Iova(0x1000), &mut [0; 64])
            .unwrap();
        fetch(&session);
        session.release();
        requester.unmap(Range::from_bounds(Iova(0x1000), Iova(0x1fff)).unwrap());
        fetch(&session);
        let counted = requester.ledger().counters().snapshot();
        let requests: u64 = counted.iter().map(|(_, count)| count.requests).sum();
        assert_eq!(requests, 1);
    }

    #[test]
    fn words_are_accessed_directly_with_ats_on() {
        let (requester, _) = requester();
        let mut session = Session::new(requester.clone());
        assert!(session.store(Iova(0x1004), 7));
        session.release();
        requester.set_ats(true);
        assert_eq!(session.load(Iova(0x1004)), Some(7));
        assert!(session.store(Iova(0x2004), 8));
        assert_eq!(
            session.transfer(
                Purpose::Payload,
                Direction::Write,
                Iova(0x1000),
                (&*disk(), 0),
                8
            ),
            None
        );
    }

    #[test]
    fn words_are_out_of_reach_while_the_link_is_down() {
        let (requester, ram) = requester();
        let mut session = Session::new(requester.clone());
        assert!(session.store(Iova(0x1004), 7));
        let add = |rule: &str| requester.add_fault(rule.parse().unwrap()).unwrap();
        add("link-down device");
        assert_eq!(
            (session.load(Iova(0x1004)), session.store(Iova(0x1004), 8)),
            (None, false)
        );
        assert_eq!(ram.load(0x1004).unwrap(), 7);
        add("link-up device");
        assert_eq!(session.load(Iova(0x1004)), Some(7));
    }

    #[test]
    fn a_long_stretch_lets_changes_happen() {
        let (requester, _) = requester();
        let mut session = Session::new(requester.clone());
        let disk = disk();
        std::thread::scope(|scope| {
            let change = scope
                .spawn(|| requester.unmap(Range::from_bounds(Iova(0x1000), Iova(0x1fff)).unwrap()));
            while session
                .transfer(
                    Purpose::Payload,
                    Direction::Write,
                    Iova(0x1000),
                    (&*disk, 0),
                    0x1000,
                )
                .is_some()
            {}
            change.join().unwrap();
        });
    }
}
