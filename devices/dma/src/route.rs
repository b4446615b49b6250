//! The route decision: a pure function of bus mastering, the requester's own windows, its peers' windows, the memory map
//! and an address.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use peerbar_dma_log::{AtsCounts, Completer, Direction, Route};

use crate::atc::{Atc, Translated};
use crate::link::{Lanes, Links};
use crate::map::{Backing, Found, MemoryMap};
use crate::memory::Span;
use crate::pages::PageTable;
use crate::peers::{FoundPeer, PeerId, PeerMemory, PeerRouting, PeerTable};
use crate::session::Direct;

/// Which of a function's windows is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WindowId {
    /// Where the guest has put the Controller Memory Buffer in the controller's own view of addresses
    /// (NVMe Base 2.0, 3.1.3.15, CMBMSC.CBA). It comes before the BARs, with which it usually coincides.
    Cmb,
    /// A base address register, 0 to 5.
    Bar(u8),
}

/// A range of bus addresses that the function itself answers.
#[derive(Clone, Debug)]
pub struct Window {
    /// First bus address.
    pub address: u64,
    /// Length in bytes.
    pub size: u64,
    /// What lies behind it.
    pub memory: WindowMemory,
}

/// What lies behind a window.
#[derive(Clone, Debug)]
pub enum WindowMemory {
    /// Registers, which the function does not reach by DMA.
    Registers,
    /// Memory, from the start of the span on.
    Span(Span),
    /// Memory page by page; a DMA to a page that is over nothing is refused.
    Pages(Arc<PageTable>),
}

/// Everything that a route depends on.
#[derive(Debug, Default)]
pub(crate) struct Fabric {
    /// Command register, Bus Master Enable (PCI Local Bus 3.0, 6.2.2).
    pub(crate) bus_master: bool,
    /// The function is being reset: it issues nothing.
    pub(crate) halted: bool,
    pub(crate) windows: BTreeMap<WindowId, Window>,
    pub(crate) peer_routing: PeerRouting,
    pub(crate) peers: PeerTable,
    pub(crate) map: MemoryMap,
    pub(crate) links: Links,
    /// The guest has the function ask for translations of addresses.
    pub(crate) ats: bool,
    pub(crate) atc: Mutex<Atc>,
}

/// Where a piece of a request goes.
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
    /// What a peer has at this address, by message.
    PeerByMessage(PeerId),
    /// What was a peer's window before it vanished.
    PeerGone,
    /// Some peer, whom the switch lets nobody reach from here.
    PeerRefused,
    /// Some peer, but the switch loses the request.
    PeerDropped,
    /// Guest RAM that is mapped here.
    Ram(Span),
    /// Guest RAM, through the client.
    RemoteRam,
    /// Another device's BAR, through the client.
    Device,
    /// A mapping that does not allow it.
    Forbidden,
    /// Nothing that is known: the client decides, and its IOMMU logs.
    Unmapped,
}

/// The first piece of a request.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) target: Target,
    /// Its length, from 1 to what was asked for.
    pub(crate) len: usize,
    /// How far before it the mapping or window starts that it lies in.
    pub(crate) skip: u64,
}

impl Fabric {
    /// Whether the function may issue requests at all.
    pub(crate) fn may_request(&self) -> bool {
        self.bus_master && !self.halted
    }

    /// The links on which the data of a request to this target takes time.
    pub(crate) fn lanes(&self, target: &Target, direction: Direction) -> Option<Lanes> {
        match target {
            Target::Peer(peer, _) | Target::PeerByMessage(peer) => {
                self.links.lanes(Some(*peer), direction)
            }
            Target::Ram(_) | Target::RemoteRam | Target::Device | Target::Unmapped => {
                self.links.lanes(None, direction)
            }
            _ => None,
        }
    }

    /// Where the first piece of a request for `len` bytes at `address` goes, and how long that piece is. `len` is not 0.
    pub(crate) fn route(&self, address: u64, len: usize, direction: Direction) -> Piece {
        self.find(address, len, direction, self.ats)
    }

