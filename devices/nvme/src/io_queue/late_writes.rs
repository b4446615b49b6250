//! Data that are written once the guest has taken their completions: a fault, see [`crate::late_data`].

use super::completion::CompletionQueue;
use crate::late_data::LateData;

/// The data that a worker has left to write.
#[derive(Default)]
pub(crate) struct LateWrites(Vec<Waiting>);

struct Waiting {
    /// The completion queue of their command.
    queue: u16,
    /// How many entries the guest has taken from it once it has taken that of the command.
    taken: u64,
    data: Box<LateData>,
}

impl LateWrites {
    /// Keeps data until the guest has taken the completion that was staged last in this queue.
    pub(super) fn keep(&mut self, queue: &CompletionQueue, data: Box<LateData>) {
        self.0.push(Waiting {
            queue: queue.id,
            taken: queue.taken_with_last(),
            data,
        });
    }

    /// Whether data follow a completion of this queue.
    pub(super) fn wait_for(&self, queue: &CompletionQueue) -> bool {
        self.0.iter().any(|waiting| waiting.queue == queue.id)
    }

    /// The index of data whose completion the guest has taken from this queue.
    fn due(&self, queue: &CompletionQueue) -> Option<usize> {
        let is_due = |of: &Waiting| of.queue == queue.id && of.taken <= queue.taken();
        self.0.iter().position(is_due)
    }

    /// Whether the guest has taken a completion from this queue that data follow.
    pub(super) fn is_due(&self, queue: &CompletionQueue) -> bool {
        self.due(queue).is_some()
    }

    /// Takes data whose completion the guest has taken from this queue.
    pub(super) fn take_due(&mut self, queue: &CompletionQueue) -> Option<Box<LateData>> {
        self.due(queue).map(|index| self.0.remove(index).data)
    }

    /// Drops the data of a submission queue.
    pub(super) fn drop_submission(&mut self, id: u16) {
        self.0.retain(|waiting| waiting.data.queue != id);
    }

    /// Drops all data.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use peerbar_dma::Origin;
    use peerbar_nvme_spec::feature::InterruptCoalescing;
    use peerbar_nvme_spec::registers::Doorbell;

    use super::*;
    use crate::doorbell_page::Owner;
    use crate::io_queue::fixture::{self, TwoWords, completion_queue, flush, stage};
    use crate::io_queue::interrupt::QueueInterrupts;
    use crate::late_data::Slots;

    const ENTRIES: u32 = 3;

    fn data(submission: u16) -> Box<LateData> {
        Box::new(LateData {
            queue: submission,
            origin: Origin::command(submission, 0_u16),
            places: Vec::new(),
            bytes: Vec::new(),
            slot: Slots::default().take().unwrap(),
        })
    }

    fn post(queue: &mut CompletionQueue, interrupts: &mut QueueInterrupts) {
        stage(queue);
        flush(queue, interrupts).unwrap();
    }

    /// The guest takes all entries before this slot.
    fn take(queue: &mut CompletionQueue, interrupts: &mut QueueInterrupts, head: u32) {
        let register = Doorbell::CompletionHead(queue.id);
        let notifier = interrupts.notifier.clone();
        notifier.doorbells.set_owner(register, Some(Owner(1)));
        notifier.ring(register, head);
        queue.take_head(interrupts, &mut TwoWords::default());
    }

    #[test]
    fn data_are_due_once_their_completion_is_taken_and_stay_so() {
        let (mut interrupts, _) = fixture::interrupts(InterruptCoalescing::new());
        let mut queue = completion_queue(&interrupts, 1, (0x2000, ENTRIES));
        let mut other = completion_queue(&interrupts, 2, (0x3000, ENTRIES));
        let mut late = LateWrites::default();
        post(&mut queue, &mut interrupts);
        post(&mut queue, &mut interrupts);
        late.keep(&queue, data(7));
        post(&mut other, &mut interrupts);
        post(&mut other, &mut interrupts);
        take(&mut other, &mut interrupts, 2);
        assert!(
            !late.is_due(&other),
            "they follow no completion of this queue"
        );
        take(&mut queue, &mut interrupts, 1);
        assert!(late.wait_for(&queue) && !late.is_due(&queue));
        // The queue goes around: the slot of the completion is in use again.
        for head in [2, 0, 1, 2] {
            take(&mut queue, &mut interrupts, head);
            assert!(late.is_due(&queue), "head {head}");
            post(&mut queue, &mut interrupts);
        }
        assert!(!late.wait_for(&other) && late.take_due(&other).is_none());
        assert_eq!(late.take_due(&queue).map(|data| data.queue), Some(7));
        assert!(!late.wait_for(&queue));
    }

    #[test]
    fn data_are_dropped_with_their_submission_queue() {
        let (interrupts, _) = fixture::interrupts(InterruptCoalescing::new());
        let queue = completion_queue(&interrupts, 1, (0x2000, ENTRIES));
        let mut late = LateWrites::default();
        late.keep(&queue, data(7));
        late.keep(&queue, data(8));
        late.drop_submission(7);
        assert_eq!(late.take_due(&queue).map(|data| data.queue), Some(8));
        assert!(late.take_due(&queue).is_none());
    }
}
