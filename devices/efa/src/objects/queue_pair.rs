//! Queue pairs: their parameters and their numbers.

use std::collections::VecDeque;
use std::time::Instant;

use super::error::{ObjectError, ObjectKind};
use super::event_counter::{Attachment, QueuePairEvent};
use super::queue_pair_state::{QueuePairKind, QueuePairState};
use super::rings::Ring;
use super::slots::Slots;
use crate::limits;
use crate::work::job::{Job, Jobs, Wait};

/// Parameters of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct CreateQueuePair {
    /// Its transport.
    pub kind: QueuePairKind,
    /// Its protection domain.
    pub protection_domain: u16,
    /// The UAR of its doorbells.
    pub uar: u16,
    /// The completion queue of its send queue.
    pub send_completions: u32,
    /// The completion queue of its receive queue.
    pub receive_completions: u32,
    /// Number of entries of its send queue: a power of two, or 0 for no queue.
    pub send_entries: u32,
    /// Bytes of all entries of its send queue.
    pub send_bytes: u32,
    /// Address of its receive queue.
    pub receive_address: u64,
    /// Size of all descriptors of its receive queue in bytes: a power of two, or 0 for no queue.
    pub receive_bytes: u32,
    /// `true` if RDMA writes with immediate data consume no receive.
    pub unsolicited_writes: bool,
}

/// Changes of a queue pair. A field that is `None` leaves its value unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModifyQueuePair {
    /// Its state.
    pub state: Option<QueuePairState>,
    /// Its queue key.
    pub qkey: Option<u32>,
    /// The packet sequence number of its send queue, which is stored and not used.
    pub sq_psn: Option<u32>,
    /// Number of times that a message is sent again if there is no receive; 7 means without limit.
    pub rnr_retry: Option<u8>,
}

/// The attributes that a queue pair's driver can query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairAttributes {
    /// Its state.
    pub state: QueuePairState,
    /// Its queue key.
    pub qkey: u32,
    /// The packet sequence number of its send queue.
    pub sq_psn: u32,
    /// `true` if work requests from before the drain are in progress.
    pub is_draining: bool,
    /// Number of times that a message is sent again if there is no receive.
    pub rnr_retry: u8,
}

/// Number of slots that a UAR gets before it gets one of them again.
const SLOTS_BEFORE_REUSE: usize = 4;

/// Default number of times that a message is sent again if there is no receive.
pub(super) const DEFAULT_RNR_RETRY: u8 = 3;
/// The largest such number, which means without limit.
pub(crate) const ENDLESS_RNR_RETRY: u8 = 7;

/// A queue pair.
pub(crate) struct QueuePair {
    pub(crate) number: u16,
    pub(crate) kind: QueuePairKind,
    pub(crate) protection_domain: u16,
    pub(crate) uar: u16,
    pub(crate) send_completions: u16,
    pub(crate) receive_completions: u16,
    pub(crate) unsolicited_writes: bool,
    pub(crate) state: QueuePairState,
    pub(crate) qkey: u32,
    pub(super) sq_psn: u32,
    pub(crate) rnr_retry: u8,
    pub(crate) send: Ring,
    pub(crate) receive: Ring,
    /// The event counters that count its events.
    pub(super) counters: Vec<Attachment>,
    /// The work requests of the send queue that are in progress.
    pub(crate) jobs: Jobs,
}

/// A work request that was dropped: the number of its queue pair, and its own number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DroppedRequest {
    pub(crate) pair: u16,
    pub(crate) request: u16,
}

impl QueuePair {
    /// Returns the requests that are dropped if the queue pair ends now.
    pub(super) fn requests_in_progress(&self) -> impl Iterator<Item = DroppedRequest> {
        let requests = self.jobs.numbers();
        requests.map(|request| DroppedRequest {
            pair: self.number,
            request,
        })
    }

