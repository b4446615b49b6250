//! The registers in BAR0 (efa_regs_defs.h), and their readless access: the driver writes the number
//! of the register that it wants, and the device writes the answer to the driver's memory.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Byte offsets of the registers, of 4 bytes each (efa_regs_defs.h, `EFA_REGS_*_OFF`).
pub mod offset {
    /// Version of the interface, see [`Version`](super::Version).
    pub const VERSION: u64 = 0x00;
    /// Version of the controller, see [`ControllerVersion`](super::ControllerVersion).
    pub const CONTROLLER_VERSION: u64 = 0x04;
    /// Capabilities, see [`Capabilities`](super::Capabilities).
    pub const CAPS: u64 = 0x08;
    /// Admin submission queue, lower half of its address.
    pub const AQ_BASE_LO: u64 = 0x10;
    /// Admin submission queue, upper half of its address.
    pub const AQ_BASE_HI: u64 = 0x14;
    /// Admin submission queue, see [`AdminQueueCaps`](super::AdminQueueCaps).
    pub const AQ_CAPS: u64 = 0x18;
    /// Admin completion queue, lower half of its address.
    pub const ACQ_BASE_LO: u64 = 0x20;
    /// Admin completion queue, upper half of its address.
    pub const ACQ_BASE_HI: u64 = 0x24;
    /// Admin completion queue, see [`EventQueueCaps`](super::EventQueueCaps).
    pub const ACQ_CAPS: u64 = 0x28;
    /// Doorbell of the admin submission queue: number of commands that the driver has submitted.
    pub const AQ_PROD_DB: u64 = 0x2c;
    /// Asynchronous event queue, see [`EventQueueCaps`](super::EventQueueCaps).
    pub const AENQ_CAPS: u64 = 0x34;
    /// Asynchronous event queue, lower half of its address.
    pub const AENQ_BASE_LO: u64 = 0x38;
    /// Asynchronous event queue, upper half of its address.
    pub const AENQ_BASE_HI: u64 = 0x3c;
    /// Doorbell of the asynchronous event queue: number of events that the driver has consumed.
    pub const AENQ_CONS_DB: u64 = 0x40;
    /// Interrupt mask, see [`InterruptMask`](super::InterruptMask).
    pub const INTR_MASK: u64 = 0x4c;
    /// Device control, see [`DeviceControl`](super::DeviceControl).
    pub const DEV_CTL: u64 = 0x54;
    /// Device status, see [`DeviceStatus`](super::DeviceStatus).
    pub const DEV_STS: u64 = 0x58;
    /// Request to read a register, see [`ReadRequest`](super::ReadRequest).
    pub const MMIO_REG_READ: u64 = 0x5c;
    /// Address of answers to such requests, lower half.
    pub const MMIO_RESP_LO: u64 = 0x60;
    /// Address of answers to such requests, upper half.
    pub const MMIO_RESP_HI: u64 = 0x64;
    /// Doorbell of the event queues, see [`EventQueueDoorbell`](super::EventQueueDoorbell).
    pub const EQ_DB: u64 = 0x68;
    /// End of the registers.
    pub const END: u64 = 0x6c;
}

/// Version of the interface between driver and device.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Version {
    /// Minor version.
    pub minor: u8,
    /// Major version.
    pub major: u8,
    __: u16,
}

/// Version of the controller.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ControllerVersion {
    /// Subminor version.
    pub subminor: u8,
    /// Minor version.
    pub minor: u8,
    /// Major version.
    pub major: u8,
    /// Number of the implementation.
    pub implementation: u8,
}

/// Capabilities of the device, and the driver's time limits.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Capabilities {
    /// Queues must be physically contiguous.
    pub contiguous_queue_required: bool,
    /// Time limit of a step of a reset, in units of 100 ms. Never 0.
    #[bits(5)]
    pub reset_timeout: u8,
    #[bits(2)]
    __: u8,
    /// Number of address bits that DMA uses, 32 to 64.
    pub dma_address_width: u8,
    /// Time limit of an admin command, in units of 100 ms; 0 means 30 s.
    #[bits(4)]
    pub admin_command_timeout: u8,
    #[bits(12)]
    __: u16,
}

/// Size of the admin submission queue.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AdminQueueCaps {
    /// Number of entries, a power of two.
    pub depth: u16,
    /// Length of an entry in bytes.
    pub entry_size: u16,
}

