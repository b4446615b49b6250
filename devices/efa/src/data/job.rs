//! Work requests of a send queue that are in progress.

use std::time::Instant;

use super::work_request::WorkRequest;

/// How many work requests of a queue pair are in progress at most.
pub(super) const WINDOW: usize = 16;

/// A work request in progress.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(super) request: WorkRequest,
    /// How many requests of its queue pair were taken before, modulo 2^16.
    pub(super) number: u16,
    /// How many of its bytes have been moved.
    pub(super) moved: u32,
    /// How often the destination had no receive.
    pub(super) not_ready: u8,
    /// It is not continued before.
    pub(super) not_before: Option<Instant>,
}

impl Job {
    pub(super) fn new(request: WorkRequest, number: u16) -> Self {
        Self {
            request,
            number,
            moved: 0,
            not_ready: 0,
            not_before: None,
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|until| until <= now)
    }
}

/// The work requests of one queue pair in progress, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Jobs(Vec<Job>);

impl Jobs {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= WINDOW
    }

    pub(super) fn add(&mut self, job: Job) {
        self.0.push(job);
    }

    /// Takes out a job that may be continued now: the first one, or the one that `choose` takes of so many. Where it was.
    pub(super) fn take(
        &mut self,
        now: Instant,
        choose: impl FnOnce(usize) -> usize,
    ) -> Option<(usize, Job)> {
        let due = (0..).zip(&self.0).filter(|(_, job)| job.is_due(now));
        let due: Vec<usize> = due.map(|(index, _)| index).collect();
        let index = *due.get(choose(due.len()))?;
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

    /// When the next one may be continued. `None` if there is none.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let due = self.0.iter().map(|job| job.not_before.unwrap_or(now));
        due.min()
    }
}
