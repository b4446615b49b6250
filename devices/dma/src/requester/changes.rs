//! Changes of the route table: bus mastering, reset, own windows, links.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

use parking_lot::RwLockWriteGuard;
use peerbar_flight::{Event, WindowId};
use peerbar_pci::Range;

use crate::link::Link;
use crate::reader_lock::WriteGuard;
use crate::recording;
use crate::route::{OwnWindow, RouteTable};

use super::Requester;
use super::drain::Drain;

/// Bus mastering at one moment. Two readings are equal if it has not changed between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusMastering(u32);

impl BusMastering {
    /// Returns `true` if it is on. A function that is not a bus master issues no request, and no
    /// interrupt message (PCIe Base 6.0, 7.5.1.1.3).
    pub fn is_on(self) -> bool {
        self.0 % 2 == 1
    }

    /// Reads it again. Returns `true` if it has been turned on since the last reading.
    pub fn follow(&mut self, requester: &Requester) -> bool {
        let now = requester.bus_mastering();
        std::mem::replace(self, now) != now && now.is_on()
    }

    /// Returns `true` if it has changed since this reading. A request that was refused in between may have been refused for that.
    pub fn has_changed(self, requester: &Requester) -> bool {
        requester.bus_mastering() != self
    }
}

impl Requester {
    /// Sets Bus Master Enable of the command register. Once it is off, every request is refused,
    /// and none is in progress.
    pub fn set_bus_master(&self, on: bool) {
        let mut routes = self.change();
        if routes.bus_master != on {
            routes.bus_master = on;
            // With the routes locked, so that a request that is refused for this reason fails
            // afterwards.
            self.bus_mastering.fetch_add(1, Ordering::AcqRel);
            self.ledger.note(|| Event::BusMaster(on));
        }
        drop(routes);
        if !on {
            self.wait_for_transfers(&[Range::all()]);
        }
    }

    /// Reads bus mastering.
    pub fn bus_mastering(&self) -> BusMastering {
        BusMastering(self.bus_mastering.load(Ordering::Acquire))
    }

    /// Refuses every request from now on, until [`Requester::resume`]: the start of a reset. No
    /// request is in progress once the returned [`Drain`] is dropped.
    pub fn halt(&self) -> Drain<'_> {
        let mut routes = self.change();
        routes.halted = true;
        self.ledger.note(|| Event::Reset(true));
        self.drain(vec![Range::all()])
    }

    /// Ends a [`Requester::halt`], once nothing from before the reset is left.
    pub fn resume(&self) {
        let mut routes = self.change();
        routes.halted = false;
        self.ledger.note(|| Event::Reset(false));
    }

    /// Opens, moves or (with `None`) closes one of the function's own windows. No request uses the
    /// previous window once the returned [`Drain`] is dropped.
    pub fn set_window(&self, id: WindowId, window: Option<OwnWindow>) -> Drain<'_> {
        let new = window.as_ref().map(|window| window.range);
        let mut routes = self.change();
        let old = routes.windows.get(&id).map(|window| window.range);
        let met: Vec<_> = [old, new].into_iter().flatten().collect();
        if old != new {
            self.ledger.note(|| recording::window(id, window.as_ref()));
        }
        match window {
            Some(window) => routes.windows.insert(id, window),
            None => routes.windows.remove(&id),
        };
        self.drain(if old == new { Vec::new() } else { met })
    }

    /// Makes transfers on the function's own link take time.
    pub fn set_link(&self, link: Link) {
        self.change().links.set_own(link);
    }

    pub(super) fn change(&self) -> Change<'_> {
        // In this order, since a thread with a locked slot takes the other lock.
        let guard = self.reader_lock.write();
        Change {
            routes: self.routes.write(),
            _guard: guard,
        }
    }
}

/// The routes, while no other thread uses them.
pub(super) struct Change<'a> {
    routes: RwLockWriteGuard<'a, RouteTable>,
    _guard: WriteGuard<'a>,
}

impl Deref for Change<'_> {
    type Target = RouteTable;

    fn deref(&self) -> &RouteTable {
        &self.routes
    }
}

impl DerefMut for Change<'_> {
    fn deref_mut(&mut self) -> &mut RouteTable {
        &mut self.routes
    }
}
