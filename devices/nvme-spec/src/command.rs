//! Commands: the 64 bytes of a submission queue entry and the opcodes (NVMe Base 2.0, 3.3.3.1).
//!
//! The meaning of dwords 10 to 15 depends on the command. [`admin`] and [`nvm`] have one view for
//! each command that uses them, with `View::from(&entry)` and `view.apply_to(&mut entry)`.
//! Asynchronous Event Request, Keep Alive and Flush do not use them. A field that NVMe calls 0's
//! based keeps its encoding; a method returns the count.

pub mod admin;
pub mod nvm;

use bitfield_struct::bitfield;
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned, transmute, try_transmute,
};

use crate::sgl::Descriptor;

/// NSID that stands for every namespace (NVMe Base 2.0, 3.2.1).
pub const NSID_ALL: u32 = 0xffff_ffff;

/// A submission queue entry (NVMe Base 2.0, 3.3.3.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SubmissionEntry {
    /// OPC: an [`AdminOpcode`] or [`NvmOpcode`], by the queue.
    pub opcode: u8,
    /// FUSE and PSDT.
    pub flags: CommandFlags,
    /// CID: the command's identifier, unique among the outstanding commands of the queue.
    pub cid: U16,
    /// NSID: the namespace, 0 for no namespace, [`NSID_ALL`] for all.
    pub nsid: U32,
    /// CDW2.
    pub cdw2: U32,
    /// CDW3.
    pub cdw3: U32,
    /// MPTR: address of the metadata.
    pub mptr: U64,
    /// DPTR: the first PRP entry, or the first half of SGL1.
    pub prp1: U64,
    /// DPTR: the second PRP entry, the address of a PRP list, or the second half of SGL1.
    pub prp2: U64,
    /// CDW10.
    pub cdw10: U32,
    /// CDW11.
    pub cdw11: U32,
    /// CDW12.
    pub cdw12: U32,
    /// CDW13.
    pub cdw13: U32,
    /// CDW14.
    pub cdw14: U32,
    /// CDW15.
    pub cdw15: U32,
}

impl SubmissionEntry {
    /// Returns `true` if the command transfers data from the controller to the host: bit 1 of the
    /// opcode (NVMe Base 2.0, 3.3.3.1).
    pub fn transfers_to_host(&self) -> bool {
        self.opcode & 0b10 != 0
    }

    /// Returns DPTR as SGL1, the first descriptor of an SGL (NVMe Base 2.0, 3.3.3.1).
    pub fn sgl1(&self) -> Descriptor {
        transmute!([self.prp1, self.prp2])
    }

    /// Sets DPTR to this first descriptor of an SGL, and leaves PSDT unchanged.
    pub fn set_sgl1(&mut self, descriptor: Descriptor) {
        [self.prp1, self.prp2] = transmute!(descriptor);
    }

    /// Returns dwords 10 to 15.
    fn command_dwords(&self) -> [U32; 6] {
        [
            self.cdw10, self.cdw11, self.cdw12, self.cdw13, self.cdw14, self.cdw15,
        ]
    }

    /// Sets dwords 10 to 15.
    fn set_command_dwords(&mut self, dwords: [U32; 6]) {
        [
            self.cdw10, self.cdw11, self.cdw12, self.cdw13, self.cdw14, self.cdw15,
        ] = dwords;
    }
}

/// Implements conversions between a struct of 24 bytes and dwords 10 to 15 of an entry.
macro_rules! views_of_command_dwords {
    ($($view:ty),+ $(,)?) => {$(
        impl From<&$crate::command::SubmissionEntry> for $view {
            fn from(entry: &$crate::command::SubmissionEntry) -> Self {
                zerocopy::transmute!(entry.command_dwords())
            }
        }

        impl $view {
            /// Sets dwords 10 to 15 of `entry`, and leaves its opcode and the rest unchanged.
            pub fn apply_to(self, entry: &mut $crate::command::SubmissionEntry) {
                entry.set_command_dwords(zerocopy::transmute!(self));
            }
        }
    )+};
}
use views_of_command_dwords;

