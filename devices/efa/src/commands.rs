//! The admin commands.

mod event_counters;
mod features;
mod memory_regions;
mod page_list;
mod queues;
mod resources;
mod statistics;

use peerbar_efa_spec::admin::{ANSWER_BYTES, Opcode, Status};
use zerocopy::{Immutable, IntoBytes};

use crate::admin_queue::{Answer, Command};
use crate::engine::Engine;
use crate::objects::ObjectError;

/// The answer to a command without results.
const DONE: Answer = [0; ANSWER_BYTES];

impl Engine {
    /// Executes a command.
    pub(crate) fn execute(&mut self, command: &Command) -> Result<Answer, Status> {
        if !command.is_intact {
            return Err(Status::MalformedRequest);
        }
        match Opcode::of(command.opcode).ok_or(Status::BadOpcode)? {
            Opcode::CreateQp => self.create_queue_pair(command),
            Opcode::ModifyQp => self.modify_queue_pair(command),
            Opcode::QueryQp => self.query_queue_pair(command),
            Opcode::DestroyQp => self.destroy_queue_pair(command),
            Opcode::CreateAh => self.create_address_handle(command),
            Opcode::DestroyAh => self.destroy_address_handle(command),
            Opcode::RegMr => self.register_region(command),
            Opcode::DeregMr => self.deregister_region(command),
            Opcode::CreateCq => self.create_completion_queue(command),
            Opcode::DestroyCq => self.destroy_completion_queue(command),
            Opcode::GetFeature => self.get_feature(command),
            Opcode::SetFeature => self.set_feature(command),
            Opcode::GetStats => self.get_statistics(command),
            Opcode::AllocPd => self.create_protection_domain(),
            Opcode::DeallocPd => self.destroy_protection_domain(command),
            Opcode::AllocUar => self.create_uar(),
            Opcode::DeallocUar => self.destroy_uar(command),
            Opcode::CreateEq => self.create_event_queue(command),
            Opcode::DestroyEq => self.destroy_event_queue(command),
            Opcode::CreateEventCounter => self.create_event_counter(command),
            Opcode::DestroyEventCounter => self.destroy_event_counter(command),
            Opcode::AttachEventCounter => self.attach_event_counter(command),
            Opcode::ModifyEventCounter => self.modify_event_counter(command),
            Opcode::DetachEventCounter => self.detach_event_counter(command),
            Opcode::AllocMr => self.allocate_region(command),
            // Its meaning is vendor-specific.
            Opcode::Service => Err(Status::UnsupportedOpcode),
        }
    }
}

/// Returns the answer that begins with these bytes.
fn answer(payload: &(impl IntoBytes + Immutable)) -> Answer {
    let mut answer = DONE;
    for (to, from) in answer.iter_mut().zip(payload.as_bytes()) {
        *to = *from;
    }
    answer
}

/// The status of a refused command.
impl From<ObjectError> for Status {
    fn from(error: ObjectError) -> Self {
        log::debug!("{error}");
        match error {
            ObjectError::Exhausted { .. } => Self::ResourceAllocationFailure,
            ObjectError::InUse { .. } => Self::ResourceBusy,
            ObjectError::Unreachable { .. } => Self::UnknownError,
            ObjectError::Unknown { .. }
            | ObjectError::Failed { .. }
            | ObjectError::Invalid { .. }
            | ObjectError::Transition { .. } => Self::IllegalParameter,
        }
    }
}

/// Fails unless reserved bits or bytes are 0, as required.
fn reserved(is_zero: bool) -> Result<(), Status> {
    if is_zero {
        Ok(())
    } else {
        Err(Status::MalformedRequest)
    }
}

/// Fails unless a parameter has a valid value.
fn possible(is_possible: bool) -> Result<(), Status> {
    if is_possible {
        Ok(())
    } else {
        Err(Status::IllegalParameter)
    }
}
