//! The admin commands (NVMe Base 2.0, 5), and what they tell and set.

mod doorbell_buffer;
mod events;
mod features;
mod identify;
mod logs;
mod queues;

use peerbar_nvme_spec::command::admin::Abort;
use peerbar_nvme_spec::command::{AdminOpcode, SubmissionEntry};
use peerbar_nvme_spec::completion::Status;
use peerbar_nvme_spec::event::AsyncEvent;
use peerbar_pci::Identity;

use crate::config::Config;
use crate::engine::{Engine, Late, Reply};
use events::Events;
use features::Features;
use identify::About;

/// Identify Controller, ACL: how many Abort commands may be outstanding. None ever is.
const ABORT_LIMIT: u8 = 4;

/// What the admin commands deal with.
pub(crate) struct Admin {
    about: About,
    events: Events,
    pub(crate) features: Features,
}

impl Admin {
    pub(crate) fn new(config: &Config, identity: &Identity) -> Self {
        Self {
            about: About::new(config, identity),
            events: Events::default(),
            features: Features::new(config.namespaces.len()),
        }
    }

    /// A controller reset: events and features start again.
    pub(crate) fn reset(&mut self) {
        self.events = Events::default();
        self.features.reset();
    }

    /// Reports doorbells that were rung for a queue that does not exist, or with an impossible value.
    pub(crate) fn doorbell_errors(&mut self, stray: bool, bad_value: bool) {
        if stray {
            self.events.raise(AsyncEvent::INVALID_DOORBELL_REGISTER);
        }
        if bad_value {
            self.events.raise(AsyncEvent::INVALID_DOORBELL_VALUE);
        }
    }

    /// The next completion of a command that waited for an event.
    pub(crate) fn next_late(&mut self) -> Option<Late> {
        self.events.next()
    }
}

impl Engine {
    /// Carries out a command of the admin queue.
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
            AdminOpcode::Abort => Ok(self.abort(entry)),
            AdminOpcode::DoorbellBufferConfig => self.configure_doorbell_buffer(entry),
            _ => Err(Status::INVALID_OPCODE.with_dnr(true)),
        }
    }

    /// NVMe Base 2.0, 5.1. Other commands are carried out as soon as they are fetched, or the kernel works on them, so only an
    /// Asynchronous Event Request can still be aborted. It completes first, so it needs a free entry beside the one that this
    /// command owns. Dword 0 says whether it was not aborted.
    fn abort(&mut self, entry: &SubmissionEntry) -> Reply {
        let command = Abort::from(entry);
        let has_free = self
            .pair
            .as_ref()
            .is_some_and(|pair| pair.completion.free_entries() > 0);
        if command.sqid.get() != 0 || !has_free {
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