/// The second byte of a command (NVMe Base 2.0, 3.3.3.1).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct CommandFlags {
    /// FUSE: 0 a single command, 1 the first and 2 the second of a fused pair.
    #[bits(2)]
    pub fuse: u8,
    #[bits(4)]
    __: u8,
    /// PSDT: 0 PRPs, 1 and 2 SGLs. MPTR is the address of the metadata's buffer with 1, and of a
    /// segment with one descriptor of the metadata with 2.
    #[bits(2)]
    pub psdt: u8,
}

/// The entry of the UUID list that gives a vendor specific value its meaning (NVMe Base 2.0,
/// 5.17.2.16).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct UuidIndex {
    /// The entry's index, 0 for no entry.
    #[bits(7)]
    pub index: u8,
    #[bits(1)]
    __: u8,
}

/// An opcode that NVMe 2.0 does not define for this kind of queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("unknown opcode {0:#04x}")]
pub struct UnknownOpcode(pub u8);

/// Opcodes of the admin queue (NVMe Base 2.0, 5 and NVM Command Set 1.0, 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(u8)]
pub enum AdminOpcode {
    /// 5.7.
    DeleteSubmissionQueue = 0x00,
    /// 5.5.
    CreateSubmissionQueue = 0x01,
    /// 5.16.
    GetLogPage = 0x02,
    /// 5.6.
    DeleteCompletionQueue = 0x04,
    /// 5.4.
    CreateCompletionQueue = 0x05,
    /// 5.17.
    Identify = 0x06,
    /// 5.1.
    Abort = 0x08,
    /// 5.27.
    SetFeatures = 0x09,
    /// 5.15.
    GetFeatures = 0x0a,
    /// 5.2.
    AsyncEventRequest = 0x0c,
    /// 5.23.
    NamespaceManagement = 0x0d,
    /// 5.12.
    FirmwareCommit = 0x10,
    /// 5.13.
    FirmwareImageDownload = 0x11,
    /// 5.8.
    DeviceSelfTest = 0x14,
    /// 5.22.
    NamespaceAttachment = 0x15,
    /// 5.18.
    KeepAlive = 0x18,
    /// 5.10.
    DirectiveSend = 0x19,
    /// 5.9.
    DirectiveReceive = 0x1a,
    /// 5.28.
    VirtualizationManagement = 0x1c,
    /// 5.21.
    NvmeMiSend = 0x1d,
    /// 5.20.
    NvmeMiReceive = 0x1e,
    /// 5.3.
    CapacityManagement = 0x20,
    /// 5.19.
    Lockdown = 0x24,
    /// 5.11.
    DoorbellBufferConfig = 0x7c,
    /// 5.14.
    FormatNvm = 0x80,
    /// 5.26.
    SecuritySend = 0x81,
    /// 5.25.
    SecurityReceive = 0x82,
    /// 5.24.
    Sanitize = 0x84,
    /// NVM Command Set 1.0, 4.2.1.
    GetLbaStatus = 0x86,
}

impl TryFrom<u8> for AdminOpcode {
    type Error = UnknownOpcode;

    fn try_from(opcode: u8) -> Result<Self, UnknownOpcode> {
        try_transmute!(opcode).map_err(|_| UnknownOpcode(opcode))
    }
}

/// Opcodes of an I/O queue with the NVM command set (NVMe Base 2.0, 7 and NVM Command Set 1.0,
/// 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(u8)]
pub enum NvmOpcode {
    /// NVMe Base 2.0, 7.1.
    Flush = 0x00,
    /// 3.2.6.
    Write = 0x01,
    /// 3.2.4.
    Read = 0x02,
    /// 3.2.7.
    WriteUncorrectable = 0x04,
    /// 3.2.1.
    Compare = 0x05,
    /// 3.2.8.
    WriteZeroes = 0x08,
    /// 3.2.3.
    DatasetManagement = 0x09,
    /// 3.2.5.
    Verify = 0x0c,
    /// NVMe Base 2.0, 7.3.
    ReservationRegister = 0x0d,
    /// NVMe Base 2.0, 7.5.
    ReservationReport = 0x0e,
    /// NVMe Base 2.0, 7.2.
    ReservationAcquire = 0x11,
    /// NVMe Base 2.0, 7.4.
    ReservationRelease = 0x15,
    /// 3.2.2.
    Copy = 0x19,
}