    /// Returns the event counter of an event.
    pub(crate) fn counter_of(&self, event: QueuePairEvent) -> Option<u16> {
        let mut attached = self.counters.iter();
        let counted = attached.find(|it| it.events & event.bit() != 0);
        counted.map(|it| it.counter)
    }

    /// Returns `true` if an event counter is attached.
    pub(crate) fn has_counter(&self, number: u16) -> bool {
        self.counters.iter().any(|it| it.counter == number)
    }

    /// Returns `true` if its completions go to this queue.
    pub(crate) fn completes_in(&self, queue: u16) -> bool {
        [self.send_completions, self.receive_completions].contains(&queue)
    }
}

/// Returns the slot of the queue pair of this number.
pub(crate) fn slot(number: u16) -> u16 {
    number % limits::QUEUE_PAIRS
}

/// The queue pairs of an adapter.
pub(crate) struct QueuePairs {
    slots: Slots<QueuePair>,
    /// The generation of the next queue pair of each slot, which is part of its number.
    generations: Vec<u8>,
    /// The last UAR to use each slot of a send queue: its process may have the memory mapped until
    /// the UAR is released.
    send_queue_uars: Vec<Option<u16>>,
    /// Work requests in progress that were dropped with their queue pairs or by a reset.
    pub(super) dropped: Vec<DroppedRequest>,
    /// Numbers of the queue pairs that may have something to do, each once.
    ready: VecDeque<u16>,
}

impl QueuePairs {
    pub(super) fn new() -> Self {
        Self {
            slots: Slots::new(ObjectKind::QueuePair, limits::QUEUE_PAIRS),
            generations: vec![0; usize::from(limits::QUEUE_PAIRS)],
            send_queue_uars: vec![None; usize::from(limits::QUEUE_PAIRS)],
            dropped: Vec::new(),
            ready: VecDeque::new(),
        }
    }

