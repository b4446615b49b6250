//! Dwords 10 to 15 of the admin commands (NVMe Base 2.0, 5).

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::command::{UuidIndex, views_of_command_dwords};

views_of_command_dwords!(
    Abort,
    CreateCompletionQueue,
    CreateSubmissionQueue,
    DeleteQueue,
    GetFeatures,
    GetLogPage,
    Identify,
    SetFeatures,
);

/// Abort (NVMe Base 2.0, 5.1). Bit 0 of the completion's dword 0 is 0 if the command was aborted.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Abort {
    /// SQID: the queue of the command to abort.
    pub sqid: U16,
    /// CID: the command to abort.
    pub cid: U16,
    _cdw11: [U32; 5],
}

/// Create I/O Completion Queue (NVMe Base 2.0, 5.4).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CreateCompletionQueue {
    /// QID: the queue's number, not 0.
    pub qid: U16,
    /// QSIZE: entries, 0's based.
    pub qsize: U16,
    /// PC and IEN.
    pub flags: CompletionQueueFlags,
    /// IV: the interrupt vector.
    pub iv: U16,
    _cdw12: [U32; 4],
}

impl CreateCompletionQueue {
    /// Returns the number of the queue's entries.
    pub fn entries(&self) -> u32 {
        u32::from(self.qsize.get()) + 1
    }
}

/// CDW11 of Create I/O Completion Queue, bits 15:0 (NVMe Base 2.0, 5.4).
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct CompletionQueueFlags {
    /// PC: PRP1 is the start of contiguous memory, not of a PRP list.
    pub pc: bool,
    /// IEN: completions raise interrupts.
    pub ien: bool,
    #[bits(14)]
    __: u16,
}

/// Create I/O Submission Queue (NVMe Base 2.0, 5.5).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CreateSubmissionQueue {
    /// QID: the queue's number, not 0.
    pub qid: U16,
    /// QSIZE: entries, 0's based.
    pub qsize: U16,
    /// PC and QPRIO.
    pub flags: SubmissionQueueFlags,
    /// CQID: the completion queue for its commands.
    pub cqid: U16,
    /// NVMSETID: the NVM Set that the queue is associated with, 0 for none.
    pub nvmsetid: U16,
    _cdw12_16: U16,
    _cdw13: [U32; 3],
}

impl CreateSubmissionQueue {
    /// Returns the number of the queue's entries.
    pub fn entries(&self) -> u32 {
        u32::from(self.qsize.get()) + 1
    }
}

/// CDW11 of Create I/O Submission Queue, bits 15:0 (NVMe Base 2.0, 5.5).
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct SubmissionQueueFlags {
    /// PC: PRP1 is the start of contiguous memory, not of a PRP list.
    pub pc: bool,
    /// QPRIO: 0 urgent, 1 high, 2 medium, 3 low; only for weighted round robin.
    #[bits(2)]
    pub qprio: u8,
    #[bits(13)]
    __: u16,
}

/// Delete I/O Completion Queue (NVMe Base 2.0, 5.6) and Delete I/O Submission Queue (5.7).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DeleteQueue {
    /// QID: the queue's number, not 0.
    pub qid: U16,
    _cdw10_16: U16,
    _cdw11: [U32; 5],
}

/// Get Features (NVMe Base 2.0, 5.15). The value is returned in the completion's dword 0, or in the
/// data buffer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct GetFeatures {
    /// FID: one of [`crate::feature::fid`].
    pub fid: u8,
    /// SEL.
    pub select: SelectField,
    _cdw10_16: U16,
    /// CDW11, as the feature defines it.
    pub cdw11: U32,
    _cdw12: [U32; 2],
    /// UUID Index.
    pub uuid: UuidIndex,
    _cdw14_8: [u8; 3],
    _cdw15: U32,
}

/// CDW10 of Get Features, bits 15:8 (NVMe Base 2.0, 5.15).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct SelectField {
    /// SEL: the value to return, a [`crate::feature::Select`].
    #[bits(3)]
    pub sel: u8,
    #[bits(5)]
    __: u8,
}

