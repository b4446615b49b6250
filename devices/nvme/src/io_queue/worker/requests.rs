//! The engine's requests to a worker.

use std::ops::ControlFlow;

use super::{Worker, WorkerRequest};
use crate::io_queue::completion::CompletionQueue;
use crate::io_queue::group::QueueGroup;
use crate::io_queue::submission::SubmissionQueue;

impl Worker {
    /// Carries out what the engine has requested; breaks if the thread is to end.
    pub(super) fn take_requests(&mut self) -> ControlFlow<()> {
        while let Ok((request, done)) = self.requests.try_recv() {
            match request {
                WorkerRequest::AddCompletion(queue) => self.add_completion(queue),
                WorkerRequest::AddSubmission(id, queue) => self.add_submission(id, queue),
                WorkerRequest::RemoveSubmission(id) => {
                    self.removals.push((id, done));
                    continue;
                }
                WorkerRequest::RemoveCompletion(id) => self.remove_completion(id),
                WorkerRequest::Shadow(buffer) => {
                    self.shadow = Some(buffer);
                    self.groups
                        .iter_mut()
                        .for_each(|group| group.move_doorbells(buffer, &mut self.cx));
                }
                WorkerRequest::Forget => {
                    self.admin_seen = [0; 2];
                    self.cx.io.forget();
                    self.groups.clear();
                    self.cx.queues = 0;
                    self.cx.interrupts.forget();
                    self.shadow = None;
                }
                WorkerRequest::Finish => {
                    self.finish = Some(done);
                    continue;
                }
                WorkerRequest::Stop => {
                    self.cx.interrupts.raise_all();
                    let _ = done.send(());
                    return ControlFlow::Break(());
                }
            }
            // It fails if the engine does not wait any more.
            let _ = done.send(());
        }
        ControlFlow::Continue(())
    }

    fn add_completion(&mut self, mut queue: CompletionQueue) {
        let session = &mut self.cx.io.data.session;
        queue.join(&self.cx.io.generation);
        if let Some(buffer) = self.shadow {
            queue.doorbell.move_to(buffer, session);
            session.release();
        }
        self.groups.push(QueueGroup {
            completions: queue,
            submissions: Vec::new(),
        });
    }

    fn add_submission(&mut self, completion: u16, mut queue: SubmissionQueue) {
        let session = &mut self.cx.io.data.session;
        if let Some(buffer) = self.shadow {
            queue.doorbell.move_to(buffer, session);
            session.release();
        }
        let mut groups = self.groups.iter_mut();
        if let Some(group) = groups.find(|group| group.completions.id == completion) {
            group.submissions.push(queue);
            self.cx.queues += 1;
        }
    }

    fn remove_completion(&mut self, id: u16) {
        let interrupts = &mut self.cx.interrupts;
        interrupts.raise_all();
        self.groups.retain(|group| {
            let queue = &group.completions;
            if queue.id == id {
                interrupts.taken(queue.vector(), queue.unread());
            }
            queue.id != id
        });
    }

    /// Confirms the requests that wait for commands to end, if these have, or are dropped by a reset.
    pub(super) fn confirm_ends(&mut self, busy: bool) {
        if self.removals.is_empty() && self.finish.is_none() {
            return;
        }
        let quiet = self.cx.is_quiet();
        let (groups, queues) = (&mut self.groups, &mut self.cx.queues);
        self.removals.retain(|(id, done)| {
            let waits = !quiet && groups.iter().any(|group| group.is_busy(Some(*id)));
            if !waits {
                let submissions = groups.iter_mut().map(|group| &mut group.submissions);
                submissions.for_each(|submissions| submissions.retain(|queue| queue.id != *id));
                *queues = groups.iter().map(|group| group.submissions.len()).sum();
                let _ = done.send(());
            }
            waits
        });
        let all_ended = quiet || !groups.iter().any(|group| group.is_busy(None));
        let over = all_ended && !busy || self.notifier().urgent();
        if let Some(done) = self.finish.take_if(|_| over) {
            self.cx.interrupts.raise_all();
            let _ = done.send(());
        }
    }
}
