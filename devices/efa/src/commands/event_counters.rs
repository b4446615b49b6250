//! Event counters.

use peerbar_dma::{Purpose, Session, Tag};
use peerbar_efa_spec::admin::Status;
use peerbar_efa_spec::admin::event_counter::{
    AttachEventCounter, CreateEventCounter, CreatedEventCounter, DestroyEventCounter,
    ModifyEventCounter, QP_EVENTS, operation,
};
use peerbar_pci::Iova;

use super::{DONE, answer, possible, reserved};
use crate::admin_queue::{Answer, Command};
use crate::engine::Engine;
use crate::objects::{self, WORD_BYTES};

impl Engine {
    pub(super) fn create_event_counter(&mut self, command: &Command) -> Result<Answer, Status> {
        let parameters = command.view::<CreateEventCounter>()?;
        reserved(parameters.reserved.get() == 0)?;
        let parameters = objects::CreateEventCounter {
            uar: parameters.uar.get(),
            address: parameters.address.get(),
        };
        // The worker cannot write the word at the same time.
        let mut objects = self.data.objects();
        let number = objects.create_event_counter(parameters, self.word_writer(command))?;
        Ok(answer(&CreatedEventCounter {
            handle: u32::from(number).into(),
            reserved: 0.into(),
        }))
    }

    pub(super) fn destroy_event_counter(&mut self, command: &Command) -> Result<Answer, Status> {
        let number = number(command.view::<DestroyEventCounter>()?.handle.get())?;
        self.data.objects().destroy_event_counter(number)?;
        Ok(DONE)
    }

    pub(super) fn attach_event_counter(&mut self, command: &Command) -> Result<Answer, Status> {
        let (counter, pair, parameters) = attachment(command)?;
        let mut objects = self.data.objects();
        objects.attach_event_counter(counter, pair, parameters.events)?;
        Ok(DONE)
    }

    pub(super) fn detach_event_counter(&mut self, command: &Command) -> Result<Answer, Status> {
        let (counter, pair, parameters) = attachment(command)?;
        let mut objects = self.data.objects();
        objects.detach_event_counter(counter, pair, parameters.events)?;
        Ok(DONE)
    }

    pub(super) fn modify_event_counter(&mut self, command: &Command) -> Result<Answer, Status> {
        let parameters = command.view::<ModifyEventCounter>()?;
        reserved(parameters.reserved == [0; 7])?;
        let number = number(parameters.handle.get())?;
        let value = parameters.value.get();
        let change = match parameters.operation {
            operation::SET => objects::ModifyEventCounter::Set(value),
            operation::ADD => objects::ModifyEventCounter::Add(value),
            _ => return Err(Status::IllegalParameter),
        };
        let mut objects = self.data.objects();
        objects.modify_event_counter(number, change, self.word_writer(command))?;
        Ok(DONE)
    }

    /// Returns a function that writes the word of an event counter for this command, and returns
    /// `true` on success.
    fn word_writer(&self, command: &Command) -> impl FnOnce(u64, u64) -> bool {
        let tag = Tag::new(Purpose::Completion, command.origin());
        let mut session = Session::new(self.requester.clone());
        move |address, value| {
            let written =
                session.write_entries(tag, Iova(address), &value.to_le_bytes(), WORD_BYTES);
            let written = written.inspect_err(|error| {
                log::debug!("word of an event counter: {error}: {}", error.cause);
            });
            written.is_ok()
        }
    }
}

/// Returns the counter and the queue pair of a command that attaches or detaches.
fn attachment(command: &Command) -> Result<(u16, u16, AttachEventCounter), Status> {
    let parameters = command.view::<AttachEventCounter>()?;
    reserved(parameters.reserved == [0; 3] && parameters.events.reserved() == 0)?;
    possible(parameters.attach_type == QP_EVENTS)?;
    let counter = number(parameters.handle.get())?;
    Ok((counter, number(parameters.qp.get())?, parameters))
}

/// Returns the number of a handle.
fn number(handle: u32) -> Result<u16, Status> {
    u16::try_from(handle).map_err(|_| Status::IllegalParameter)
}
