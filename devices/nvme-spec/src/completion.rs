//! Completions: the 16 bytes of a completion queue entry, and the status in it (NVMe Base 2.0, 3.3.3.2).

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
    /// SQHD: how far the controller has taken entries from the submission queue.
    pub sqhd: U16,
    /// SQID: the submission queue of the command.
    pub sqid: U16,
    /// CID: the command.
    pub cid: U16,
    /// P and SF.
    pub status: StatusField,
}

/// The upper half of dword 3 of a completion (NVMe Base 2.0, 3.3.3.2); also what the error log reports.
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
    /// SC: Status Code, in the terms of SCT.
    pub sc: u8,
    /// SCT: Status Code Type.
    #[bits(3)]
    pub sct: u8,
    /// CRD: which of the controller's Command Retry Delays applies, 0 for none.
    #[bits(2)]
    pub crd: u8,
    /// M: the error log has more about this.
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
    /// Vendor Specific.
    pub const VENDOR: u8 = 7;
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
    /// The command did what it says.
    pub const SUCCESS: Self = generic(0x00);
    /// Invalid Command Opcode.
    pub const INVALID_OPCODE: Self = generic(0x01);
    /// Invalid Field in Command.
    pub const INVALID_FIELD: Self = generic(0x02);
    /// Command ID Conflict.
    pub const COMMAND_ID_CONFLICT: Self = generic(0x03);
    /// Data Transfer Error: a DMA failed.
    pub const DATA_TRANSFER_ERROR: Self = generic(0x04);
    /// Commands Aborted due to Power Loss Notification.
    pub const ABORTED_POWER_LOSS: Self = generic(0x05);
    /// Internal Error.
    pub const INTERNAL_ERROR: Self = generic(0x06);
    /// Command Abort Requested.
    pub const ABORT_REQUESTED: Self = generic(0x07);
    /// Command Aborted due to SQ Deletion.
    pub const ABORTED_SQ_DELETION: Self = generic(0x08);
    /// Command Aborted due to Failed Fused Command.
    pub const ABORTED_FAILED_FUSED: Self = generic(0x09);
    /// Command Aborted due to Missing Fused Command.
    pub const ABORTED_MISSING_FUSED: Self = generic(0x0a);
    /// Invalid Namespace or Format.
    pub const INVALID_NAMESPACE: Self = generic(0x0b);
    /// Command Sequence Error.
    pub const COMMAND_SEQUENCE_ERROR: Self = generic(0x0c);
    /// Invalid Use of Controller Memory Buffer.
    pub const INVALID_USE_OF_CMB: Self = generic(0x12);
    /// PRP Offset Invalid.
    pub const INVALID_PRP_OFFSET: Self = generic(0x13);
    /// Atomic Write Unit Exceeded.
    pub const ATOMIC_WRITE_UNIT_EXCEEDED: Self = generic(0x14);
    /// Operation Denied.
    pub const OPERATION_DENIED: Self = generic(0x15);
    /// Host Identifier Inconsistent Format.
    pub const HOST_ID_INCONSISTENT_FORMAT: Self = generic(0x18);
    /// Command Not Supported for Queue in CMB.
    pub const NOT_SUPPORTED_FOR_QUEUE_IN_CMB: Self = generic(0x1f);
    /// Namespace is Write Protected.
    pub const NAMESPACE_WRITE_PROTECTED: Self = generic(0x20);
    /// Command Interrupted.
    pub const COMMAND_INTERRUPTED: Self = generic(0x21);
    /// Transient Transport Error.
    pub const TRANSIENT_TRANSPORT_ERROR: Self = generic(0x22);
    /// LBA Out of Range.
    pub const LBA_OUT_OF_RANGE: Self = generic(0x80);
    /// Capacity Exceeded.
    pub const CAPACITY_EXCEEDED: Self = generic(0x81);
    /// Namespace Not Ready.
    pub const NAMESPACE_NOT_READY: Self = generic(0x82);
}

