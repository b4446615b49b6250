//! The registers in BAR0: their values, and the effects of writes. No I/O.
//!
//! A reset by the driver (DEV_CTL) begins with a write of 1 and ends after a write of 0, once the
//! engine has forgotten everything. Until then the status says that it is in progress. Earlier DMA
//! may continue until it ends; answers to read requests are sent even during the reset.

use peerbar_efa_spec::registers::{
    AdminQueueCaps, Capabilities, ControllerVersion, DeviceControl, DeviceStatus, EventQueueCaps,
    EventQueueDoorbell, InterruptMask, ReadAnswer, ReadRequest, Version, offset,
};
use peerbar_endpoint::EngineRequests;

/// The interface of Linux 7.3: admin entries of 64 and of 128 bytes, checksums.
const VERSION: Version = Version::new().with_major(0).with_minor(3);
/// The lowest version that Linux' driver accepts.
const CONTROLLER_VERSION: ControllerVersion = ControllerVersion::new().with_subminor(1);
/// Longest step of a reset, in units of 100 ms: the maximum of the field, since memory that does
/// not answer delays it.
const RESET_TIMEOUT: u8 = 31;
/// No time-out of admin commands is set: the driver uses its own 30 s.
const CAPABILITIES: Capabilities = Capabilities::new()
    .with_reset_timeout(RESET_TIMEOUT)
    .with_dma_address_width(64);

/// A queue in the driver's memory, as its registers describe it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct QueueRegisters {
    low: u32,
    high: u32,
    caps: u32,
}

impl QueueRegisters {
    fn address(self) -> u64 {
        u64::from(self.high) << 32 | u64::from(self.low)
    }
}

/// The admin queue, as the registers describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdminSetup {
    pub(crate) submission: u64,
    pub(crate) submission_caps: AdminQueueCaps,
    pub(crate) completion: u64,
    pub(crate) completion_caps: EventQueueCaps,
}

/// The asynchronous event queue, as the registers describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventSetup {
    pub(crate) address: u64,
    pub(crate) caps: EventQueueCaps,
}

/// The effect of a write to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The engine has something to do.
    Engine,
    /// A register must be read.
    Read(ReadRequest),
    /// An event queue must be armed.
    Arm(u16),
}

/// A request of the registers to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineRequest {
    /// Forget everything.
    Reset,
    /// Read a register.
    Read(ReadRequest),
}

/// The progress of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reset {
    /// No reset is in progress.
    None,
    /// The engine must forget everything. `is_held` is `true` while the driver still holds the
    /// device in reset.
    Asked { is_held: bool },
    /// The engine has forgotten everything. The driver still holds the device in reset.
    Held,
}

/// The register file.
pub(crate) struct Registers {
    submission: QueueRegisters,
    completion: QueueRegisters,
    events: QueueRegisters,
    /// The address for answers to read requests.
    answers: QueueRegisters,
    mask: InterruptMask,
    control: DeviceControl,
    /// Number of admin commands that the driver has submitted, modulo 2^16.
    submitted: u16,
    /// Number of events that the driver has consumed, modulo 2^32.
    consumed_events: u32,
    /// The last request to read a register that the engine has yet to answer. A driver makes one at
    /// a time.
    read: Option<ReadRequest>,
    /// `true` while the engine answers one.
    is_answering: bool,
    reset: Reset,
    /// `true` until the engine knows of the reset.
    is_reset_new: bool,
    /// `true` if a reset of the function has stopped all DMA and interrupts.
    is_halted: bool,
    /// `true` if a reset has ended.
    is_reset_finished: bool,
    is_failed: bool,
}

impl Registers {
    pub(crate) fn new() -> Self {
        Self {
            submission: QueueRegisters::default(),
            completion: QueueRegisters::default(),
            events: QueueRegisters::default(),
            answers: QueueRegisters::default(),
            mask: InterruptMask::new(),
            control: DeviceControl::new(),
            submitted: 0,
            consumed_events: 0,
            read: None,
            is_answering: false,
            reset: Reset::None,
            is_reset_new: false,
            is_halted: false,
            is_reset_finished: false,
            is_failed: false,
        }
    }