    /// Removes all queue pairs. Their work requests in progress are dropped.
    pub(super) fn reset(&mut self) {
        let mut dropped = self.take_dropped();
        dropped.extend(self.iter().flat_map(QueuePair::requests_in_progress));
        *self = Self {
            generations: std::mem::take(&mut self.generations),
            dropped,
            ..Self::new()
        };
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &QueuePair> {
        self.slots.iter().map(|(_, pair)| pair)
    }

    /// Returns the queue pair of this number.
    pub(crate) fn get(&self, number: u16) -> Result<&QueuePair, ObjectError> {
        let pair = self.slots.get(slot(number)).ok();
        pair.filter(|pair| pair.number == number)
            .ok_or(ObjectError::unknown(ObjectKind::QueuePair, number))
    }

    /// Returns the queue pair of this number.
    pub(crate) fn get_mut(&mut self, number: u16) -> Result<&mut QueuePair, ObjectError> {
        let pair = self.slots.get_mut(slot(number)).ok();
        pair.filter(|pair| pair.number == number)
            .ok_or(ObjectError::unknown(ObjectKind::QueuePair, number))
    }

    /// Changes the queue pair of this slot, if there is one, which may then have something to do.
    pub(crate) fn change(&mut self, slot: u16, change: impl FnOnce(&mut QueuePair)) {
        if let Ok(pair) = self.slots.get_mut(slot) {
            change(pair);
            let number = pair.number;
            self.make_ready(number);
        }
    }

    /// Adds a queue pair of this UAR to a free slot.
    pub(super) fn put(&mut self, slot: u16, uar: u16, pair: QueuePair) {
        self.slots.put(slot, pair);
        if let Some(owner) = self.send_queue_uars.get_mut(usize::from(slot)) {
            *owner = Some(uar);
        }
    }

    /// Removes a queue pair. Its work requests in progress are dropped.
    pub(super) fn remove(&mut self, number: u16) -> Result<QueuePair, ObjectError> {
        self.get(number)?;
        let pair = self.slots.remove(slot(number))?;
        self.dropped.extend(pair.requests_in_progress());
        Ok(pair)
    }

    /// Releases the slots of a UAR.
    pub(super) fn release_uar(&mut self, uar: u16) {
        for owner in &mut self.send_queue_uars {
            owner.take_if(|owner| *owner == uar);
        }
    }

    /// Takes the work requests that were dropped.
    pub(crate) fn take_dropped(&mut self) -> Vec<DroppedRequest> {
        std::mem::take(&mut self.dropped)
    }

    /// Puts a work request back to its place, to continue after `wait`.
    pub(crate) fn put_back(&mut self, number: u16, index: usize, mut job: Job, wait: Wait) {
        job.wait = wait;
        if let Ok(pair) = self.get_mut(number) {
            pair.jobs.put_back(index, job);
        }
    }

    /// Puts a queue pair in error: posted requests are flushed.
    pub(crate) fn fail(&mut self, number: u16) {
        if let Ok(pair) = self.get_mut(number) {
            pair.state = QueuePairState::Error;
            self.make_ready(number);
        }
    }

    /// Puts all queue pairs for which `fails` holds in error.
    pub(crate) fn fail_those(&mut self, fails: impl Fn(&QueuePair) -> bool) {
        let failed = self.iter().filter(|pair| fails(pair));
        let failed: Vec<u16> = failed.map(|pair| pair.number).collect();
        failed.into_iter().for_each(|number| self.fail(number));
    }

    /// Marks a queue pair that may have something to do.
    pub(crate) fn make_ready(&mut self, number: u16) {
        if !self.ready.contains(&number) {
            self.ready.push_back(number);
        }
    }

    /// Marks a queue pair that may have something to do as the first to be served.
    pub(crate) fn make_ready_first(&mut self, number: u16) {
        self.ready.retain(|ready| *ready != number);
        self.ready.push_front(number);
    }

    /// Marks the queue pairs whose work requests may continue at `now`. Returns the time at which
    /// the first of the others may.
    pub(crate) fn make_due_ready(&mut self, now: Instant) -> Option<Instant> {
        let mut first: Option<Instant> = None;
        let sending = self.slots.iter().filter(|(_, pair)| pair.state.continues());
        for (_, pair) in sending {
            match pair.jobs.next_due(now) {
                Some(due) if due > now => first = Some(first.map_or(due, |first| first.min(due))),
                Some(_) if !self.ready.contains(&pair.number) => self.ready.push_back(pair.number),
                _ => {}
            }
        }
        first
    }

    /// Takes the queue pair that is served next.
    pub(crate) fn next_ready(&mut self) -> Option<u16> {
        self.ready.pop_front()
    }

    /// Returns `true` if a queue pair may have something to do.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns a free slot for a queue pair of this UAR: one that the UAR had before, or one
    /// without a UAR. A UAR gets several slots before it gets one again, so that numbers are reused
    /// late, and no process keeps more slots than it needs.
    pub(super) fn free_slot(&self, uar: u16) -> Result<u16, ObjectError> {
        let owner = |slot: u16| {
            let owner = self.send_queue_uars.get(usize::from(slot));
            owner.copied().flatten()
        };
        let own = || self.slots.free_number(|slot| owner(slot) == Some(uar));
        let fresh = || self.slots.free_number(|slot| owner(slot).is_none());
        let owners = self.send_queue_uars.iter();
        if owners.filter(|owner| **owner == Some(uar)).count() >= SLOTS_BEFORE_REUSE {
            own().or_else(|_| fresh())
        } else {
            fresh().or_else(|_| own())
        }
    }

    /// Returns the number of the next queue pair of this slot. Numbers are reused as late as
    /// possible.
    pub(super) fn next_number(&mut self, slot: u16) -> u16 {
        let Some(generation) = self.generations.get_mut(usize::from(slot)) else {
            return slot;
        };
        *generation = generation.checked_add(1).unwrap_or(1);
        u16::from(*generation) * limits::QUEUE_PAIRS + slot
    }
}
