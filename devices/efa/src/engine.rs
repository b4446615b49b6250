//! The engine: the thread that serves the admin queue and the asynchronous event queue.

use std::sync::Arc;
use std::time::Instant;

use peerbar_dma::{BusMastering, DoorbellEvent, Purpose, Requester};
use peerbar_efa_spec::admin::Status;
use peerbar_efa_spec::registers::ReadRequest;
use peerbar_endpoint::{SharedRegisters, Task};
use peerbar_pci::{Interrupts, Iova};
use zerocopy::IntoBytes;

use crate::admin_queue::{AdminQueue, Answer, Command, QueueError};
use crate::async_events::AsyncEvents;
use crate::data::DataPath;
use crate::entry::write_word_last;
use crate::interrupts::MaskedInterrupts;
use crate::objects::Gid;
use crate::registers::{EngineRequest, Registers};

/// The part of the adapter that executes admin commands.
pub(crate) struct Engine {
    pub(crate) shared: Arc<SharedRegisters<Registers>>,
    pub(crate) requester: Arc<Requester>,
    pub(crate) interrupts: Arc<MaskedInterrupts>,
    pub(crate) data: Arc<DataPath>,
    /// The adapter's address.
    pub(crate) gid: Gid,
    /// The admin queue, once its doorbell has been rung and until it fails.
    queue: Option<AdminQueue>,
    pub(crate) events: Option<AsyncEvents>,
    has_failed: bool,
    /// Bus mastering when the present burst of commands began. Without it the adapter issues no
    /// request (PCIe Base 6.0, 7.5.1.1.3).
    bus: BusMastering,
    /// A command that has lost bus mastering, and its outcome unless it must be executed again.
    kept: Option<(Command, Option<Outcome>)>,
}

/// The result of a command.
type Outcome = Result<Answer, Status>;