    fn find(&self, address: u64, len: usize, direction: Direction, translate: bool) -> Piece {
        if !self.may_request() {
            return Piece {
                target: Target::NotMaster,
                len,
                skip: 0,
            };
        }
        let len = self.until_next_window(address, len);
        if let Some((window, skip)) = self.window(address) {
            return own(window, skip, len);
        }
        let len = match self.peer(address) {
            FoundPeer::Claimed {
                claimed,
                skip,
                left,
            } => {
                return Piece {
                    target: self.to_peer(claimed.peer(), claimed.memory(), skip),
                    len: at_most(len, left),
                    skip,
                };
            }
            FoundPeer::Gap { left } => left.map_or(len, |left| at_most(len, left)),
        };
        if translate && let Some(piece) = self.translated(address, len, direction) {
            return piece;
        }
        self.mapped(address, len, direction)
    }

    /// The memory that is mapped here around `address`, as far as it goes by one route, if there is any and
    /// transfers take no time there.
    pub(crate) fn direct(&self, address: u64, direction: Direction) -> Option<Direct> {
        // With ATS on each use is one of a translation.
        if self.ats {
            return None;
        }
        let piece = self.find(address, usize::MAX, direction, false);
        match self.lanes(&piece.target, direction) {
            None => self.around(address, piece),
            Some(_) => None,
        }
    }

    /// As [`Fabric::direct`] for words that are looked at all the time: by an address that is not translated, and in no time.
    pub(crate) fn word(&self, address: u64, direction: Direction) -> Option<Direct> {
        self.around(address, self.find(address, usize::MAX, direction, false))
    }

    /// What is around `address`, from which on there is this piece, as far as it is memory that goes by one route.
    fn around(&self, address: u64, Piece { target, len, skip }: Piece) -> Option<Direct> {
        let (mut span, route, completer) = match target {
            Target::Own(span) => (span, Route::OwnBar, Completer::OwnMemory),
            Target::Peer(_, span) => (span, Route::Peer, Completer::PeerBar),
            Target::Ram(span) => (span, Route::GuestRam, Completer::GuestRam),
            _ => return None,
        };
        let first = self.window_edge(address).max(address - skip);
        span.offset = span.offset.saturating_sub(address - first);
        Some(Direct {
            first,
            last: address.saturating_add(len as u64 - 1),
            span,
            route,
            completer,
        })
    }

    /// The last address up to `address` at which a window, the function's own or a peer's, starts or ends.
    fn window_edge(&self, address: u64) -> u64 {
        let windows = self.windows.values();
        let windows = windows.flat_map(|window| {
            [
                Some(window.address),
                window.address.checked_add(window.size),
            ]
        });
        let below = windows.flatten().filter(|edge| *edge <= address);
        below.max().unwrap_or(0).max(self.peers.boundary(address))
    }

    /// Where a request goes that uses a translated address; `None` if no translation is to be had.
    fn translated(&self, address: u64, len: usize, direction: Direction) -> Option<Piece> {
        let mut atc = self.atc.lock().unwrap_or_else(PoisonError::into_inner);
        let (to, left) = atc.translate(address, direction, &self.map, &self.peers)?;
        let len = at_most(len, left);
        match to {
            Translated::Ram(span) => Some(Piece {
                target: Target::Ram(span),
                len,
                skip: 0,
            }),
            Translated::Bus(address) => self.directly(address, len),
        }
    }

    /// A port that redirects requests to the root lets translated ones pass (PCIe Base 6.0, 6.12.1.1, ACS Direct Translated
    /// P2P).
    fn directly(&self, address: u64, len: usize) -> Option<Piece> {
        let FoundPeer::Claimed {
            claimed,
            skip,
            left,
        } = self.peers.find(address)
        else {
            return None;
        };
        Some(Piece {
            target: to_peer(claimed.peer(), claimed.memory(), skip),
            len: at_most(len, left),
            skip,
        })
    }

    /// What has become of the translations that the function asked for.
    pub(crate) fn ats_counts(&self) -> AtsCounts {
        let atc = self.atc.lock().unwrap_or_else(PoisonError::into_inner);
        atc.counts(self.ats)
    }

