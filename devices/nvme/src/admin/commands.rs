//! Dispatch of the admin commands, and Abort.

use peerbar_nvme_spec::command::admin::Abort;
use peerbar_nvme_spec::command::{AdminOpcode, SubmissionEntry};
use peerbar_nvme_spec::completion::Status;

use super::reply::Reply;
use crate::engine::Engine;

impl Engine {
    /// Executes a command of the admin queue.
    pub(crate) fn admin_command(&mut self, entry: &SubmissionEntry) -> Result<Reply, Status> {
        let opcode = AdminOpcode::try_from(entry.opcode)
            .map_err(|_| Status::INVALID_OPCODE.with_dnr(true))?;
        match opcode {
            AdminOpcode::CreateCompletionQueue => self.create_completion_queue(entry),
            AdminOpcode::CreateSubmissionQueue => self.create_submission_queue(entry),
            AdminOpcode::DeleteCompletionQueue => self.delete_completion_queue(entry),
            AdminOpcode::DeleteSubmissionQueue => self.delete_submission_queue(entry),
            AdminOpcode::Identify => self.identify(entry),
            AdminOpcode::GetLogPage => self.get_log_page(entry),
            AdminOpcode::GetFeatures => self.get_features(entry),
            AdminOpcode::SetFeatures => self.set_features(entry),
            AdminOpcode::AsyncEventRequest => self.admin.events.wait(entry.cid.get()),
            AdminOpcode::Sanitize => self.sanitize(entry),
            AdminOpcode::Abort => Ok(self.abort(entry)),
            AdminOpcode::DoorbellBufferConfig => self.configure_doorbell_buffer(entry),
            _ => Err(Status::INVALID_OPCODE.with_dnr(true)),
        }
    }

    /// Abort (NVMe Base 2.0, 5.1). Other commands are executed as soon as they are fetched, or the
    /// kernel works on them, so only an Asynchronous Event Request can still be aborted. The
    /// aborted request completes first, so it needs a free entry in addition to the one that Abort
    /// owns. Bit 0 of dword 0 is set if nothing was aborted.
    fn abort(&mut self, entry: &SubmissionEntry) -> Reply {
        let command = Abort::from(entry);
        if command.sqid.get() != 0 || !self.has_free_entry() {
            return Reply::Now(1);
        }
        match self.admin.events.abort(command.cid.get()) {
            Some(aborted) => {
                self.complete_late(aborted);
                Reply::Now(0)
            }
            None => Reply::Now(1),
        }
    }
}
