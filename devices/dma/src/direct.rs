//! A route that needs no help: all of its addresses are memory that is mapped here.

use peerbar_dma_log::{Completer, Route};

use crate::memory::Span;

/// Addresses that are all memory which is mapped here, and reached by one route.
#[derive(Clone, Debug)]
pub(crate) struct DirectRoute {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// The memory from the first address on.
    pub(crate) span: Span,
    pub(crate) route: Route,
    pub(crate) completer: Completer,
}

impl DirectRoute {
    /// Where `address` is in the memory, if it and all up to `last` belong here.
    pub(crate) fn offset(&self, address: u64, last: u64) -> Option<u64> {
        let inside = self.first <= address && last <= self.last;
        inside.then(|| self.span.offset.saturating_add(address - self.first))
    }
}