/// Command Specific Status (NVMe Base 2.0, 3.3.3.2.1.2).
impl Status {
    /// Completion Queue Invalid.
    pub const INVALID_COMPLETION_QUEUE: Self = command_specific(0x00);
    /// Invalid Queue Identifier.
    pub const INVALID_QUEUE_ID: Self = command_specific(0x01);
    /// Invalid Queue Size.
    pub const INVALID_QUEUE_SIZE: Self = command_specific(0x02);
    /// Abort Command Limit Exceeded.
    pub const ABORT_LIMIT_EXCEEDED: Self = command_specific(0x03);
    /// Asynchronous Event Request Limit Exceeded.
    pub const ASYNC_EVENT_LIMIT_EXCEEDED: Self = command_specific(0x05);
    /// Invalid Firmware Slot.
    pub const INVALID_FIRMWARE_SLOT: Self = command_specific(0x06);
    /// Invalid Firmware Image.
    pub const INVALID_FIRMWARE_IMAGE: Self = command_specific(0x07);
    /// Invalid Interrupt Vector.
    pub const INVALID_INTERRUPT_VECTOR: Self = command_specific(0x08);
    /// Invalid Log Page.
    pub const INVALID_LOG_PAGE: Self = command_specific(0x09);
    /// Invalid Format.
    pub const INVALID_FORMAT: Self = command_specific(0x0a);
    /// Invalid Queue Deletion.
    pub const INVALID_QUEUE_DELETION: Self = command_specific(0x0c);
    /// Feature Identifier Not Saveable.
    pub const FEATURE_NOT_SAVEABLE: Self = command_specific(0x0d);
    /// Feature Not Changeable.
    pub const FEATURE_NOT_CHANGEABLE: Self = command_specific(0x0e);
    /// Feature Not Namespace Specific.
    pub const FEATURE_NOT_NAMESPACE_SPECIFIC: Self = command_specific(0x0f);
    /// Overlapping Range.
    pub const OVERLAPPING_RANGE: Self = command_specific(0x14);
    /// Invalid Controller Identifier.
    pub const INVALID_CONTROLLER_ID: Self = command_specific(0x1f);
    /// Invalid I/O Command Set. Linux has it among the generic codes; the specification, QEMU and SPDK here.
    pub const INVALID_IO_COMMAND_SET: Self = command_specific(0x2c);
    /// Conflicting Attributes (NVM command set).
    pub const CONFLICTING_ATTRIBUTES: Self = command_specific(0x80);
    /// Invalid Protection Information (NVM command set).
    pub const INVALID_PROTECTION_INFORMATION: Self = command_specific(0x81);
    /// Attempted Write to Read Only Range (NVM command set).
    pub const READ_ONLY_RANGE: Self = command_specific(0x82);
    /// Command Size Limit Exceeded (NVM command set).
    pub const SIZE_LIMIT_EXCEEDED: Self = command_specific(0x83);
}

/// Media and Data Integrity Errors (NVMe Base 2.0, 3.3.3.2.1.3).
impl Status {
    /// Write Fault.
    pub const WRITE_FAULT: Self = media(0x80);
    /// Unrecovered Read Error.
    pub const UNRECOVERED_READ_ERROR: Self = media(0x81);
    /// Compare Failure.
    pub const COMPARE_FAILURE: Self = media(0x85);
    /// Access Denied.
    pub const ACCESS_DENIED: Self = media(0x86);
    /// Deallocated or Unwritten Logical Block.
    pub const DEALLOCATED_OR_UNWRITTEN: Self = media(0x87);
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
    fn bits_beside_the_code_are_linux() {
        assert_eq!(Status::new().with_dnr(true).into_bits(), 0x4000); // NVME_STATUS_DNR
        assert_eq!(Status::new().with_more(true).into_bits(), 0x2000); // NVME_STATUS_MORE
        assert_eq!(Status::new().with_crd(3).into_bits(), 0x1800); // NVME_STATUS_CRD
    }

