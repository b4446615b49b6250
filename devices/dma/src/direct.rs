//! A route that needs no help: all of its addresses are memory that is mapped here.

use std::sync::Arc;

use peerbar_dma_log::{Completer, Route};

use crate::memory::Span;
use crate::peer_changes::PeerChanges;

/// Addresses that are all memory which is mapped here, and reached by one route.
#[derive(Clone, Debug)]
pub(crate) struct DirectRoute {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// The memory from the first address on.
    pub(crate) span: Span,
    pub(crate) route: Route,
    pub(crate) completer: Completer,
    /// What is known of the peers' windows. None without a switch.
    pub(crate) changes: Option<Arc<PeerChanges>>,
}

impl DirectRoute {
    /// Whether there is a change of the peers' windows that is not known yet.
    #[inline]
    pub(crate) fn is_outdated(&self) -> bool {
        let changes = self.changes.as_ref();
        changes.is_some_and(|changes| changes.missed().is_some())
    }

    /// Where `address` is in the memory, if it and all up to `last` belong here.
    pub(crate) fn offset(&self, address: u64, last: u64) -> Option<u64> {
        let inside = self.first <= address && last <= self.last;
        inside.then(|| self.span.offset.saturating_add(address - self.first))
    }
}
