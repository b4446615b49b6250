//! Protection domains.

#![expect(unsafe_code)]

use std::ptr::NonNull;
use std::rc::Rc;

use crate::layout::Pd;
use crate::{Context, Error, Result};

/// A protection domain: queue pairs use only regions of their own domain. Clones share it.
#[derive(Clone)]
pub struct ProtectionDomain(Rc<Allocated>);

struct Allocated {
    pd: NonNull<Pd>,
    context: Context,
}

impl ProtectionDomain {
    /// Makes a new one.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn new(context: &Context) -> Result<Self> {
        // SAFETY: the context is open.
        let pd = unsafe { (context.functions().alloc_pd)(context.as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(|| Error::last("allocate a protection domain"))?;
        let context = context.clone();
        Ok(Self(Rc::new(Allocated { pd, context })))
    }

    /// Returns the adapter.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn as_ptr(&self) -> *mut Pd {
        self.0.pd.as_ptr()
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: the domain was allocated, and its last user is gone.
        unsafe { (self.context.functions().dealloc_pd)(self.pd.as_ptr()) };
    }
}
