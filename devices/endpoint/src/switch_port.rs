//! A function's port at a switch: its windows for its peers, and their windows for it.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use peerbar_dma::{
    Bandwidth, Buffer, Latency, Lease, Leases, LinkSpeed, MemoryFile, PeerError, PeerId,
    PeerLeases, PeerMemory, PeerRouting, PeerWindow, Peers, Requester,
};
use peerbar_pci::{Bar, BusAddress, Function, Range};
use peerbar_switch::{
    Acknowledgement, AttachError, Attachment, BarBacking, BarWindow, Descriptor, Link, LinkMode,
    LinkTiming, MAX_WINDOWS, PeerHandler, PeerRequests, PortId, RequestError, Unsupported,
};

use crate::decoder::{Decoder, OpenWindow};
use crate::{BarMemory, PeerPages};

/// A peer's window, for others than the function's requester.
#[derive(Debug)]
pub struct ObservedWindow {
    /// Its bus addresses.
    pub range: Range<BusAddress>,
    /// If several windows cover one address, the one with the smallest claim answers.
    pub claim: u64,
    /// The memory behind it and the offset of the window in it, if the switch lets the function
    /// have it and no link on the way takes time.
    pub memory: Option<(OwnedFd, u64)>,
}

/// Learns of the peers' windows that the function's requests reach, after the function's requester
/// has. The link's own thread calls the methods, so they must not wait.
pub trait WindowObserver: Send + Sync {
    /// These are all windows of the peer now. The memory of others must not be used any more once
    /// the acknowledgement is dropped. Until then, the function learns of no further change.
    fn windows(&self, peer: PeerId, windows: Vec<ObservedWindow>, acknowledgement: Acknowledgement);
    /// No peer has a window any more.
    fn lost(&self);
}

/// A function's link to its switch.
pub(crate) struct SwitchPort<F> {
    link: Link,
    decoder: Arc<Decoder<F>>,
    /// BAR and addresses of each window as last announced.
    announced: Vec<(u8, Range<BusAddress>)>,
    leases: Leases,
    lent_leases: Descriptor,
}

impl<F: Function + 'static> SwitchPort<F> {
    /// Attaches a function to the switch at `path`, by a name that is unique there.
    pub(crate) fn attach(
        path: &Path,
        name: &str,
        function: Arc<F>,
        requester: Arc<Requester>,
        observer: Option<Arc<dyn WindowObserver>>,
    ) -> Result<Self, AttachError> {
        let leases =
            Leases::new().map_err(|error| AttachError::Descriptor(io::Error::other(error)))?;
        let lent_leases = leases.file().try_clone();
        let lent_leases = Descriptor::new(lent_leases.map_err(AttachError::Descriptor)?);
        let attachment = Attachment::new(path, name)?;
        let routing = routing(attachment.mode());
        // Requests that are redirected meet no window.
        let observer = observer.filter(|_| routing != PeerRouting::Redirect);
        let decoder = Arc::new(Decoder::new(function, requester.clone()));
        let link = attachment.start(Arc::new(SwitchPeers {
            requester: requester.clone(),
            decoder: decoder.clone(),
            observer,
            timed: Mutex::default(),
        }))?;
        requester.set_switch(routing, Arc::new(ByMessage(link.requests())));
        if let Some(own) = requester.link() {
            link.send_timing(timing(&own)?);
        }
        Ok(Self {
            link,
            decoder,
            announced: Vec::new(),
            leases,
            lent_leases,
        })
    }
}

impl<F: Function> SwitchPort<F> {
    /// Opens these windows to the peers and closes all others. Once this returns, no peer begins a
    /// request to the previous ones ([`Link::announce`]).
    pub(crate) fn set(&mut self, windows: Vec<OpenWindow>) {
        let announced: Vec<_> = windows.iter().map(|w| (w.bar, w.range)).collect();
        if announced == self.announced {
            return;
        }
        let closed = self.announced.iter();
        let closed = closed.filter(|window| !announced.contains(window));
        closed.for_each(|(bar, _)| self.leases.end(*bar));
        self.announced = announced;
        let lent = windows.iter();
        let lent = lent.flat_map(|window| lent_windows(window, self.leases.generation(window.bar)));
        let lent = lent.collect();
        self.decoder.set(windows);
        if let Err(error) = self.link.announce(lent, &self.lent_leases) {
            log::debug!("windows are not announced: {error}");
        }
    }
}

/// Applies the peers' windows and links to the requester, and answers their requests.
struct SwitchPeers<F> {
    requester: Arc<Requester>,
    decoder: Arc<Decoder<F>>,
    observer: Option<Arc<dyn WindowObserver>>,
    /// The peers whose links take time.
    timed: Mutex<BTreeSet<PortId>>,
}

