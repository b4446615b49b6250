//! The state that a worker's queues share.

use peerbar_dma::BusMastering;
use peerbar_nvme_spec::completion::CompletionEntry;

use super::completion::CompletionQueue;
use super::interrupt::{Next, QueueInterrupts};
use super::submission::Batch;
use crate::io::Io;
use crate::notifier::Notifier;
use crate::registers::Registers;

/// The most commands of one queue that are fetched before the next queue's turn.
const BATCH: usize = 32;

/// The shared state: the path to data, interrupts, and a batch of commands.
pub(crate) struct Context {
    pub(super) io: Io,
    pub(super) interrupts: QueueInterrupts,
    pub(super) batch: Batch,
    /// The state of bus mastering when the worker's present step began.
    bus: BusMastering,
}

impl Context {
    pub(super) fn new(io: Io, interrupts: QueueInterrupts) -> Self {
        Self {
            io,
            interrupts,
            batch: Batch::new(BATCH),
            bus: BusMastering::default(),
        }
    }

    /// Reads bus mastering. Returns `true` if it has been turned on since the last call.
    pub(super) fn follow_bus(&mut self) -> bool {
        self.bus.follow(self.io.data.requester())
    }

    /// Returns `true` if commands, completions and interrupts wait until bus mastering is on.
    pub(super) fn is_held(&self) -> bool {
        !self.bus.is_on()
    }

    pub(super) fn notifier(&self) -> &Notifier {
        &self.interrupts.notifier
    }

    /// Returns `true` if no command may be fetched and those in progress must be dropped.
    pub(super) fn is_quiet(&self) -> bool {
        self.notifier().quiet()
    }

    /// Writes the staged completions to their queue, where the guest sees them.
    pub(super) fn flush(&mut self, completions: &mut CompletionQueue) {
        self.io.settle();
        if self.is_held() {
            return;
        }
        let data = &mut self.io.data;
        let flushed = completions.flush(&self.interrupts, |tag, address, bytes| {
            data.write_entries(tag, address, bytes, size_of::<CompletionEntry>())
        });
        if flushed.is_err() {
            self.fail(completions.id, "completions cannot be posted");
        }
    }

    /// Writes the late data of a queue whose completion the guest has taken. Returns `true` if
    /// there was any.
    pub(super) fn write_late_data(&mut self, completions: &mut CompletionQueue) -> bool {
        if completions.late_writes.is_empty() {
            return false;
        }
        completions.take_head(&self.interrupts, &mut self.io.data.session);
        let mut any = false;
        while let Some(late) = completions.take_late() {
            any = true;
            if let Err(error) = self.io.data.write_late(&late) {
                log::debug!("queue {}: data after its completion: {error}", late.queue);
            }
        }
        any
    }

    /// Makes the guest ring when it takes a completion that is followed by late data. Returns
    /// `true` if it has not taken any such completion yet.
    pub(super) fn arm_late_data(&mut self, completions: &mut CompletionQueue) -> bool {
        if !completions.late_writes.is_empty() {
            // A doorbell that is not mapped is detected when the submission queue is armed.
            let _ = completions.arm(&self.interrupts, &mut self.io.data.session);
        }
        !completions.has_late_due()
    }

    /// Raises the interrupt for the flushed completions, if it is due.
    pub(super) fn signal(&mut self, completions: &mut CompletionQueue, next: Next) {
        if self.is_held() {
            return;
        }
        let session = &mut self.io.data.session;
        completions.take_answer(&self.interrupts, session);
        session.release();
        completions.signal(&self.interrupts, next);
    }

    /// Frees the entries that the guest has taken, if few are free. If no entry is free, the guest
    /// rings when it takes one.
    pub(super) fn free_entries(&mut self, completions: &mut CompletionQueue) {
        let (interrupts, session) = (&self.interrupts, &mut self.io.data.session);
        let has_few = |free| usize::try_from(free).is_ok_and(|free| free < BATCH);
        if has_few(completions.free_entries()) {
            completions.take_head(interrupts, session);
        }
        if completions.free_entries() == 0 && completions.arm(interrupts, session).is_err() {
            self.fail(completions.id, "its doorbell is not mapped");
        }
    }

    /// Fails the controller because a queue cannot be reached, unless the cause may be that bus
    /// mastering is off. In that case the worker is notified once it is on.
    pub(super) fn fail(&mut self, queue: u16, cause: &str) {
        self.io.data.session.release();
        log::debug!("queue {queue}: {cause}");
        if self.bus.has_changed(self.io.data.requester()) {
            return;
        }
        self.notifier().report(Registers::fatal);
    }
}
