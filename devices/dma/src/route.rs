//! The route decision: a pure function of bus mastering, the requester's own windows, its peers' windows, the memory map
//! and an address.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use peerbar_dma_log::{AtsCounts, Completer, Direction, Route};
use peerbar_flight::WindowId;
use peerbar_pci::{BusAddress, Iova, Range};

use crate::atc::{Atc, Translated};
use crate::direct::DirectRoute;
use crate::link::{LinkPath, Links};
use crate::map::{Backing, Found, MemoryMap};
use crate::memory::Span;
use crate::pages::PageTable;
use crate::peer_changes::PeerChanges;
use crate::peers::{FoundPeer, PeerId, PeerMemory, PeerRouting, PeerTable};

/// A range of bus addresses that the function itself answers.
#[derive(Clone, Debug)]
pub struct OwnWindow {
    /// Its bus addresses.
    pub range: Range<BusAddress>,
    /// The content of the window.
    pub memory: OwnWindowMemory,
}

/// The content of a window.
#[derive(Clone, Debug)]
pub enum OwnWindowMemory {
    /// Registers, which the function does not reach by DMA.
    Registers,
    /// Memory, from the start of the span on.
    Span(Span),
    /// Memory page by page. DMA to a page without memory is refused.
    Pages(Arc<PageTable>),
}

/// The state that routes depend on.
#[derive(Debug, Default)]
pub(crate) struct RouteTable {
    /// Command register, Bus Master Enable (PCI Local Bus 3.0, 6.2.2).
    pub(crate) bus_master: bool,
    /// `true` while the function is being reset: it issues nothing.
    pub(crate) halted: bool,
    pub(crate) windows: BTreeMap<WindowId, OwnWindow>,
    pub(crate) peer_routing: PeerRouting,
    pub(crate) peers: PeerTable,
    /// The function's knowledge of the peers' windows. `None` without a switch.
    pub(crate) changes: Option<Arc<PeerChanges>>,
    /// `true` if a switch was lost before.
    pub(crate) has_lost_peers: bool,
    pub(crate) map: MemoryMap,
    pub(crate) links: Links,
    /// `true` if the guest has enabled address translation services.
    pub(crate) ats: bool,
    pub(crate) atc: Mutex<Atc>,
}

/// The target of a segment of a request.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// Bus mastering is off, or the function is halted.
    NotMaster,
    /// The function's own registers.
    OwnRegisters,
    /// The function's own memory.
    Own(Span),
    /// A page of the function's own memory, at this offset of the window.
    OwnPage(Arc<PageTable>, u64),
    /// A peer's memory that is mapped here.
    Peer(PeerId, Span),
    /// A peer's address that is reached by a message.
    PeerByMessage(PeerId),
    /// The former window of a peer that has vanished.
    PeerGone,
    /// A peer, but the switch refuses requests to it from here.
    PeerRefused,
    /// A peer, but the switch loses the request.
    PeerDropped,
    /// Guest RAM that is mapped here.
    Ram(Span),
    /// Guest RAM, through the client.
    RemoteRam,
    /// Another device's BAR, through the client.
    Device,
    /// A mapping that does not allow the request.
    Forbidden,
    /// An unknown address: the client decides, and its IOMMU logs.
    Unmapped,
}

impl Target {
    /// Returns the route to the target, and the owner of the memory there.
    pub(crate) fn route_and_completer(&self) -> (Route, Completer) {
        match self {
            Self::NotMaster | Self::OwnRegisters | Self::PeerRefused | Self::PeerDropped => {
                (Route::Refused, Completer::None)
            }
            Self::Own(_) | Self::OwnPage(..) => (Route::OwnBar, Completer::OwnMemory),
            Self::Peer(..) | Self::PeerByMessage(_) | Self::PeerGone => {
                (Route::Peer, Completer::PeerBar)
            }
            Self::Ram(_) => (Route::GuestRam, Completer::GuestRam),
            Self::RemoteRam => (Route::Upstream, Completer::GuestRam),
            Self::Device => (Route::Upstream, Completer::PeerBar),
            Self::Forbidden => (Route::Upstream, Completer::None),
            Self::Unmapped => (Route::Upstream, Completer::Unknown),
        }
    }
}

