//! The memory that the server may use: what the client lends, and the windows of peers.
//!
//! A switch routes by bus address before the IOMMU translates, so a window replaces the client's
//! mappings at its addresses. A server unmaps only whole mappings. So a mapping of the client that
//! changes in part is taken back, and its remaining parts are lent again.
//!
//! Behind an IOMMU, QEMU sends one mapping for each page. Some servers, such as SPDK's, take a
//! buffer only if it lies in one mapping, so pages that follow on each other are lent as one. The
//! guest uses none of them before QEMU has sent all, because QEMU sends them while it executes one
//! write of the guest to the IOMMU. A later page is not joined: the server would lose pages in use
//! for a moment.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use log::Level;
use peerbar_dma::PeerId;
use peerbar_endpoint::ObservedWindow;
use peerbar_pci::{Iova, Range};
use peerbar_vfio_user::DmaMap;
use peerbar_vfio_user::remote::{CallError, Lending, RemoteDevice};
use rustix::fs::{OFlags, fcntl_getfl, fstat};
use rustix::io::Errno;

use crate::config::Config;

/// The most bytes of mappings that are joined: an NVMe queue of 65,536 entries of 64 bytes.
const MOST_JOINED: u64 = 4 << 20;

/// Memory for the server.
#[derive(Clone, Debug)]
pub(crate) struct Lent {
    pub(crate) range: Range<Iova>,
    readable: bool,
    writable: bool,
    /// The memory, and the offset of the range in it. Without it, the server asks for each access.
    pub(crate) memory: Option<(Arc<OwnedFd>, u64)>,
}

impl Lent {
    /// Returns the part with these addresses, which lie in the range.
    fn part(&self, range: Range<Iova>) -> Self {
        let skip = self.range.offset_of(range.first()).unwrap_or_default();
        let memory = self.memory.as_ref();
        Self {
            range,
            memory: memory.map(|(file, offset)| (file.clone(), offset.saturating_add(skip))),
            ..*self
        }
    }

    /// Returns `true` if the addresses and the memory of `next` follow on these, and both are small
    /// enough to be joined.
    fn is_continued_by(&self, next: &Self) -> bool {
        let size = self.range.size();
        let is_small = size.saturating_add(next.range.size()) <= MOST_JOINED;
        let is_next = self.range.first().0.checked_add(size) == Some(next.range.first().0);
        let memory = self.memory.as_ref();
        let continuation = Self {
            range: next.range,
            memory: memory.map(|(file, offset)| (file.clone(), offset.saturating_add(size))),
            ..*self
        };
        is_small && is_next && next.is_same(&continuation)
    }

    fn is_same(&self, other: &Self) -> bool {
        let access = |lent: &Self| (lent.range, lent.readable, lent.writable);
        let is_same_memory = match (&self.memory, &other.memory) {
            (None, None) => true,
            (Some((one, at)), Some((other, other_at))) => Arc::ptr_eq(one, other) && at == other_at,
            _ => false,
        };
        is_same_memory && access(self) == access(other)
    }
}

/// The window of a peer.
#[derive(Debug)]
struct Window {
    peer: PeerId,
    claim: u64,
    lent: Lent,
}

/// A server that is lent memory.
pub(crate) trait Borrower {
    /// Lends memory.
    fn map(&self, lent: &Lent) -> Result<(), CallError>;
    /// Takes a mapping back.
    fn unmap(&self, lent: &Lent) -> Result<(), CallError>;
}

impl Borrower for RemoteDevice {
    fn map(&self, lent: &Lent) -> Result<(), CallError> {
        self.dma_map(&Lending {
            range: lent.range,
            readable: lent.readable,
            writable: lent.writable,
            memory: lent.memory.as_ref().map(|(fd, at)| (fd.as_fd(), *at)),
        })
    }

    fn unmap(&self, lent: &Lent) -> Result<(), CallError> {
        self.dma_unmap(lent.range, lent.memory.is_some())
    }
}

/// Disjoint mappings by their first address.
type Table = BTreeMap<Iova, Lent>;

