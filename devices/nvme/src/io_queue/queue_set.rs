//! The queues of one worker: their turns, their doorbells, and those that come and go.

use std::time::Instant;

use super::completion::CompletionQueue;
use super::context::Context;
use super::doorbell::{QueueDoorbell, ShadowBuffer};
use super::group::QueueGroup;
use super::interrupt::Next;
use super::submission::SubmissionQueue;

/// The queues of a worker, and the context that serves them.
pub(crate) struct QueueSet {
    pub(super) cx: Context,
    groups: Vec<QueueGroup>,
    shadow: Option<ShadowBuffer>,
}

impl QueueSet {
    /// Makes an empty set.
    pub(super) fn new(cx: Context) -> Self {
        Self {
            cx,
            groups: Vec::new(),
            shadow: None,
        }
    }

    /// Gives every queue a turn. Returns `true` if there were commands.
    pub(super) fn serve(&mut self) -> bool {
        if self.cx.is_quiet() || self.cx.is_held() {
            self.cx.io.data.session.release();
            return false;
        }
        let queues = self.submissions().count();
        let (mut busy, cx) = (false, &mut self.cx);
        for group in &mut self.groups {
            for queue in &mut group.submissions {
                busy |= queue.serve(&mut group.completions, cx, queues);
            }
        }
        cx.io.data.session.release();
        busy
    }

    /// Reads bus mastering. Once it is on again, flushes pending completions.
    pub(super) fn follow_bus(&mut self) {
        if !self.cx.follow_bus() || self.cx.is_quiet() {
            return;
        }
        for group in &mut self.groups {
            self.cx.flush(&mut group.completions);
        }
        self.cx.io.data.session.release();
    }

    /// Completes the commands that the kernel has ended. Returns `true` if there were any.
    pub(super) fn complete_ended(&mut self) -> bool {
        let (mut any, cx) = (false, &mut self.cx);
        while let Some(ended) = cx.io.take_ended() {
            any = true;
            let mut groups = self.groups.iter_mut();
            match groups.find_map(|group| group.queue(ended.queue)) {
                Some((queue, completions)) if !cx.is_quiet() => {
                    queue.complete(completions, cx, ended);
                }
                _ => ended.permit.expire(),
            }
        }
        for group in self.groups.iter_mut().filter(|_| any) {
            cx.flush(&mut group.completions);
            cx.signal(&mut group.completions, Next::Work);
        }
        any
    }

    /// Writes late data that is now due. Returns `true` if there was any.
    pub(super) fn write_late_data(&mut self) -> bool {
        let (mut any, cx) = (false, &mut self.cx);
        for group in &mut self.groups {
            any |= !cx.is_quiet() && !cx.is_held() && cx.write_late_data(&mut group.completions);
        }
        // A thread must not wait while it holds its reader slot: a change of the memory waits for
        // the slot.
        cx.io.data.session.release();
        any
    }

    /// Reads all head doorbells.
    pub(super) fn take_heads(&mut self) {
        if self.cx.is_held() {
            return;
        }
        let (interrupts, session) = (&self.cx.interrupts, &mut self.cx.io.data.session);
        for group in &mut self.groups {
            group.completions.take_head(interrupts, session);
        }
        session.release();
        if interrupts.notifier.uses_pin() {
            interrupts.notifier.update_pin();
        }
    }

    /// Raises the pending interrupts that are due.
    pub(super) fn signal(&mut self, next: Next) {
        for group in &mut self.groups {
            self.cx.signal(&mut group.completions, next);
        }
    }

    /// Raises the interrupts of all completions, regardless of coalescing.
    pub(super) fn signal_all(&mut self) {
        for group in &mut self.groups {
            group.completions.signal_all(&self.cx.interrupts);
        }
    }

