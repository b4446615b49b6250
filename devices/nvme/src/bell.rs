//! A bell that is heard by who waits for it now or later.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};

/// A bell (eventfd(2)).
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC)?))
    }

    /// Wakes who waits, or who waits next.
    pub(crate) fn ring(&self) {
        // It fails only if nobody has waited for 2^64 rings, of which one is enough.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Waits until somebody rings, or has rung since the last time. It may return early.
    pub(crate) fn wait(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_before_the_wait_is_heard_once() {
        let bell = Bell::new().unwrap();
        bell.ring();
        bell.ring();
        bell.wait();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| bell.wait());
            bell.ring();
            waits.join().unwrap();
        });
    }
}
