//! Work requests of a send queue that are in progress.

use std::time::Instant;

use peerbar_efa_spec::completion::CompletionStatus;

use super::packet::Verb;
use super::staging::Slot;
use super::work_request::{BadRequest, Data, Part, WorkRequest};
use crate::objects::Gid;

/// How many work requests of a queue pair are in progress at most, besides those that wait for a receive of their destinations:
/// these hold up no others.
pub(super) const WINDOW: usize = 16;

/// A work request in progress.
#[derive(Debug)]
pub(crate) struct Job {
    pub(super) request: WorkRequest,
    /// Tells it from all others of the adapter.
    pub(super) id: u64,
    /// How many requests of its queue pair were taken before, modulo 2^16.
    pub(super) number: u16,
    /// How many of its bytes have been moved.
    pub(super) moved: u32,
    /// How often the destination had no receive.
    pub(super) not_ready: u8,
    pub(super) wait: Wait,
    /// It cannot be carried out.
    pub(super) refusal: Option<CompletionStatus>,
    pub(super) remote: Remote,
}

/// What a work request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Its turn.
    Turn,
    /// This moment.
    Until(Instant),
    /// An answer of another adapter.
    Answer,
}

/// How far a work request to another adapter has come.
#[derive(Debug, Default)]
pub(super) struct Remote {
    /// The adapter, once it has begun.
    pub(super) gid: Option<Gid>,
    /// A packet that could not be sent yet.
    pub(super) unsent: Option<Unsent>,
    /// Since when no packet could be sent. `None` once one was.
    pub(super) busy_since: Option<Instant>,
    /// How many of its bytes have been asked for, or sent.
    pub(super) sent: u32,
    /// Something has been sent.
    pub(super) has_begun: bool,
    /// Its next part waits for a free slot.
    pub(super) needs_slot: bool,
    /// Parts whose slots could not be used, which go in packets.
    pub(super) again: Vec<Part>,
    /// How many packets are not answered.
    pub(super) outstanding: u16,
    /// Its message has arrived.
    pub(super) is_received: bool,
    /// The announcement of a write has been sent, and has arrived.
    pub(super) is_announcing: bool,
    pub(super) is_announced: bool,
    /// The destination counts the transfer once all of it is done, and has been told that it is.
    pub(super) is_counted: bool,
    pub(super) is_reported: bool,
    /// The first failure. It is over once no packet is outstanding.
    pub(super) failure: Option<CompletionStatus>,
}

impl Job {
    pub(super) fn new(request: WorkRequest, id: u64, number: u16) -> Self {
        Self {
            request,
            id,
            number,
            moved: 0,
            not_ready: 0,
            wait: Wait::Turn,
            refusal: None,
            remote: Remote::default(),
        }
    }

    /// The job of a request that cannot be carried out.
    pub(super) fn refused(bad: &BadRequest, id: u64, number: u16) -> Self {
        Self {
            refusal: Some(bad.status),
            ..Self::new(bad.request(), id, number)
        }
    }

    /// Whether it waits until all requests before it are over, and holds up all behind it: it changes what their keys mean.
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

/// A packet of a work request, with what it is and the part that it is about.
#[derive(Debug)]
pub(super) struct Unsent {
    pub(super) verb: Verb,
    pub(super) part: Part,
    pub(super) data: Vec<u8>,
    /// The slot of its payload.
    pub(super) slot: Option<Slot>,
    /// The part was sent before, through a slot that could not be used.
    pub(super) is_repeated: bool,
}

/// The work requests of one queue pair in progress, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Jobs(Vec<Job>);

impl Jobs {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether no more may begin, of a queue with this number of entries: an entry belongs to its request until that is over, also where a
    /// driver uses it before.
    pub(super) fn is_full(&self, entries: u16) -> bool {
        if self.0.len() >= usize::from(entries) {
            return true;
        }
        let holds_up =
            |job: &&Job| job.remote.busy_since.is_some() || !matches!(job.wait, Wait::Until(_));
        self.0.iter().filter(holds_up).count() >= WINDOW
    }

    /// The jobs that no barrier holds up.
    fn free(&self) -> &[Job] {
        let barrier = self.0.iter().position(Job::is_barrier);
        let count = barrier.map_or(self.0.len(), |barrier| barrier.max(1));
        self.0.get(..count).unwrap_or(&self.0)
    }

    /// The numbers of the work requests at their queue pair.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u16> {
        self.0.iter().map(|job| job.number)
    }

    pub(super) fn add(&mut self, job: Job) {
        self.0.push(job);
    }

    /// Takes out a job that may be continued now, with its index. Of several, `choose` gets their number and picks one.
    pub(super) fn take(
        &mut self,
        now: Instant,
        choose: impl FnOnce(usize) -> usize,
    ) -> Option<(usize, Job)> {
        let due = (0..).zip(self.free()).filter(|(_, job)| job.is_due(now));
        let due: Vec<usize> = due.map(|(index, _)| index).collect();
        let index = *due.get(choose(due.len()))?;
        Some((index, self.0.remove(index)))
    }

    /// Has the first job that waits for a slot to this adapter try again. Returns `true` if there is one.
    pub(super) fn wake_slot_waiter(&mut self, gid: Gid) -> bool {
        let waits = |job: &&mut Job| {
            job.remote.needs_slot && job.remote.gid == Some(gid) && job.wait == Wait::Answer
        };
        let Some(job) = self.0.iter_mut().find(waits) else {
            return false;
        };
        job.wait = Wait::Turn;
        true
    }

    /// Takes out this job. Where it was.
    pub(super) fn take_one(&mut self, id: u64) -> Option<(usize, Job)> {
        let index = self.0.iter().position(|job| job.id == id)?;
        Some((index, self.0.remove(index)))
    }

    /// Puts a job back to where it was.
    pub(super) fn put_back(&mut self, index: usize, job: Job) {
        self.0.insert(index.min(self.0.len()), job);
    }

    /// Takes out all of them.
    pub(super) fn take_all(&mut self) -> Vec<Job> {
        std::mem::take(&mut self.0)
    }

    /// When the next one may be continued. `None` if none may before an answer.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
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
    use peerbar_efa_spec::work::Operation;

    use super::*;
    use crate::data::work_request::RequestId;

    #[test]
    fn jobs_that_wait_for_a_receive_leave_the_window_to_others() {
        let bad = BadRequest {
            id: RequestId {
                low: 0,
                high: [0; 3],
            },
            operation: Operation::Send,
            status: CompletionStatus::LocalBadLength,
        };
        let now = Instant::now();
        let mut jobs = Jobs::default();
        let mut add = |wait, count| {
            for id in 0..count {
                let job = Job::refused(&bad, id, 0);
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
