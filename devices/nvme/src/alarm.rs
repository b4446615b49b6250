//! The alarm clock of a thread that looks for work, and sleeps when there is none.

use std::time::Instant;

use crate::sync::{AtomicBool, AtomicU32, Bell, Ordering, fence};

/// Wakes one sleeper, and costs who wakes a load as long as nobody sleeps.
///
/// Who has work stores it and then looks whether the sleeper is asleep; the sleeper says that it is asleep and then looks
/// for work once more. Each has a full barrier between the two, so at least one of them sees the other's store: no work
/// is left to a sleeper. `tests/models` tries every order of events.
pub(crate) struct Alarm {
    /// How often somebody has knocked. They add to it, so that who looks at it sees what each of them has stored.
    knocks: AtomicU32,
    /// How often the sleeper knows of; it alone looks at this.
    heard: AtomicU32,
    asleep: AtomicBool,
    bell: Bell,
}

impl Alarm {
    /// An alarm that rings this bell, which others may ring, too.
    pub(crate) fn new(bell: Bell) -> Self {
        Self {
            knocks: AtomicU32::new(0),
            heard: AtomicU32::new(0),
            asleep: AtomicBool::new(false),
            bell,
        }
    }

    /// What wakes the sleeper whenever it is rung, be it before it sleeps.
    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Has the sleeper look for work that has been stored before, and wakes it if it sleeps.
    pub(crate) fn knock(&self) {
        self.knocks.fetch_add(1, Ordering::Release);
        self.wake();
    }

    /// Whether somebody has knocked since the last time. Taken **before** looking for work: what is stored by who knocks
    /// after this may be seen in that look or not, and the knock is there for the next one.
    pub(crate) fn take_knock(&self) -> bool {
        let knocks = self.knocks.load(Ordering::Acquire);
        let is_new = knocks != self.heard.load(Ordering::Relaxed);
        if is_new {
            self.heard.store(knocks, Ordering::Relaxed);
        }
        is_new
    }

    /// Wakes the sleeper, if it sleeps, for work that has been stored before where its `idle` looks.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            self.bell.ring();
        }
    }

    /// Sleeps until woken or until the moment given, if nobody has knocked and `idle` still finds nothing to do. It may
    /// return early.
    pub(crate) fn sleep(&self, until: Option<Instant>, idle: impl FnOnce() -> bool) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // What a new knock is for is looked at once it is taken.
        let knocks = self.knocks.load(Ordering::Relaxed);
        if knocks == self.heard.load(Ordering::Relaxed) && idle() {
            self.bell.wait(until);
        }
        self.asleep.store(false, Ordering::Relaxed);
    }
}