    #[test]
    fn generic_codes_are_linux_nvme_sc() {
        assert_eq!(Status::SUCCESS.into_bits(), 0x0); // NVME_SC_SUCCESS
        assert_eq!(Status::INVALID_OPCODE.into_bits(), 0x1); // NVME_SC_INVALID_OPCODE
        assert_eq!(Status::INVALID_FIELD.into_bits(), 0x2); // NVME_SC_INVALID_FIELD
        assert_eq!(Status::COMMAND_ID_CONFLICT.into_bits(), 0x3); // NVME_SC_CMDID_CONFLICT
        assert_eq!(Status::DATA_TRANSFER_ERROR.into_bits(), 0x4); // NVME_SC_DATA_XFER_ERROR
        assert_eq!(Status::ABORTED_POWER_LOSS.into_bits(), 0x5); // NVME_SC_POWER_LOSS
        assert_eq!(Status::INTERNAL_ERROR.into_bits(), 0x6); // NVME_SC_INTERNAL
        assert_eq!(Status::ABORT_REQUESTED.into_bits(), 0x7); // NVME_SC_ABORT_REQ
        assert_eq!(Status::ABORTED_SQ_DELETION.into_bits(), 0x8); // NVME_SC_ABORT_QUEUE
        assert_eq!(Status::ABORTED_FAILED_FUSED.into_bits(), 0x9); // NVME_SC_FUSED_FAIL
        assert_eq!(Status::ABORTED_MISSING_FUSED.into_bits(), 0xa); // NVME_SC_FUSED_MISSING
        assert_eq!(Status::INVALID_NAMESPACE.into_bits(), 0xb); // NVME_SC_INVALID_NS
        assert_eq!(Status::COMMAND_SEQUENCE_ERROR.into_bits(), 0xc); // NVME_SC_CMD_SEQ_ERROR
        assert_eq!(Status::INVALID_USE_OF_CMB.into_bits(), 0x12); // NVME_SC_CMB_INVALID_USE
        assert_eq!(Status::INVALID_PRP_OFFSET.into_bits(), 0x13); // NVME_SC_PRP_INVALID_OFFSET
        assert_eq!(Status::ATOMIC_WRITE_UNIT_EXCEEDED.into_bits(), 0x14); // NVME_SC_ATOMIC_WU_EXCEEDED
        assert_eq!(Status::OPERATION_DENIED.into_bits(), 0x15); // NVME_SC_OP_DENIED
        assert_eq!(Status::HOST_ID_INCONSISTENT_FORMAT.into_bits(), 0x18); // NVME_SC_HOST_ID_INCONSIST
        assert_eq!(Status::NOT_SUPPORTED_FOR_QUEUE_IN_CMB.into_bits(), 0x1f); // NVME_SC_CMD_NOT_SUP_CMB_QUEUE
        assert_eq!(Status::NAMESPACE_WRITE_PROTECTED.into_bits(), 0x20); // NVME_SC_NS_WRITE_PROTECTED
        assert_eq!(Status::COMMAND_INTERRUPTED.into_bits(), 0x21); // NVME_SC_CMD_INTERRUPTED
        assert_eq!(Status::TRANSIENT_TRANSPORT_ERROR.into_bits(), 0x22); // NVME_SC_TRANSIENT_TR_ERR
        assert_eq!(Status::LBA_OUT_OF_RANGE.into_bits(), 0x80); // NVME_SC_LBA_RANGE
        assert_eq!(Status::CAPACITY_EXCEEDED.into_bits(), 0x81); // NVME_SC_CAP_EXCEEDED
        assert_eq!(Status::NAMESPACE_NOT_READY.into_bits(), 0x82); // NVME_SC_NS_NOT_READY
    }