    /// The translations that the function keeps, for who changes the fabric.
    pub(crate) fn atc(&mut self) -> &mut Atc {
        self.atc.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn peer(&self, address: u64) -> FoundPeer<'_> {
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

    /// The memory map decides.
    fn mapped(&self, address: u64, len: usize, direction: Direction) -> Piece {
        match self.map.find(address) {
            Found::Mapped {
                mapping,
                skip,
                left,
            } => {
                let allowed = match direction {
                    Direction::Read => mapping.readable(),
                    Direction::Write => mapping.writable(),
                };
                let target = match mapping.backing() {
                    _ if !allowed => Target::Forbidden,
                    Backing::Ram(span) => Target::Ram(span_after(span, skip)),
                    Backing::RemoteRam => Target::RemoteRam,
                    Backing::Device => Target::Device,
                };
                Piece {
                    target,
                    len: at_most(len, left),
                    skip,
                }
            }
            Found::Gap { left } => Piece {
                target: Target::Unmapped,
                len: left.map_or(len, |left| at_most(len, left)),
                skip: 0,
            },
        }
    }

    fn window(&self, address: u64) -> Option<(&Window, u64)> {
        self.windows.values().find_map(|window| {
            let skip = address.checked_sub(window.address)?;
            (skip < window.size).then_some((window, skip))
        })
    }

    fn until_next_window(&self, address: u64, len: usize) -> usize {
        let gaps = self
            .windows
            .values()
            .filter_map(|window| window.address.checked_sub(address));
        gaps.filter(|gap| *gap > 0).fold(len, at_most)
    }
}

/// What lies in a peer's window, when the request gets there.
fn to_peer(peer: PeerId, memory: &PeerMemory, skip: u64) -> Target {
    match memory {
        PeerMemory::Span(span) => Target::Peer(peer, span_after(span, skip)),
        PeerMemory::ByMessage => Target::PeerByMessage(peer),
        PeerMemory::Gone => Target::PeerGone,
    }
}

/// A window of the function's own.
fn own(window: &Window, skip: u64, len: usize) -> Piece {
    let len = at_most(len, window.size - skip);
    let (target, len) = match &window.memory {
        WindowMemory::Registers => (Target::OwnRegisters, len),
        WindowMemory::Span(span) => (Target::Own(span_after(span, skip)), len),
        WindowMemory::Pages(table) => {
            let len = at_most(len, table.left_in_page(skip));
            (Target::OwnPage(table.clone(), skip), len)
        }
    };
    Piece { target, len, skip }
}

fn span_after(span: &Span, skip: u64) -> Span {
    Span {
        file: span.file.clone(),
        offset: span.offset.saturating_add(skip),
    }
}

/// The smaller of the two, which fits a `usize` since `len` does. A limit of 0 stands for 2^64.
fn at_most(len: usize, limit: u64) -> usize {
    match usize::try_from(limit) {
        Ok(0) | Err(_) => len,
        Ok(limit) => len.min(limit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryFile;

    fn memory(size: u64) -> Span {
        Span {
            file: Arc::new(MemoryFile::create("test", size).unwrap()),
            offset: 0,
        }
    }

    /// RAM at 0x1000..0x3000 in two mappings, read-only RAM at 0x3000, another device at 0x8000, own memory at 0x10000, own
    /// registers at 0x20000.
    fn fabric() -> Fabric {
        let mut fabric = Fabric {
            bus_master: true,
            ..Fabric::default()
        };
        let both = (true, true);
        fabric
            .map
            .map(0x1000, 0x1000, both, Backing::Ram(memory(0x1000)))
            .unwrap();
        fabric
            .map
            .map(0x2000, 0x1000, both, Backing::Ram(memory(0x1000)))
            .unwrap();
        fabric
            .map
            .map(0x3000, 0x1000, (true, false), Backing::Ram(memory(0x1000)))
            .unwrap();
        fabric
            .map
            .map(0x8000, 0x1000, both, Backing::Device)
            .unwrap();
        fabric.windows.insert(
            WindowId::Bar(2),
            Window {
                address: 0x10000,
                size: 0x1000,
                memory: WindowMemory::Span(memory(0x1000)),
            },
        );
        fabric.windows.insert(
            WindowId::Bar(0),
            Window {
                address: 0x20000,
                size: 0x1000,
                memory: WindowMemory::Registers,
            },
        );
        fabric
    }

    fn piece(fabric: &Fabric, address: u64, len: usize) -> (&'static str, usize) {
        let piece = fabric.route(address, len, Direction::Write);
        let name = match piece.target {
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
        (name, piece.len)
    }

    #[test]
    fn each_address_has_its_target_and_a_piece_ends_where_the_target_does() {
        let fabric = fabric();
        assert_eq!(piece(&fabric, 0x1800, 0x1000), ("ram", 0x800));
        assert_eq!(piece(&fabric, 0x2000, 0x10), ("ram", 0x10));
        assert_eq!(piece(&fabric, 0x3000, 0x10), ("forbidden", 0x10));
        assert_eq!(piece(&fabric, 0x7000, 0x2000), ("unmapped", 0x1000));
        assert_eq!(piece(&fabric, 0x8000, 0x2000), ("device", 0x1000));
        assert_eq!(piece(&fabric, 0xf000, 0x2000), ("unmapped", 0x1000));
        assert_eq!(piece(&fabric, 0x10ff0, 0x100), ("own", 0x10));
        assert_eq!(piece(&fabric, 0x20000, 8), ("own registers", 8));
        assert_eq!(piece(&fabric, 0x3000_0000, 8), ("unmapped", 8));
    }

    #[test]
    fn read_only_memory_can_be_read() {
        let piece = fabric().route(0x3000, 8, Direction::Read);
        assert!(matches!(piece.target, Target::Ram(_)));
    }

    #[test]
    fn own_memory_comes_before_any_mapping_of_the_same_address() {
        let mut fabric = fabric();
        fabric
            .map
            .map(0x10000, 0x1000, (true, true), Backing::Device)
            .unwrap();
        assert_eq!(piece(&fabric, 0x10000, 0x10), ("own", 0x10));
    }

    #[test]
    fn the_cmb_window_comes_before_the_bars() {
        let mut fabric = fabric();
        fabric.windows.insert(
            WindowId::Cmb,
            Window {
                address: 0x20000,
                size: 0x1000,
                memory: WindowMemory::Span(memory(0x1000)),
            },
        );
        assert_eq!(piece(&fabric, 0x20000, 0x10), ("own", 0x10));
    }

    #[test]
    fn a_window_of_pages_is_cut_at_each_page() {
        let mut fabric = fabric();
        let file = Arc::new(MemoryFile::create("test", 0x4000).unwrap());
        let table = PageTable::new(file, 4, 0x1000);
        fabric.windows.insert(
            WindowId::Bar(4),
            Window {
                address: 0x40000,
                size: 0x4000,
                memory: WindowMemory::Pages(Arc::new(table)),
            },
        );
        assert_eq!(piece(&fabric, 0x40ff0, 0x100), ("own page", 0x10));
        assert_eq!(piece(&fabric, 0x41000, 0x4000), ("own page", 0x1000));
        assert_eq!(piece(&fabric, 0x43fff, 2), ("own page", 1));
        let Target::OwnPage(_, offset) = fabric.route(0x43fff, 1, Direction::Read).target else {
            panic!("not a page")
        };
        assert_eq!(offset, 0x3fff);
    }

    #[test]
    fn nothing_goes_out_without_bus_mastering_or_while_halted() {
        let mut fabric = fabric();
        fabric.halted = true;
        assert_eq!(piece(&fabric, 0x10000, 8), ("not master", 8));
        fabric.halted = false;
        fabric.bus_master = false;
        assert_eq!(piece(&fabric, 0x1000, 8), ("not master", 8));
    }

    #[test]
    fn a_window_or_mapping_that_ends_with_the_address_space_does_not_overflow() {
        let mut fabric = fabric();
        fabric
            .map
            .map(1 << 63, 1 << 63, (true, true), Backing::Device)
            .unwrap();
        assert_eq!(piece(&fabric, u64::MAX, 1), ("device", 1));
        fabric.windows.insert(
            WindowId::Bar(4),
            Window {
                address: u64::MAX - 0xfff,
                size: 0x1000,
                memory: WindowMemory::Span(memory(0x1000)),
            },
        );
        assert_eq!(piece(&fabric, u64::MAX, 1), ("own", 1));
        assert_eq!(
            piece(&fabric, u64::MAX - 0x1fff, 0x2000),
            ("device", 0x1000)
        );
    }
}
