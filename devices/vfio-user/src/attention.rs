//! Calls for the attention of the thread that serves a session.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// An eventfd that the thread of a session polls. All clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct Attention(Arc<OwnedFd>);

impl Attention {
    pub(crate) fn new() -> Result<Self, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(event)))
    }

    /// Wakes the thread.
    pub(crate) fn call(&self) {
        // It fails only if as many calls wait as can be counted.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Takes the calls until now.
    pub(crate) fn take(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.0, &mut count);
    }
}

impl AsFd for Attention {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
