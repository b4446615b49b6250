//! The change of the peers' windows that the server has yet to confirm.

use std::time::Instant;

use parking_lot::Mutex;
use peerbar_dma::switch_limits::CLOSING_TIME_OUT;
use peerbar_endpoint::Acknowledgement;

/// The change that takes a peer's memory from the server and that the server has yet to confirm.
/// There is at most one, because the switch sends the next change after the acknowledgement.
pub(crate) struct Unconfirmed<A = Acknowledgement> {
    state: Mutex<State<A>>,
}

struct State<A> {
    /// The number of the last change.
    number: u64,
    /// Its acknowledgement, and the time from which on the owner of the window no longer waits.
    waiting: Option<(Instant, A)>,
}

impl<A> Default for Unconfirmed<A> {
    fn default() -> Self {
        let state = State {
            number: 0,
            waiting: None,
        };
        Self {
            state: Mutex::new(state),
        }
    }
}

impl<A> Unconfirmed<A> {
    /// Withholds the acknowledgement of a change. Returns the number of the change.
    pub(crate) fn begin(&self, acknowledgement: A) -> u64 {
        let mut state = self.state.lock();
        state.number = state.number.wrapping_add(1);
        state.waiting = Some((Instant::now() + CLOSING_TIME_OUT, acknowledgement));
        state.number
    }

    /// Acknowledges the change with this number: the server has confirmed it.
    pub(crate) fn confirm(&self, number: u64) {
        let mut state = self.state.lock();
        let is_last = state.number == number;
        let confirmed = state.waiting.take_if(|_| is_last);
        drop(state);
        if confirmed.is_some_and(|(deadline, _)| deadline <= Instant::now()) {
            log::warn!(
                "the server has used a closed window for longer than {CLOSING_TIME_OUT:?}, or was late to confirm that it does not"
            );
        }
    }

    /// Acknowledges the change if the owner of the window no longer waits, so that the switch sends
    /// the changes after it.
    ///
    /// The server may wait for a request that can begin only after those changes, before it
    /// confirms this one.
    pub(crate) fn give_way(&self) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let late = state.waiting.take_if(|(deadline, _)| *deadline <= now);
        drop(state);
        drop(late);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Begins a change. Returns its number, and a function that returns `true` once it is
    /// acknowledged.
    fn begin(unconfirmed: &Unconfirmed<Arc<()>>) -> (u64, impl Fn() -> bool + use<>) {
        let acknowledgement = Arc::new(());
        let dropped = Arc::downgrade(&acknowledgement);
        let number = unconfirmed.begin(acknowledgement);
        (number, move || dropped.upgrade().is_none())
    }

    #[test]
    fn change_is_acknowledged_once_the_server_confirms_it() {
        let unconfirmed = Unconfirmed::default();
        let (first, is_acknowledged) = begin(&unconfirmed);
        assert!(!is_acknowledged());
        unconfirmed.confirm(first);
        assert!(is_acknowledged());
        unconfirmed.give_way();
    }

    #[test]
    fn change_gives_way_once_its_owner_no_longer_waits() {
        let unconfirmed = Unconfirmed::default();
        let begun = Instant::now();
        let (first, is_acknowledged) = begin(&unconfirmed);
        while !is_acknowledged() {
            unconfirmed.give_way();
            std::thread::yield_now();
        }
        assert!(begun.elapsed() >= CLOSING_TIME_OUT);
        let (_, is_next_acknowledged) = begin(&unconfirmed);
        unconfirmed.confirm(first);
        assert!(!is_next_acknowledged(), "the first one is confirmed late");
    }
}
