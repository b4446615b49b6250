//! Lends the server memory as far as its DMA need not come by messages.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use peerbar_dma::Requester;
use peerbar_fault::Kind;

use crate::mappings::Mappings;

/// Lends memory, unless each request has to come by messages.
pub(crate) struct Lender {
    mappings: Mutex<Mappings>,
    requester: Arc<Requester>,
    count_all: bool,
}

impl Lender {
    pub(crate) fn new(mappings: Mappings, requester: Arc<Requester>, count_all: bool) -> Self {
        Self {
            mappings: Mutex::new(mappings),
            requester,
            count_all,
        }
    }

    pub(crate) fn mappings(&self) -> MutexGuard<'_, Mappings> {
        self.mappings.lock()
    }

    pub(crate) fn link_is_up(&self) -> bool {
        self.requester.link_is_up()
    }

    /// Lends memory or takes it back, after fault rules or the state of the link may have changed.
    ///
    /// Only a request can be delayed or fail, and only a request takes time on a link or is lost
    /// there.
    pub(crate) fn follow_faults(&self) {
        // Several threads call this: the later one must not pass on an earlier state.
        let mut mappings = self.mappings.lock();
        let is_slowed = self.requester.link().is_some();
        let is_faulty = self.requester.faults().is_armed(Kind::Dma);
        let is_down = !self.requester.link_is_up();
        mappings.set_by_messages(self.count_all || is_slowed || is_faulty || is_down);
    }
}