impl<F: Function> SwitchPeers<F> {
    /// Returns a peer's windows for the observer. Requests to those that are gone fail.
    fn observed(&self, peer: PortId, windows: &[BarWindow]) -> Vec<ObservedWindow> {
        let takes_time = self.requester.link().is_some() || self.timed.lock().contains(&peer);
        let observed = |window: &BarWindow| ObservedWindow {
            range: window.range,
            claim: window.claim,
            memory: match &window.backing {
                BarBacking::Lent(fd, offset, _) if !takes_time => {
                    fd.try_clone().ok().map(|fd| (fd, *offset))
                }
                _ => None,
            },
        };
        let is_there = |window: &&BarWindow| !matches!(window.backing, BarBacking::Gone);
        windows.iter().filter(is_there).map(observed).collect()
    }

    /// Returns a peer's memory, or `None` if it cannot be mapped safely.
    fn borrowed(
        &self,
        peer: PeerId,
        lease: Lease,
        fd: &Descriptor,
        extent: (u64, u64),
    ) -> Option<PeerMemory> {
        let fd = fd
            .try_clone()
            .inspect_err(|error| log::warn!("a peer's memory is reached by messages: {error}"))
            .ok()?;
        let span = self.requester.borrow_window(peer, lease, fd, extent);
        let span = span
            .inspect_err(|error| log::debug!("a peer's memory is reached by messages: {error}"))
            .ok()?;
        Some(PeerMemory::Span(span))
    }
}

impl<F: Function> PeerHandler for SwitchPeers<F> {
    fn attached(&self, changes: &Descriptor) -> io::Result<()> {
        let set = self.requester.set_changes(changes.try_clone()?);
        set.map_err(io::Error::other)
    }

    fn known(&self, count: u64) {
        self.requester.know_changes(count);
    }

    fn peer(
        &self,
        peer: PortId,
        windows: Vec<BarWindow>,
        leases: &Descriptor,
        known: u64,
        acknowledgement: Acknowledgement,
    ) {
        let observed = self
            .observer
            .as_ref()
            .map(|_| self.observed(peer, &windows));
        let peer = PeerId(peer.0);
        let leases = borrowed_leases(&self.requester, leases);
        let windows = windows.into_iter().map(|window| PeerWindow {
            range: window.range,
            claim: window.claim,
            memory: match window.backing {
                BarBacking::Lent(ref fd, offset, generation) => leases
                    .as_ref()
                    .and_then(|leases| {
                        let lease = leases.lease(window.bar, generation);
                        let extent = (offset, window.range.size());
                        self.borrowed(peer, lease, fd, extent)
                    })
                    .unwrap_or(PeerMemory::ByMessage),
                BarBacking::ByMessage => PeerMemory::ByMessage,
                BarBacking::Gone => PeerMemory::Gone,
            },
        });
        let drain = self.requester.set_peer(peer, windows.collect());
        // The function's own requests need not wait for earlier ones.
        self.requester.know_changes(known);
        drop(drain);
        if let (Some(observer), Some(windows)) = (&self.observer, observed) {
            observer.windows(peer, windows, acknowledgement);
        }
    }

    fn link(&self, peer: PortId, timing: LinkTiming) {
        self.timed.lock().insert(peer);
        let meters = match timing.meter.try_clone() {
            Ok(meters) => meters,
            Err(error) => {
                log::warn!("a peer's link is taken to need no time: {error}");
                return;
            }
        };
        let speed = LinkSpeed {
            latency: Latency::of_nanoseconds(timing.latency),
            bandwidth: Bandwidth::of_bytes_per_second(timing.bandwidth),
        };
        if let Err(error) = self.requester.set_peer_link(PeerId(peer.0), speed, meters) {
            log::warn!("a peer's link is taken to need no time: {error}");
        }
    }

    fn lost(&self) {
        drop(self.requester.lose_peers());
        if let Some(observer) = &self.observer {
            observer.lost();
        }
    }

    fn read(&self, peer: PortId, address: BusAddress, data: &mut [u8]) -> Result<(), Unsupported> {
        self.decoder.access(peer, address, Buffer::Read(data))
    }

    fn write(&self, peer: PortId, address: BusAddress, data: &[u8]) -> Result<(), Unsupported> {
        self.decoder.access(peer, address, Buffer::Write(data))
    }

    fn makes_peers_wait(&self) -> bool {
        self.decoder.makes_peers_wait()
    }
}

/// Access to a peer's registers.
struct ByMessage(PeerRequests);

impl Peers for ByMessage {
    fn access(&self, peer: PeerId, address: BusAddress, data: Buffer<'_>) -> Result<(), PeerError> {
        let peer = PortId(peer.0);
        let done = match data {
            Buffer::Read(data) => self.0.read(peer, address, data),
            Buffer::Write(data) => self.0.write(peer, address, data),
        };
        done.map_err(|error| match error {
            RequestError::Unsupported => PeerError::Unsupported,
            RequestError::Gone => PeerError::Gone,
            RequestError::TimedOut => PeerError::TimedOut,
        })
    }

