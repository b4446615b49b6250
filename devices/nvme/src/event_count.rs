//! The event count of a thread that polls for work and blocks when there is none.

use std::time::Instant;

use crate::sync::{AtomicBool, AtomicU32, EventFd, Ordering, fence};

/// Counts notifications for one thread. A notification costs no system call unless the thread is blocked.
///
/// The notifier stores the work and then reads whether the thread is blocked. The thread stores that it is blocked and then
/// polls for work once more. Each has a full barrier between the two, so at least one of them sees the other's store and no
/// work is missed. `models/sleep.rs` tries every order of events.
pub(crate) struct EventCount {
    /// Notifications so far. Each adds to it, so that a reader sees what every notifier has stored.
    notified: AtomicU32,
    /// The value that the thread has acted on. Only that thread uses it.
    taken: AtomicU32,
    blocked: AtomicBool,
    event: EventFd,
}

impl EventCount {
    /// An event count that blocks on this event fd, which others may signal, too.
    pub(crate) fn new(event: EventFd) -> Self {
        Self {
            notified: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            blocked: AtomicBool::new(false),
            event,
        }
    }

    /// Ends a wait whenever it is signalled, also before the wait begins.
    pub(crate) fn event_fd(&self) -> &EventFd {
        &self.event
    }

    /// Has the thread poll for work that has been stored before, and wakes it if it is blocked.
    pub(crate) fn notify(&self) {
        self.notified.fetch_add(1, Ordering::Release);
        self.wake();
    }

    /// Whether there has been a notification since the last call. To be taken **before** looking for work: work that is stored
    /// after this brings a notification of its own.
    pub(crate) fn take_notification(&self) -> bool {
        let notified = self.notified.load(Ordering::Acquire);
        let is_new = notified != self.taken.load(Ordering::Relaxed);
        if is_new {
            self.taken.store(notified, Ordering::Relaxed);
        }
        is_new
    }

    /// Wakes the thread, if it is blocked, for work that has been stored where its `idle` polls.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.blocked.load(Ordering::Relaxed) {
            self.event.signal();
        }
    }

    /// Blocks until woken or until the deadline, if there is no notification to take and `idle` still finds no work. It may
    /// return early.
    pub(crate) fn wait(&self, deadline: Option<Instant>, idle: impl FnOnce() -> bool) {
        self.blocked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // The work behind a new notification is looked for once the notification is taken.
        let notified = self.notified.load(Ordering::Relaxed);
        if notified == self.taken.load(Ordering::Relaxed) && idle() {
            self.event.wait(deadline);
        }
        self.blocked.store(false, Ordering::Relaxed);
    }
}