    /// Returns the register at this offset, or 0 if there is none or it is write-only.
    pub(crate) fn read(&self, offset: u64) -> u32 {
        match offset {
            offset::VERSION => VERSION.into_bits(),
            offset::CONTROLLER_VERSION => CONTROLLER_VERSION.into_bits(),
            offset::CAPS => CAPABILITIES.into_bits(),
            offset::AQ_BASE_LO => self.submission.low,
            offset::AQ_BASE_HI => self.submission.high,
            offset::AQ_CAPS => self.submission.caps,
            offset::ACQ_BASE_LO => self.completion.low,
            offset::ACQ_BASE_HI => self.completion.high,
            offset::ACQ_CAPS => self.completion.caps,
            offset::AENQ_BASE_LO => self.events.low,
            offset::AENQ_BASE_HI => self.events.high,
            offset::AENQ_CAPS => self.events.caps,
            offset::INTR_MASK => self.mask.into_bits(),
            offset::DEV_CTL => self.control.into_bits(),
            offset::DEV_STS => self.status().into_bits(),
            offset::MMIO_RESP_LO => self.answers.low,
            offset::MMIO_RESP_HI => self.answers.high,
            _ => 0,
        }
    }

    /// Writes the register at this offset.
    pub(crate) fn write(&mut self, offset: u64, value: u32) -> Option<Effect> {
        match offset {
            offset::AQ_BASE_LO => self.submission.low = value,
            offset::AQ_BASE_HI => self.submission.high = value,
            offset::AQ_CAPS => self.submission.caps = value,
            offset::ACQ_BASE_LO => self.completion.low = value,
            offset::ACQ_BASE_HI => self.completion.high = value,
            offset::ACQ_CAPS => self.completion.caps = value,
            offset::AENQ_BASE_LO => self.events.low = value,
            offset::AENQ_BASE_HI => self.events.high = value,
            offset::AENQ_CAPS => self.events.caps = value,
            offset::MMIO_RESP_LO => self.answers.low = value,
            offset::MMIO_RESP_HI => self.answers.high = value,
            offset::INTR_MASK => self.mask = InterruptMask::from_bits(value),
            offset::AENQ_CONS_DB => self.consumed_events = value,
            // There is no queue yet.
            offset::AQ_PROD_DB if self.is_in_reset() => {}
            offset::AQ_PROD_DB => {
                let [low, high, ..] = value.to_le_bytes();
                self.submitted = u16::from_le_bytes([low, high]);
                return Some(Effect::Engine);
            }
            offset::MMIO_REG_READ => return Some(Effect::Read(ReadRequest::from_bits(value))),
            offset::DEV_CTL => return self.write_control(DeviceControl::from_bits(value)),
            offset::EQ_DB => {
                let doorbell = EventQueueDoorbell::from_bits(value);
                return doorbell.arm().then_some(Effect::Arm(doorbell.queue()));
            }
            _ => {}
        }
        None
    }

    fn write_control(&mut self, control: DeviceControl) -> Option<Effect> {
        if control.reset() {
            self.begin_reset(true);
            self.control = control;
            return Some(Effect::Engine);
        }
        self.control = control;
        self.reset = match self.reset {
            Reset::Asked { .. } => Reset::Asked { is_held: false },
            Reset::Held => {
                self.is_reset_finished = true;
                Reset::None
            }
            Reset::None => Reset::None,
        };
        None
    }

    /// Starts a reset of the function, which ends by itself. DMA and interrupts have been stopped.
    pub(crate) fn reset_function(&mut self) {
        self.begin_reset(false);
        self.is_halted = true;
    }

    /// Returns `true`, once, if DMA and interrupts must be permitted again.
    pub(crate) fn take_halt(&mut self) -> bool {
        std::mem::take(&mut self.is_halted)
    }

    /// Returns `true` while DMA and interrupts are refused, until nothing from before a reset of
    /// the function is left.
    pub(crate) fn is_halted(&self) -> bool {
        self.is_halted
    }

