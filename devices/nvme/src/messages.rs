//! When a worker sends a message (MSI-X) for the completions that it has posted: at once, unless the host wants one for
//! several, or is still at work on the last one.
//!
//! **No completion is left without a message after it, unless the guest has taken it.** What is held back is sent at the
//! latest when its time is up, when the worker finds nothing more to do, or after some rounds of work: the guest need not
//! do anything for it. `tests/models` tries every order of events.

use std::sync::Arc;
use std::time::Instant;

use crate::coalescing::Coalescing;

/// For how many rounds of work a message is held back at most while the guest has not answered the last one.
const ROUNDS: u8 = 4;

/// Completions that have been posted to queues of one vector.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) vector: u16,
    pub(crate) entries: u32,
    /// One of them tells of a failure: the host should hear of it at once (NVMe Base 2.0, 5.27.1.6).
    pub(crate) failed: bool,
    /// More of the same queue follow in the next round.
    pub(crate) more: bool,
}

/// What the guest is owed by one vector.
#[derive(Clone, Copy, Debug, Default)]
struct Owed {
    /// Completions since the last message.
    entries: u32,
    /// When the message must go, as the host wishes.
    until: Option<Instant>,
    /// After how many more rounds the message must go, if only the guest's being at work has kept it back.
    rounds: Option<u8>,
    /// The guest has taken nothing since the last message.
    unanswered: bool,
}

/// The messages of one worker's queues.
pub(crate) struct Messages {
    wishes: Arc<Coalescing>,
    /// By vector.
    owed: Vec<Owed>,
    /// The vectors by which something is owed, and perhaps some others.
    waiting: Vec<u16>,
}

impl Messages {
    /// Messages by `vectors` vectors, of which none is owed.
    pub(crate) fn new(vectors: u16, wishes: Arc<Coalescing>) -> Self {
        Self {
            wishes,
            owed: vec![Owed::default(); vectors.into()],
            waiting: Vec::with_capacity(vectors.into()),
        }
    }

    /// Completions have been posted; whether to send a message at once. If not, it is owed.
    pub(crate) fn posted(&mut self, posted: Posted, clock: impl FnOnce() -> Instant) -> bool {
        let vector = posted.vector;
        let Some(owed) = self.owed.get_mut(usize::from(vector)) else {
            return true;
        };
        owed.entries = owed.entries.saturating_add(posted.entries);
        let wish = self.wishes.of(vector);
        match wish.filter(|wish| owed.entries < wish.entries && !posted.failed) {
            Some(wish) => {
                owed.until.get_or_insert_with(|| clock() + wish.time);
            }
            None if posted.more && owed.unanswered => {
                owed.rounds.get_or_insert(ROUNDS);
            }
            None => {
                owed.send();
                return true;
            }
        }
        if !self.waiting.contains(&vector) {
            self.waiting.push(vector);
        }
        false
    }

    /// Whether the guest has taken nothing since the last message.
    pub(crate) fn is_unanswered(&self, vector: u16) -> bool {
        let owed = self.owed.get(usize::from(vector));
        owed.is_some_and(|owed| owed.unanswered)
    }

    /// Whether a message is owed.
    pub(crate) fn owes(&self, vector: u16) -> bool {
        let owed = self.owed.get(usize::from(vector));
        owed.is_some_and(|owed| owed.entries > 0)
    }

    /// The guest has taken completions of a vector's queues: all of them, or some are `left`.
    pub(crate) fn taken(&mut self, vector: u16, left: bool) {
        let Some(owed) = self.owed.get_mut(usize::from(vector)) else {
            return;
        };
        owed.unanswered = false;
        if !left {
            *owed = Owed::default();
        }
        // It may not have seen what is left: its being at work holds nothing back any more.
        owed.rounds = owed.rounds.map(|_| 0);
    }

    /// A round of work is over; sends what is due. `idle`: nothing was found to do.
    pub(crate) fn settle(
        &mut self,
        idle: bool,
        clock: impl FnOnce() -> Instant,
        mut send: impl FnMut(u16),
    ) {
        if self.waiting.is_empty() {
            return;
        }
        let now = clock();
        let owed = &mut self.owed;
        self.waiting.retain(|vector| {
            let Some(owed) = owed.get_mut(usize::from(*vector)) else {
                return false;
            };
            if owed.is_due(idle, now) {
                owed.send();
                send(*vector);
            }
            owed.entries > 0
        });
    }

    /// Sends everything that is owed.
    pub(crate) fn send_all(&mut self, send: impl FnMut(u16)) {
        let (owed, mut send) = (&mut self.owed, send);
        for vector in self.waiting.drain(..) {
            let owed = owed.get_mut(usize::from(vector));
            if let Some(owed) = owed.filter(|owed| owed.entries > 0) {
                owed.send();
                send(vector);
            }
        }
    }

    /// Forgets what is owed.
    pub(crate) fn forget(&mut self) {
        self.waiting.clear();
        self.owed.fill(Owed::default());
    }

    /// When the next message must go by the host's wish, if any waits for that.
    pub(crate) fn until(&self) -> Option<Instant> {
        let owed = self.waiting.iter();
        let owed = owed.filter_map(|vector| self.owed.get(usize::from(*vector)));
        owed.filter_map(|owed| owed.until).min()
    }
}

impl Owed {
    fn send(&mut self) {
        *self = Self {
            unanswered: true,
            ..Self::default()
        };
    }