    /// Returns the time at which the worker must continue without a notification, for an interrupt
    /// or a held-back item.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let pending = self.groups.iter().map(|group| &group.completions.interrupt);
        let pending = pending.filter(|_| !self.cx.is_held());
        let deadlines = pending.filter_map(|interrupt| interrupt.deadline);
        deadlines.chain(self.cx.io.due()).min()
    }

    /// Returns the number of commands that an interrupt-driven guest has outstanding. Returns
    /// `None` without a shadow buffer, because then the heads are not known in time.
    pub(super) fn outstanding(&mut self) -> Option<usize> {
        self.shadow?;
        self.take_heads();
        Some(self.groups.iter().map(QueueGroup::outstanding).sum())
    }

    /// Makes the guest ring for its next command. Returns `true` if there is none at the moment.
    pub(super) fn arm(&mut self) -> bool {
        let cx = &mut self.cx;
        if cx.is_quiet() || cx.is_held() {
            // Doorbells have no effect until the engine's next request, or until bus mastering is
            // on.
            cx.io.data.session.forget();
            return true;
        }
        let mut idle = true;
        for group in &mut self.groups {
            idle &= cx.arm_late_data(&mut group.completions);
            for queue in &mut group.submissions {
                let armed = queue.doorbell.arm(&mut cx.io.data.session);
                idle &= armed.unwrap_or_else(|_| {
                    cx.fail(queue.id, "its doorbell is not mapped");
                    false
                });
            }
        }
        cx.io.data.session.forget();
        idle
    }

    /// Adds a completion queue.
    pub(super) fn add_completion(&mut self, mut queue: CompletionQueue) {
        queue.join(&self.cx.io.generation);
        self.move_doorbell(&mut queue.doorbell);
        self.groups.push(QueueGroup {
            completions: queue,
            submissions: Vec::new(),
        });
    }

    /// Adds a submission queue that is bound to completion queue number `completion`.
    pub(super) fn add_submission(&mut self, completion: u16, mut queue: SubmissionQueue) {
        self.move_doorbell(&mut queue.doorbell);
        let mut groups = self.groups.iter_mut();
        if let Some(group) = groups.find(|group| group.completions.id == completion) {
            group.submissions.push(queue);
        }
    }

    /// Moves the doorbells of all queues, and of later ones, to a shadow buffer.
    pub(super) fn set_shadow(&mut self, buffer: ShadowBuffer) {
        self.shadow = Some(buffer);
        let session = &mut self.cx.io.data.session;
        for doorbell in self.groups.iter_mut().flat_map(QueueGroup::doorbells) {
            doorbell.move_to(buffer, session);
        }
        session.release();
    }

    /// Moves the doorbell of a new queue to the shadow buffer, if there is one.
    fn move_doorbell(&mut self, doorbell: &mut QueueDoorbell) {
        if let Some(buffer) = self.shadow {
            let session = &mut self.cx.io.data.session;
            doorbell.move_to(buffer, session);
            session.release();
        }
    }

    /// Stops fetching commands of a submission queue. Returns `true` if the worker has the queue.
    pub(super) fn close_submission(&mut self, id: u16) -> bool {
        let mut groups = self.groups.iter_mut();
        let found = groups.find_map(|group| group.queue(id));
        found.map(|(queue, _)| queue.is_closing = true).is_some()
    }

    /// Returns `true` if no command of a submission queue, or of any queue if `None`, is
    /// outstanding, or if a reset drops all commands.
    pub(super) fn have_ended(&self, id: Option<u16>) -> bool {
        let mut queues = self.submissions();
        let has_ended =
            |queue: &SubmissionQueue| queue.outstanding == 0 || id.is_some_and(|id| queue.id != id);
        queues.all(has_ended) || self.cx.is_quiet()
    }

    /// Removes a submission queue.
    pub(super) fn remove_submission(&mut self, id: u16) {
        for group in &mut self.groups {
            group.submissions.retain(|queue| queue.id != id);
            group.completions.late_writes.drop_submission(id);
        }
    }

    /// Removes a completion queue.
    pub(super) fn remove_completion(&mut self, id: u16) {
        self.signal_all();
        self.groups.retain(|group| group.completions.id != id);
    }

    /// Removes all queues, their commands, and the shadow buffer.
    pub(super) fn forget(&mut self) {
        self.cx.io.forget();
        self.groups.clear();
        self.shadow = None;
    }

    fn submissions(&self) -> impl Iterator<Item = &SubmissionQueue> {
        self.groups.iter().flat_map(|group| &group.submissions)
    }
}
