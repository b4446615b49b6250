//! The switch, the windows of peers, and the memory that they lend.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use peerbar_pci::{BusAddress, Range};

use crate::lease::{Lease, PeerLeases};
use crate::lent_file::LentFile;
use crate::link::{LONGEST_METERS, Link, METERS};
use crate::link_speed::LinkSpeed;
use crate::memory::Span;
use crate::memory_error::MemoryError;
use crate::peer_changes::PeerChanges;
use crate::peers::{PeerId, PeerRouting, PeerWindow, Peers};
use crate::recording;
use crate::route::RouteTable;

use super::Requester;
use super::drain::Drain;

impl Requester {
    /// Sets the switch's treatment of requests to peers, and the way to those of their windows that
    /// are not memory.
    pub fn set_switch(&self, routing: PeerRouting, peers: Arc<dyn Peers>) {
        *self.peers.write() = Some(peers);
        self.change().peer_routing = routing;
    }

    /// Attaches the function, for the first time or again, to a switch that counts the changes of
    /// its peers' windows in `fd` ([`crate::ChangeCount`]). Each request waits until all earlier
    /// changes are known ([`Requester::know_changes`]). If a switch was lost before, requests wait
    /// only once all changes before the attachment are known. After 4 s the switch is considered
    /// lost, as by [`Requester::lose_peers`], and left ([`Peers::give_up`]).
    ///
    /// # Errors
    /// [`MemoryError::NotInMemory`] or [`MemoryError::Os`] if `fd` cannot be mapped.
    pub fn set_changes(&self, fd: OwnedFd) -> Result<(), MemoryError> {
        let mut routes = self.change();
        let changes = PeerChanges::new(fd, routes.has_lost_peers)?;
        let former = routes.changes.replace(Arc::new(changes));
        drop(routes);
        if let Some(former) = former {
            former.end();
        }
        Ok(())
    }

    /// Declares that all changes up to this count have been set.
    pub fn know_changes(&self, count: u64) {
        let changes = self.route_table().changes.clone();
        if let Some(changes) = changes {
            changes.know(count);
        }
    }

    /// Has a request that waits for changes call this every 10 ms, without a lock. Ignores a second
    /// call.
    ///
    /// For a function that acknowledges changes late: the switch sends the changes that the request
    /// waits for only after that.
    pub fn on_missed_changes(&self, call: impl Fn() + Send + Sync + 'static) {
        if self.on_missed_changes.set(Box::new(call)).is_err() {
            log::error!("a function has one call for requests that wait for changes");
        }
    }

    /// Leaves the switch that counts these changes, unless all changes up to this count are known
    /// by now.
    pub(super) fn leave_switch(&self, changes: &Arc<PeerChanges>, count: u64) {
        let mut routes = self.change();
        let is_present = |present: &Arc<PeerChanges>| Arc::ptr_eq(present, changes);
        if !changes.misses(count) || !routes.changes.as_ref().is_some_and(is_present) {
            return;
        }
        self.forget_peers(&mut routes);
        drop(routes);
        if let Some(peers) = self.peers.read().clone() {
            peers.give_up();
        }
    }

    /// Makes transfers to and from a peer take time on its link, too. `meters` are those of that
    /// link.
    pub fn set_peer_link(
        &self,
        peer: PeerId,
        speed: LinkSpeed,
        meters: OwnedFd,
    ) -> Result<(), MemoryError> {
        let meters = self.borrow_memory(peer, meters, (0, METERS))?;
        let size = meters.file.size();
        if size > LONGEST_METERS {
            return Err(MemoryError::TooLong { size });
        }
        let link = Link::with_meters(speed, meters);
        let routes = &mut *self.change();
        let is_there = |peer| routes.peers.is_there(peer);
        routes.links.set_peer(peer, link, is_there);
        Ok(())
    }

    /// Replaces all windows of a peer. No copy uses the changed windows once the returned [`Drain`]
    /// is dropped, which waits for at most 250 ms, as their owner does.
    pub fn set_peer(&self, peer: PeerId, windows: Vec<PeerWindow>) -> Drain<'_> {
        let mut routes = self.change();
        if let Some(recorder) = self.ledger.recorder() {
            recording::peer(recorder, peer, &windows);
        }
        let ranges = routes.peers.set(peer, windows);
        self.drain_peers(ranges)
    }

    /// Handles the loss of the link to the switch: no peer can be reached, and requests to peers
    /// fail. Their windows belong to [`PeerId::NONE`] until that owner has none left. A new switch
    /// states the links' speeds again. No copy uses the windows once the returned [`Drain`] is
    /// dropped, as with [`Requester::set_peer`].
    pub fn lose_peers(&self) -> Drain<'_> {
        let ranges = self.forget_peers(&mut self.change());
        self.drain_peers(ranges)
    }

    /// Returns the addresses of the former windows.
    fn forget_peers(&self, routes: &mut RouteTable) -> Vec<Range<BusAddress>> {
        if let Some(changes) = routes.changes.take() {
            changes.end();
        }
        routes.has_lost_peers = true;
        let lost: Vec<_> = routes.peers.addresses(|_| true).collect();
        if let Some(recorder) = self.ledger.recorder() {
            let peers = routes.peers.windows();
            peers.for_each(|(peer, _)| recording::peer(recorder, *peer, &[]));
        }
        routes.peers.lose_all();
        routes.links.forget_peers();
        if let Some(recorder) = self.ledger.recorder() {
            for (peer, windows) in routes.peers.windows() {
                recording::peer(recorder, *peer, windows);
            }
        }
        lost
    }

    /// Returns the span of `size` bytes at `offset` of memory that a peer lends.
    pub fn borrow_memory(
        &self,
        peer: PeerId,
        fd: OwnedFd,
        (offset, size): (u64, u64),
    ) -> Result<Span, MemoryError> {
        let file = LentFile::new(fd);
        self.peer_memory.lock().of(peer).span(file, offset, size)
    }

    /// Returns the span of `size` bytes at `offset` of the memory behind a peer's window, under its
    /// lease.
    pub fn borrow_window(
        &self,
        peer: PeerId,
        lease: Lease,
        fd: OwnedFd,
        (offset, size): (u64, u64),
    ) -> Result<Span, MemoryError> {
        let file = LentFile::new(fd);
        let mut pools = self.peer_memory.lock();
        pools.of(peer).leased(file, lease, offset, size)
    }

    /// Returns the leases of a peer's windows.
    pub fn borrow_leases(&self, fd: OwnedFd) -> Result<PeerLeases, MemoryError> {
        PeerLeases::new(LentFile::new(fd))
    }
}