impl TryFrom<u8> for NvmOpcode {
    type Error = UnknownOpcode;

    fn try_from(opcode: u8) -> Result<Self, UnknownOpcode> {
        try_transmute!(opcode).map_err(|_| UnknownOpcode(opcode))
    }
}

#[cfg(test)]
mod tests {
    use core::mem::{align_of, offset_of};

    use zerocopy::FromZeros;

    use super::*;
    use crate::sgl::DescriptorId;

    #[test]
    fn entry_is_linux_nvme_common_command() {
        assert_eq!(size_of::<SubmissionEntry>(), 64);
        assert_eq!(align_of::<SubmissionEntry>(), 1);
        assert_eq!(offset_of!(SubmissionEntry, opcode), 0);
        assert_eq!(offset_of!(SubmissionEntry, flags), 1);
        assert_eq!(offset_of!(SubmissionEntry, cid), 2); // command_id
        assert_eq!(offset_of!(SubmissionEntry, nsid), 4);
        assert_eq!(offset_of!(SubmissionEntry, cdw2), 8);
        assert_eq!(offset_of!(SubmissionEntry, mptr), 16); // metadata
        assert_eq!(offset_of!(SubmissionEntry, prp1), 24); // dptr.prp1
        assert_eq!(offset_of!(SubmissionEntry, prp2), 32); // dptr.prp2
        assert_eq!(offset_of!(SubmissionEntry, cdw10), 40);
        assert_eq!(offset_of!(SubmissionEntry, cdw15), 60);
    }

