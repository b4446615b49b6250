//! The request to a daemon to end.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use peerbar_host::eventfd::EventFd;
use rustix::io::Errno;

/// Ends a [`Listener`](crate::Listener) and its session, from any thread. All clones refer to the
/// same request.
#[derive(Clone, Debug)]
pub struct Stop {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    stopped: AtomicBool,
    /// Readable from the stop on, because no thread reads it.
    event: EventFd,
}

impl Stop {
    /// Makes a handle that is not triggered. Fails if the process may have no more descriptors.
    pub fn new() -> Result<Self, Errno> {
        let inner = Inner {
            stopped: AtomicBool::new(false),
            event: EventFd::new()?,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Ends every listener and session with this handle, present and future. Repeating it changes nothing.
    pub fn trigger(&self) {
        if !self.inner.stopped.swap(true, Ordering::SeqCst) {
            self.inner.event.signal();
        }
    }

    pub(crate) fn is_triggered(&self) -> bool {
        self.inner.stopped.load(Ordering::SeqCst)
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.event.as_fd()
    }
}