/// Set Features (NVMe Base 2.0, 5.27).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SetFeatures {
    /// FID: one of [`crate::feature::fid`].
    pub fid: u8,
    _cdw10_8: U16,
    /// SV.
    pub save: SaveField,
    /// CDW11, as the feature defines it.
    pub cdw11: U32,
    /// CDW12, as the feature defines it.
    pub cdw12: U32,
    /// CDW13, as the feature defines it.
    pub cdw13: U32,
    /// UUID Index.
    pub uuid: UuidIndex,
    _cdw14_8: [u8; 3],
    /// CDW15, as the feature defines it.
    pub cdw15: U32,
}

/// CDW10 of Set Features, bits 31:24 (NVMe Base 2.0, 5.27).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct SaveField {
    #[bits(7)]
    __: u8,
    /// SV: keep the value across power cycles and resets.
    pub sv: bool,
}

/// Get Log Page (NVMe Base 2.0, 5.16).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct GetLogPage {
    /// LID: one of [`crate::log::lid`], or [`crate::dma_log::LID`].
    pub lid: u8,
    /// LSP and RAE.
    pub flags: LogFlags,
    /// NUMDL: lower half of the number of dwords, 0's based.
    pub numdl: U16,
    /// NUMDU: upper half of the number of dwords, 0's based.
    pub numdu: U16,
    /// LSI: Log Specific Identifier.
    pub lsi: U16,
    /// LPOL and LPOU: offset in the page, in bytes, or an index, according to OT.
    pub lpo: U64,
    /// UUID Index.
    pub uuid: UuidIndex,
    _cdw14_8: u8,
    /// OT.
    pub offset_type: OffsetTypeField,
    /// CSI: Command Set Identifier.
    pub csi: u8,
    _cdw15: U32,
}

impl GetLogPage {
    /// Returns the requested bytes: 4 to 16 GiB.
    pub fn bytes(&self) -> u64 {
        let dwords = (u64::from(self.numdu.get()) << 16 | u64::from(self.numdl.get())) + 1;
        dwords * 4
    }
}

/// CDW10 of Get Log Page, bits 15:8 (NVMe Base 2.0, 5.16).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct LogFlags {
    /// LSP: Log Specific Parameter.
    #[bits(7)]
    pub lsp: u8,
    /// RAE: reading the page does not clear its event.
    pub rae: bool,
}

/// CDW14 of Get Log Page, bits 23:16 (NVMe Base 2.0, 5.16).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct OffsetTypeField {
    #[bits(7)]
    __: u8,
    /// OT: LPO is an index into the page's list of data structures, not a number of bytes.
    pub ot: bool,
}

/// Identify (NVMe Base 2.0, 5.17).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Identify {
    /// CNS: the structure to return, one of [`crate::identify::cns`].
    pub cns: u8,
    _cdw10_8: u8,
    /// CNTID: Controller Identifier.
    pub cntid: U16,
    /// CNS Specific Identifier.
    pub cnssid: U16,
    _cdw11_16: u8,
    /// CSI: Command Set Identifier.
    pub csi: u8,
    _cdw12: [U32; 2],
    /// UUID Index.
    pub uuid: UuidIndex,
    _cdw14_8: [u8; 3],
    _cdw15: U32,
}

/// CDW10 of Sanitize (NVMe Base 2.0, 5.24).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct SanitizeControl {
    /// SANACT: the action, for example [`SanitizeControl::BLOCK_ERASE`].
    #[bits(3)]
    pub sanact: u8,
    /// AUSE: after a failure, [`SanitizeControl::EXIT_FAILURE_MODE`] is permitted.
    pub ause: bool,
    /// OWPASS: number of passes of an overwrite, 0 for 16.
    #[bits(4)]
    pub owpass: u8,
    /// OIPBP: the pattern is inverted between passes.
    pub oipbp: bool,
    /// NDAS: blocks are not deallocated afterwards.
    pub ndas: bool,
    #[bits(22)]
    __: u32,
}

impl SanitizeControl {
    /// SANACT: permit access to the media again after a failure.
    pub const EXIT_FAILURE_MODE: u8 = 1;
    /// SANACT: erase the blocks of all media.
    pub const BLOCK_ERASE: u8 = 2;
    /// SANACT: overwrite all media with a pattern.
    pub const OVERWRITE: u8 = 3;
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use zerocopy::FromZeros;

