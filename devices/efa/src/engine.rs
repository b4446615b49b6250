//! The engine: the thread that serves the admin queue and the asynchronous event queue.

use std::sync::Arc;

use peerbar_dma::{DoorbellEvent, Purpose, Requester};
use peerbar_efa_spec::admin::Status;
use peerbar_efa_spec::registers::ReadRequest;
use peerbar_pci::Interrupts;
use zerocopy::IntoBytes;

use crate::admin_queue::{AdminQueue, Answer, Command, QueueError};
use crate::async_events::AsyncEvents;
use crate::data::DataPath;
use crate::interrupts::GatedInterrupts;
use crate::objects::Gid;
use crate::registers::Registers;
use crate::shared_registers::{SharedRegisters, Task};

/// The admin commands' side of the adapter.
pub(crate) struct Engine {
    pub(crate) shared: Arc<SharedRegisters>,
    pub(crate) requester: Arc<Requester>,
    pub(crate) interrupts: Arc<GatedInterrupts>,
    pub(crate) data: Arc<DataPath>,
    /// The adapter's address.
    pub(crate) gid: Gid,
    /// The admin queue, once its doorbell has been rung and until it fails.
    queue: Option<AdminQueue>,
    pub(crate) events: Option<AsyncEvents>,
    has_failed: bool,
}

impl Engine {
    pub(crate) fn new(
        shared: Arc<SharedRegisters>,
        requester: Arc<Requester>,
        interrupts: Arc<GatedInterrupts>,
        data: Arc<DataPath>,
        gid: Gid,
    ) -> Self {
        Self {
            shared,
            requester,
            interrupts,
            data,
            gid,
            queue: None,
            events: None,
            has_failed: false,
        }
    }

    /// Works until the daemon ends.
    pub(crate) fn run(mut self) {
        let mut busy = false;
        loop {
            let due = self.events.as_ref().and_then(AsyncEvents::due);
            match self.shared.next(busy, due) {
                Task::Stop => break,
                Task::Reset => self.reset(),
                Task::Read(request) => self.answer(request),
                Task::Commands => busy = self.serve(),
                Task::Time => self.post_events(),
            }
        }
    }

    /// Works until there is nothing left to do.
    #[cfg(feature = "stepped")]
    pub(crate) fn work(&mut self) {
        loop {
            match self.shared.next(true, None) {
                Task::Stop => return,
                Task::Reset => self.reset(),
                Task::Read(request) => self.answer(request),
                Task::Commands if !self.serve() => return,
                Task::Commands | Task::Time => {}
            }
        }
    }

    /// A reset of the device. Of the function, every DMA has been refused since it began.
    fn reset(&mut self) {
        self.queue = None;
        self.events = None;
        self.has_failed = false;
        self.data.reset();
        self.shared.with(|registers| {
            if registers.was_reset() && registers.take_halt() {
                self.requester.resume();
                self.interrupts.open();
            }
        });
    }

    /// Answers a request to read a register that could not be answered at once.
    fn answer(&self, request: ReadRequest) {
        let answer = self.shared.with(|registers| registers.answer(request));
        if let Some((address, answer)) = answer {
            let written = self
                .requester
                .write(Purpose::Control, address, answer.as_bytes());
            if let Err(error) = written {
                log::debug!("register {:#x} is not read: {error}", request.offset());
            }
        }
        self.shared.with(Registers::was_answered);
    }

    /// Carries out admin commands until there are no more, or something else is urgent; whether there are more.
    fn serve(&mut self) -> bool {
        while !self.shared.urgent() {
            match self.step() {
                Ok(true) => {}
                Ok(false) => return false,
                Err(error) => {
                    log::debug!("the admin queue has failed: {error}");
                    self.queue = None;
                    self.has_failed = true;
                    self.shared.with(Registers::fail);
                    return false;
                }
            }
        }
        self.queue.is_some()
    }

    /// Carries out the next admin command; whether there was one.
    fn step(&mut self) -> Result<bool, QueueError> {
        let (setup, submitted, is_in_reset) = self.shared.with(|registers| {
            let setup = registers.admin_setup();
            (setup, registers.submitted(), registers.is_in_reset())
        });
        if is_in_reset || self.has_failed {
            return Ok(false);
        }
        if self.queue.is_none() && submitted != 0 {
            self.queue = Some(AdminQueue::new(setup)?);
        }
        let Some(queue) = &mut self.queue else {
            return Ok(false);
        };
        let Some(command) = queue.fetch(&self.requester, submitted)? else {
            return Ok(false);
        };
        let vector = queue.vector;
        self.requester.doorbell(|| DoorbellEvent {
            queue: 0,
            tail: submitted.into(),
            added: 1,
            waiting: 1,
            vector: Some(vector),
        });
        self.carry_out(&command)?;
        Ok(true)
    }

    fn carry_out(&mut self, command: &Command) -> Result<(), QueueError> {
        self.requester.begin(command.origin(), command.opcode);
        let outcome = self.execute(command);
        let status = outcome.err().unwrap_or(Status::Success);
        if status != Status::Success {
            log::debug!("admin command {} ends with {status:?}", command.opcode);
        }
        self.requester.end(command.origin(), status as u16);
        self.complete(command, outcome)
    }

    fn complete(
        &mut self,
        command: &Command,
        outcome: Result<Answer, Status>,
    ) -> Result<(), QueueError> {
        let Some(queue) = &mut self.queue else {
            return Ok(());
        };
        queue.complete(&self.requester, command, outcome)?;
        let vector = queue.vector;
        self.raise(vector);
        Ok(())
    }

    /// Raises a vector of the admin queues, unless the driver polls.
    fn raise(&self, vector: u16) {
        if !self.shared.with(|registers| registers.is_masked()) {
            self.interrupts.raise(vector);
        }
    }

    /// Posts the asynchronous event that is due.
    fn post_events(&mut self) {
        let consumed = self.shared.with(|registers| registers.consumed_events());
        let Some(events) = &mut self.events else {
            return;
        };
        let vector = events.vector;
        match events.post_due(&self.requester, consumed) {
            Ok(true) => self.raise(vector),
            Ok(false) => {}
            Err(error) => {
                log::debug!("the asynchronous event queue has failed: {error}");
                self.events = None;
            }
        }
    }
}
