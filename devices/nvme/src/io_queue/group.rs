//! Service of queues: fetches a batch of commands, executes them, flushes their completions and
//! interrupts.

use peerbar_dma::Origin;

use super::completion::CompletionQueue;
use super::context::Context;
use super::doorbell::QueueDoorbell;
use super::interrupt::Next;
use super::submission::{Batch, Command, SubmissionQueue};
use crate::ended::{Ended, Posting};

/// Staged completions are flushed once this many bytes have been copied since the last flush, and
/// after half of the batch.
pub(super) const WAIT_BYTES: u64 = 32 << 10;

/// A completion queue, and the submission queues that are bound to it.
pub(crate) struct QueueGroup {
    pub(super) completions: CompletionQueue,
    pub(super) submissions: Vec<SubmissionQueue>,
}

impl QueueGroup {
    /// Returns the doorbells of all its queues.
    pub(super) fn doorbells(&mut self) -> impl Iterator<Item = &mut QueueDoorbell> {
        let submissions = self.submissions.iter_mut();
        let tails = submissions.map(|queue| &mut queue.doorbell);
        std::iter::once(&mut self.completions.doorbell).chain(tails)
    }

    /// Returns the submission queue with number `id`, if it belongs to the group, and its
    /// completion queue.
    pub(super) fn queue(
        &mut self,
        id: u16,
    ) -> Option<(&mut SubmissionQueue, &mut CompletionQueue)> {
        let queue = self.submissions.iter_mut().find(|queue| queue.id == id)?;
        Some((queue, &mut self.completions))
    }

    /// Returns the number of commands that are outstanding: those that are not complete, and
    /// completions that the guest has not taken. Returns 0 without interrupts: a guest that polls
    /// has no interrupts to save.
    pub(super) fn outstanding(&self) -> usize {
        let fetched = self.submissions.iter().map(|queue| queue.outstanding);
        let unread = usize::try_from(self.completions.unread()).unwrap_or(usize::MAX);
        let all = fetched.sum::<usize>().saturating_add(unread);
        self.completions.vector().map_or(0, |_| all)
    }
}

impl SubmissionQueue {
    /// Executes a batch of commands, unless the queue is being deleted. Returns `true` if there
    /// were any. The queue shares the kernel's operations with the others of `queues` queues.
    pub(super) fn serve(
        &mut self,
        completions: &mut CompletionQueue,
        cx: &mut Context,
        queues: usize,
    ) -> bool {
        let (session, notifier) = (&mut cx.io.data.session, &cx.interrupts.notifier);
        let taken = self.take_tail(session, notifier, completions.vector());
        if taken.is_err() {
            cx.fail(self.id, "its doorbell is not mapped");
        }
        if taken.is_err() || !self.has_entries() || self.is_closing {
            return false;
        }
        let most = cx.io.free_operations(queues, self.outstanding);
        cx.free_entries(completions);
        if most > 0 && !cx.is_quiet() {
            let data = &mut cx.io.data;
            let read = |tag, address, bytes: &mut [u8]| data.read(tag, address, bytes);
            if self.fetch(completions, &mut cx.batch, most, read).is_err() {
                cx.fail(self.id, "commands cannot be fetched");
            }
        }
        let count = cx.batch.len();
        self.carry_out(completions, cx);
        cx.flush(completions);
        cx.signal(completions, Next::Work);
        count > 0
    }

    /// Executes the batch. The processor prefetches blocks of the next command while it copies
    /// those of the previous one.
    fn carry_out(&mut self, completions: &mut CompletionQueue, cx: &mut Context) {
        let mut batch = std::mem::replace(&mut cx.batch, Batch::new(0));
        let half = batch.len() / 2;
        for (number, command) in (1..).zip(batch.take()) {
            let Command { entry, permit, .. } = command;
            if number == 1 {
                cx.io.expect(Some(entry));
            }
            cx.io.expect(command.next);
            if cx.is_quiet() {
                // The command is dropped: the queue is forgotten before commands are fetched again.
                permit.expire();
                continue;
            }
            if let Some(ended) = cx.io.execute(self.id, entry, permit) {
                self.complete(completions, cx, ended);
            }
            // With half of a small batch the guest continues while the other half is executed.
            if number == half || cx.io.copied >= WAIT_BYTES {
                cx.flush(completions);
            }
        }
        cx.batch = batch;
    }

    /// Stages the completion of a command.
    #[inline(always)]
    pub(super) fn complete(
        &mut self,
        completions: &mut CompletionQueue,
        cx: &mut Context,
        ended: Ended,
    ) {
        let (entry, status) = (self.end(ended.cid), ended.status);
        if ended.posting == Posting::Never {
            return completions.release(ended.permit);
        }
        let origin = Origin::command(self.id, ended.cid.get());
        cx.io
            .data
            .requester()
            .ledger()
            .end(origin, status.into_bits());
        if completions.stage(ended.permit, entry, status) {
            cx.flush(completions);
        }
        if ended.posting == Posting::Twice {
            let again = completions.reserve();
            if again.is_some_and(|again| completions.stage(again, entry, status)) {
                cx.flush(completions);
            }
        }
        if let Some(late) = ended.late {
            completions.keep_late(late);
        }
    }
}