/// The first segment of a request.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) target: Target,
    /// Its length, from 1 to the length of the request.
    pub(crate) len: usize,
    /// The distance from the start of its mapping or window.
    pub(crate) skip: u64,
}

impl RouteTable {
    /// Returns `true` if the function may issue requests at all.
    pub(crate) fn may_request(&self) -> bool {
        self.bus_master && !self.halted
    }

    /// Returns the knowledge of the peers' windows, if requests depend on it.
    pub(crate) fn compared_changes(&self) -> Option<&Arc<PeerChanges>> {
        let by_windows = self.peer_routing != PeerRouting::Redirect || self.ats;
        self.changes.as_ref().filter(|_| by_windows)
    }

    /// Returns the links on which the data of a request to this target takes time.
    pub(crate) fn link_path(&self, target: &Target, direction: Direction) -> Option<LinkPath> {
        match target {
            Target::Peer(peer, _) | Target::PeerByMessage(peer) => {
                self.links.path(Some(*peer), direction)
            }
            Target::Ram(_) | Target::RemoteRam | Target::Device | Target::Unmapped => {
                self.links.path(None, direction)
            }
            _ => None,
        }
    }

    /// Returns the target and the length of the first segment of a request for `len` bytes at
    /// `address`. `len` is not 0.
    pub(crate) fn route(&self, address: Iova, len: usize, direction: Direction) -> Segment {
        self.find(address, len, direction, self.ats)
    }

    fn find(&self, address: Iova, len: usize, direction: Direction, translate: bool) -> Segment {
        if !self.may_request() {
            return Segment {
                target: Target::NotMaster,
                len,
                skip: 0,
            };
        }
        let on_bus = address.on_bus();
        let len = self.until_next_window(on_bus, len);
        if let Some((window, skip)) = self.window(on_bus) {
            return own(window, skip, window.range.clip(on_bus, len));
        }
        let len = match self.peer(on_bus) {
            FoundPeer::Claimed { claimed, skip } => {
                return Segment {
                    target: self.to_peer(claimed.peer, &claimed.memory, skip),
                    len: claimed.range.clip(on_bus, len),
                    skip,
                };
            }
            FoundPeer::Gap { left } => left.map_or(len, |left| at_most(len, left)),
        };
        let translated = translate.then(|| self.translated(address, len, direction));
        translated
            .flatten()
            .unwrap_or_else(|| self.mapped(address, len, direction))
    }

    /// Returns the memory around `address` that is mapped here and reached by one route, or `None`
    /// if there is no such memory or transfers take time there.
    pub(crate) fn direct(&self, address: Iova, direction: Direction) -> Option<DirectRoute> {
        // With ATS, each use must look its translation up.
        if self.ats {
            return None;
        }
        let segment = self.find(address, usize::MAX, direction, false);
        match self.link_path(&segment.target, direction) {
            None => self.around(address, segment),
            Some(_) => None,
        }
    }

    /// Like [`RouteTable::direct`], for polled words: the address is not translated, and the access
    /// takes no time.
    pub(crate) fn word(&self, address: Iova, direction: Direction) -> Option<DirectRoute> {
        self.around(address, self.find(address, usize::MAX, direction, false))
    }

    /// Returns the memory around `address`, at which this segment starts, as far as it is reached
    /// by one route.
    fn around(&self, address: Iova, Segment { target, len, skip }: Segment) -> Option<DirectRoute> {
        let (route, completer) = target.route_and_completer();
        let (Target::Own(mut span) | Target::Peer(_, mut span) | Target::Ram(mut span)) = target
        else {
            return None;
        };
        let to_edge = address.on_bus().offset_from(self.window_edge(address))?;
        let before = to_edge.min(skip);
        span.offset = span.offset.saturating_sub(before);
        let last = address.saturating_add(len as u64 - 1);
        Some(DirectRoute {
            range: Range::from_bounds(address.checked_sub(before)?, last)?,
            span,
            route,
            completer,
        })
    }