/// The memory that the server may use.
#[derive(Debug)]
pub(crate) struct Mappings<S = RemoteDevice> {
    server: Arc<S>,
    /// Lend no memory, so that the server asks for each access.
    by_messages: bool,
    /// Lend all memory for reads and writes.
    read_write: bool,
    /// The files that are lent, by device, inode and permitted access: the client sends many
    /// descriptors of one.
    files: HashMap<(u64, u64, OFlags), Weak<OwnedFd>>,
    client: Table,
    /// The windows of the peers. The first that covers an address counts.
    windows: Vec<Window>,
    /// The mappings that the server has.
    sent: Table,
}

impl<S: Borrower> Mappings<S> {
    pub(crate) fn new(server: Arc<S>, config: &Config) -> Self {
        Self {
            server,
            by_messages: config.count_all,
            read_write: config.read_write,
            files: HashMap::new(),
            client: Table::new(),
            windows: Vec::new(),
            sent: Table::new(),
        }
    }

    /// Returns the memory of a mapping of the client, to be passed to [`Mappings::map`].
    pub(crate) fn lend(&mut self, map: &DmaMap) -> Result<Lent, Errno> {
        let memory = map.memory.as_ref();
        let memory = memory.map(|(fd, offset)| Ok((self.file(fd)?, *offset)));
        Ok(Lent {
            range: map.range,
            readable: map.readable || self.read_write,
            writable: map.writable || self.read_write,
            memory: memory.transpose()?,
        })
    }

    /// Returns a descriptor of the file that this one is of, for the same access.
    fn file(&mut self, fd: &OwnedFd) -> Result<Arc<OwnedFd>, Errno> {
        let (status, access) = (fstat(fd)?, fcntl_getfl(fd)? & OFlags::ACCMODE);
        let id = (status.st_dev, status.st_ino, access);
        if let Some(known) = self.files.get(&id).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let file = Arc::new(fd.try_clone().map_err(|_| Errno::MFILE)?);
        self.files.retain(|_, file| file.strong_count() > 0);
        self.files.insert(id, Arc::downgrade(&file));
        Ok(file)
    }

    /// Adds a mapping of the client, which overlaps no other. If it continues the mapping at `run`,
    /// the two become one. Returns the first address of the mapping that contains it.
    pub(crate) fn map(&mut self, lent: Lent, run: Option<Iova>) -> Result<Iova, Errno> {
        let before = run.and_then(|run| self.client.get(&run)).cloned();
        let before = before.filter(|before| before.is_continued_by(&lent));
        let range = before
            .as_ref()
            .map_or(lent.range, |before| union(before.range, lent.range));
        let joined = Lent {
            range,
            ..before.clone().unwrap_or(lent)
        };
        self.client.insert(range.first(), joined);
        let refreshed = self.refresh(range).map_err(|error| {
            self.client.remove(&range.first());
            self.client
                .extend(before.map(|before| (before.range.first(), before)));
            let _ = self.refresh(range);
            error.errno()
        });
        refreshed.map(|()| range.first())
    }

    /// Removes a range from the client's mappings.
    pub(crate) fn unmap(&mut self, range: Range<Iova>) {
        let cut: Vec<Lent> = overlapping(&self.client, range).cloned().collect();
        for lent in cut {
            self.client.remove(&lent.range.first());
            let before = lent.range.before(range.first());
            let after = lent.range.after(range.last());
            for rest in before.into_iter().chain(after) {
                self.client.insert(rest.first(), lent.part(rest));
            }
        }
        self.refresh_or_warn(range);
    }

    /// Replaces all windows of a peer. A window without memory is reached by messages.
    pub(crate) fn set_windows(&mut self, peer: PeerId, windows: Vec<ObservedWindow>) {
        let mut changed: Vec<Range<Iova>> = Vec::new();
        self.windows.retain(|window| {
            let stays = window.peer != peer;
            changed.extend((!stays).then_some(window.lent.range));
            stays
        });
        for window in windows {
            match self.window(peer, window) {
                Ok(window) => {
                    changed.push(window.lent.range);
                    self.windows.push(window);
                }
                Err(error) => log::warn!("a window of peer {} is not lent: {error}", peer.0),
            }
        }
        self.windows.sort_by_key(|window| window.claim);
        changed
            .into_iter()
            .for_each(|range| self.refresh_or_warn(range));
    }

