//! A route that needs no help: all of its addresses are mapped in this process.

use peerbar_dma_log::{Completer, Route};

use crate::memory::Span;

/// A range of addresses of memory that is mapped in this process and reached by one route.
#[derive(Clone, Debug)]
pub(crate) struct DirectRoute {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// The memory, from the first address on.
    pub(crate) span: Span,
    pub(crate) route: Route,
    pub(crate) completer: Completer,
}

impl DirectRoute {
    /// Returns the offset of `address` in the memory, or `None` unless all addresses up to `last`
    /// belong to this route.
    pub(crate) fn offset(&self, address: u64, last: u64) -> Option<u64> {
        let inside = self.first <= address && last <= self.last;
        inside.then(|| self.span.offset.saturating_add(address - self.first))
    }
}
