//! Interrupts for completions: Interrupt Coalescing as the host configures it (NVMe Base 2.0, 5.27.1.6 and 5.27.1.7), and
//! interrupts that are pending because the guest is still at work on the last one.
//!
//! **No completion is left without a later interrupt, unless the guest has taken it.** A pending interrupt is raised at the
//! latest when its aggregation time is over, when the worker finds no more work, or after some rounds of work. None of that
//! depends on the guest. `models/completions.rs` tries every order of events.
//!
//! Completions of the admin queue and the INTx pin are never held back: the pin is a level, and one signal masks it until the
//! guest has handled it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use peerbar_nvme_spec::feature::InterruptCoalescing;

use crate::notifier::Notifier;

/// The unit of the aggregation time.
const TICK: Duration = Duration::from_micros(100);

/// An interrupt is pending for at most as many rounds of work while the guest has not answered the last one.
pub(super) const ROUNDS: u8 = 4;

/// The coalescing settings of one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aggregation {
    /// An interrupt is raised for this many completions.
    pub(crate) threshold: u32,
    /// No completion waits longer for others.
    pub(crate) time: Duration,
}

/// The coalescing settings of all vectors: the engine sets them, the workers read them.
pub(crate) struct Coalescing {
    /// THR and TIME, or 0 where coalescing is disabled, by vector.
    vectors: Vec<AtomicU32>,
}

impl Coalescing {
    /// No coalescing for any of `vectors` vectors.
    pub(crate) fn new(vectors: u16) -> Self {
        Self {
            vectors: (0..vectors).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Sets THR and TIME, and by vector whether coalescing is disabled (CD).
    pub(crate) fn set(&self, settings: InterruptCoalescing, disabled: &[bool]) {
        for (vector, disabled) in self.vectors.iter().zip(disabled) {
            let bits = if *disabled { 0 } else { settings.into_bits() };
            vector.store(bits, Ordering::Relaxed);
        }
    }

    /// The settings of a vector, if both threshold and time are set.
    pub(crate) fn of(&self, vector: u16) -> Option<Aggregation> {
        let bits = self.vectors.get(usize::from(vector))?;
        let set = InterruptCoalescing::from_bits(bits.load(Ordering::Relaxed));
        (set.thr() > 0 && set.time() > 0).then(|| Aggregation {
            threshold: u32::from(set.thr()) + 1,
            time: TICK * u32::from(set.time()),
        })
    }
}

/// Completions that were flushed to a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Posted {
    pub(crate) entries: u32,
    /// One of them reports a failure, which is not held back (NVMe Base 2.0, 5.27.1.6).
    pub(crate) failed: bool,
}

/// The interrupt state of one vector.
#[derive(Clone, Copy, Debug, Default)]
struct Vector {
    /// Entries that the guest has left to take from all queues of the vector.
    unread: u32,
    /// Completions since the last interrupt.
    pending: u32,
    /// When the interrupt must be raised because the aggregation time is over.
    deadline: Option<Instant>,
    /// After how many more rounds the interrupt must be raised if only the guest's being at work has held it back.
    rounds: Option<u8>,
    /// The guest has taken no entry since the last interrupt.
    unanswered: bool,
}

/// The interrupts of one thread's completion queues.
pub(crate) struct QueueInterrupts {
    pub(crate) notifier: Arc<Notifier>,
    settings: Arc<Coalescing>,
    vectors: Vec<Vector>,
    /// Whether an interrupt may be pending.
    any_pending: bool,
    pub(super) clock: fn() -> Instant,
}

impl QueueInterrupts {
    /// Interrupts by `vectors` vectors, of which none is pending.
    pub(crate) fn new(notifier: Arc<Notifier>, vectors: u16, settings: Arc<Coalescing>) -> Self {
        Self {
            notifier,
            settings,
            vectors: vec![Vector::default(); vectors.into()],
            any_pending: false,
            clock: Instant::now,
        }
    }

