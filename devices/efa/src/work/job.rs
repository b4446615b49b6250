//! Work requests of a send queue that are in progress.

use std::time::Instant;

use peerbar_efa_spec::completion::CompletionStatus;

use peerbar_fabric::Gid;

use super::packet::Verb;
use super::request::{Data, Part, WorkRequest};
use super::staging::Slot;

/// Limit of a queue pair's work requests in progress. Those that wait for a receive of their
/// destinations do not count: they delay no others.
pub(crate) const WINDOW: usize = 16;

/// A work request in progress.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) request: WorkRequest,
    /// Unique among the adapter's jobs.
    pub(crate) id: u64,
    /// Number of earlier requests of its queue pair, modulo 2^16.
    pub(crate) number: u16,
    /// Number of bytes that have been moved.
    pub(crate) moved: u32,
    /// Number of times that the destination had no receive.
    pub(crate) not_ready: u8,
    pub(crate) wait: Wait,
    pub(crate) remote: Remote,
}

/// The event that a work request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Its turn.
    Turn,
    /// This time.
    Until(Instant),
    /// An answer of another adapter.
    Answer,
}

/// The progress of a work request to another adapter.
#[derive(Debug, Default)]
pub(crate) struct Remote {
    /// The adapter, once the request has begun.
    pub(crate) gid: Option<Gid>,
    pub(crate) sending: Sending,
    /// Number of bytes that have been requested or sent, or `None` if nothing has been sent: an
    /// empty transfer is one part, too.
    pub(crate) sent: Option<u32>,
    /// Parts whose slots could not be used, and which go in packets.
    pub(crate) again: Vec<Part>,
    /// Number of unanswered packets.
    pub(crate) outstanding: u16,
    /// `true` if the destination counts the transfer once all of it is done.
    pub(crate) is_counted: bool,
    /// `true` if the destination has been told that all of it is done.
    pub(crate) is_reported: bool,
}

/// The state of a work request that sends packets to another adapter.
#[derive(Debug, Default)]
pub(crate) enum Sending {
    /// Its next packet may be sent.
    #[default]
    Ready,
    /// This packet could not be sent yet, and none could since this time.
    Busy {
        packet: PendingPacket,
        since: Instant,
    },
    /// Its next part waits for a free slot.
    NeedsSlot,
    /// It has failed, and ends once no packet is outstanding.
    Failed(CompletionStatus),
}

/// The state of a work request after a step.
pub(crate) enum Step {
    /// There is more to move.
    Again,
    /// It continues after this event.
    After(Wait),
    /// It has ended.
    Done(CompletionStatus),
}

impl Remote {
    /// Notes a failure, unless there was one before. The request ends once its packets are
    /// answered: none of them has an effect afterwards.
    pub(crate) fn fail(&mut self, status: CompletionStatus) -> Step {
        if !matches!(self.sending, Sending::Failed(_)) {
            self.sending = Sending::Failed(status);
        }
        self.ended()
    }

    /// Returns the next step of a request that has nothing to send.
    pub(crate) fn ended(&self) -> Step {
        match self.sending {
            _ if self.outstanding > 0 => Step::After(Wait::Answer),
            Sending::Failed(status) => Step::Done(status),
            _ => Step::Done(CompletionStatus::Ok),
        }
    }
}

impl Job {
    pub(crate) fn new(request: WorkRequest, id: u64, number: u16) -> Self {
        Self {
            request,
            id,
            number,
            moved: 0,
            not_ready: 0,
            wait: Wait::Turn,
            remote: Remote::default(),
        }
    }

    /// Returns `true` if it waits until all earlier requests have ended, and delays all later ones,
    /// because it changes the meaning of their keys.
    fn is_barrier(&self) -> bool {
        matches!(self.request.data, Data::Register(_) | Data::Invalidate(_))
    }

    fn is_due(&self, now: Instant) -> bool {
        match self.wait {
            Wait::Turn => true,
            Wait::Until(until) => until <= now,
            Wait::Answer => false,
        }
    }
}

