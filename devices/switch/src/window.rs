//! A range of bus addresses that an endpoint answers, and what is behind it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The claim of a window without an owner: every other claim precedes it.
const NO_CLAIM: u64 = u64::MAX;

/// A range of bus addresses that an endpoint answers.
#[derive(Clone, Debug)]
pub struct BarWindow {
    /// Which BAR it is.
    pub bar: u8,
    /// First bus address.
    pub address: u64,
    /// Length in bytes, not 0; the end does not pass 2^64.
    pub size: u64,
    /// Of two windows over one address, the one with the smaller claim answers. The switch sets it.
    pub claim: u64,
    /// What is behind it.
    pub backing: BarBacking,
}

/// What is behind a window.
#[derive(Clone, Debug)]
pub enum BarBacking {
    /// Memory that is lent: a descriptor, and where in it the window starts.
    Lent(Arc<OwnedFd>, u64),
    /// Something that is reached by messages to the endpoint.
    ByMessage,
    /// Nothing any more: its endpoint has vanished.
    Gone,
}

impl BarWindow {
    /// Whether it is the same BAR at the same place.
    pub(crate) fn has_range_of(&self, other: &Self) -> bool {
        (self.bar, self.address, self.size) == (other.bar, other.address, other.size)
    }

    /// Whether the two have an address in common.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let last = |window: &Self| window.address.saturating_add(window.size - 1);
        self.address <= last(other) && other.address <= last(self)
    }

    /// The window after its endpoint has vanished.
    pub(crate) fn without_owner(self) -> Self {
        Self {
            claim: NO_CLAIM,
            backing: BarBacking::Gone,
            ..self
        }
    }
}
