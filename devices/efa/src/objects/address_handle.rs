//! Address handles, which name the adapters to which the queue pairs of a protection domain send.

pub use peerbar_fabric::Gid;

use super::slots::Slots;

/// Parameters of an address handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateAddressHandle {
    /// Its protection domain.
    pub protection_domain: u16,
    /// The adapter that it leads to, which need not exist.
    pub gid: Gid,
}

/// An address handle.
pub(crate) struct AddressHandle {
    pub(super) parameters: CreateAddressHandle,
    /// Number of times that it was created and not removed.
    pub(super) users: usize,
}

impl Slots<AddressHandle> {
    /// Returns the adapter to which an address handle of this protection domain leads.
    pub(crate) fn gid(&self, number: u16, protection_domain: u16) -> Option<Gid> {
        let handle = self.get(number).ok()?.parameters;
        (handle.protection_domain == protection_domain).then_some(handle.gid)
    }

    /// Returns the address handle of this protection domain that leads to that adapter.
    pub(crate) fn handle_of(&self, gid: Gid, protection_domain: u16) -> Option<u16> {
        let wanted = CreateAddressHandle {
            protection_domain,
            gid,
        };
        let mut handles = self.iter();
        let found = handles.find(|(_, it)| it.parameters == wanted)?;
        Some(found.0)
    }
}
