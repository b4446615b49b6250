//! Data that is written once the guest has taken its completion: a fault, see [`crate::late_data`].

use std::collections::VecDeque;

use crate::late_data::LateData;

/// Data that follows completions of one queue, in the order of the completions.
#[derive(Default)]
pub(crate) struct LateWrites(VecDeque<(u64, Box<LateData>)>);

impl LateWrites {
    /// Keeps data until the guest has taken `taken` entries since the queue was created.
    pub(super) fn keep(&mut self, taken: u64, data: Box<LateData>) {
        self.0.push_back((taken, data));
    }

    /// Returns `true` if there is no such data.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns `true` if data is due once the guest has taken `taken` entries.
    pub(super) fn is_due(&self, taken: u64) -> bool {
        self.0.front().is_some_and(|(at, _)| *at <= taken)
    }

    /// Takes data that is due.
    pub(super) fn take_due(&mut self, taken: u64) -> Option<Box<LateData>> {
        self.is_due(taken)
            .then(|| self.0.pop_front())?
            .map(|(_, data)| data)
    }

    /// Drops the data of a submission queue.
    pub(super) fn drop_submission(&mut self, id: u16) {
        self.0.retain(|(_, data)| data.queue != id);
    }
}

#[cfg(test)]
mod tests {
    use peerbar_dma::Origin;
    use peerbar_nvme_spec::feature::InterruptCoalescing;
    use peerbar_nvme_spec::registers::Doorbell;

    use super::*;
    use crate::doorbell_page::Owner;
    use crate::io_queue::completion::CompletionQueue;
    use crate::io_queue::fixture::{self, TwoWords, completion_queue, flush, stage};
    use crate::io_queue::interrupt::QueueInterrupts;
    use crate::late_data::Slots;

    const ENTRIES: u32 = 3;

    fn data(submission: u16) -> Box<LateData> {
        Box::new(LateData {
            queue: submission,
            origin: Origin::command(submission, 0_u16),
            ranges: Vec::new(),
            bytes: Vec::new(),
            slot: Slots::default().take().unwrap(),
        })
    }

    fn post(queue: &mut CompletionQueue, interrupts: &QueueInterrupts) {
        stage(queue);
        flush(queue, interrupts).unwrap();
    }

    /// The guest takes all entries before this slot.
    fn take(queue: &mut CompletionQueue, interrupts: &QueueInterrupts, head: u32) {
        let register = Doorbell::CompletionHead(queue.id);
        let notifier = interrupts.notifier.clone();
        notifier.doorbells.set_owner(register, Some(Owner(1)));
        notifier.ring(register, head);
        queue.take_head(interrupts, &mut TwoWords::default());
    }

    #[test]
    fn data_is_due_once_its_completion_is_taken_and_stays_so() {
        let (interrupts, _) = fixture::interrupts(InterruptCoalescing::new());
        let mut queue = completion_queue(&interrupts, 1, (0x2000, ENTRIES));
        post(&mut queue, &interrupts);
        post(&mut queue, &interrupts);
        assert!(queue.late_writes.is_empty() && !queue.has_late_due());
        queue.keep_late(data(7));
        take(&mut queue, &interrupts, 1);
        assert!(!queue.late_writes.is_empty() && !queue.has_late_due());
        assert!(queue.take_late().is_none());
        // The ring wraps around: the slot of the completion is in use again.
        for head in [2, 0, 1, 2] {
            take(&mut queue, &interrupts, head);
            assert!(queue.has_late_due(), "head {head}");
            post(&mut queue, &interrupts);
        }
        assert_eq!(queue.take_late().map(|data| data.queue), Some(7));
        assert!(queue.late_writes.is_empty());
    }

    #[test]
    fn data_is_dropped_with_its_submission_queue() {
        let (interrupts, _) = fixture::interrupts(InterruptCoalescing::new());
        let mut queue = completion_queue(&interrupts, 1, (0x2000, ENTRIES));
        queue.keep_late(data(7));
        queue.keep_late(data(8));
        queue.late_writes.drop_submission(7);
        assert_eq!(queue.take_late().map(|data| data.queue), Some(8));
        assert!(queue.take_late().is_none());
    }
}