    fn begin_reset(&mut self, is_held: bool) {
        *self = Self {
            reset: Reset::Asked { is_held },
            is_reset_new: true,
            is_halted: self.is_halted,
            is_answering: self.is_answering,
            ..Self::new()
        };
    }

    /// Notes that the engine has forgotten everything. Returns `true` unless another reset has
    /// begun since.
    pub(crate) fn was_reset(&mut self) -> bool {
        if self.is_reset_new {
            return false;
        }
        if let Reset::Asked { is_held } = self.reset {
            self.reset = if is_held { Reset::Held } else { Reset::None };
            self.is_reset_finished = !is_held;
        }
        true
    }

    /// Returns `true` if a reset is in progress, which means that no command is executed.
    pub(crate) fn is_in_reset(&self) -> bool {
        self.reset != Reset::None
    }

    /// Marks the device as failed until the next reset.
    pub(crate) fn fail(&mut self) {
        self.is_failed = true;
    }

    fn status(&self) -> DeviceStatus {
        DeviceStatus::new()
            .with_ready(true)
            .with_reset_in_progress(self.is_in_reset())
            .with_reset_finished(self.is_reset_finished)
            .with_fatal_error(self.is_failed)
    }

    /// Returns the number of commands that the driver has submitted, modulo 2^16.
    pub(crate) fn submitted(&self) -> u16 {
        self.submitted
    }

    /// Returns the number of events that the driver has consumed, modulo 2^32.
    pub(crate) fn consumed_events(&self) -> u32 {
        self.consumed_events
    }

    /// Returns `true` if completions of admin commands and asynchronous events raise no interrupt.
    pub(crate) fn is_masked(&self) -> bool {
        self.mask.masked()
    }

    /// Returns the answer to a request to read a register, and its address, or `None` if the driver
    /// has not set one.
    pub(crate) fn answer(&self, request: ReadRequest) -> Option<(u64, ReadAnswer)> {
        let answer = ReadAnswer {
            id: request.id().into(),
            offset: request.offset().into(),
            value: self.read(request.offset().into()).into(),
        };
        let address = self.answers.address();
        (address != 0).then_some((address, answer))
    }

    /// Passes a request to read a register to the engine.
    pub(crate) fn request_read(&mut self, request: ReadRequest) {
        self.read = Some(request);
    }

    /// Notes that the engine has answered a request.
    pub(crate) fn was_answered(&mut self) {
        self.is_answering = false;
    }

    /// Returns `true` if the engine answers a request now or soon. Its answer would overwrite
    /// another one.
    pub(crate) fn is_answering(&self) -> bool {
        self.is_answering || self.read.is_some()
    }

    /// Returns the admin queue.
    pub(crate) fn admin_setup(&self) -> AdminSetup {
        AdminSetup {
            submission: self.submission.address(),
            submission_caps: AdminQueueCaps::from_bits(self.submission.caps),
            completion: self.completion.address(),
            completion_caps: EventQueueCaps::from_bits(self.completion.caps),
        }
    }

    /// Returns the asynchronous event queue.
    pub(crate) fn event_setup(&self) -> EventSetup {
        EventSetup {
            address: self.events.address(),
            caps: EventQueueCaps::from_bits(self.events.caps),
        }
    }
}

impl EngineRequests for Registers {
    type Request = EngineRequest;

