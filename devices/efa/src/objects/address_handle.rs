//! Address handles, which name the adapters to which the queue pairs of a protection domain send.

pub use peerbar_fabric::Gid;

use super::error::{ObjectError, ObjectKind};
use super::{Objects, add_user, remove_user};

/// Parameters of an address handle.
#[derive(Clone, Copy, Debug)]
pub struct CreateAddressHandle {
    /// Its protection domain.
    pub protection_domain: u16,
    /// The adapter that it leads to, which need not exist.
    pub gid: Gid,
}

/// An address handle.
pub(super) struct AddressHandle {
    protection_domain: u16,
    gid: Gid,
    /// Number of times that it was created and not removed.
    users: usize,
}

impl Objects {
    /// Creates an address handle, and returns its number. An address has only one handle in a
    /// protection domain: creating it again returns the same one.
    pub fn create_address_handle(
        &mut self,
        parameters: CreateAddressHandle,
    ) -> Result<u16, ObjectError> {
        let CreateAddressHandle {
            protection_domain,
            gid,
        } = parameters;
        self.protection_domains.get(protection_domain)?;
        if let Some(number) = self.handle_of(gid, protection_domain) {
            self.address_handles.get_mut(number)?.users += 1;
            return Ok(number);
        }
        let number = self.address_handles.insert(AddressHandle {
            protection_domain,
            gid,
            users: 1,
        })?;
        add_user(&mut self.protection_domains, protection_domain)?;
        Ok(number)
    }

    /// Removes an address handle of this protection domain, once it was removed as often as it was
    /// created.
    pub fn destroy_address_handle(
        &mut self,
        number: u16,
        protection_domain: u16,
    ) -> Result<(), ObjectError> {
        if self.address(number, protection_domain).is_none() {
            return Err(ObjectError::Unknown {
                kind: ObjectKind::AddressHandle,
                number: number.into(),
            });
        }
        let handle = self.address_handles.get_mut(number)?;
        handle.users -= 1;
        if handle.users > 0 {
            return Ok(());
        }
        self.address_handles.remove(number)?;
        remove_user(&mut self.protection_domains, protection_domain);
        Ok(())
    }

    /// Returns the adapter to which an address handle of this protection domain leads.
    pub(crate) fn address(&self, number: u16, protection_domain: u16) -> Option<Gid> {
        let handle = self.address_handles.get(number).ok()?;
        (handle.protection_domain == protection_domain).then_some(handle.gid)
    }

    /// Returns the address handle of this protection domain that leads to that adapter.
    pub(crate) fn handle_of(&self, gid: Gid, protection_domain: u16) -> Option<u16> {
        let mut handles = self.address_handles.iter();
        let found =
            handles.find(|(_, it)| it.protection_domain == protection_domain && it.gid == gid)?;
        Some(found.0)
    }
}