    fn window(&mut self, peer: PeerId, window: ObservedWindow) -> Result<Window, Errno> {
        let range = Range::from_bounds(Iova(window.range.first().0), Iova(window.range.last().0));
        let lent = self.lend(&DmaMap {
            range: range.ok_or(Errno::INVAL)?,
            readable: true,
            writable: true,
            memory: window.memory,
        })?;
        let claim = window.claim;
        Ok(Window { peer, claim, lent })
    }

    /// Removes the windows of all peers.
    pub(crate) fn close_windows(&mut self) {
        let peers: Vec<PeerId> = self.windows.iter().map(|window| window.peer).collect();
        for peer in peers {
            self.set_windows(peer, Vec::new());
        }
    }

    /// Lends the server no memory from now on, or memory again.
    pub(crate) fn set_by_messages(&mut self, by_messages: bool) {
        if std::mem::replace(&mut self.by_messages, by_messages) != by_messages {
            self.refresh_or_warn(Range::all());
        }
    }

    fn refresh_or_warn(&mut self, range: Range<Iova>) {
        if let Err(error) = self.refresh(range) {
            log::log!(
                level(error),
                "the server has no mapping at {range}: {error}"
            );
        }
    }

    /// Has the server's mappings agree with those of the client and the windows wherever they meet
    /// `range`. If the server refuses a mapping, it still gets the others.
    fn refresh(&mut self, range: Range<Iova>) -> Result<(), CallError> {
        let hull = self.hull(range);
        let wanted = self.wanted(hull);
        let sent: Vec<Lent> = overlapping(&self.sent, hull).cloned().collect();
        let is_in = |list: &[Lent], lent: &Lent| list.iter().any(|other| other.is_same(lent));
        for old in sent.iter().filter(|old| !is_in(&wanted, old)) {
            self.sent.remove(&old.range.first());
            if let Err(error) = self.server.unmap(old) {
                let range = old.range;
                log::log!(
                    level(error),
                    "the server may keep its mapping at {range}: {error}"
                );
            }
        }
        let mut outcome = Ok(());
        for new in wanted.into_iter().filter(|new| !is_in(&sent, new)) {
            match self.server.map(&new) {
                Ok(()) => {
                    self.sent.insert(new.range.first(), new);
                }
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    /// Returns the smallest range around `range` that cuts no mapping and no window.
    fn hull(&self, range: Range<Iova>) -> Range<Iova> {
        let mut hull = range;
        loop {
            let met = overlapping(&self.client, hull).chain(overlapping(&self.sent, hull));
            let wider = met
                .chain(self.windows_in(hull))
                .fold(hull, |hull, lent| union(hull, lent.range));
            if wider == hull {
                return hull;
            }
            hull = wider;
        }
    }

    fn windows_in(&self, range: Range<Iova>) -> impl Iterator<Item = &Lent> {
        let windows = self.windows.iter().map(|window| &window.lent);
        windows.filter(move |window| window.range.overlaps(&range))
    }

    /// Returns the mappings that the server should have in a range that cuts none.
    fn wanted(&self, hull: Range<Iova>) -> Vec<Lent> {
        let mut wanted = Vec::new();
        for window in self.windows_in(hull) {
            wanted.extend(window.parts_without(&wanted));
        }
        let windows = wanted.clone();
        let rest = overlapping(&self.client, hull).flat_map(|lent| lent.parts_without(&windows));
        wanted.extend(rest);
        if self.by_messages {
            wanted.iter_mut().for_each(|lent| lent.memory = None);
        }
        wanted
    }
}

impl Lent {
    /// Returns the parts outside the ranges of `others`.
    fn parts_without(&self, others: &[Self]) -> Vec<Self> {
        let mut parts = vec![self.range];
        for other in others.iter().map(|other| other.range) {
            let rest = parts
                .into_iter()
                .flat_map(|part| match part.overlaps(&other) {
                    true => [part.before(other.first()), part.after(other.last())],
                    false => [Some(part), None],
                });
            parts = rest.flatten().collect();
        }
        parts.into_iter().map(|part| self.part(part)).collect()
    }
}

/// Returns the level at which a failure is logged: the end of the session is reported once.
fn level(error: CallError) -> Level {
    match error {
        CallError::Gone => Level::Debug,
        _ => Level::Warn,
    }
}

/// Returns the mappings that overlap a range.
fn overlapping(table: &Table, range: Range<Iova>) -> impl Iterator<Item = &Lent> {
    let up_to = table.range(..=range.last()).rev().map(|(_, lent)| lent);
    up_to.take_while(move |lent| lent.range.overlaps(&range))
}

fn union(one: Range<Iova>, other: Range<Iova>) -> Range<Iova> {
    let first = one.first().min(other.first());
    let last = one.last().max(other.last());
    Range::from_bounds(first, last).unwrap_or(one)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use parking_lot::Mutex;
    use peerbar_pci::BusAddress;
    use rustix::fs::{MemfdFlags, Mode, memfd_create, open};

    use super::*;

    /// A server that checks its mappings like one that unmaps only whole ones.
    #[derive(Default)]
    struct Server(Mutex<Vec<(u64, u64, Option<u64>)>>);

    impl Borrower for Server {
        fn map(&self, lent: &Lent) -> Result<(), CallError> {
            let mut mappings = self.0.lock();
            let (first, last) = (lent.range.first().0, lent.range.last().0);
            let meets = |(at, to, _): &(u64, u64, _)| *at <= last && first <= *to;
            if mappings.iter().any(meets) || first == REFUSED {
                return Err(CallError::Refused(Errno::EXIST));
            }
            let offset = lent.memory.as_ref().map(|(_, offset)| *offset);
            mappings.push((first, last, offset));
            mappings.sort_unstable();
            Ok(())
        }

        fn unmap(&self, lent: &Lent) -> Result<(), CallError> {
            let mut mappings = self.0.lock();
            let (first, last) = (lent.range.first().0, lent.range.last().0);
            let is_meant = |(at, to, _): &(u64, u64, _)| (*at, *to) == (first, last);
            let found = mappings.iter().position(is_meant);
            mappings.remove(found.expect("a mapping that the server has"));
            Ok(())
        }
    }

    /// An IOVA that the server does not map.
    const REFUSED: u64 = 0xbad_0000;

    fn range(first: u64, last: u64) -> Range<Iova> {
        Range::from_bounds(Iova(first), Iova(last)).unwrap()
    }

    struct Rig {
        mappings: Mappings<Server>,
        memory: OwnedFd,
    }

    impl Rig {
        fn new() -> Self {
            Self {
                mappings: Mappings::new(Arc::default(), &Config::default()),
                memory: memfd_create("test", MemfdFlags::CLOEXEC).unwrap(),
            }
        }

        fn lent(&mut self, first: u64, last: u64, offset: Option<u64>) -> Lent {
            let memory = offset.map(|offset| (self.memory.try_clone().unwrap(), offset));
            let map = DmaMap {
                range: range(first, last),
                readable: true,
                writable: true,
                memory,
            };
            self.mappings.lend(&map).unwrap()
        }

        fn map(&mut self, first: u64, last: u64, offset: Option<u64>) {
            let lent = self.lent(first, last, offset);
            self.mappings.map(lent, None).unwrap();
        }

        /// Adds a page that follows on the mapping at `run`, as QEMU does behind an IOMMU.
        fn map_page(&mut self, run: Option<Iova>, at: u64, offset: u64) -> Option<Iova> {
            let lent = self.lent(at, at + 0xfff, Some(offset));
            self.mappings.map(lent, run).ok()
        }

        fn open(&mut self, peer: u32, first: u64, last: u64, offset: Option<u64>) {
            let memory = offset.map(|offset| (self.memory.try_clone().unwrap(), offset));
            let window = ObservedWindow {
                range: Range::from_bounds(BusAddress(first), BusAddress(last)).unwrap(),
                claim: peer.into(),
                memory,
            };
            self.mappings.set_windows(PeerId(peer), vec![window]);
        }

        fn close(&mut self, peer: u32) {
            self.mappings.set_windows(PeerId(peer), Vec::new());
        }

        fn has(&self) -> Vec<(u64, u64, Option<u64>)> {
            self.mappings.server.0.lock().clone()
        }
    }

    #[test]
    fn window_replaces_the_mapping_below_it_and_gives_it_back() {
        let mut rig = Rig::new();
        rig.map(0, 0xffff, Some(0x10_0000));
        rig.map(0x10_0000, 0x10_ffff, None);
        rig.open(1, 0x4000, 0x4fff, Some(0));
        rig.open(2, 0xf_8000, 0x10_7fff, None);
        assert_eq!(
            rig.has(),
            [
                (0, 0x3fff, Some(0x10_0000)),
                (0x4000, 0x4fff, Some(0)),
                (0x5000, 0xffff, Some(0x10_5000)),
                (0xf_8000, 0x10_7fff, None),
                (0x10_8000, 0x10_ffff, None),
            ]
        );
        rig.close(2);
        rig.close(1);
        assert_eq!(
            rig.has(),
            [(0, 0xffff, Some(0x10_0000)), (0x10_0000, 0x10_ffff, None)]
        );
    }

    #[test]
    fn mapping_below_a_window_is_lent_around_it() {
        let mut rig = Rig::new();
        rig.open(1, 0x4000, 0x4fff, Some(0));
        rig.map(0x3000, 0x5fff, None);
        let expected = [
            (0x3000, 0x3fff, None),
            (0x4000, 0x4fff, Some(0)),
            (0x5000, 0x5fff, None),
        ];
        assert_eq!(rig.has(), expected);
        rig.mappings.unmap(range(0x3000, 0x5fff));
        assert_eq!(rig.has(), expected[1..2]);
    }

    #[test]
    fn spans_of_many_parts_of_and_no_mappings_are_unmapped() {
        let mut rig = Rig::new();
        for page in 0..8 {
            rig.map(page * 0x1000, page * 0x1000 + 0xfff, Some(page * 0x1000));
        }
        rig.mappings.unmap(range(0x1800, 0x57ff));
        rig.mappings.unmap(range(0x10_0000, u64::MAX));
        assert_eq!(
            rig.has(),
            [
                (0, 0xfff, Some(0)),
                (0x1000, 0x17ff, Some(0x1000)),
                (0x5800, 0x5fff, Some(0x5800)),
                (0x6000, 0x6fff, Some(0x6000)),
                (0x7000, 0x7fff, Some(0x7000)),
            ]
        );
        rig.mappings.unmap(Range::all());
        assert_eq!(rig.has(), []);
    }

    #[test]
    fn pages_that_follow_on_each_other_are_one_mapping() {
        let mut rig = Rig::new();
        let run = rig.map_page(None, 0x1000, 0x8000);
        let run = rig.map_page(run, 0x2000, 0x9000);
        assert_eq!(run, Some(Iova(0x1000)));
        // Its memory lies elsewhere.
        let other = rig.map_page(run, 0x3000, 0x4000);
        assert_eq!(other, Some(Iova(0x3000)));
        // It comes after another message.
        rig.map_page(None, 0x4000, 0x5000);
        let joined = [
            (0x1000, 0x2fff, Some(0x8000)),
            (0x3000, 0x3fff, Some(0x4000)),
            (0x4000, 0x4fff, Some(0x5000)),
        ];
        assert_eq!(rig.has(), joined);
        rig.mappings.unmap(range(0x1000, 0x1fff));
        assert_eq!(rig.has().first(), Some(&(0x2000, 0x2fff, Some(0x9000))));
    }

    #[test]
    fn descriptor_for_reads_is_not_replaced_by_one_for_writes() {
        let mut rig = Rig::new();
        let path = format!("/proc/self/fd/{}", rig.memory.as_raw_fd());
        let read_only = open(path, OFlags::RDONLY, Mode::empty()).unwrap();
        let _writable = rig.lent(0, 0xfff, Some(0));
        let map = DmaMap {
            range: range(0x1000, 0x1fff),
            readable: true,
            writable: false,
            memory: Some((read_only, 0x1000)),
        };
        let lent = rig.mappings.lend(&map).unwrap();
        let (file, _) = lent.memory.unwrap();
        let access = fcntl_getfl(file).unwrap() & OFlags::ACCMODE;
        assert_eq!(access, OFlags::RDONLY);
    }

    #[test]
    fn page_that_the_server_refuses_leaves_the_mapping_before_it() {
        let mut rig = Rig::new();
        let run = rig.map_page(None, REFUSED - 0x1000, 0x1000);
        rig.open(1, REFUSED - 0x1000, REFUSED - 1, Some(0x8000));
        assert_eq!(rig.map_page(run, REFUSED, 0x2000), None);
        rig.close(1);
        let before = (REFUSED - 0x1000, REFUSED - 1, Some(0x1000));
        assert_eq!(rig.has(), [before]);
    }

    #[test]
    fn memory_for_reads_is_lent_for_writes_only_if_asked() {
        for read_write in [false, true] {
            let config = Config {
                read_write,
                ..Config::default()
            };
            let mut mappings = Mappings::<Server>::new(Arc::default(), &config);
            let map = DmaMap {
                range: range(0, 0xfff),
                readable: true,
                writable: false,
                memory: None,
            };
            let lent = mappings.lend(&map).unwrap();
            assert!(lent.readable);
            assert_eq!(lent.writable, read_write);
        }
    }

    #[test]
    fn window_that_the_server_refuses_does_not_cost_the_memory_around_it() {
        let mut rig = Rig::new();
        rig.map(REFUSED - 0x1000, REFUSED + 0x1fff, Some(0));
        rig.open(1, REFUSED, REFUSED + 0xfff, Some(0x8000));
        let around = [
            (REFUSED - 0x1000, REFUSED - 1, Some(0)),
            (REFUSED + 0x1000, REFUSED + 0x1fff, Some(0x2000)),
        ];
        assert_eq!(rig.has(), around);
    }

    #[test]
    fn large_mappings_are_not_joined() {
        let mut rig = Rig::new();
        let lent = rig.lent(0, MOST_JOINED - 1, Some(0));
        let run = rig.mappings.map(lent, None).ok();
        rig.map_page(run, MOST_JOINED, MOST_JOINED);
        assert_eq!(rig.has().len(), 2);
    }

    #[test]
    fn first_of_two_windows_answers_where_they_meet() {
        let mut rig = Rig::new();
        rig.open(1, 0x4000, 0x4fff, Some(0));
        rig.open(2, 0x4000, 0x6fff, Some(0x8000));
        let expected = [(0x4000, 0x4fff, Some(0)), (0x5000, 0x6fff, Some(0x9000))];
        assert_eq!(rig.has(), expected);
        rig.close(1);
        assert_eq!(rig.has(), [(0x4000, 0x6fff, Some(0x8000))]);
    }

    #[test]
    fn mapping_that_the_server_refuses_is_not_kept() {
        let mut rig = Rig::new();
        let lent = rig.lent(REFUSED, REFUSED + 0xfff, None);
        assert_eq!(rig.mappings.map(lent, None), Err(Errno::EXIST));
        rig.open(1, REFUSED + 0x800, REFUSED + 0xfff, None);
        assert_eq!(rig.has(), [(REFUSED + 0x800, REFUSED + 0xfff, None)]);
    }

    #[test]
    fn server_that_is_counted_gets_no_memory() {
        let mut rig = Rig::new();
        rig.map(0, 0xfff, Some(0));
        rig.mappings.set_by_messages(true);
        assert_eq!(rig.has(), [(0, 0xfff, None)]);
        rig.open(1, 0x4000, 0x4fff, Some(0));
        rig.mappings.set_by_messages(false);
        let direct = [(0, 0xfff, Some(0)), (0x4000, 0x4fff, Some(0))];
        assert_eq!(rig.has(), direct);
    }
}