    fn give_up(&self) {
        self.0.give_up();
    }
}

/// Returns a peer's leases, or `None` if they cannot be mapped safely.
fn borrowed_leases(requester: &Requester, leases: &Descriptor) -> Option<PeerLeases> {
    let leases = requester.borrow_leases(leases.try_clone().ok()?);
    leases
        .inspect_err(|error| log::debug!("a peer's memory is reached by messages: {error}"))
        .ok()
}

/// Returns a window as it is announced, in one part or several. Memory is lent, and so are register
/// pages that the function polls. All other parts are reached by messages.
fn lent_windows(window: &OpenWindow, generation: u32) -> Vec<BarWindow> {
    let part = |(offset, size), backing| {
        Some(BarWindow {
            bar: window.bar,
            range: Range::new(window.range.first().checked_add(offset)?, size)?,
            claim: 0,
            backing,
        })
    };
    let lent = |file: &MemoryFile, offset| match file.file().try_clone() {
        Ok(file) => BarBacking::Lent(Descriptor::new(file), offset, generation),
        Err(error) => {
            log::warn!("BAR{} is not lent to peers: {error}", window.bar);
            BarBacking::ByMessage
        }
    };
    let size = window.range.size();
    let whole = (0, size);
    let parts = match &window.memory {
        BarMemory::Memory(span) => vec![part(whole, lent(&span.file, span.offset))],
        BarMemory::RegistersWithPages(file, areas, PeerPages::Lent) => {
            let parts = parts(areas, size).into_iter();
            let backed = parts.map(|(offset, size, is_lent)| {
                let backing = match is_lent {
                    true => lent(file, offset),
                    false => BarBacking::ByMessage,
                };
                part((offset, size), backing)
            });
            backed.collect()
        }
        _ => vec![part(whole, BarBacking::ByMessage)],
    };
    parts.into_iter().flatten().collect()
}

/// Returns the parts of a BAR of registers as offset, size, and `true` for those that are lent: these
/// areas.
fn parts(areas: &[(u64, u64)], size: u64) -> Vec<(u64, u64, bool)> {
    let mut areas = areas.to_vec();
    areas.sort_unstable();
    let mut parts = Vec::new();
    let mut next = 0_u64;
    for (offset, len) in areas.into_iter().chain([(size, 0)]) {
        parts.push((next, offset.saturating_sub(next), false));
        // An area may overlap the one before it.
        let end = offset.saturating_add(len);
        let offset = offset.max(next);
        parts.push((offset, end.saturating_sub(offset), true));
        next = next.max(end);
    }
    parts.retain(|(_, len, _)| *len > 0);
    parts
}

/// Has peers write the pages of registers by messages where the function would have more windows
/// than a switch takes ([`MAX_WINDOWS`]).
pub fn limit_windows(memory: &mut [(Bar, BarMemory)]) {
    let mut spare = MAX_WINDOWS.saturating_sub(memory.len());
    for (bar, memory) in memory {
        let BarMemory::RegistersWithPages(_, areas, pages @ PeerPages::Lent) = memory else {
            continue;
        };
        let more = parts(areas, bar.size()).len().saturating_sub(1);
        match spare.checked_sub(more) {
            Some(rest) => spare = rest,
            None => {
                log::warn!(
                    "peers reach the pages of BAR{} by messages: with them the device has more than {MAX_WINDOWS} windows",
                    bar.index()
                );
                *pages = PeerPages::Notified;
            }
        }
    }
}

fn timing(link: &peerbar_dma::Link) -> Result<LinkTiming, AttachError> {
    let meter = link.meters().try_clone_to_owned();
    let meter = meter.map_err(AttachError::Descriptor)?;
    let speed = link.speed();
    Ok(LinkTiming {
        latency: speed.latency.nanoseconds(),
        bandwidth: speed.bandwidth.map_or(0, |b| b.bytes_per_second().get()),
        meter: Descriptor::new(meter),
    })
}

fn routing(mode: LinkMode) -> PeerRouting {
    match mode {
        LinkMode::Route => PeerRouting::Route,
        LinkMode::Redirect => PeerRouting::Redirect,
        LinkMode::UnsupportedRequest => PeerRouting::UnsupportedRequest,
        LinkMode::Drop => PeerRouting::Drop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_in_any_order_divide_a_bar() {
        let areas = [(0x3000, 0x1000), (0x1000, 0x1000), (0x1800, 0x1000)];
        let expected = [
            (0, 0x1000, false),
            (0x1000, 0x1000, true),
            (0x2000, 0x800, true),
            (0x2800, 0x800, false),
            (0x3000, 0x1000, true),
        ];
        assert_eq!(parts(&areas, 0x4000), expected);
        assert_eq!(parts(&[], 0x4000), [(0, 0x4000, false)]);
        assert_eq!(parts(&[(0, 0x4000)], 0x4000), [(0, 0x4000, true)]);
    }
}
