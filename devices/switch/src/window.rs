//! A range of bus addresses that an endpoint answers, and what is behind it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// The claim of a window without an owner: every other claim precedes it.
const NO_CLAIM: u64 = u64::MAX;

/// A descriptor of memory. It travels beside the bytes of its message.
#[derive(Clone, Debug, Default)]
pub struct Descriptor(OnceLock<Arc<OwnedFd>>);

impl Descriptor {
    /// That descriptor.
    pub fn new(descriptor: impl Into<OwnedFd>) -> Self {
        Self(Arc::new(descriptor.into()).into())
    }

    pub(crate) fn get(&self) -> Option<&Arc<OwnedFd>> {
        self.0.get()
    }

    /// Sets one that was not part of the message's bytes.
    pub(crate) fn set(&self, descriptor: OwnedFd) {
        // It has none yet.
        let _ = self.0.set(Arc::new(descriptor));
    }

    /// A copy for the caller alone.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        self.get().ok_or(Errno::BADF)?.try_clone()
    }
}

/// A range of bus addresses that an endpoint answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BarWindow {
    /// Which BAR it is.
    pub bar: u8,
    /// First bus address.
    pub address: u64,
    /// Length in bytes, not 0; the end does not pass 2^64.
    pub size: u64,
    /// Of two windows over one address, the one with the smaller claim answers. The switch sets it, an
    /// endpoint's own means nothing.
    pub claim: u64,
    /// What is behind it.
    pub backing: BarBacking,
}

/// What is behind a window.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum BarBacking {
    /// Memory that is lent: a descriptor, where in it the window starts, and the generation of its lease.
    Lent(#[serde(skip)] Descriptor, u64, u32),
    /// Something that is reached by messages to the endpoint.
    ByMessage,
    /// Nothing any more: its endpoint has vanished.
    Gone,
}

impl BarWindow {
    /// Its last address; none if it is empty or passes 2^64.
    pub(crate) fn last(&self) -> Option<u64> {
        self.address.checked_add(self.size.checked_sub(1)?)
    }

    /// Whether it is the same BAR at the same address.
    pub(crate) fn has_range_of(&self, other: &Self) -> bool {
        (self.bar, self.address, self.size) == (other.bar, other.address, other.size)
    }

    /// Whether peers that know the other one know this one: the same range, by the same lease or by messages.
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

    /// Whether the two have an address in common.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        Some(self.address) <= other.last() && Some(other.address) <= self.last()
    }

    /// The window for an endpoint that may not use the memory behind it.
    pub(crate) fn without_memory(self) -> Self {
        let backing = match self.backing {
            BarBacking::Lent(..) => BarBacking::ByMessage,
            other => other,
        };
        Self { backing, ..self }
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
