//! Doorbells, on their way from the thread that answers the guest's accesses to the worker.
//!
//! A doorbell counts only for the UAR of its queue, so no process can ring another one's. The
//! newest value of each queue is kept, and for a completion queue also the fact that it was armed,
//! regardless of later writes. Nothing here waits for the worker.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use peerbar_efa_spec::completion::CompletionDoorbell;
use peerbar_host::eventfd::EventFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::limits;
use crate::memory_bar::Doorbell;

const PAIRS: usize = limits::QUEUE_PAIRS as usize;
const COMPLETION_QUEUES: usize = limits::COMPLETION_QUEUES as usize;
const WORDS: usize = (2 * PAIRS + COMPLETION_QUEUES).div_ceil(64);

/// Set in the word of a doorbell while its queue exists.
const IS_OPEN: u64 = 1 << 63;
/// Position of the UAR in that word.
const UAR_SHIFT: u32 = 32;

/// The doorbells of all queues.
pub(crate) struct Doorbells {
    /// By [`index`]: the value, the UAR of the queue, and a bit that says if the queue exists.
    words: Vec<AtomicU64>,
    /// The doorbells that have been written since the worker took them.
    rung: [AtomicU64; WORDS],
    /// Queue pairs whose state has changed since then.
    changed: [AtomicU64; PAIRS / 64],
    /// Event queues that have been armed since then.
    armed: AtomicU32,
    /// `true` if there may be something to take.
    is_rung: AtomicBool,
    is_stopped: AtomicBool,
    /// `true` if the worker waits for the event, or is about to. The worker sets it before it looks
    /// for a doorbell, and a doorbell is rung before this is read.
    is_waiting: AtomicBool,
    event: EventFd,
}

const _: () = assert!(limits::EVENT_QUEUES as u32 <= u32::BITS);

/// A signal for the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rung {
    /// The new value of a doorbell.
    Doorbell(Doorbell, u32),
    /// The queue pair of this slot has changed its state.
    Changed(u16),
    /// An event queue was armed.
    EventQueue(u16),
}

impl Doorbells {
    pub(crate) fn new() -> Result<Self, Errno> {
        let words = 2 * PAIRS + COMPLETION_QUEUES;
        Ok(Self {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            rung: [const { AtomicU64::new(0) }; WORDS],
            changed: [const { AtomicU64::new(0) }; PAIRS / 64],
            armed: AtomicU32::new(0),
            is_rung: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            is_waiting: AtomicBool::new(false),
            event: EventFd::new()?,
        })
    }

    /// Adds a queue of this UAR: its doorbell is 0.
    pub(crate) fn open(&self, uar: u16, doorbell: Doorbell) {
        if let Some(word) = self.words.get(index(doorbell)) {
            word.store(IS_OPEN | u64::from(uar) << UAR_SHIFT, Ordering::Release);
        }
    }

    /// Removes a queue.
    pub(crate) fn close(&self, doorbell: Doorbell) {
        if let Some(word) = self.words.get(index(doorbell)) {
            word.store(0, Ordering::Release);
        }
    }

    /// Removes all queues.
    pub(crate) fn close_all(&self) {
        let words = self.words.iter();
        words.for_each(|word| word.store(0, Ordering::Release));
        self.armed.store(0, Ordering::Release);
    }

    /// Takes a doorbell write of a process with this UAR.
    pub(crate) fn ring(&self, uar: u16, doorbell: Doorbell, value: u32) {
        let index = index(doorbell);
        let Some(word) = self.words.get(index) else {
            return;
        };
        let owner = IS_OPEN | u64::from(uar) << UAR_SHIFT;
        let next = |old: u64| {
            let (owned, before) = split(old);
            let value = match doorbell {
                Doorbell::Completion(_) => with_arm_kept(before, value),
                _ => value,
            };
            (owned == owner).then_some(owner | u64::from(value))
        };
        if word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
            .is_ok()
        {
            set(&self.rung, index);
            self.wake_worker();
        }
    }

    /// Arms an event queue.
    pub(crate) fn arm_event_queue(&self, number: u16) {
        if number < limits::EVENT_QUEUES {
            self.armed.fetch_or(1 << number, Ordering::AcqRel);
            self.wake_worker();
        }
    }

    /// Signals a change of state of the queue pair of this slot.
    pub(crate) fn wake(&self, slot: u16) {
        set(&self.changed, slot.into());
        self.wake_worker();
    }