    #[test]
    fn command_specific_codes_are_linux_nvme_sc() {
        assert_eq!(Status::INVALID_COMPLETION_QUEUE.into_bits(), 0x100); // NVME_SC_CQ_INVALID
        assert_eq!(Status::INVALID_QUEUE_ID.into_bits(), 0x101); // NVME_SC_QID_INVALID
        assert_eq!(Status::INVALID_QUEUE_SIZE.into_bits(), 0x102); // NVME_SC_QUEUE_SIZE
        assert_eq!(Status::ABORT_LIMIT_EXCEEDED.into_bits(), 0x103); // NVME_SC_ABORT_LIMIT
        assert_eq!(Status::ASYNC_EVENT_LIMIT_EXCEEDED.into_bits(), 0x105); // NVME_SC_ASYNC_LIMIT
        assert_eq!(Status::INVALID_FIRMWARE_SLOT.into_bits(), 0x106); // NVME_SC_FIRMWARE_SLOT
        assert_eq!(Status::INVALID_FIRMWARE_IMAGE.into_bits(), 0x107); // NVME_SC_FIRMWARE_IMAGE
        assert_eq!(Status::INVALID_INTERRUPT_VECTOR.into_bits(), 0x108); // NVME_SC_INVALID_VECTOR
        assert_eq!(Status::INVALID_LOG_PAGE.into_bits(), 0x109); // NVME_SC_INVALID_LOG_PAGE
        assert_eq!(Status::INVALID_FORMAT.into_bits(), 0x10a); // NVME_SC_INVALID_FORMAT
        assert_eq!(Status::INVALID_QUEUE_DELETION.into_bits(), 0x10c); // NVME_SC_INVALID_QUEUE
        assert_eq!(Status::FEATURE_NOT_SAVEABLE.into_bits(), 0x10d); // NVME_SC_FEATURE_NOT_SAVEABLE
        assert_eq!(Status::FEATURE_NOT_CHANGEABLE.into_bits(), 0x10e); // NVME_SC_FEATURE_NOT_CHANGEABLE
        assert_eq!(Status::FEATURE_NOT_NAMESPACE_SPECIFIC.into_bits(), 0x10f); // NVME_SC_FEATURE_NOT_PER_NS
        assert_eq!(Status::OVERLAPPING_RANGE.into_bits(), 0x114); // NVME_SC_OVERLAPPING_RANGE
        assert_eq!(Status::INVALID_CONTROLLER_ID.into_bits(), 0x11f); // NVME_SC_CTRL_ID_INVALID
        assert_eq!(Status::CONFLICTING_ATTRIBUTES.into_bits(), 0x180); // NVME_SC_BAD_ATTRIBUTES
        assert_eq!(Status::INVALID_PROTECTION_INFORMATION.into_bits(), 0x181); // NVME_SC_INVALID_PI
        assert_eq!(Status::READ_ONLY_RANGE.into_bits(), 0x182); // NVME_SC_READ_ONLY
        assert_eq!(Status::SIZE_LIMIT_EXCEEDED.into_bits(), 0x183); // libnvme NVME_SC_CMD_SIZE_LIMIT_EXCEEDED
    }

    #[test]
    fn media_codes_are_linux_nvme_sc() {
        assert_eq!(Status::WRITE_FAULT.into_bits(), 0x280); // NVME_SC_WRITE_FAULT
        assert_eq!(Status::UNRECOVERED_READ_ERROR.into_bits(), 0x281); // NVME_SC_READ_ERROR
        assert_eq!(Status::COMPARE_FAILURE.into_bits(), 0x285); // NVME_SC_COMPARE_FAILED
        assert_eq!(Status::ACCESS_DENIED.into_bits(), 0x286); // NVME_SC_ACCESS_DENIED
        assert_eq!(Status::DEALLOCATED_OR_UNWRITTEN.into_bits(), 0x287); // NVME_SC_UNWRITTEN_BLOCK
    }
}
