//! The I/O queues that exist, and the worker of each.

use crate::doorbell_page::Owner;

/// An I/O completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompletionOwner {
    /// The worker that owns the queue, and every submission queue bound to it.
    pub(crate) owner: Owner,
    /// Number of submission queues bound to the queue.
    pub(crate) users: u16,
}

/// The I/O queues by number. Slot 0 is always free: the admin queues belong to the engine.
#[derive(Debug)]
pub(crate) struct Directory {
    /// The completion queue that each submission queue is bound to.
    pub(crate) submission: Vec<Option<u16>>,
    pub(crate) completion: Vec<Option<CompletionOwner>>,
    workers: u8,
}

impl Directory {
    /// Makes a directory for `pairs` queue pairs, the admin queues included, and `workers` workers.
    pub(crate) fn new(pairs: u16, workers: u8) -> Self {
        let pairs = usize::from(pairs);
        Self {
            submission: vec![None; pairs],
            completion: vec![None; pairs],
            workers: workers.max(1),
        }
    }

    /// Forgets every queue.
    pub(crate) fn clear(&mut self) {
        self.submission.fill(None);
        self.completion.fill(None);
    }

    /// Returns `true` if any queue exists.
    pub(crate) fn has_queues(&self) -> bool {
        self.completion.iter().any(Option::is_some)
    }

    /// Returns the worker for completion queue number `completion`, whether the queue exists or
    /// not.
    pub(crate) fn owner(&self, completion: u16) -> Owner {
        let index = completion.saturating_sub(1) % u16::from(self.workers);
        Owner(u8::try_from(index + 1).unwrap_or(1))
    }

    /// Returns the slot of submission queue `id`, or `None` if the number is out of range.
    pub(crate) fn submission(&mut self, id: u16) -> Option<&mut Option<u16>> {
        self.submission.get_mut(usize::from(id))
    }

    /// Returns the slot of completion queue `id`, or `None` if the number is out of range.
    pub(crate) fn completion(&mut self, id: u16) -> Option<&mut Option<CompletionOwner>> {
        self.completion.get_mut(usize::from(id))
    }

    /// Returns the completion queue `id`, if it exists.
    pub(crate) fn existing(&mut self, id: u16) -> Option<&mut CompletionOwner> {
        self.completion(id).and_then(Option::as_mut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_assigned_to_the_workers_in_turn() {
        let owners = |workers| {
            let directory = Directory::new(5, workers);
            [1, 2, 3, 4].map(|id| directory.owner(id).0)
        };
        assert_eq!(owners(1), [1, 1, 1, 1]);
        assert_eq!(owners(3), [1, 2, 3, 1]);
    }
}