    /// Returns the last address up to `address` at which a window, the function's own or a peer's,
    /// starts or ends.
    fn window_edge(&self, address: Iova) -> BusAddress {
        let address = address.on_bus();
        let windows = self.windows.values().map(|window| window.range);
        let edges = windows.flat_map(|range| [Some(range.first()), range.last().checked_add(1)]);
        let below = edges.flatten().filter(|edge| *edge <= address);
        let peers = self.peers.boundary(address);
        below.fold(peers, BusAddress::max)
    }

    /// Returns the first segment of a request with a translated address, or `None` if there is no
    /// translation.
    fn translated(&self, address: Iova, len: usize, direction: Direction) -> Option<Segment> {
        let mut atc = self.atc.lock();
        let (to, range) = atc.translate(address, direction, &self.map, &self.peers)?;
        let len = range.clip(address, len);
        match to {
            Translated::Ram(span) => Some(Segment {
                target: Target::Ram(span),
                len,
                skip: 0,
            }),
            Translated::Bus(address) => self.directly(address, len),
        }
    }

    /// Routes a translated request directly: a port that redirects requests to the root lets these
    /// pass (PCIe Base 6.0, 6.12.1.1, ACS Direct Translated P2P).
    fn directly(&self, address: BusAddress, len: usize) -> Option<Segment> {
        let FoundPeer::Claimed { claimed, skip } = self.peers.find(address) else {
            return None;
        };
        Some(Segment {
            target: to_peer(claimed.peer, &claimed.memory, skip),
            len: claimed.range.clip(address, len),
            skip,
        })
    }

    /// Passes the address translation cache's counts to `take`, while the cache is locked.
    pub(crate) fn with_ats_counts<T>(&self, take: impl FnOnce(AtsCounts) -> T) -> T {
        let atc = self.atc.lock();
        take(atc.counts(self.ats))
    }

    /// Returns the address translation cache, for a change of the routes.
    pub(crate) fn atc(&mut self) -> &mut Atc {
        self.atc.get_mut()
    }

    fn peer(&self, address: BusAddress) -> FoundPeer<'_> {
        match self.peer_routing {
            PeerRouting::Redirect => FoundPeer::Gap { left: None },
            _ => self.peers.find(address),
        }
    }

    fn to_peer(&self, peer: PeerId, memory: &PeerMemory, skip: u64) -> Target {
        match self.peer_routing {
            PeerRouting::UnsupportedRequest => Target::PeerRefused,
            PeerRouting::Drop => Target::PeerDropped,
            _ => to_peer(peer, memory, skip),
        }
    }

    /// Looks the target up in the memory map.
    fn mapped(&self, address: Iova, len: usize, direction: Direction) -> Segment {
        match self.map.find(address) {
            Found::Mapped { mapping, skip } => {
                let target = match &mapping.backing {
                    _ if !mapping.access.allows(direction) => Target::Forbidden,
                    Backing::Ram(span) => Target::Ram(span_after(span, skip)),
                    Backing::RemoteRam => Target::RemoteRam,
                    Backing::Device => Target::Device,
                };
                Segment {
                    target,
                    len: mapping.range.clip(address, len),
                    skip,
                }
            }
            Found::Gap { left } => Segment {
                target: Target::Unmapped,
                len: left.map_or(len, |left| at_most(len, left)),
                skip: 0,
            },
        }
    }

    fn window(&self, address: BusAddress) -> Option<(&OwnWindow, u64)> {
        let mut windows = self.windows.values();
        windows.find_map(|window| Some((window, window.range.offset_of(address)?)))
    }

    fn until_next_window(&self, address: BusAddress, len: usize) -> usize {
        let windows = self.windows.values();
        let gaps = windows.filter_map(|window| window.range.first().offset_from(address));
        gaps.filter(|gap| *gap > 0).fold(len, at_most)
    }
}

