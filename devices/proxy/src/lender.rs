//! Lends the server memory as far as its DMA need not come by messages.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use peerbar_dma::Requester;
use peerbar_fault::Kind;
use peerbar_vfio_user::remote::RemoteDevice;

use crate::mappings::{Borrower, Mappings};

/// Lends memory, unless each request has to come by messages.
pub(crate) struct Lender<S = RemoteDevice> {
    mappings: Mutex<Mappings<S>>,
    requester: Arc<Requester>,
    count_all: bool,
}

impl<S: Borrower> Lender<S> {
    pub(crate) fn new(mappings: Mappings<S>, requester: Arc<Requester>, count_all: bool) -> Self {
        Self {
            mappings: Mutex::new(mappings),
            requester,
            count_all,
        }
    }

    pub(crate) fn mappings(&self) -> MutexGuard<'_, Mappings<S>> {
        self.mappings.lock()
    }

    /// Lends memory or takes it back, after fault rules or the state of the link may have changed.
    /// Returns `true` if the link was down.
    ///
    /// Only a request can be delayed or fail, and only a request takes time on a link or is lost
    /// there.
    pub(crate) fn follow_faults(&self) -> bool {
        // Several threads call this: the later one must not pass on an earlier state.
        let mut mappings = self.mappings.lock();
        let is_slowed = self.requester.link().is_some();
        let is_faulty = self.requester.faults().is_armed(Kind::Dma);
        let is_down = !self.requester.link_is_up();
        mappings.set_by_messages(self.count_all || is_slowed || is_faulty || is_down);
        is_down
    }
}
