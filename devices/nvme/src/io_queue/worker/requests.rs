//! The engine's requests to a worker.

use std::ops::ControlFlow;

use super::Worker;
use crate::io_queue::completion::CompletionQueue;
use crate::io_queue::doorbell::{QueueDoorbell, ShadowBuffer};
use crate::io_queue::group::QueueGroup;
use crate::io_queue::request::WorkerRequest;
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
                        queue.is_closing = true;
                        self.unconfirmed = Some((Some(id), done));
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
                    self.unconfirmed = Some((None, done));
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
        queue.join(&self.cx.io.generation);
        self.move_doorbell(&mut queue.doorbell);
        self.groups.push(QueueGroup {
            completions: queue,
            submissions: Vec::new(),
        });
    }

    fn add_submission(&mut self, completion: u16, mut queue: SubmissionQueue) {
        self.move_doorbell(&mut queue.doorbell);
        let mut groups = self.groups.iter_mut();
        if let Some(group) = groups.find(|group| group.completions.id == completion) {
            group.submissions.push(queue);
        }
    }

    /// Moves the doorbell of a new queue to the shadow buffer, if there is one.
    fn move_doorbell(&mut self, doorbell: &mut QueueDoorbell) {
        if let Some(buffer) = self.shadow {
            let session = &mut self.cx.io.data.session;
            doorbell.move_to(buffer, session);
            session.release();
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

    /// Confirms a request that waits for commands to end, if these have, or are dropped by a reset.
    pub(super) fn confirm_end(&mut self, busy: bool) {
        let Some((id, done)) = self.unconfirmed.take() else {
            return;
        };
        let has_ended =
            |queue: &SubmissionQueue| queue.outstanding == 0 || id.is_some_and(|id| queue.id != id);
        let have_ended = self.queues().all(has_ended) || self.cx.is_quiet();
        match id {
            Some(id) if have_ended => {
                for group in &mut self.groups {
                    group.submissions.retain(|queue| queue.id != id);
                    group.completions.drop_late(id);
                }
            }
            None if have_ended && !busy || self.notifier().urgent() => {
                self.cx.interrupts.raise_all();
            }
            _ => {
                self.unconfirmed = Some((id, done));
                return;
            }
        }
        let _ = done.send(());
    }
}
