//! Dwords 10 to 15 of the commands of the NVM command set, and the list of Dataset Management (NVM
//! Command Set 1.0, 3.2).

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::command::views_of_command_dwords;

views_of_command_dwords!(BlockRange, DatasetManagement);

/// The commands that name one range of blocks: Compare (NVM Command Set 1.0, 3.2.1), Read (3.2.4),
/// Verify (3.2.5), Write (3.2.6), Write Uncorrectable (3.2.7) and Write Zeroes (3.2.8).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BlockRange {
    /// SLBA: the first block.
    pub slba: U64,
    /// NLB: number of blocks, 0's based.
    pub nlb: U16,
    /// FUA, LR, DEAC and others.
    pub control: Control,
    /// DSM: hints on the use of the blocks.
    pub dsm: u8,
    _cdw13_8: u8,
    /// DSPEC: Directive Specific (Write and Write Zeroes).
    pub dspec: U16,
    /// ILBRT or EILBRT: Initial Logical Block Reference Tag.
    pub reftag: U32,
    /// LBAT or ELBAT: Logical Block Application Tag.
    pub apptag: U16,
    /// LBATM or ELBATM: Logical Block Application Tag Mask.
    pub appmask: U16,
}

impl BlockRange {
    /// Returns the number of blocks: 1 to 65536.
    pub fn blocks(&self) -> u32 {
        u32::from(self.nlb.get()) + 1
    }
}

/// CDW12 of the commands that name a range of blocks, bits 31:16 (NVM Command Set 1.0, 3.2).
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Control {
    #[bits(4)]
    __: u8,
    /// DTYPE: Directive Type (Write and Write Zeroes).
    #[bits(4)]
    pub dtype: u8,
    /// STC: Storage Tag Check.
    pub stc: bool,
    /// DEAC: the blocks may be deallocated (Write Zeroes).
    pub deac: bool,
    /// PRINFO: protection information: PRACT at bit 3, the checks below.
    #[bits(4)]
    pub prinfo: u8,
    /// FUA: the data must come from, or have reached, non-volatile media.
    pub fua: bool,
    /// LR: limited retry; give up early.
    pub lr: bool,
}

/// Dataset Management (NVM Command Set 1.0, 3.2.3). Its data is a list of [`DatasetRange`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DatasetManagement {
    /// NR: number of ranges, 0's based.
    pub nr: u8,
    _cdw10_8: [u8; 3],
    /// IDR, IDW and AD.
    pub attributes: DatasetAttributes,
    _cdw12: [U32; 4],
}

impl DatasetManagement {
    /// Returns the number of ranges: 1 to 256.
    pub fn ranges(&self) -> usize {
        usize::from(self.nr) + 1
    }
}

/// CDW11 of Dataset Management (NVM Command Set 1.0, 3.2.3).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct DatasetAttributes {
    /// IDR: optimise the ranges for reads as a unit.
    pub idr: bool,
    /// IDW: optimise the ranges for writes as a unit.
    pub idw: bool,
    /// AD: the ranges may be deallocated.
    pub ad: bool,
    #[bits(29)]
    __: u32,
}

/// One range of a Dataset Management command (NVM Command Set 1.0, 3.2.3).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DatasetRange {
    /// Context Attributes: hints on the use of the range.
    pub cattr: U32,
    /// Length in blocks, not 0's based.
    pub nlb: U32,
    /// SLBA: the first block.
    pub slba: U64,
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use zerocopy::FromZeros;

    use super::*;
    use crate::command::SubmissionEntry;

    #[test]
    fn block_range_is_linux_nvme_rw_command() {
        assert_eq!(40 + offset_of!(BlockRange, slba), 40);
        assert_eq!(40 + offset_of!(BlockRange, nlb), 48); // length
        assert_eq!(40 + offset_of!(BlockRange, control), 50);
        assert_eq!(40 + offset_of!(BlockRange, dsm), 52); // dsmgmt
        assert_eq!(40 + offset_of!(BlockRange, dspec), 54); // upper half of dsmgmt
        assert_eq!(40 + offset_of!(BlockRange, reftag), 56);
        assert_eq!(40 + offset_of!(BlockRange, apptag), 60);
        assert_eq!(40 + offset_of!(BlockRange, appmask), 62);
    }

    #[test]
    fn control_is_linux_nvme_rw() {
        assert_eq!(Control::new().with_lr(true).into_bits().get(), 1 << 15); // NVME_RW_LR
        assert_eq!(Control::new().with_fua(true).into_bits().get(), 1 << 14); // NVME_RW_FUA
        assert_eq!(Control::new().with_prinfo(8).into_bits().get(), 1 << 13); // NVME_RW_PRINFO_PRACT
        assert_eq!(Control::new().with_prinfo(4).into_bits().get(), 1 << 12); // NVME_RW_PRINFO_PRCHK_GUARD
        assert_eq!(Control::new().with_prinfo(1).into_bits().get(), 1 << 10); // NVME_RW_PRINFO_PRCHK_REF
        assert_eq!(Control::new().with_deac(true).into_bits().get(), 1 << 9); // NVME_WZ_DEAC
        assert_eq!(Control::new().with_dtype(1).into_bits().get(), 1 << 4); // NVME_RW_DTYPE_STREAMS
    }

    #[test]
    fn block_range_of_a_command() {
        let mut entry = SubmissionEntry::new_zeroed();
        entry.cdw10 = U32::new(0x89ab_cdef);
        entry.cdw11 = U32::new(0x0123_4567);
        entry.cdw12 = U32::new(1 << 30 | 0xffff);
        let command = BlockRange::from(&entry);
        assert_eq!(command.slba.get(), 0x0123_4567_89ab_cdef);
        assert_eq!(command.blocks(), 65_536);
        assert!(command.control.fua());
        let mut again = SubmissionEntry::new_zeroed();
        command.apply_to(&mut again);
        assert_eq!(again.as_bytes(), entry.as_bytes());
    }

    #[test]
    fn dataset_management_is_linux_nvme_dsm_cmd() {
        assert_eq!(40 + offset_of!(DatasetManagement, nr), 40);
        assert_eq!(40 + offset_of!(DatasetManagement, attributes), 44);
        assert_eq!(
            DatasetAttributes::new().with_idr(true).into_bits().get(),
            1 << 0
        ); // NVME_DSMGMT_IDR
        assert_eq!(
            DatasetAttributes::new().with_idw(true).into_bits().get(),
            1 << 1
        ); // NVME_DSMGMT_IDW
        assert_eq!(
            DatasetAttributes::new().with_ad(true).into_bits().get(),
            1 << 2
        ); // NVME_DSMGMT_AD
        assert_eq!(size_of::<DatasetRange>(), 16); // nvme_dsm_range
        assert_eq!(offset_of!(DatasetRange, nlb), 4);
        assert_eq!(offset_of!(DatasetRange, slba), 8);

        let mut entry = SubmissionEntry::new_zeroed();
        entry.cdw10 = U32::new(255);
        assert_eq!(DatasetManagement::from(&entry).ranges(), 256); // NVME_DSM_MAX_RANGES
    }
}
