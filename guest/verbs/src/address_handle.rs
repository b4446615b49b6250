//! Address handles.

#![expect(unsafe_code)]

use std::ptr::NonNull;
use std::rc::Rc;

use crate::context::PORT;
use crate::layout::{self, Ah, AhAttr};
use crate::{Error, Gid, ProtectionDomain, Result};

/// The address of an adapter, as known to another one. Clones share it.
#[derive(Clone)]
pub struct AddressHandle(Rc<Created>);

struct Created {
    ah: NonNull<Ah>,
    domain: ProtectionDomain,
}

impl AddressHandle {
    /// Makes a handle for the adapter with the address `gid`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn new(domain: &ProtectionDomain, gid: Gid) -> Result<Self> {
        let mut attributes = AhAttr {
            is_global: 1,
            port_num: PORT,
            ..AhAttr::default()
        };
        attributes.grh.dgid = layout::Gid(gid.0);
        let functions = domain.context().functions();
        // SAFETY: the domain is allocated, and `attributes` is used only during the call.
        let ah = unsafe { (functions.create_ah)(domain.as_ptr(), &raw mut attributes) };
        let refused = || Error::last(format!("create an address handle for {gid}"));
        let ah = NonNull::new(ah).ok_or_else(refused)?;
        let domain = domain.clone();
        Ok(Self(Rc::new(Created { ah, domain })))
    }

    pub(crate) fn as_ptr(&self) -> *mut Ah {
        self.0.ah.as_ptr()
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        // SAFETY: the handle was created, and its last user is gone.
        unsafe { (self.domain.context().functions().destroy_ah)(self.ah.as_ptr()) };
    }
}