    use super::*;
    use crate::command::SubmissionEntry;

    /// Offset of dword 10 in Linux's command structs.
    const CDW10: usize = 40;

    #[test]
    fn sanitize_control_is_as_linux_describes_it() {
        let bits = |control: SanitizeControl| control.into_bits();
        assert_eq!(bits(SanitizeControl::new().with_sanact(7)), 7); // libnvme NVME_SANITIZE_SANACT
        assert_eq!(bits(SanitizeControl::new().with_ause(true)), 1 << 3); // libnvme NVME_SANITIZE_AUSE
        assert_eq!(bits(SanitizeControl::new().with_owpass(0xf)), 0xf << 4);
        assert_eq!(bits(SanitizeControl::new().with_oipbp(true)), 1 << 8);
        assert_eq!(bits(SanitizeControl::new().with_ndas(true)), 1 << 9); // libnvme NVME_SANITIZE_NODAS
    }

    #[test]
    fn views_have_the_offsets_of_linux() {
        assert_eq!(CDW10 + offset_of!(Abort, sqid), 40); // nvme_abort_cmd.sqid
        assert_eq!(CDW10 + offset_of!(Abort, cid), 42); // nvme_abort_cmd.cid
        assert_eq!(CDW10 + offset_of!(CreateCompletionQueue, qid), 40); // nvme_create_cq.cqid
        assert_eq!(CDW10 + offset_of!(CreateCompletionQueue, qsize), 42); // nvme_create_cq.qsize
        assert_eq!(CDW10 + offset_of!(CreateCompletionQueue, flags), 44); // nvme_create_cq.cq_flags
        assert_eq!(CDW10 + offset_of!(CreateCompletionQueue, iv), 46); // nvme_create_cq.irq_vector
        assert_eq!(CDW10 + offset_of!(CreateSubmissionQueue, qid), 40); // nvme_create_sq.sqid
        assert_eq!(CDW10 + offset_of!(CreateSubmissionQueue, qsize), 42); // nvme_create_sq.qsize
        assert_eq!(CDW10 + offset_of!(CreateSubmissionQueue, flags), 44); // nvme_create_sq.sq_flags
        assert_eq!(CDW10 + offset_of!(CreateSubmissionQueue, cqid), 46); // nvme_create_sq.cqid
        assert_eq!(CDW10 + offset_of!(DeleteQueue, qid), 40); // nvme_delete_queue.qid
        assert_eq!(CDW10 + offset_of!(SetFeatures, fid), 40); // nvme_features.fid
        assert_eq!(CDW10 + offset_of!(SetFeatures, cdw11), 44); // nvme_features.dword11
        assert_eq!(CDW10 + offset_of!(SetFeatures, cdw15), 60); // nvme_features.dword15
        assert_eq!(CDW10 + offset_of!(GetFeatures, cdw11), 44); // nvme_features.dword11
        assert_eq!(CDW10 + offset_of!(GetLogPage, lid), 40); // nvme_get_log_page_command.lid
        assert_eq!(CDW10 + offset_of!(GetLogPage, flags), 41); // nvme_get_log_page_command.lsp
        assert_eq!(CDW10 + offset_of!(GetLogPage, numdl), 42); // nvme_get_log_page_command.numdl
        assert_eq!(CDW10 + offset_of!(GetLogPage, numdu), 44); // nvme_get_log_page_command.numdu
        assert_eq!(CDW10 + offset_of!(GetLogPage, lpo), 48); // nvme_get_log_page_command.lpo
        assert_eq!(CDW10 + offset_of!(GetLogPage, csi), 59); // nvme_get_log_page_command.csi
        assert_eq!(CDW10 + offset_of!(Identify, cns), 40); // nvme_identify.cns
        assert_eq!(CDW10 + offset_of!(Identify, cntid), 42); // nvme_identify.ctrlid
        assert_eq!(CDW10 + offset_of!(Identify, csi), 47); // nvme_identify.csi
    }