impl Engine {
    pub(crate) fn new(
        shared: Arc<SharedRegisters<Registers>>,
        requester: Arc<Requester>,
        interrupts: Arc<MaskedInterrupts>,
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
            bus: BusMastering::default(),
            kept: None,
        }
    }

    /// Works until the daemon ends.
    pub(crate) fn run(mut self) {
        let mut busy = false;
        loop {
            let due = self.events.as_ref().and_then(AsyncEvents::due);
            let due = due.filter(|_| self.bus.is_on());
            match self.shared.next(busy, due) {
                Task::Stop => break,
                Task::Registers(EngineRequest::Reset) => self.reset(),
                Task::Registers(EngineRequest::Read(request)) => self.answer(request),
                Task::Doorbells => busy = self.serve(),
                Task::Time => self.post_events(Instant::now()),
            }
        }
    }

    /// Works until there is nothing left to do.
    #[cfg(feature = "stepped")]
    pub(crate) fn work(&mut self) {
        loop {
            match self.shared.next(true, None) {
                Task::Stop => return,
                Task::Registers(EngineRequest::Reset) => self.reset(),
                Task::Registers(EngineRequest::Read(request)) => self.answer(request),
                Task::Doorbells if !self.serve() => return,
                Task::Doorbells | Task::Time => {}
            }
        }
    }

    /// Executes a reset of the device. A reset of the function has refused all DMA since it began.
    fn reset(&mut self) {
        self.queue = None;
        self.events = None;
        self.has_failed = false;
        self.kept = None;
        self.data.reset();
        self.shared.complete(|registers| {
            if registers.was_reset() && registers.take_halt() {
                self.requester.resume();
                self.interrupts.unmask();
            }
        });
    }

    /// Answers a request to read a register that could not be answered at once.
    fn answer(&self, request: ReadRequest) {
        let answer = self.shared.with(|registers| registers.answer(request));
        if let Some((address, answer)) = answer {
            let written = write_word_last(answer.as_bytes(), 0, |offset, part| {
                let address = address.wrapping_add(offset);
                self.requester.write(Purpose::Control, Iova(address), part)
            });
            if let Err(error) = written {
                log::debug!("register {:#x} is not read: {error}", request.offset());
            }
        }
        self.shared.with(Registers::was_answered);
    }

    /// Executes admin commands until there are no more, or something else is urgent. Returns `true`
    /// if there are more. Commands wait while bus mastering is off; the engine is woken once it is
    /// on.
    fn serve(&mut self) -> bool {
        self.bus.follow(&self.requester);
        while self.bus.is_on() && !self.shared.urgent() {
            match self.step() {
                Ok(true) => {}
                Ok(false) => return false,
                Err(QueueError::Memory(_)) if self.has_lost_bus() => return true,
                Err(error) => {
                    log::debug!("the admin queue has failed: {error}");
                    self.queue = None;
                    self.has_failed = true;
                    self.shared.with(Registers::fail);
                    return false;
                }
            }
        }
        self.queue.is_some() && self.bus.is_on()
    }

    /// Returns `true` if a refused request of the present burst may have failed because bus
    /// mastering was off.
    fn has_lost_bus(&self) -> bool {
        self.bus.has_changed(&self.requester)
    }

    /// Executes the next admin command. Returns `true` if there was one.
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
        if let Some((command, outcome)) = self.kept.take() {
            self.carry_out(&command, outcome)?;
            return Ok(true);
        }
        let Some(queue) = &mut self.queue else {
            return Ok(false);
        };
        let Some(command) = queue.fetch(&self.requester, submitted)? else {
            return Ok(false);
        };
        let vector = queue.vector;
        self.requester.ledger().doorbell(|| DoorbellEvent {
            queue: 0,
            tail: submitted.into(),
            added: 1,
            waiting: 1,
            vector: Some(vector),
        });
        self.requester
            .ledger()
            .begin(command.origin(), command.opcode);
        self.carry_out(&command, None)?;
        Ok(true)
    }

    /// Executes a command, unless its outcome is known, and completes it.
    fn carry_out(&mut self, command: &Command, known: Option<Outcome>) -> Result<(), QueueError> {
        let outcome = match known {
            Some(outcome) => outcome,
            None => {
                let outcome = self.execute(command);
                if outcome.is_err() && self.has_lost_bus() {
                    self.kept = Some((*command, None));
                    return Ok(());
                }
                self.note_end(command, outcome);
                outcome
            }
        };
        let completed = self.complete(command, outcome);
        if matches!(completed, Err(QueueError::Memory(_))) && self.has_lost_bus() {
            self.kept = Some((*command, Some(outcome)));
        }
        completed
    }

    fn note_end(&self, command: &Command, outcome: Outcome) {
        let status = outcome.err().unwrap_or(Status::Success);
        if status != Status::Success {
            log::debug!("admin command {} ends with {status:?}", command.opcode);
        }
        self.requester.ledger().end(command.origin(), status as u16);
    }

    fn complete(&mut self, command: &Command, outcome: Outcome) -> Result<(), QueueError> {
        let Some(queue) = &mut self.queue else {
            return Ok(());
        };
        // A driver that polls may stop polling as soon as it sees the completion.
        let is_masked = self.shared.with(|registers| registers.is_masked());
        queue.complete(&self.requester, command, outcome)?;
        if !is_masked {
            self.interrupts.raise(queue.vector);
        }
        Ok(())
    }

    /// Posts the asynchronous event that is due at `now`.
    fn post_events(&mut self, now: Instant) {
        self.bus.follow(&self.requester);
        if !self.bus.is_on() {
            return;
        }
        let (consumed, is_masked) = self
            .shared
            .with(|registers| (registers.consumed_events(), registers.is_masked()));
        let Some(events) = &mut self.events else {
            return;
        };
        match events.post_due(&self.requester, consumed, now) {
            Ok(true) if !is_masked => self.interrupts.raise(events.vector),
            Ok(_) => {}
            Err(error) if self.bus.has_changed(&self.requester) => {
                log::debug!("an asynchronous event is lost: {error}");
            }
            Err(error) => {
                log::debug!("the asynchronous event queue has failed: {error}");
                self.events = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use parking_lot::Mutex;
    use peerbar_dma::{MapAccess, MemoryFile, Upstream, UpstreamRequest};
    use peerbar_efa_spec::admin::{ANSWER_BYTES, PAYLOAD_BYTES};
    use peerbar_efa_spec::registers::{AdminQueueCaps, EventQueueCaps, offset};
    use peerbar_pci::{InterruptMode, Range};

    use super::*;
    use crate::async_events::supported_groups;
    use crate::data::Setup;
    use crate::memory_bar;
    use crate::registers::{AdminSetup, EventSetup};

    /// Address of memory that only the client can access.
    const ASKED: u64 = 0x10_0000;
    const VECTOR: u8 = 3;

    #[derive(Default)]
    struct Raised(Mutex<Vec<u16>>);

    impl Interrupts for Raised {
        fn mode(&self) -> InterruptMode {
            InterruptMode::MsiX
        }

        fn raise(&self, vector: u16) {
            self.0.lock().push(vector);
        }

        fn set_pin(&self, _: bool) {}
    }

    /// A driver that writes the mask as soon as an entry is written.
    struct Masking(Arc<SharedRegisters<Registers>>, u32);

    impl Upstream for Masking {
        fn carry_out(&self, requests: &mut [UpstreamRequest<'_>], _: &dyn Fn() -> bool) {
            let set = |registers: &mut Registers| registers.write(offset::INTR_MASK, self.1);
            self.0.with(set);
            requests
                .iter_mut()
                .for_each(|ask| ask.outcome = Some(Ok(())));
        }
    }

    /// Makes an engine whose memory only the client can access, with its interrupts and registers.
    fn engine() -> (Engine, Arc<Raised>, Arc<SharedRegisters<Registers>>) {
        let requester = Arc::new(Requester::new());
        requester
            .map(
                Range::new(Iova(ASKED), 1 << 16).unwrap(),
                MapAccess::READ_WRITE,
                None,
            )
            .unwrap();
        requester.set_bus_master(true);
        let raised = Arc::new(Raised::default());
        let interrupts = Arc::new(MaskedInterrupts::new(raised.clone()));
        let bar = MemoryFile::create("bar", memory_bar::BAR_BYTES).unwrap();
        let gid = Gid([1; 16]);
        let (path, _) = DataPath::parts(Setup {
            gid,
            requester: requester.clone(),
            interrupts: interrupts.clone(),
            bar_memory: Arc::new(bar),
            seed: None,
        })
        .unwrap();
        let shared = Arc::new(SharedRegisters::new(Registers::new()));
        let engine = Engine::new(shared.clone(), requester, interrupts, Arc::new(path), gid);
        (engine, raised, shared)
    }

    fn queue_caps() -> EventQueueCaps {
        EventQueueCaps::new()
            .with_depth(16)
            .with_entry_size(64)
            .with_vector(VECTOR)
    }

    /// Writes one mask before an entry is written, and another while it is written. Returns the
    /// vectors that were raised.
    fn raised_by((before, meanwhile): (u32, u32), post: impl FnOnce(&mut Engine)) -> Vec<u16> {
        let (mut engine, raised, shared) = engine();
        shared.with(|registers| registers.write(offset::INTR_MASK, before));
        let driver = Masking(shared, meanwhile);
        engine.requester.set_upstream(Some(Arc::new(driver)));
        post(&mut engine);
        raised.0.lock().clone()
    }

    fn complete(engine: &mut Engine) {
        let setup = AdminSetup {
            submission: ASKED,
            submission_caps: AdminQueueCaps::new().with_depth(16).with_entry_size(64),
            completion: ASKED + 0x1000,
            completion_caps: queue_caps(),
        };
        engine.queue = Some(AdminQueue::new(setup).unwrap());
        let command = Command {
            id: 1,
            opcode: 0,
            flags: 0.into(),
            payload: [0; PAYLOAD_BYTES],
            is_intact: true,
        };
        engine.complete(&command, Ok([0; ANSWER_BYTES])).unwrap();
    }

    fn post_keep_alive(engine: &mut Engine) {
        let setup = EventSetup {
            address: ASKED + 0x2000,
            caps: queue_caps(),
        };
        let now = Instant::now();
        engine.events = AsyncEvents::new(setup, supported_groups(), now);
        engine.post_events(now);
        engine.post_events(now + Duration::from_secs(6));
    }

    #[test]
    fn completion_interrupts_as_the_mask_was_before_it() {
        let vector = [u16::from(VECTOR)];
        for post in [complete, post_keep_alive] {
            assert_eq!(raised_by((1, 0), post), [0; 0], "the driver polled for it");
            assert_eq!(raised_by((0, 1), post), vector);
        }
    }
}
