//! The engine's requests to a worker.

use std::ops::ControlFlow;

use super::Worker;
use crate::io_queue::request::WorkerRequest;

impl Worker {
    /// Executes the engine's requests. Breaks if the thread must end.
    pub(super) fn take_requests(&mut self) -> ControlFlow<()> {
        while let Ok((request, done)) = self.requests.try_recv() {
            match request {
                WorkerRequest::AddCompletion(queue) => self.queues.add_completion(queue),
                WorkerRequest::AddSubmission(id, queue) => self.queues.add_submission(id, queue),
                WorkerRequest::RemoveSubmission(id) => {
                    if self.queues.close_submission(id) {
                        self.unconfirmed = Some((Some(id), done));
                        continue;
                    }
                }
                WorkerRequest::RemoveCompletion(id) => self.queues.remove_completion(id),
                WorkerRequest::Shadow(buffer) => self.queues.set_shadow(buffer),
                WorkerRequest::Forget => {
                    // The doorbells are 0 after a reset.
                    self.admin_values = self.admin_values.map(|_| [0; 2]);
                    self.queues.forget();
                }
                WorkerRequest::Finish => {
                    self.unconfirmed = Some((None, done));
                    continue;
                }
                WorkerRequest::Stop => {
                    self.queues.signal_all();
                    let _ = done.send(());
                    return ControlFlow::Break(());
                }
            }
            // Sending fails if the engine no longer waits.
            let _ = done.send(());
        }
        ControlFlow::Continue(())
    }

    /// Confirms a request that waits for commands to end, once they have ended or a reset has
    /// dropped them.
    pub(super) fn confirm_end(&mut self, busy: bool) {
        let Some((id, done)) = self.unconfirmed.take() else {
            return;
        };
        let have_ended = self.queues.have_ended(id);
        let is_urgent = self.queues.cx.notifier().urgent();
        match id {
            Some(id) if have_ended => self.queues.remove_submission(id),
            None if have_ended && !busy || is_urgent => self.queues.signal_all(),
            _ => {
                self.unconfirmed = Some((id, done));
                return;
            }
        }
        let _ = done.send(());
    }
}