/// A packet of a work request, and the part that it concerns.
#[derive(Debug)]
pub(crate) struct PendingPacket {
    pub(crate) verb: Verb,
    pub(crate) part: Part,
    pub(crate) data: Vec<u8>,
    /// The slot of its payload.
    pub(crate) slot: Option<Slot>,
}

/// A queue pair's work requests in progress, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Jobs(Vec<Job>);

impl Jobs {
    /// Returns `true` if there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns `true` if no more may begin. The queue has this number of entries, and an entry
    /// belongs to its request until that ends, even if a driver reuses it earlier.
    pub(crate) fn is_full(&self, entries: u16) -> bool {
        if self.0.len() >= usize::from(entries) {
            return true;
        }
        let holds_up = |job: &&Job| {
            matches!(job.remote.sending, Sending::Busy { .. })
                || !matches!(job.wait, Wait::Until(_))
        };
        self.0.iter().filter(holds_up).count() >= WINDOW
    }

    /// Returns the jobs that no barrier delays.
    fn free(&self) -> &[Job] {
        let barrier = self.0.iter().position(Job::is_barrier);
        let count = barrier.map_or(self.0.len(), |barrier| barrier.max(1));
        self.0.get(..count).unwrap_or(&self.0)
    }

    /// Returns the numbers of the work requests at their queue pair.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u16> {
        self.0.iter().map(|job| job.number)
    }

    pub(crate) fn add(&mut self, job: Job) {
        self.0.push(job);
    }

    /// Takes a job that may continue now, and returns it with its index. `choose` gets the number
    /// of such jobs and picks one.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        choose: impl FnOnce(usize) -> usize,
    ) -> Option<(usize, Job)> {
        let due = (0..).zip(self.free()).filter(|(_, job)| job.is_due(now));
        let due: Vec<usize> = due.map(|(index, _)| index).collect();
        let index = *due.get(choose(due.len()))?;
        Some((index, self.0.remove(index)))
    }

    /// Lets the first job that waits for a slot to this adapter try again. Returns `true` if there
    /// is one.
    pub(crate) fn wake_slot_waiter(&mut self, gid: Gid) -> bool {
        let waits = |job: &&mut Job| {
            matches!(job.remote.sending, Sending::NeedsSlot)
                && job.remote.gid == Some(gid)
                && job.wait == Wait::Answer
        };
        let Some(job) = self.0.iter_mut().find(waits) else {
            return false;
        };
        job.wait = Wait::Turn;
        true
    }

    /// Takes this job, and returns it with its index.
    pub(crate) fn take_one(&mut self, id: u64) -> Option<(usize, Job)> {
        let index = self.0.iter().position(|job| job.id == id)?;
        Some((index, self.0.remove(index)))
    }

    /// Puts a job back to its place.
    pub(crate) fn put_back(&mut self, index: usize, job: Job) {
        self.0.insert(index.min(self.0.len()), job);
    }

    /// Takes all jobs.
    pub(crate) fn take_all(&mut self) -> Vec<Job> {
        std::mem::take(&mut self.0)
    }

    /// Returns the time at which the next job may continue, or `None` if none may before an answer.
    pub(crate) fn next_due(&self, now: Instant) -> Option<Instant> {
        let due = self.free().iter().filter_map(|job| match job.wait {
            Wait::Turn => Some(now),
            Wait::Until(until) => Some(until),
            Wait::Answer => None,
        });
        due.min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_wait_for_a_receive_leave_the_window_to_others() {
        let now = Instant::now();
        let mut jobs = Jobs::default();
        let mut add = |wait, count| {
            for id in 0..count {
                let job = Job::new(WorkRequest::parse(&[]), id, 0);
                jobs.add(Job { wait, ..job });
            }
            jobs.is_full(u16::MAX)
        };
        let window = WINDOW as u64;
        assert!(!add(Wait::Until(now), 3 * window));
        assert!(!add(Wait::Answer, window - 1));
        assert!(add(Wait::Turn, 1));
    }
}
