//! How many commands the guest has with us: what tells whether they may wait for one another.

use std::time::Instant;

use peerbar_nvme_spec::registers::Doorbell;

use super::Worker;

impl Worker {
    /// Whether the commands that there are wait for no others.
    pub(super) fn have_gathered(&mut self) -> bool {
        if !self.pace.gathers() || self.finish.is_some() {
            return true;
        }
        let waiting = self.waiting();
        self.take_heads();
        let at_leisure = self.outbox.left() == 0;
        self.pace.have_gathered(waiting, at_leisure, Instant::now)
    }

    /// How many commands the guest has submitted that have not been fetched, to the queue that has most.
    fn waiting(&mut self) -> u32 {
        let mut waiting: u32 = 0;
        for index in 0..self.sources.len() {
            let id = self.sources.get(index).map(|source| source.id);
            let tail = id.and_then(|id| self.value(Doorbell::SubmissionTail(id)));
            if let (Some(tail), Some(source)) = (tail, self.sources.get(index)) {
                waiting = waiting.max(source.queue.waiting(tail));
            }
        }
        self.io.data.session.release();
        waiting
    }

    /// Whether the guest has more than one command with us, be it one whose completion it has not taken. Never of a guest
    /// that rings for each: it is not seen what that does.
    pub(super) fn has_several(&mut self) -> bool {
        if self.shadow.is_none() {
            return false;
        }
        self.take_heads();
        let under_way: usize = self.sources.iter().map(|source| source.under_way).sum();
        self.outbox.left().saturating_add(under_way) > 1
    }
}