    #[test]
    fn entry_is_little_endian() {
        let mut bytes = [0; 64];
        bytes[1] = 0x42; // NVME_CMD_SGL_METABUF | NVME_CMD_FUSE_SECOND
        bytes[2..4].copy_from_slice(&[0x34, 0x12]);
        bytes[24..32].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1]);
        bytes[60..64].copy_from_slice(&[0xef, 0xbe, 0xad, 0xde]);
        let entry = SubmissionEntry::read_from_bytes(&bytes).unwrap();
        assert_eq!(entry.flags.fuse(), 2);
        assert_eq!(entry.flags.psdt(), 1);
        assert_eq!(entry.cid.get(), 0x1234);
        assert_eq!(entry.prp1.get(), 0x0102_0304_0506_0708);
        assert_eq!(entry.cdw15.get(), 0xdead_beef);
        assert_eq!(entry.as_bytes(), bytes);
    }

    #[test]
    fn first_descriptor_of_an_sgl_takes_the_place_of_the_prps() {
        let mut entry = SubmissionEntry::new_zeroed();
        entry.set_sgl1(Descriptor::new(DescriptorId::SEGMENT, 0x1000, 0x30));
        let pointer = [0, 0x10, 0, 0, 0, 0, 0, 0, 0x30, 0, 0, 0, 0, 0, 0, 0x20];
        assert_eq!(entry.as_bytes()[24..40], pointer); // nvme_common_command.dptr.sgl
        assert_eq!(entry.sgl1().as_bytes(), pointer);
    }

    #[test]
    fn admin_opcodes_are_linux_nvme_admin_opcode() {
        let linux = [
            (0x00, AdminOpcode::DeleteSubmissionQueue), // nvme_admin_delete_sq
            (0x01, AdminOpcode::CreateSubmissionQueue), // nvme_admin_create_sq
            (0x02, AdminOpcode::GetLogPage),            // nvme_admin_get_log_page
            (0x04, AdminOpcode::DeleteCompletionQueue), // nvme_admin_delete_cq
            (0x05, AdminOpcode::CreateCompletionQueue), // nvme_admin_create_cq
            (0x06, AdminOpcode::Identify),              // nvme_admin_identify
            (0x08, AdminOpcode::Abort),                 // nvme_admin_abort_cmd
            (0x09, AdminOpcode::SetFeatures),           // nvme_admin_set_features
            (0x0a, AdminOpcode::GetFeatures),           // nvme_admin_get_features
            (0x0c, AdminOpcode::AsyncEventRequest),     // nvme_admin_async_event
            (0x0d, AdminOpcode::NamespaceManagement),   // nvme_admin_ns_mgmt
            (0x10, AdminOpcode::FirmwareCommit),        // nvme_admin_activate_fw
            (0x11, AdminOpcode::FirmwareImageDownload), // nvme_admin_download_fw
            (0x14, AdminOpcode::DeviceSelfTest),        // nvme_admin_dev_self_test
            (0x15, AdminOpcode::NamespaceAttachment),   // nvme_admin_ns_attach
            (0x18, AdminOpcode::KeepAlive),             // nvme_admin_keep_alive
            (0x19, AdminOpcode::DirectiveSend),         // nvme_admin_directive_send
            (0x1a, AdminOpcode::DirectiveReceive),      // nvme_admin_directive_recv
            (0x1c, AdminOpcode::VirtualizationManagement), // nvme_admin_virtual_mgmt
            (0x1d, AdminOpcode::NvmeMiSend),            // nvme_admin_nvme_mi_send
            (0x1e, AdminOpcode::NvmeMiReceive),         // nvme_admin_nvme_mi_recv
            (0x20, AdminOpcode::CapacityManagement),    // libnvme nvme_admin_capacity_mgmt
            (0x24, AdminOpcode::Lockdown),              // libnvme nvme_admin_lockdown
            (0x7c, AdminOpcode::DoorbellBufferConfig),  // nvme_admin_dbbuf
            (0x80, AdminOpcode::FormatNvm),             // nvme_admin_format_nvm
            (0x81, AdminOpcode::SecuritySend),          // nvme_admin_security_send
            (0x82, AdminOpcode::SecurityReceive),       // nvme_admin_security_recv
            (0x84, AdminOpcode::Sanitize),              // nvme_admin_sanitize_nvm
            (0x86, AdminOpcode::GetLbaStatus),          // nvme_admin_get_lba_status
        ];
        for opcode in 0..=u8::MAX {
            let expected = linux
                .iter()
                .find(|(number, _)| *number == opcode)
                .map(|(_, name)| *name);
            assert_eq!(
                AdminOpcode::try_from(opcode),
                expected.ok_or(UnknownOpcode(opcode))
            );
        }
    }

    #[test]
    fn nvm_opcodes_are_linux_nvme_opcode() {
        let linux = [
            (0x00, NvmOpcode::Flush),               // nvme_cmd_flush
            (0x01, NvmOpcode::Write),               // nvme_cmd_write
            (0x02, NvmOpcode::Read),                // nvme_cmd_read
            (0x04, NvmOpcode::WriteUncorrectable),  // nvme_cmd_write_uncor
            (0x05, NvmOpcode::Compare),             // nvme_cmd_compare
            (0x08, NvmOpcode::WriteZeroes),         // nvme_cmd_write_zeroes
            (0x09, NvmOpcode::DatasetManagement),   // nvme_cmd_dsm
            (0x0c, NvmOpcode::Verify),              // nvme_cmd_verify
            (0x0d, NvmOpcode::ReservationRegister), // nvme_cmd_resv_register
            (0x0e, NvmOpcode::ReservationReport),   // nvme_cmd_resv_report
            (0x11, NvmOpcode::ReservationAcquire),  // nvme_cmd_resv_acquire
            (0x15, NvmOpcode::ReservationRelease),  // nvme_cmd_resv_release
            (0x19, NvmOpcode::Copy),                // libnvme nvme_cmd_copy
        ];
        for opcode in 0..=u8::MAX {
            let expected = linux
                .iter()
                .find(|(number, _)| *number == opcode)
                .map(|(_, name)| *name);
            assert_eq!(
                NvmOpcode::try_from(opcode),
                expected.ok_or(UnknownOpcode(opcode))
            );
        }
        assert_eq!(UnknownOpcode(0x7f).to_string(), "unknown opcode 0x7f");
    }
}