    /// Takes a request for the engine. A reset is returned once. A read is in progress until the
    /// engine says that it [was answered](Registers::was_answered).
    fn take_request(&mut self) -> Option<EngineRequest> {
        if std::mem::take(&mut self.is_reset_new) {
            return Some(EngineRequest::Reset);
        }
        let request = self.read.take()?;
        self.is_answering = true;
        Some(EngineRequest::Read(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESET: u32 = 1;

    fn status(registers: &Registers) -> DeviceStatus {
        DeviceStatus::from_bits(registers.read(offset::DEV_STS))
    }

    #[test]
    fn versions_and_capabilities_are_what_the_driver_asks_for() {
        let registers = Registers::new();
        assert_eq!(registers.read(offset::VERSION), 3);
        assert_eq!(registers.read(offset::CONTROLLER_VERSION), 1);
        let caps = Capabilities::from_bits(registers.read(offset::CAPS));
        assert_eq!((caps.reset_timeout(), caps.dma_address_width()), (31, 64));
        assert!(status(&registers).ready());
    }

    #[test]
    fn reset_is_in_progress_until_engine_and_driver_are_done() {
        for engine_first in [true, false] {
            let mut registers = Registers::new();
            assert_eq!(
                registers.write(offset::DEV_CTL, RESET),
                Some(Effect::Engine)
            );
            assert!(status(&registers).reset_in_progress());
            assert_eq!(registers.take_request(), Some(EngineRequest::Reset));
            assert_eq!(registers.take_request(), None);
            if engine_first {
                assert!(registers.was_reset());
                assert!(status(&registers).reset_in_progress());
                registers.write(offset::DEV_CTL, 0);
            } else {
                registers.write(offset::DEV_CTL, 0);
                assert!(status(&registers).reset_in_progress());
                assert!(registers.was_reset());
            }
            let status = status(&registers);
            assert!(!status.reset_in_progress() && status.reset_finished());
        }
    }

    #[test]
    fn reset_within_a_reset_waits_for_the_engine_again() {
        let mut registers = Registers::new();
        registers.write(offset::DEV_CTL, RESET);
        assert_eq!(registers.take_request(), Some(EngineRequest::Reset));
        registers.reset_function();
        assert!(
            !registers.was_reset(),
            "the engine has forgotten too little"
        );
        registers.write(offset::DEV_CTL, RESET);
        assert_eq!(registers.take_request(), Some(EngineRequest::Reset));
        assert!(registers.was_reset());
        assert!(registers.take_halt() && !registers.take_halt());
        assert!(status(&registers).reset_in_progress(), "the driver's own");
    }

    #[test]
    fn reset_clears_queues_answers_and_failure() {
        let mut registers = Registers::new();
        for register in (offset::AQ_BASE_LO..offset::DEV_CTL).step_by(4) {
            registers.write(register, 0x1000);
        }
        registers.write(offset::MMIO_RESP_HI, 2);
        registers.write(offset::MMIO_RESP_LO, 0x3000);
        let (address, _) = registers.answer(ReadRequest::new()).unwrap();
        assert_eq!(address, 0x2_0000_3000);
        registers.request_read(ReadRequest::new());
        registers.fail();
        registers.write(offset::DEV_CTL, RESET);
        assert_eq!(registers.answer(ReadRequest::new()), None);
        assert!(
            !registers.is_answering(),
            "no earlier answer comes after it"
        );
        assert_eq!(registers.submitted(), 0);
        assert_eq!(registers.admin_setup(), Registers::new().admin_setup());
        assert_eq!(registers.event_setup(), Registers::new().event_setup());
        assert!(!status(&registers).fatal_error());
    }

    #[test]
    fn doorbell_rung_in_a_reset_is_forgotten() {
        let mut registers = Registers::new();
        registers.write(offset::DEV_CTL, RESET);
        assert_eq!(registers.write(offset::AQ_PROD_DB, 1), None);
        registers.take_request();
        registers.was_reset();
        assert_eq!(registers.write(offset::AQ_PROD_DB, 1), None);
        registers.write(offset::DEV_CTL, 0);
        assert_eq!(registers.submitted(), 0);
        assert_eq!(registers.write(offset::AQ_PROD_DB, 1), Some(Effect::Engine));
        assert_eq!(registers.submitted(), 1);
    }

    #[test]
    fn answer_in_progress_outlasts_a_reset() {
        let mut registers = Registers::new();
        registers.request_read(ReadRequest::new());
        assert!(registers.is_answering() && registers.take_request().is_some());
        registers.write(offset::DEV_CTL, RESET);
        assert!(registers.is_answering(), "it may still be written");
        registers.was_answered();
        assert!(!registers.is_answering());
    }

    #[test]
    fn event_queue_doorbell_arms_only_if_it_says_so() {
        let mut registers = Registers::new();
        assert_eq!(registers.write(offset::EQ_DB, 7), None);
        let armed = registers.write(offset::EQ_DB, 0x8000_0007);
        assert_eq!(armed, Some(Effect::Arm(7)));
    }
}