    fn is_due(&mut self, idle: bool, now: Instant) -> bool {
        self.rounds = self.rounds.map(|rounds| rounds.saturating_sub(1));
        let waited = self.rounds.is_some_and(|rounds| idle || rounds == 0);
        waited || self.until.is_some_and(|until| until <= now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use peerbar_nvme_spec::feature::InterruptCoalescing;

    use super::*;

    const VECTOR: u16 = 1;
    const ONE: Posted = Posted {
        vector: VECTOR,
        entries: 1,
        failed: false,
        more: false,
    };
    const MORE: Posted = Posted { more: true, ..ONE };

    /// Messages, how many were sent, and a clock.
    struct Scene {
        messages: Messages,
        sent: usize,
        now: Instant,
    }

    impl Scene {
        fn new(wish: InterruptCoalescing) -> Self {
            let wishes = Coalescing::new(2);
            wishes.set(wish, &[false; 2]);
            Self {
                messages: Messages::new(2, Arc::new(wishes)),
                sent: 0,
                now: Instant::now(),
            }
        }

        /// How many messages have been sent after a post.
        fn post(&mut self, posted: Posted) -> usize {
            self.sent += usize::from(self.messages.posted(posted, || self.now));
            self.sent
        }

        /// How many messages have been sent after a round.
        fn settle(&mut self, idle: bool) -> usize {
            let sent = &mut self.sent;
            self.messages.settle(idle, || self.now, |_| *sent += 1);
            self.sent
        }

        fn pass(&mut self, micros: u64) {
            self.now += Duration::from_micros(micros);
        }
    }

    /// Messages for 4 completions, or after 200 microseconds.
    fn coalesced() -> Scene {
        Scene::new(InterruptCoalescing::new().with_thr(3).with_time(2))
    }

    fn plain() -> Scene {
        Scene::new(InterruptCoalescing::new())
    }

    #[test]
    fn without_a_wish_there_is_a_message_for_each_post() {
        let mut scene = plain();
        assert_eq!([ONE, ONE].map(|posted| scene.post(posted)), [1, 2]);
        assert_eq!(scene.settle(true), 2);
        assert_eq!(scene.messages.until(), None);
    }

    #[test]
    fn a_message_waits_for_as_many_completions_as_the_host_wishes() {
        let mut scene = coalesced();
        assert_eq!([ONE; 4].map(|posted| scene.post(posted)), [0, 0, 0, 1]);
        scene.pass(1000);
        assert_eq!(scene.settle(true), 1, "nothing is left of it");
        let many = Posted { entries: 9, ..ONE };
        assert_eq!(scene.post(many), 2);
    }

    #[test]
    fn a_message_goes_when_the_first_completion_has_waited_its_time_however_idle_the_worker_is() {
        let mut scene = coalesced();
        scene.post(ONE);
        let until = scene.messages.until();
        scene.pass(199);
        scene.post(ONE);
        assert_eq!((scene.settle(true), scene.messages.until()), (0, until));
        scene.pass(1);
        assert_eq!((scene.settle(false), scene.messages.until()), (1, None));
        scene.pass(1000);
        assert_eq!(scene.settle(true), 1, "once");
    }

    #[test]
    fn a_failure_is_told_at_once_and_with_it_all_before() {
        let mut scene = coalesced();
        scene.post(ONE);
        let failed = Posted {
            failed: true,
            ..ONE
        };
        assert_eq!(scene.post(failed), 1);
        assert!(!scene.messages.owes(VECTOR));
    }

    #[test]
    fn what_the_guest_has_taken_without_a_message_needs_none() {
        let mut scene = coalesced();
        scene.post(ONE);
        scene.messages.taken(VECTOR, true);
        assert!(scene.messages.owes(VECTOR), "something is left");
        scene.messages.taken(VECTOR, false);
        scene.pass(1000);
        assert_eq!(scene.settle(true), 0);
    }

    #[test]
    fn while_the_last_message_is_unanswered_the_next_waits_for_what_follows() {
        let mut scene = plain();
        assert_eq!(
            [MORE, MORE, ONE].map(|posted| scene.post(posted)),
            [1, 1, 2]
        );
        scene.messages.taken(VECTOR, true);
        assert_eq!(scene.post(MORE), 3, "the guest has answered");
    }

    #[test]
    fn a_message_that_waits_for_what_follows_goes_when_nothing_does() {
        let mut scene = plain();
        scene.post(MORE);
        scene.post(MORE);
        assert_eq!(scene.settle(false), 1);
        assert_eq!(scene.settle(true), 2, "there is nothing to do");
    }

    #[test]
    fn a_message_that_waits_for_what_follows_goes_after_some_rounds() {
        let mut scene = plain();
        scene.post(MORE);
        let sent: Vec<_> = (0..ROUNDS)
            .map(|_| {
                scene.post(MORE);
                scene.settle(false)
            })
            .collect();
        assert_eq!(sent, [1, 1, 1, 2]);
    }

    #[test]
    fn a_message_that_waits_for_what_follows_goes_once_the_guest_has_taken_something() {
        let mut scene = plain();
        scene.post(MORE);
        scene.post(MORE);
        scene.messages.taken(VECTOR, true);
        assert_eq!(scene.settle(false), 2);
    }

    #[test]
    fn all_that_is_owed_can_be_sent_or_forgotten() {
        let mut scene = coalesced();
        scene.post(ONE);
        let mut sent = Vec::new();
        scene.messages.send_all(|vector| sent.push(vector));
        scene.messages.send_all(|vector| sent.push(vector));
        assert_eq!(sent, [VECTOR]);
        scene.post(ONE);
        scene.messages.forget();
        scene.pass(1000);
        assert_eq!(scene.settle(true), 0);
    }
}
