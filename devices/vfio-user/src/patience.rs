//! How long the reader of a session looks for the next message before it sleeps.
//!
//! A client that waits for each reply before it goes on, as QEMU does for each mapping, is served much sooner by a reader
//! that is awake: to wake one takes tens of microseconds where the host is a guest itself.

use std::time::Duration;

/// At least, and at most.
const BOUNDS: [Duration; 2] = [Duration::from_micros(5), Duration::from_micros(120)];

/// Grows while messages come so soon that looking for them would have saved the sleep, and shrinks while they do not.
#[derive(Debug)]
pub(crate) struct Patience(Duration);

impl Patience {
    pub(crate) fn new() -> Self {
        let [least, _] = BOUNDS;
        Self(least)
    }

    /// Whether to go on looking after so long without a message.
    pub(crate) fn lasts(&self, idle: Duration) -> bool {
        idle < self.0
    }

    /// The message came after so long, and the reader slept.
    pub(crate) fn slept(&mut self, idle: Duration) {
        let [least, most] = BOUNDS;
        let other = if idle < most { self.0 * 2 } else { self.0 / 2 };
        self.0 = other.clamp(least, most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_while_messages_come_soon_and_shrinks_while_they_do_not() {
        let [least, most] = BOUNDS;
        let mut patience = Patience::new();
        assert!(!patience.lasts(least));
        for _ in 0..10 {
            patience.slept(most / 2);
        }
        assert!(patience.lasts(most / 2) && !patience.lasts(most));
        for _ in 0..10 {
            patience.slept(Duration::from_secs(1));
        }
        assert!(patience.lasts(least / 2) && !patience.lasts(least));
    }
}
