//! A route that needs no help: all of its addresses are mapped in this process.

use peerbar_dma_log::{Completer, Route};
use peerbar_pci::{Iova, Range};

use crate::memory::Span;

/// A range of addresses of memory that is mapped in this process and reached by one route.
#[derive(Clone, Debug)]
pub(crate) struct DirectRoute {
    pub(crate) range: Range<Iova>,
    /// The memory, from the first address on.
    pub(crate) span: Span,
    pub(crate) route: Route,
    pub(crate) completer: Completer,
}

impl DirectRoute {
    /// Returns the offset of `address` in the memory, or `None` unless all addresses up to `last`
    /// belong to this route.
    pub(crate) fn offset(&self, address: Iova, last: Iova) -> Option<u64> {
        let skip = address.offset_from(self.range.first())?;
        (last <= self.range.last()).then(|| self.span.offset.saturating_add(skip))
    }
}
