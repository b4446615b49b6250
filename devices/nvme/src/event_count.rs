//! The event count of a thread that polls for work and blocks when it finds none.

use std::time::Instant;

use crate::sync::{AtomicBool, AtomicU32, EventFd, Ordering, fence};

/// Counts notifications for one thread. A notification makes no system call unless the thread is
/// blocked.
///
/// The notifier stores the work and then reads whether the thread is blocked. The thread stores
/// that it is blocked and then polls for work once more. Each has a full barrier between the two,
/// so at least one of them sees the other's store and no work is missed. `models/sleep.rs` tries
/// every order of events.
pub(crate) struct EventCount {
    /// Notifications so far. Each one increments it, so that a reader sees the stores of all
    /// notifiers.
    notified: AtomicU32,
    /// The value that the thread has acted on. Only that thread uses it.
    taken: AtomicU32,
    blocked: AtomicBool,
    event: EventFd,
}

impl EventCount {
    /// Makes an event count that blocks on this event fd, which others may signal, too.
    pub(crate) fn new(event: EventFd) -> Self {
        Self {
            notified: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            blocked: AtomicBool::new(false),
            event,
        }
    }

    /// Returns the event fd, which ends a wait whenever it is signalled, also before the wait
    /// begins.
    pub(crate) fn event_fd(&self) -> &EventFd {
        &self.event
    }

    /// Makes the thread poll for work that was stored before this call, and wakes the thread if it
    /// is blocked.
    pub(crate) fn notify(&self) {
        self.notified.fetch_add(1, Ordering::Release);
        self.wake();
    }

    /// Returns `true` if there has been a notification since the last call. Call it **before**
    /// looking for work: work that is stored later brings another notification.
    pub(crate) fn take_notification(&self) -> bool {
        let notified = self.notified.load(Ordering::Acquire);
        let is_new = notified != self.taken.load(Ordering::Relaxed);
        if is_new {
            self.taken.store(notified, Ordering::Relaxed);
        }
        is_new
    }

    /// Wakes the thread, if it is blocked, for work that its `idle` finds.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.blocked.load(Ordering::Relaxed) {
            self.event.signal();
        }
    }

    /// Blocks until woken or until the deadline, unless there is a notification to take or `idle`
    /// finds work. May return early.
    pub(crate) fn wait(&self, deadline: Option<Instant>, idle: impl FnOnce() -> bool) {
        self.blocked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // The caller looks for the work after it has taken the new notification.
        let notified = self.notified.load(Ordering::Relaxed);
        if notified == self.taken.load(Ordering::Relaxed) && idle() {
            self.event.wait(deadline);
        }
        self.blocked.store(false, Ordering::Relaxed);
    }
}