    #[test]
    fn queue_flags_are_linux() {
        // nvme_create_cq: NVME_QUEUE_PHYS_CONTIG | NVME_CQ_IRQ_ENABLED
        assert_eq!(
            CompletionQueueFlags::new()
                .with_pc(true)
                .with_ien(true)
                .into_bits()
                .get(),
            0x3
        );
        assert_eq!(
            SubmissionQueueFlags::new().with_pc(true).into_bits().get(),
            0x1
        ); // NVME_QUEUE_PHYS_CONTIG
        assert_eq!(
            SubmissionQueueFlags::new().with_qprio(2).into_bits().get(),
            0x4
        ); // NVME_SQ_PRIO_MEDIUM
        assert_eq!(
            SubmissionQueueFlags::new().with_qprio(3).into_bits().get(),
            0x6
        ); // NVME_SQ_PRIO_LOW
    }

    #[test]
    fn queues_have_one_entry_more_than_qsize() {
        let mut entry = SubmissionEntry::new_zeroed();
        entry.cdw10 = U32::new(0xffff_0002);
        assert_eq!(CreateCompletionQueue::from(&entry).entries(), 65_536);
        assert_eq!(CreateSubmissionQueue::from(&entry).entries(), 65_536);
        assert_eq!(CreateSubmissionQueue::from(&entry).qid.get(), 2);
    }

    #[test]
    fn get_log_page_as_nvme_cli_builds_it() {
        // libnvme nvme_get_log(): numd - 1 split in halves, rae at bit 15, csi at 31:24 and ot at
        // 23 of dword 14.
        let mut entry = SubmissionEntry::new_zeroed();
        entry.cdw10 = U32::new(0x03ff_0000 | 1 << 15 | 0x7f << 8 | 0xc0);
        entry.cdw11 = U32::new(0xabcd << 16);
        entry.cdw12 = U32::new(0x1000);
        entry.cdw13 = U32::new(0x1);
        entry.cdw14 = U32::new(2 << 24 | 1 << 23 | 5);
        let command = GetLogPage::from(&entry);
        assert_eq!(command.lid, 0xc0);
        assert!(command.flags.rae());
        assert_eq!(command.flags.lsp(), 0x7f);
        assert_eq!(command.bytes(), 4096);
        assert_eq!(command.lsi.get(), 0xabcd);
        assert_eq!(command.lpo.get(), 0x1_0000_1000);
        assert_eq!(command.csi, 2);
        assert!(command.offset_type.ot());
        assert_eq!(command.uuid.index(), 5);

        let mut again = SubmissionEntry::new_zeroed();
        command.apply_to(&mut again);
        assert_eq!(again.as_bytes(), entry.as_bytes());
    }

    #[test]
    fn get_log_page_counts_to_16_gib() {
        let mut entry = SubmissionEntry::new_zeroed();
        assert_eq!(GetLogPage::from(&entry).bytes(), 4);
        entry.cdw10 = U32::new(0xffff << 16);
        entry.cdw11 = U32::new(0xffff);
        assert_eq!(GetLogPage::from(&entry).bytes(), 16 << 30);
    }

    #[test]
    fn features_dword_10() {
        let mut entry = SubmissionEntry::new_zeroed();
        entry.cdw10 = U32::new(3 << 8 | 0x07); // libnvme NVME_GET_FEATURES_SEL_SUPPORTED, NVME_FEAT_NUM_QUEUES
        let get = GetFeatures::from(&entry);
        assert_eq!((get.fid, get.select.sel()), (0x07, 3));
        entry.cdw10 = U32::new(1 << 31 | 0x07); // Linux's "save": cdw10 | (1 << 31)
        let set = SetFeatures::from(&entry);
        assert!(set.save.sv());
        assert_eq!(set.fid, 0x07);
    }

    #[test]
    fn identify_dwords() {
        let mut entry = SubmissionEntry::new_zeroed();
        entry.cdw10 = U32::new(0xbeef_0013);
        entry.cdw11 = U32::new(0x0200_1234);
        entry.cdw14 = U32::new(0x7f);
        let command = Identify::from(&entry);
        assert_eq!(command.cns, 0x13);
        assert_eq!(command.cntid.get(), 0xbeef);
        assert_eq!(command.cnssid.get(), 0x1234);
        assert_eq!(command.csi, 2);
        assert_eq!(command.uuid.index(), 0x7f);
    }
}