    /// Makes the worker take a turn.
    pub(crate) fn wake_worker(&self) {
        self.is_rung.store(true, Ordering::SeqCst);
        if self.is_waiting.swap(false, Ordering::SeqCst) {
            self.event.signal();
        }
    }

    /// Ends the worker.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        self.wake_worker();
    }

    /// Waits until there may be something to take, until `other` is readable, or until the given
    /// time.
    pub(crate) fn wait(&self, other: Option<BorrowedFd<'_>>, until: Option<Instant>) {
        self.is_waiting.store(true, Ordering::SeqCst);
        if !self.is_rung.load(Ordering::SeqCst) && !self.is_stopped() {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let event = self.event.as_fd();
            let sources = [event, other.unwrap_or(event)];
            let mut polled = sources.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            if let Err(error) = poll(&mut polled, left.as_ref()) {
                log::debug!("the worker's wait ends: {error}");
            }
            // The signal may be that of a doorbell that an earlier turn has taken.
            self.event.take();
        }
        self.is_waiting.store(false, Ordering::SeqCst);
    }

    /// Returns `true` if the worker should end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// Returns the newest value of a queue's doorbell, even if the worker has not taken it yet, or
    /// `None` if there is no such queue.
    pub(crate) fn value(&self, doorbell: Doorbell) -> Option<u32> {
        let word = self.words.get(index(doorbell))?;
        let (owner, value) = split(word.load(Ordering::Acquire));
        (owner & IS_OPEN != 0).then_some(value)
    }

    /// Takes all signals.
    pub(crate) fn take(&self, mut each: impl FnMut(Rung)) {
        if !self.is_rung.swap(false, Ordering::SeqCst) {
            return;
        }
        for index in take_bits(&self.rung) {
            let (Some(word), Some(doorbell)) = (self.words.get(index), doorbell(index)) else {
                continue;
            };
            let taken = word.fetch_and(!u64::from(arm_bit(doorbell)), Ordering::AcqRel);
            let (owner, value) = split(taken);
            if owner & IS_OPEN != 0 {
                each(Rung::Doorbell(doorbell, value));
            }
        }
        for slot in take_bits(&self.changed) {
            each(Rung::Changed(u16::try_from(slot).unwrap_or(u16::MAX)));
        }
        let armed = self.armed.swap(0, Ordering::AcqRel);
        for number in (0..limits::EVENT_QUEUES).filter(|number| armed & (1 << number) != 0) {
            each(Rung::EventQueue(number));
        }
    }
}

/// Returns the index of a doorbell's word.
fn index(doorbell: Doorbell) -> usize {
    match doorbell {
        Doorbell::Send(slot) => usize::from(slot),
        Doorbell::Receive(slot) => PAIRS + usize::from(slot),
        Doorbell::Completion(number) => 2 * PAIRS + usize::from(number),
    }
}

/// Returns the doorbell of a word.
fn doorbell(index: usize) -> Option<Doorbell> {
    let number = |at: usize| u16::try_from(at).ok();
    match (index.checked_sub(PAIRS), index.checked_sub(2 * PAIRS)) {
        (_, Some(queue)) => number(queue).map(Doorbell::Completion),
        (Some(pair), None) => number(pair).map(Doorbell::Receive),
        (None, None) => number(index).map(Doorbell::Send),
    }
}

/// Returns the owner and the value in a word.
fn split(word: u64) -> (u64, u32) {
    let [a, b, c, d, ..] = word.to_le_bytes();
    (
        word & !u64::from(u32::MAX),
        u32::from_le_bytes([a, b, c, d]),
    )
}

/// Returns the bit of a doorbell that the worker clears.
fn arm_bit(doorbell: Doorbell) -> u32 {
    match doorbell {
        Doorbell::Completion(_) => CompletionDoorbell::new().with_arm(true).into_bits(),
        _ => 0,
    }
}

/// Keeps a completion queue armed if the worker has not yet seen that it was armed.
fn with_arm_kept(before: u32, value: u32) -> u32 {
    let (before, value) = (
        CompletionDoorbell::from_bits(before),
        CompletionDoorbell::from_bits(value),
    );
    if before.arm() && !value.arm() {
        let armed = value.with_arm(true);
        return armed.with_command_sn(before.command_sn()).into_bits();
    }
    value.into_bits()
}

fn set(bits: &[AtomicU64], index: usize) {
    if let Some(word) = bits.get(index / 64) {
        word.fetch_or(1 << (index % 64), Ordering::AcqRel);
    }
}

