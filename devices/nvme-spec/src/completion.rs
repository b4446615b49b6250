//! Completions: the 16 bytes of a completion queue entry, and the status in it (NVMe Base 2.0,
//! 3.3.3.2).

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A completion queue entry (NVMe Base 2.0, 3.3.3.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CompletionEntry {
    /// DW0: command specific.
    pub dw0: U32,
    /// DW1: command specific.
    pub dw1: U32,
    /// SQHD: the head of the submission queue, up to which the controller has taken entries.
    pub sqhd: U16,
    /// SQID: the submission queue of the command.
    pub sqid: U16,
    /// CID: the command.
    pub cid: U16,
    /// P and SF.
    pub status: StatusField,
}

/// The upper half of dword 3 of a completion (NVMe Base 2.0, 3.3.3.2), also used in the error log.
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct StatusField {
    /// P: toggles with each pass through the queue, so that the host sees which entries are new.
    pub phase: bool,
    /// SF: the outcome.
    #[bits(15)]
    pub status: Status,
}

/// The outcome of a command (NVMe Base 2.0, 3.3.3.2.1): the status field without the phase tag.
#[bitfield(u16)]
#[derive(PartialEq, Eq)]
pub struct Status {
    /// SC: Status Code, whose meaning depends on SCT.
    pub sc: u8,
    /// SCT: Status Code Type.
    #[bits(3)]
    pub sct: u8,
    /// CRD: the number of the Command Retry Delay to apply, 0 for no delay.
    #[bits(2)]
    pub crd: u8,
    /// M: the error log has more information.
    pub more: bool,
    /// DNR: the same command would fail again.
    pub dnr: bool,
    #[bits(1)]
    __: u8,
}

/// Status Code Types (NVMe Base 2.0, 3.3.3.2.1).
pub mod sct {
    /// Generic Command Status.
    pub const GENERIC: u8 = 0;
    /// Command Specific Status.
    pub const COMMAND_SPECIFIC: u8 = 1;
    /// Media and Data Integrity Errors.
    pub const MEDIA: u8 = 2;
    /// Path Related Status.
    pub const PATH: u8 = 3;
}

const fn generic(sc: u8) -> Status {
    Status::new().with_sct(sct::GENERIC).with_sc(sc)
}

const fn command_specific(sc: u8) -> Status {
    Status::new().with_sct(sct::COMMAND_SPECIFIC).with_sc(sc)
}

const fn media(sc: u8) -> Status {
    Status::new().with_sct(sct::MEDIA).with_sc(sc)
}

/// Generic Command Status (NVMe Base 2.0, 3.3.3.2.1.1).
impl Status {
    /// The command succeeded.
    pub const SUCCESS: Self = generic(0x00);
    /// Invalid Command Opcode.
    pub const INVALID_OPCODE: Self = generic(0x01);
    /// Invalid Field in Command.
    pub const INVALID_FIELD: Self = generic(0x02);
    /// Data Transfer Error: a DMA failed.
    pub const DATA_TRANSFER_ERROR: Self = generic(0x04);
    /// Internal Error.
    pub const INTERNAL_ERROR: Self = generic(0x06);
    /// Command Abort Requested.
    pub const ABORT_REQUESTED: Self = generic(0x07);
    /// Invalid Namespace or Format.
    pub const INVALID_NAMESPACE: Self = generic(0x0b);
    /// Command Sequence Error.
    pub const COMMAND_SEQUENCE_ERROR: Self = generic(0x0c);
    /// Invalid SGL Segment Descriptor.
    pub const INVALID_SGL_SEGMENT: Self = generic(0x0d);
    /// Invalid Number of SGL Descriptors.
    pub const INVALID_SGL_COUNT: Self = generic(0x0e);
    /// Data SGL Length Invalid.
    pub const INVALID_SGL_LENGTH: Self = generic(0x0f);
    /// SGL Descriptor Type Invalid.
    pub const INVALID_SGL_TYPE: Self = generic(0x11);
    /// Invalid Use of Controller Memory Buffer.
    pub const INVALID_USE_OF_CMB: Self = generic(0x12);
    /// PRP Offset Invalid.
    pub const INVALID_PRP_OFFSET: Self = generic(0x13);
    /// Sanitize Failed: the media may not be used until it has been sanitized.
    pub const SANITIZE_FAILED: Self = generic(0x1c);
    /// Sanitize In Progress.
    pub const SANITIZE_IN_PROGRESS: Self = generic(0x1d);
    /// Sanitize Prohibited While Persistent Memory Region is Enabled.
    pub const SANITIZE_PROHIBITED_BY_PMR: Self = generic(0x23);
    /// LBA Out of Range.
    pub const LBA_OUT_OF_RANGE: Self = generic(0x80);
    /// Capacity Exceeded.
    pub const CAPACITY_EXCEEDED: Self = generic(0x81);
}

/// Command Specific Status (NVMe Base 2.0, 3.3.3.2.1.2).
impl Status {
    /// Completion Queue Invalid.
    pub const INVALID_COMPLETION_QUEUE: Self = command_specific(0x00);
    /// Invalid Queue Identifier.
    pub const INVALID_QUEUE_ID: Self = command_specific(0x01);
    /// Invalid Queue Size.
    pub const INVALID_QUEUE_SIZE: Self = command_specific(0x02);
    /// Asynchronous Event Request Limit Exceeded.
    pub const ASYNC_EVENT_LIMIT_EXCEEDED: Self = command_specific(0x05);
    /// Invalid Interrupt Vector.
    pub const INVALID_INTERRUPT_VECTOR: Self = command_specific(0x08);
    /// Invalid Log Page.
    pub const INVALID_LOG_PAGE: Self = command_specific(0x09);
    /// Invalid Queue Deletion.
    pub const INVALID_QUEUE_DELETION: Self = command_specific(0x0c);
    /// Feature Identifier Not Saveable.
    pub const FEATURE_NOT_SAVEABLE: Self = command_specific(0x0d);
    /// Feature Not Namespace Specific.
    pub const FEATURE_NOT_NAMESPACE_SPECIFIC: Self = command_specific(0x0f);
    /// Invalid Controller Identifier.
    pub const INVALID_CONTROLLER_ID: Self = command_specific(0x1f);
    /// Invalid I/O Command Set. Linux lists it with the generic codes; the specification, QEMU and
    /// SPDK list it here.
    pub const INVALID_IO_COMMAND_SET: Self = command_specific(0x2c);
}

/// Media and Data Integrity Errors (NVMe Base 2.0, 3.3.3.2.1.3).
impl Status {
    /// Write Fault.
    pub const WRITE_FAULT: Self = media(0x80);
    /// Unrecovered Read Error.
    pub const UNRECOVERED_READ_ERROR: Self = media(0x81);
    /// Compare Failure.
    pub const COMPARE_FAILURE: Self = media(0x85);
}

#[cfg(test)]
mod tests {
    use core::mem::{align_of, offset_of};

    use super::*;

    #[test]
    fn entry_is_linux_nvme_completion() {
        assert_eq!(size_of::<CompletionEntry>(), 16);
        assert_eq!(align_of::<CompletionEntry>(), 1);
        assert_eq!(offset_of!(CompletionEntry, dw0), 0); // result.u32
        assert_eq!(offset_of!(CompletionEntry, sqhd), 8); // sq_head
        assert_eq!(offset_of!(CompletionEntry, sqid), 10); // sq_id
        assert_eq!(offset_of!(CompletionEntry, cid), 12); // command_id
        assert_eq!(offset_of!(CompletionEntry, status), 14); // status
    }

    #[test]
    fn status_and_phase_are_as_linux_takes_them_apart() {
        // drivers/nvme/host/pci.c: phase is status & 1, the rest is status >> 1.
        let field = StatusField::new()
            .with_phase(true)
            .with_status(Status::COMPARE_FAILURE.with_dnr(true));
        let bits = field.into_bits().get();
        assert_eq!(bits & 1, 1);
        assert_eq!(bits >> 1, 0x4285); // NVME_STATUS_DNR | NVME_SC_COMPARE_FAILED
        assert_eq!(field.as_bytes(), [0x0b, 0x85]);
        assert_eq!(field.status(), Status::COMPARE_FAILURE.with_dnr(true));
        assert!(
            !StatusField::new()
                .with_status(Status::from_bits(0x7fff))
                .phase()
        );
    }

    #[test]
    fn other_status_bits_are_linux() {
        assert_eq!(Status::new().with_dnr(true).into_bits(), 0x4000); // NVME_STATUS_DNR
        assert_eq!(Status::new().with_more(true).into_bits(), 0x2000); // NVME_STATUS_MORE
        assert_eq!(Status::new().with_crd(3).into_bits(), 0x1800); // NVME_STATUS_CRD
    }

    #[test]
    fn generic_codes_are_linux_nvme_sc() {
        assert_eq!(Status::SUCCESS.into_bits(), 0x0); // NVME_SC_SUCCESS
        assert_eq!(Status::INVALID_OPCODE.into_bits(), 0x1); // NVME_SC_INVALID_OPCODE
        assert_eq!(Status::INVALID_FIELD.into_bits(), 0x2); // NVME_SC_INVALID_FIELD
        assert_eq!(Status::DATA_TRANSFER_ERROR.into_bits(), 0x4); // NVME_SC_DATA_XFER_ERROR
        assert_eq!(Status::INTERNAL_ERROR.into_bits(), 0x6); // NVME_SC_INTERNAL
        assert_eq!(Status::ABORT_REQUESTED.into_bits(), 0x7); // NVME_SC_ABORT_REQ
        assert_eq!(Status::INVALID_NAMESPACE.into_bits(), 0xb); // NVME_SC_INVALID_NS
        assert_eq!(Status::COMMAND_SEQUENCE_ERROR.into_bits(), 0xc); // NVME_SC_CMD_SEQ_ERROR
        assert_eq!(Status::INVALID_SGL_SEGMENT.into_bits(), 0xd); // NVME_SC_SGL_INVALID_LAST
        assert_eq!(Status::INVALID_SGL_COUNT.into_bits(), 0xe); // NVME_SC_SGL_INVALID_COUNT
        assert_eq!(Status::INVALID_SGL_LENGTH.into_bits(), 0xf); // NVME_SC_SGL_INVALID_DATA
        assert_eq!(Status::INVALID_SGL_TYPE.into_bits(), 0x11); // NVME_SC_SGL_INVALID_TYPE
        assert_eq!(Status::INVALID_USE_OF_CMB.into_bits(), 0x12); // NVME_SC_CMB_INVALID_USE
        assert_eq!(Status::SANITIZE_FAILED.into_bits(), 0x1c); // NVME_SC_SANITIZE_FAILED
        assert_eq!(Status::SANITIZE_IN_PROGRESS.into_bits(), 0x1d); // NVME_SC_SANITIZE_IN_PROGRESS
        assert_eq!(Status::SANITIZE_PROHIBITED_BY_PMR.into_bits(), 0x23); // NVME_SC_PMR_SAN_PROHIBITED
        assert_eq!(Status::INVALID_PRP_OFFSET.into_bits(), 0x13); // NVME_SC_PRP_INVALID_OFFSET
        assert_eq!(Status::LBA_OUT_OF_RANGE.into_bits(), 0x80); // NVME_SC_LBA_RANGE
        assert_eq!(Status::CAPACITY_EXCEEDED.into_bits(), 0x81); // NVME_SC_CAP_EXCEEDED
    }

    #[test]
    fn command_specific_codes_are_linux_nvme_sc() {
        assert_eq!(Status::INVALID_COMPLETION_QUEUE.into_bits(), 0x100); // NVME_SC_CQ_INVALID
        assert_eq!(Status::INVALID_QUEUE_ID.into_bits(), 0x101); // NVME_SC_QID_INVALID
        assert_eq!(Status::INVALID_QUEUE_SIZE.into_bits(), 0x102); // NVME_SC_QUEUE_SIZE
        assert_eq!(Status::ASYNC_EVENT_LIMIT_EXCEEDED.into_bits(), 0x105); // NVME_SC_ASYNC_LIMIT
        assert_eq!(Status::INVALID_INTERRUPT_VECTOR.into_bits(), 0x108); // NVME_SC_INVALID_VECTOR
        assert_eq!(Status::INVALID_LOG_PAGE.into_bits(), 0x109); // NVME_SC_INVALID_LOG_PAGE
        assert_eq!(Status::INVALID_QUEUE_DELETION.into_bits(), 0x10c); // NVME_SC_INVALID_QUEUE
        assert_eq!(Status::FEATURE_NOT_SAVEABLE.into_bits(), 0x10d); // NVME_SC_FEATURE_NOT_SAVEABLE
        assert_eq!(Status::FEATURE_NOT_NAMESPACE_SPECIFIC.into_bits(), 0x10f); // NVME_SC_FEATURE_NOT_PER_NS
        assert_eq!(Status::INVALID_CONTROLLER_ID.into_bits(), 0x11f); // NVME_SC_CTRL_ID_INVALID
    }

    #[test]
    fn media_codes_are_linux_nvme_sc() {
        assert_eq!(Status::WRITE_FAULT.into_bits(), 0x280); // NVME_SC_WRITE_FAULT
        assert_eq!(Status::UNRECOVERED_READ_ERROR.into_bits(), 0x281); // NVME_SC_READ_ERROR
        assert_eq!(Status::COMPARE_FAILURE.into_bits(), 0x285); // NVME_SC_COMPARE_FAILED
    }
}
