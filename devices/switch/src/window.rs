//! A range of bus addresses at which an endpoint answers, and its backing.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use peerbar_pci::{BusAddress, Range};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// The claim of a window without an owner: every other claim precedes it.
const NO_CLAIM: u64 = u64::MAX;

/// A descriptor of memory. It travels outside the bytes of its message.
#[derive(Clone, Debug, Default)]
pub struct Descriptor(OnceLock<Arc<OwnedFd>>);

impl Descriptor {
    /// Wraps a descriptor.
    pub fn new(descriptor: impl Into<OwnedFd>) -> Self {
        Self(Arc::new(descriptor.into()).into())
    }

    pub(crate) fn get(&self) -> Option<&Arc<OwnedFd>> {
        self.0.get()
    }

    /// Sets a descriptor that came outside the message's bytes.
    pub(crate) fn set(&self, descriptor: OwnedFd) {
        // The value is still empty.
        let _ = self.0.set(Arc::new(descriptor));
    }

    /// Returns a copy for the caller alone.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        self.get().ok_or(Errno::BADF)?.try_clone()
    }
}

/// A range of bus addresses at which an endpoint answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BarWindow {
    /// Number of the BAR.
    pub bar: u8,
    /// Its bus addresses.
    pub range: Range<BusAddress>,
    /// If two windows cover one address, the one with the smaller claim answers. The switch sets
    /// it; it ignores an endpoint's own value.
    pub claim: u64,
    /// The backing of the window.
    pub backing: BarBacking,
}

/// The backing of a window.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum BarBacking {
    /// Memory that is lent: a descriptor, the offset of the window in it, and the generation of its
    /// lease.
    Lent(#[serde(skip)] Descriptor, u64, u32),
    /// Reached by messages to the endpoint.
    ByMessage,
    /// No backing any more: the endpoint has vanished.
    Gone,
}

impl BarWindow {
    /// Returns `true` if it is the same BAR at the same address.
    pub(crate) fn has_range_of(&self, other: &Self) -> bool {
        (self.bar, self.range) == (other.bar, other.range)
    }

    /// Returns `true` if peers that know the other window know this one: the same range, by the
    /// same lease or by messages.
    pub(crate) fn is_known_by(&self, other: &Self) -> bool {
        let same_backing = match (&self.backing, &other.backing) {
            (
                BarBacking::Lent(_, offset, lease),
                BarBacking::Lent(_, other_offset, other_lease),
            ) => (offset, lease) == (other_offset, other_lease),
            (BarBacking::ByMessage, BarBacking::ByMessage) => true,
            _ => false,
        };
        same_backing && self.has_range_of(other)
    }

    /// Returns the window for an endpoint that may not use its memory.
    pub(crate) fn without_memory(self) -> Self {
        let backing = match self.backing {
            BarBacking::Lent(..) => BarBacking::ByMessage,
            other => other,
        };
        Self { backing, ..self }
    }

    /// Returns the window after its endpoint has vanished.
    pub(crate) fn without_owner(self) -> Self {
        Self {
            claim: NO_CLAIM,
            backing: BarBacking::Gone,
            ..self
        }
    }
}