/// Returns the target in a peer's window, if the request gets there.
fn to_peer(peer: PeerId, memory: &PeerMemory, skip: u64) -> Target {
    match memory {
        PeerMemory::Span(span) => Target::Peer(peer, span_after(span, skip)),
        PeerMemory::ByMessage => Target::PeerByMessage(peer),
        PeerMemory::Gone => Target::PeerGone,
    }
}

/// Returns the segment in one of the function's own windows, in which all of it lies.
fn own(window: &OwnWindow, skip: u64, len: usize) -> Segment {
    let (target, len) = match &window.memory {
        OwnWindowMemory::Registers => (Target::OwnRegisters, len),
        OwnWindowMemory::Span(span) => (Target::Own(span_after(span, skip)), len),
        OwnWindowMemory::Pages(table) => {
            let len = at_most(len, table.left_in_page(skip));
            (Target::OwnPage(table.clone(), skip), len)
        }
    };
    Segment { target, len, skip }
}

fn span_after(span: &Span, skip: u64) -> Span {
    Span {
        file: span.file.clone(),
        offset: span.offset.saturating_add(skip),
    }
}

/// Returns the smaller of the two, which fits a `usize` since `len` does.
fn at_most(len: usize, limit: u64) -> usize {
    usize::try_from(limit).map_or(len, |limit| len.min(limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryFile;
    use crate::map_access::MapAccess;

    fn range(first: u64, size: u64) -> Range<Iova> {
        Range::new(Iova(first), size).unwrap()
    }

    fn memory(size: u64) -> Span {
        Span {
            file: Arc::new(MemoryFile::create("test", size).unwrap()),
            offset: 0,
        }
    }

    /// RAM at 0x1000..0x3000 in two mappings, read-only RAM at 0x3000, another device at 0x8000,
    /// own memory at 0x10000, own registers at 0x20000.
    fn routes() -> RouteTable {
        let mut routes = RouteTable {
            bus_master: true,
            ..RouteTable::default()
        };
        let both = MapAccess::READ_WRITE;
        routes
            .map
            .map(range(0x1000, 0x1000), both, Backing::Ram(memory(0x1000)))
            .unwrap();
        routes
            .map
            .map(range(0x2000, 0x1000), both, Backing::Ram(memory(0x1000)))
            .unwrap();
        routes
            .map
            .map(
                range(0x3000, 0x1000),
                MapAccess::READ_ONLY,
                Backing::Ram(memory(0x1000)),
            )
            .unwrap();
        routes
            .map
            .map(range(0x8000, 0x1000), both, Backing::Device)
            .unwrap();
        routes.windows.insert(
            WindowId::Bar(2),
            OwnWindow {
                range: Range::new(BusAddress(0x10000), 0x1000).unwrap(),
                memory: OwnWindowMemory::Span(memory(0x1000)),
            },
        );
        routes.windows.insert(
            WindowId::Bar(0),
            OwnWindow {
                range: Range::new(BusAddress(0x20000), 0x1000).unwrap(),
                memory: OwnWindowMemory::Registers,
            },
        );
        routes
    }

    fn segment(routes: &RouteTable, address: u64, len: usize) -> (&'static str, usize) {
        let segment = routes.route(Iova(address), len, Direction::Write);
        let name = match segment.target {
            Target::NotMaster => "not master",
            Target::OwnRegisters => "own registers",
            Target::Own(_) => "own",
            Target::OwnPage(..) => "own page",
            Target::Peer(..) => "peer",
            Target::PeerByMessage(_) => "peer by message",
            Target::PeerGone => "peer gone",
            Target::PeerRefused => "peer refused",
            Target::PeerDropped => "peer dropped",
            Target::Ram(_) => "ram",
            Target::RemoteRam => "remote ram",
            Target::Device => "device",
            Target::Forbidden => "forbidden",
            Target::Unmapped => "unmapped",
        };
        (name, segment.len)
    }

    #[test]
    fn segment_ends_where_its_target_does() {
        let routes = routes();
        assert_eq!(segment(&routes, 0x1800, 0x1000), ("ram", 0x800));
        assert_eq!(segment(&routes, 0x2000, 0x10), ("ram", 0x10));
        assert_eq!(segment(&routes, 0x3000, 0x10), ("forbidden", 0x10));
        assert_eq!(segment(&routes, 0x7000, 0x2000), ("unmapped", 0x1000));
        assert_eq!(segment(&routes, 0x8000, 0x2000), ("device", 0x1000));
        assert_eq!(segment(&routes, 0xf000, 0x2000), ("unmapped", 0x1000));
        assert_eq!(segment(&routes, 0x10ff0, 0x100), ("own", 0x10));
        assert_eq!(segment(&routes, 0x20000, 8), ("own registers", 8));
        assert_eq!(segment(&routes, 0x3000_0000, 8), ("unmapped", 8));
    }

    #[test]
    fn read_only_memory_can_be_read() {
        let segment = routes().route(Iova(0x3000), 8, Direction::Read);
        assert!(matches!(segment.target, Target::Ram(_)));
    }

    #[test]
    fn own_memory_comes_before_any_mapping_of_the_same_address() {
        let mut routes = routes();
        routes
            .map
            .map(
                range(0x10000, 0x1000),
                MapAccess::READ_WRITE,
                Backing::Device,
            )
            .unwrap();
        assert_eq!(segment(&routes, 0x10000, 0x10), ("own", 0x10));
    }

    #[test]
    fn the_cmb_window_comes_before_the_bars() {
        let mut routes = routes();
        routes.windows.insert(
            WindowId::Cmb,
            OwnWindow {
                range: Range::new(BusAddress(0x20000), 0x1000).unwrap(),
                memory: OwnWindowMemory::Span(memory(0x1000)),
            },
        );
        assert_eq!(segment(&routes, 0x20000, 0x10), ("own", 0x10));
    }

    #[test]
    fn a_window_of_pages_is_cut_at_each_page() {
        let mut routes = routes();
        let file = Arc::new(MemoryFile::create("test", 0x4000).unwrap());
        let table = PageTable::new(file, 4, 0x1000);
        routes.windows.insert(
            WindowId::Bar(4),
            OwnWindow {
                range: Range::new(BusAddress(0x40000), 0x4000).unwrap(),
                memory: OwnWindowMemory::Pages(Arc::new(table)),
            },
        );
        assert_eq!(segment(&routes, 0x40ff0, 0x100), ("own page", 0x10));
        assert_eq!(segment(&routes, 0x41000, 0x4000), ("own page", 0x1000));
        assert_eq!(segment(&routes, 0x43fff, 2), ("own page", 1));
        let Target::OwnPage(_, offset) = routes.route(Iova(0x43fff), 1, Direction::Read).target
        else {
            panic!("not a page")
        };
        assert_eq!(offset, 0x3fff);
    }

    #[test]
    fn nothing_goes_out_without_bus_mastering_or_while_halted() {
        let mut routes = routes();
        routes.halted = true;
        assert_eq!(segment(&routes, 0x10000, 8), ("not master", 8));
        routes.halted = false;
        routes.bus_master = false;
        assert_eq!(segment(&routes, 0x1000, 8), ("not master", 8));
    }

    #[test]
    fn range_up_to_the_last_address_does_not_overflow() {
        let mut routes = routes();
        routes
            .map
            .map(
                range(1 << 63, 1 << 63),
                MapAccess::READ_WRITE,
                Backing::Device,
            )
            .unwrap();
        assert_eq!(segment(&routes, u64::MAX, 1), ("device", 1));
        routes.windows.insert(
            WindowId::Bar(4),
            OwnWindow {
                range: Range::new(BusAddress(u64::MAX - 0xfff), 0x1000).unwrap(),
                memory: OwnWindowMemory::Span(memory(0x1000)),
            },
        );
        assert_eq!(segment(&routes, u64::MAX, 1), ("own", 1));
        assert_eq!(
            segment(&routes, u64::MAX - 0x1fff, 0x2000),
            ("device", 0x1000)
        );
    }
}
