//! The engine's requests to a worker.

use std::ops::ControlFlow;

use super::{Worker, WorkerRequest};
use crate::io_queue::completion::CompletionQueue;
use crate::io_queue::doorbell::ShadowBuffer;
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
                    let mut groups = self.groups.iter_mut();
                    if let Some((queue, _)) = groups.find_map(|group| group.queue(id)) {
                        queue.closing = Some(done);
                        self.is_closing = true;
                        continue;
                    }
                }
                WorkerRequest::RemoveCompletion(id) => self.remove_completion(id),
                WorkerRequest::Shadow(buffer) => self.move_doorbells(buffer),
                WorkerRequest::Forget => {
                    self.admin_seen = [0; 2];
                    self.cx.io.forget();
                    self.groups.clear();
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

    fn move_doorbells(&mut self, buffer: ShadowBuffer) {
        self.shadow = Some(buffer);
        let session = &mut self.cx.io.data.session;
        for group in &mut self.groups {
            group.completions.doorbell.move_to(buffer, session);
            for queue in &mut group.submissions {
                queue.doorbell.move_to(buffer, session);
            }
        }
        session.release();
    }

    /// Confirms the requests that wait for commands to end, if these have, or are dropped by a reset.
    pub(super) fn confirm_ends(&mut self, busy: bool) {
        let quiet = self.cx.is_quiet();
        let has_ended = |queue: &SubmissionQueue| quiet || queue.outstanding == 0;
        if std::mem::take(&mut self.is_closing) {
            for group in &mut self.groups {
                group.submissions.retain(|queue| match &queue.closing {
                    Some(done) if has_ended(queue) => {
                        let _ = done.send(());
                        false
                    }
                    closing => {
                        self.is_closing |= closing.is_some();
                        true
                    }
                });
            }
        }
        if self.finish.is_some() {
            let all_ended = self.queues().all(has_ended);
            let over = all_ended && !busy || self.notifier().urgent();
            if let Some(done) = self.finish.take_if(|_| over) {
                self.cx.interrupts.raise_all();
                let _ = done.send(());
            }
        }
    }
}