    /// The guest can see further entries of a queue with this vector.
    pub(crate) fn flushed(&mut self, vector: Option<u16>, entries: u32) {
        if let Some(state) = self.vector(vector) {
            state.unread = state.unread.saturating_add(entries);
        }
    }

    /// The guest has taken entries of a queue with this vector. What it has taken needs no interrupt.
    pub(crate) fn taken(&mut self, vector: Option<u16>, entries: u32) {
        let Some(state) = self.vector(vector.filter(|_| entries > 0)) else {
            return;
        };
        state.unread = state.unread.saturating_sub(entries);
        state.unanswered = false;
        if state.unread == 0 {
            *state = Vector::default();
        }
        // The guest may not have seen the entries that are left: its being at work holds nothing back any more.
        state.rounds = state.rounds.map(|_| 0);
    }

    /// Whether the guest has taken no entry since the last interrupt.
    pub(crate) fn is_unanswered(&self, vector: u16) -> bool {
        let state = self.vectors.get(usize::from(vector));
        state.is_some_and(|state| state.unanswered)
    }

    /// Interrupts for completions of a vector, at once or later. `more`: further ones of the same queue follow in the next round.
    pub(crate) fn signal(&mut self, vector: u16, posted: Posted, more: bool) {
        if !self.notifier.sends_messages() || self.is_due_at_once(vector, posted, more) {
            self.notifier.raise(vector);
        }
    }

    /// Whether completions bring an interrupt at once. If not, it is pending.
    fn is_due_at_once(&mut self, vector: u16, posted: Posted, more: bool) -> bool {
        let clock = self.clock;
        let aggregation = self.settings.of(vector);
        let Some(state) = self.vector(Some(vector)) else {
            return true;
        };
        state.pending = state.pending.saturating_add(posted.entries);
        let coalesces = |set: &Aggregation| state.pending < set.threshold && !posted.failed;
        match aggregation.filter(coalesces) {
            Some(set) => {
                state.deadline.get_or_insert_with(|| clock() + set.time);
            }
            None if more && state.unanswered => {
                state.rounds.get_or_insert(ROUNDS);
            }
            None => {
                state.raised();
                return true;
            }
        }
        self.any_pending = true;
        false
    }

    /// A round of work is over: raises the interrupts that are due. `idle`: the round found no work.
    pub(crate) fn settle(&mut self, idle: bool) {
        if self.any_pending {
            let now = (self.clock)();
            self.raise_if(|state| state.is_due(idle, now));
        }
    }

    /// Raises every pending interrupt.
    pub(crate) fn raise_all(&mut self) {
        self.raise_if(|_| true);
    }

    fn raise_if(&mut self, mut is_due: impl FnMut(&mut Vector) -> bool) {
        self.any_pending = false;
        let states = (0_u16..).zip(&mut self.vectors);
        for (vector, state) in states.filter(|(_, state)| state.pending > 0) {
            if is_due(state) {
                state.raised();
                self.notifier.raise(vector);
            } else {
                self.any_pending = true;
            }
        }
    }

    /// Forgets every queue.
    pub(crate) fn forget(&mut self) {
        self.any_pending = false;
        self.vectors.fill(Vector::default());
    }

    /// When the next aggregation time is over, if an interrupt is pending for that.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let vectors = self.any_pending.then_some(&self.vectors)?;
        vectors.iter().filter_map(|state| state.deadline).min()
    }

    fn vector(&mut self, vector: Option<u16>) -> Option<&mut Vector> {
        self.vectors.get_mut(usize::from(vector?))
    }
}

impl Vector {
    fn raised(&mut self) {
        *self = Self {
            unread: self.unread,
            unanswered: true,
            ..Self::default()
        };
    }

    fn is_due(&mut self, idle: bool, now: Instant) -> bool {
        self.rounds = self.rounds.map(|rounds| rounds.saturating_sub(1));
        let waited = self.rounds.is_some_and(|rounds| idle || rounds == 0);
        waited || self.deadline.is_some_and(|deadline| deadline <= now)
    }
}