/// Size and interrupt of the admin completion queue, and of the asynchronous event queue.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct EventQueueCaps {
    /// Number of entries, a power of two.
    pub depth: u16,
    /// Length of an entry in bytes.
    pub entry_size: u8,
    /// MSI-X vector that is raised when there are new entries.
    pub vector: u8,
}

/// Interrupt mask of the admin queues.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct InterruptMask {
    /// Admin completions and asynchronous events raise no interrupt: the driver polls.
    pub masked: bool,
    #[bits(31)]
    __: u32,
}

/// Device control.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct DeviceControl {
    /// The device is held in reset while this is set.
    pub reset: bool,
    /// The admin queue is restarted.
    pub aq_restart: bool,
    #[bits(26)]
    __: u32,
    /// Reason for the reset, a [`ResetReason`].
    #[bits(4)]
    pub reset_reason: u8,
}

/// Reason why a driver resets the device (efa_regs_defs.h, `efa_regs_reset_reason_types`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ResetReason {
    /// The driver starts or ends.
    Normal = 0,
    /// No keep-alive event came in time.
    KeepAliveTimeout = 1,
    /// An admin command was not completed in time.
    AdminTimeout = 2,
    /// The driver could not set up the device.
    InitError = 3,
    /// The driver is in an invalid state.
    DriverInvalidState = 4,
    /// The operating system requests it.
    OsTrigger = 5,
    /// The system shuts down.
    Shutdown = 6,
    /// The user requests it.
    UserTrigger = 7,
    /// Any other reason.
    Generic = 8,
}

/// Device status.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct DeviceStatus {
    /// The device can be used.
    pub ready: bool,
    /// The admin queue is being restarted.
    pub aq_restart_in_progress: bool,
    /// The admin queue has been restarted.
    pub aq_restart_finished: bool,
    /// A reset is in progress: it was requested and has not ended yet.
    pub reset_in_progress: bool,
    /// A reset has ended.
    pub reset_finished: bool,
    /// The device has failed, and must be reset.
    pub fatal_error: bool,
    #[bits(26)]
    __: u32,
}

/// Request to write the value of a register to the driver's memory.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ReadRequest {
    /// Number of the request, which the answer repeats.
    pub id: u16,
    /// Offset of the register.
    pub offset: u16,
}

/// Answer to a [`ReadRequest`] in the driver's memory (efa_admin_cmds_defs.h, `efa_admin_mmio_req_read_less_resp`). The
/// driver polls the number, so it must become visible last, or all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReadAnswer {
    /// Number of the request.
    pub id: U16,
    /// Offset of the register.
    pub offset: U16,
    /// Value of the register.
    pub value: U32,
}

/// Doorbell of the event queues.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct EventQueueDoorbell {
    /// Number of the event queue.
    pub queue: u16,
    #[bits(15)]
    __: u16,
    /// Allows the queue to interrupt once more.
    pub arm: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The masks are those of efa_regs_defs.h.
    #[test]
    fn fields_lie_where_the_driver_has_them() {
        let caps = Capabilities::new()
            .with_contiguous_queue_required(true)
            .with_reset_timeout(0x1f)
            .with_dma_address_width(0xff)
            .with_admin_command_timeout(0xf);
        assert_eq!(caps.into_bits(), 0x1 | 0x3e | 0xff00 | 0xf_0000);
        let control = DeviceControl::new()
            .with_reset(true)
            .with_aq_restart(true)
            .with_reset_reason(ResetReason::Generic as u8);
        assert_eq!(control.into_bits(), 0x8000_0003);
        let status = DeviceStatus::new().with_fatal_error(true);
        assert_eq!(status.with_reset_in_progress(true).into_bits(), 0x28);
        let request = ReadRequest::new().with_id(0x1234).with_offset(0x58);
        assert_eq!(request.into_bits(), 0x58_1234);
        let doorbell = EventQueueDoorbell::new().with_queue(3).with_arm(true);
        assert_eq!(doorbell.into_bits(), 0x8000_0003);
        let queue = EventQueueCaps::new().with_depth(32).with_entry_size(64);
        assert_eq!(queue.with_vector(1).into_bits(), 0x0140_0020);
    }

    #[test]
    fn read_answer_is_8_bytes() {
        let answer = ReadAnswer {
            id: 0x1234.into(),
            offset: 0x58.into(),
            value: 1.into(),
        };
        assert_eq!(answer.as_bytes(), [0x34, 0x12, 0x58, 0, 1, 0, 0, 0]);
    }
}