/// Clears the bits that are set, and returns their numbers.
fn take_bits(bits: &[AtomicU64]) -> impl Iterator<Item = usize> {
    let words = (0usize..).zip(bits);
    words.flat_map(|(at, word)| {
        let taken = word.swap(0, Ordering::AcqRel);
        (0..64).filter_map(move |bit| (taken & (1 << bit) != 0).then_some(at * 64 + bit))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn taken(doorbells: &Doorbells) -> Vec<Rung> {
        let mut all = Vec::new();
        doorbells.take(|rung| all.push(rung));
        all
    }

    #[test]
    fn every_doorbell_has_a_word_of_its_own() {
        let words = 2 * PAIRS + COMPLETION_QUEUES;
        for at in 0..words {
            assert_eq!(doorbell(at).map(index), Some(at));
        }
    }

    #[test]
    fn doorbell_of_another_uar_does_not_count() {
        let doorbells = Doorbells::new().unwrap();
        doorbells.open(3, Doorbell::Send(7));
        doorbells.ring(3, Doorbell::Send(7), 5);
        doorbells.ring(4, Doorbell::Send(7), 6);
        doorbells.ring(3, Doorbell::Receive(7), 6);
        let rung = [Rung::Doorbell(Doorbell::Send(7), 5)];
        assert_eq!(taken(&doorbells), rung);
        assert_eq!(taken(&doorbells), []);
        doorbells.ring(3, Doorbell::Send(7), 6);
        doorbells.close(Doorbell::Send(7));
        assert_eq!(taken(&doorbells), []);
        doorbells.ring(3, Doorbell::Send(u16::MAX), 6);
        assert_eq!(taken(&doorbells), []);
    }

    #[test]
    fn armed_queue_stays_so_until_it_is_taken() {
        let doorbells = Doorbells::new().unwrap();
        let queue = Doorbell::Completion(9);
        doorbells.open(0, queue);
        let value = CompletionDoorbell::new().with_command_sn(2);
        doorbells.ring(0, queue, value.with_arm(true).into_bits());
        let later = CompletionDoorbell::new().with_consumer_index(5);
        doorbells.ring(0, queue, later.into_bits());
        let both = later.with_command_sn(2).with_arm(true);
        let rung = |value: CompletionDoorbell| vec![Rung::Doorbell(queue, value.into_bits())];
        assert_eq!(taken(&doorbells), rung(both));
        doorbells.ring(0, queue, later.into_bits());
        assert_eq!(taken(&doorbells), rung(later));
    }

    #[test]
    fn event_queue_and_change_are_taken_once() {
        let doorbells = Doorbells::new().unwrap();
        doorbells.arm_event_queue(31);
        doorbells.arm_event_queue(32);
        doorbells.wake(200);
        let rung = [Rung::Changed(200), Rung::EventQueue(31)];
        assert_eq!(taken(&doorbells), rung);
        assert_eq!(taken(&doorbells), []);
    }

    #[test]
    fn doorbell_before_a_wait_ends_it_until_it_is_taken() {
        let doorbells = Doorbells::new().unwrap();
        doorbells.wake_worker();
        doorbells.wait(None, None);
        assert_eq!(taken(&doorbells), []);
        let until = Instant::now() + Duration::from_millis(2);
        doorbells.wait(None, Some(until));
        assert!(Instant::now() >= until && !doorbells.is_stopped());
    }

    #[test]
    fn waiting_worker_is_woken_by_each_source_and_stopped() {
        let doorbells = Doorbells::new().unwrap();
        let other = EventFd::new().unwrap();
        std::thread::scope(|scope| {
            let wakes: [&dyn Fn(); 3] = [&|| other.signal(), &|| doorbells.wake_worker(), &|| {
                doorbells.stop()
            }];
            for wake in wakes {
                let waiting = scope.spawn(|| doorbells.wait(Some(other.as_fd()), None));
                wake();
                waiting.join().unwrap();
                other.take();
                taken(&doorbells);
            }
        });
        assert!(doorbells.is_stopped());
    }

    #[test]
    fn signal_that_comes_late_ends_one_wait_only() {
        let doorbells = Doorbells::new().unwrap();
        doorbells.event.signal();
        doorbells.wait(None, None);
        let until = Instant::now() + Duration::from_millis(2);
        doorbells.wait(None, Some(until));
        assert!(Instant::now() >= until);
    }
}
