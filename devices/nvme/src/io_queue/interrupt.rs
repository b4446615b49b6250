//! Interrupts for completions: Interrupt Coalescing as the host configures it (NVMe Base 2.0,
//! 5.27.1.6 and 5.27.1.7). If the host has not configured it, an interrupt stays pending while the
//! worker is busy and the guest has not responded to the previous one.
//!
//! **No completion is left without a later interrupt, unless the guest has taken it.** A pending
//! interrupt is raised at the latest when its aggregation time is over, independently of the guest.
//! `models/completions.rs` tries every order of events while time stands still.
//!
//! Entries are aggregated for each queue. Queues that share a vector may raise more interrupts than
//! the threshold recommends.
//!
//! Completions of the admin queue and the INTx pin are not coalesced: the pin is a level, and one
//! signal masks it until the guest has handled it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use peerbar_nvme_spec::feature::InterruptCoalescing;

use crate::notifier::Notifier;

/// The unit of the aggregation time.
const TICK: Duration = Duration::from_micros(100);

/// Coalescing for a busy worker's interrupts while the guest has not responded to the previous
/// interrupt, that is, has taken no entry since.
const UNANSWERED: Aggregation = Aggregation {
    threshold: u32::MAX,
    time: TICK,
};

/// The coalescing settings of one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aggregation {
    /// An interrupt is raised for this many completions of a queue.
    pub(crate) threshold: u32,
    /// The longest time for which a completion waits for others.
    pub(crate) time: Duration,
}

/// The coalescing settings of all vectors: the engine sets them, the workers read them.
pub(crate) struct Coalescing {
    /// THR and TIME, or [`DISABLED`], by vector.
    vectors: Vec<AtomicU32>,
}

/// Coalescing Disable: no interrupt of the vector is coalesced. THR and TIME have fewer bits.
const DISABLED: u32 = u32::MAX;

impl Coalescing {
    /// Makes settings for `vectors` vectors, without coalescing.
    pub(crate) fn new(vectors: u16) -> Self {
        Self {
            vectors: (0..vectors).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Sets THR and TIME, and for each vector whether coalescing is disabled (CD).
    pub(crate) fn set(&self, settings: InterruptCoalescing, disabled: &[bool]) {
        for (vector, disabled) in self.vectors.iter().zip(disabled) {
            let bits = if *disabled {
                DISABLED
            } else {
                settings.into_bits()
            };
            vector.store(bits, Ordering::Relaxed);
        }
    }

    /// Returns the settings of a vector, if both threshold and time are set. If they are not,
    /// returns those for unanswered interrupts if `unanswered` is set.
    pub(crate) fn of(&self, vector: u16, unanswered: bool) -> Option<Aggregation> {
        let bits = self.vectors.get(usize::from(vector))?;
        let bits = bits.load(Ordering::Relaxed);
        let set = InterruptCoalescing::from_bits(bits);
        if bits == DISABLED {
            None
        } else if set.thr() > 0 && set.time() > 0 {
            Some(Aggregation {
                threshold: u32::from(set.thr()) + 1,
                time: TICK * u32::from(set.time()),
            })
        } else {
            unanswered.then_some(UNANSWERED)
        }
    }
}

/// The next action of a worker that signals completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It looks for further commands.
    Work,
    /// It waits, because it has found no work.
    Wait,
}

/// The interrupt that is pending for entries of a completion queue.
#[derive(Debug, Default)]
pub(crate) struct PendingInterrupt {
    /// Entries that the guest can see, has not taken, and was not interrupted for.
    entries: u32,
    /// One of them reports a failure, which is not coalesced (NVMe Base 2.0, 5.27.1.6).
    has_failure: bool,
    /// The end of the aggregation time.
    pub(super) deadline: Option<Instant>,
    /// The guest has taken no entry since the last interrupt.
    is_unanswered: bool,
}

impl PendingInterrupt {
    /// Adds entries that the guest can now see.
    pub(crate) fn add(&mut self, entries: u32, has_failure: bool) {
        self.entries = self.entries.saturating_add(entries);
        self.has_failure |= has_failure;
    }

    /// Records that the guest has taken entries and has `unread` left. Entries that it has taken
    /// need no interrupt. The interrupt for the remaining ones may come too early, because the
    /// deadline was set for the others, but never too late.
    pub(crate) fn answer(&mut self, unread: u32) {
        self.is_unanswered = false;
        self.entries = self.entries.min(unread);
        if self.entries == 0 {
            *self = Self::default();
        }
    }

    /// Returns `true` if the interrupt waits for the guest's response to the last one.
    pub(super) fn awaits_answer(&self) -> bool {
        self.entries > 0 && self.is_unanswered
    }

    /// Returns `true` if the interrupt is due now.
    fn is_due(&mut self, settings: Option<Aggregation>, clock: fn() -> Instant) -> bool {
        let coalesces = |set: &Aggregation| self.entries < set.threshold && !self.has_failure;
        let Some(set) = settings.filter(coalesces) else {
            return true;
        };
        let now = clock();
        *self.deadline.get_or_insert(now + set.time) <= now
    }
}

/// The interrupts of one thread's completion queues.
pub(crate) struct QueueInterrupts {
    pub(crate) notifier: Arc<Notifier>,
    settings: Arc<Coalescing>,
    pub(crate) clock: fn() -> Instant,
}

impl QueueInterrupts {
    /// Makes interrupts with these coalescing settings.
    pub(crate) fn new(notifier: Arc<Notifier>, settings: Arc<Coalescing>) -> Self {
        Self {
            notifier,
            settings,
            clock: Instant::now,
        }
    }

    /// Raises a pending interrupt on a vector, if it is due.
    pub(crate) fn raise_due(&self, vector: u16, pending: &mut PendingInterrupt, next: Next) {
        if pending.entries == 0 {
            return;
        }
        let is_message = self.notifier.sends_messages();
        let unanswered = pending.is_unanswered && next == Next::Work;
        let settings = self.settings.of(vector, unanswered);
        if pending.is_due(settings.filter(|_| is_message), self.clock) {
            self.raise(vector, pending);
        }
    }

    /// Raises a pending interrupt on a vector.
    pub(crate) fn raise(&self, vector: u16, pending: &mut PendingInterrupt) {
        if pending.entries > 0 {
            *pending = PendingInterrupt {
                is_unanswered: true,
                ..PendingInterrupt::default()
            };
            self.notifier.raise(vector);
        }
    }
}
