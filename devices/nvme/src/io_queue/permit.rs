//! Permits: a command's ownership of a completion queue entry.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the resets of one thread's queues. A permit of an earlier generation has expired.
#[derive(Clone, Debug, Default)]
pub(crate) struct Generation(Arc<AtomicU64>);

impl Generation {
    #[inline]
    fn number(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Expires every permit.
    #[inline]
    pub(crate) fn advance(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns `true` if a permit has not expired.
    #[inline]
    pub(crate) fn is_current(&self, permit: &Permit) -> bool {
        permit.generation == self.number()
    }
}

/// A reserved entry of a completion queue. A command owns one from before it is fetched until its
/// completion is staged.
///
/// A permit is given back by [`stage`] or [`release`]. Only an expired one may be dropped.
///
/// [`stage`]: super::completion::CompletionQueue::stage
/// [`release`]: super::completion::CompletionQueue::release
#[derive(Debug)]
#[must_use = "an entry stays reserved until its permit is given back"]
pub(crate) struct Permit {
    generation: u64,
    #[cfg(debug_assertions)]
    current: Generation,
}

impl Permit {
    /// The generation of a permit that was given back. No real generation has this number.
    const USED: u64 = u64::MAX;

    #[inline]
    pub(crate) fn new(current: &Generation) -> Self {
        Self {
            generation: current.number(),
            #[cfg(debug_assertions)]
            current: current.clone(),
        }
    }

    /// Drops the permit. Its queue and the queue's entries have been deleted, or are forgotten
    /// before they are used again.
    #[inline]
    pub(crate) fn expire(mut self) {
        self.generation = Self::USED;
    }
}

#[cfg(debug_assertions)]
impl Drop for Permit {
    fn drop(&mut self) {
        debug_assert!(
            !self.current.is_current(self) || std::thread::panicking(),
            "a command was dropped without a completion"
        );
    }
}
