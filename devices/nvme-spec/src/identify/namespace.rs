//! The structures of Identify that describe a namespace (NVM Command Set 1.0, 4.1.5 and NVMe Base
//! 2.0, 5.17.2).

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Identify Namespace of the NVM command set (NVM Command Set 1.0, 4.1.5.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Namespace {
    /// NSZE: Namespace Size in blocks.
    pub nsze: U64,
    /// NCAP: Namespace Capacity in blocks.
    pub ncap: U64,
    /// NUSE: Namespace Utilization in blocks.
    pub nuse: U64,
    /// NSFEAT: Namespace Features.
    pub nsfeat: Nsfeat,
    /// NLBAF: Number of LBA Formats, 0's based.
    pub nlbaf: u8,
    /// FLBAS: Formatted LBA Size.
    pub flbas: Flbas,
    /// MC: Metadata Capabilities.
    pub mc: u8,
    /// DPC: End-to-end Data Protection Capabilities.
    pub dpc: u8,
    /// DPS: End-to-end Data Protection Type Settings.
    pub dps: u8,
    /// NMIC: Namespace Multi-path I/O and Namespace Sharing Capabilities.
    pub nmic: Nmic,
    /// RESCAP: Reservation Capabilities.
    pub rescap: u8,
    /// FPI: Format Progress Indicator.
    pub fpi: u8,
    /// DLFEAT: Deallocate Logical Block Features.
    pub dlfeat: Dlfeat,
    /// NAWUN: Namespace Atomic Write Unit Normal in blocks, 0's based.
    pub nawun: U16,
    /// NAWUPF: Namespace Atomic Write Unit Power Fail in blocks, 0's based.
    pub nawupf: U16,
    /// NACWU: Namespace Atomic Compare & Write Unit in blocks, 0's based.
    pub nacwu: U16,
    /// NABSN: Namespace Atomic Boundary Size Normal in blocks, 0's based.
    pub nabsn: U16,
    /// NABO: Namespace Atomic Boundary Offset in blocks.
    pub nabo: U16,
    /// NABSPF: Namespace Atomic Boundary Size Power Fail in blocks, 0's based.
    pub nabspf: U16,
    /// NOIOB: Namespace Optimal I/O Boundary in blocks, 0 if there is none.
    pub noiob: U16,
    /// NVMCAP: NVM Capacity in bytes.
    pub nvmcap: U128,
    /// NPWG: Namespace Preferred Write Granularity in blocks, 0's based.
    pub npwg: U16,
    /// NPWA: Namespace Preferred Write Alignment in blocks, 0's based.
    pub npwa: U16,
    /// NPDG: Namespace Preferred Deallocate Granularity in blocks, 0's based.
    pub npdg: U16,
    /// NPDA: Namespace Preferred Deallocate Alignment in blocks, 0's based.
    pub npda: U16,
    /// NOWS: Namespace Optimal Write Size in blocks, 0's based.
    pub nows: U16,
    /// MSSRL: Maximum Single Source Range Length of Copy in blocks.
    pub mssrl: U16,
    /// MCL: Maximum Copy Length in blocks.
    pub mcl: U32,
    /// MSRC: Maximum Source Range Count of Copy, 0's based.
    pub msrc: u8,
    _reserved_81: u8,
    /// NULBAF: Number of Unique Capability LBA Formats.
    pub nulbaf: u8,
    _reserved_83: [u8; 9],
    /// ANAGRPID: ANA Group Identifier.
    pub anagrpid: U32,
    _reserved_96: [u8; 3],
    /// NSATTR: Namespace Attributes.
    pub nsattr: Nsattr,
    /// NVMSETID: NVM Set Identifier.
    pub nvmsetid: U16,
    /// ENDGID: Endurance Group Identifier.
    pub endgid: U16,
    /// NGUID: Namespace Globally Unique Identifier, most significant byte first, 0 if there is
    /// none.
    pub nguid: [u8; 16],
    /// EUI64: IEEE Extended Unique Identifier, most significant byte first, 0 if there is none.
    pub eui64: [u8; 8],
    /// LBAF0 to LBAF63: the formats that FLBAS chooses from.
    pub lbaf: [LbaFormat; 64],
    /// Vendor specific.
    pub vendor: [u8; 3712],
}

/// NSFEAT: Namespace Features (NVM Command Set 1.0, 4.1.5.1, byte 24).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Nsfeat {
    /// THINP: NCAP may be less than NSZE.
    pub thinp: bool,
    /// NSABP: NAWUN, NAWUPF and NACWU are valid.
    pub nsabp: bool,
    /// DAE: reading deallocated blocks can be made an error.
    pub dae: bool,
    /// UIDREUSE: NGUID and EUI64 are never reused.
    pub uidreuse: bool,
    /// OPTPERF: NPWG, NPWA, NPDG, NPDA and NOWS are valid.
    pub optperf: bool,
    #[bits(3)]
    __: u8,
}

/// FLBAS: Formatted LBA Size (NVM Command Set 1.0, 4.1.5.1, byte 26).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Flbas {
    /// Index of the format, bits 3:0.
    #[bits(4)]
    pub format_low: u8,
    /// Metadata follows each block's data.
    pub extended: bool,
    /// Index of the format, bits 5:4.
    #[bits(2)]
    pub format_high: u8,
    #[bits(1)]
    __: u8,
}

/// NMIC: Namespace Multi-path I/O and Namespace Sharing Capabilities (NVM Command Set 1.0, 4.1.5.1,
/// byte 30).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Nmic {
    /// The namespace may be attached to several controllers.
    pub shared: bool,
    #[bits(7)]
    __: u8,
}

/// DLFEAT: Deallocate Logical Block Features (NVM Command Set 1.0, 4.1.5.1, byte 33).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Dlfeat {
    /// Contents of deallocated blocks, for example [`Dlfeat::READS_ZEROES`]; 0 if not reported.
    #[bits(3)]
    pub read_behavior: u8,
    /// Write Zeroes may deallocate.
    pub write_zeroes: bool,
    /// The guard of a deallocated block is a CRC.
    pub guard_crc: bool,
    #[bits(3)]
    __: u8,
}

impl Dlfeat {
    /// Deallocated blocks read as zeroes.
    pub const READS_ZEROES: u8 = 1;
}

/// NSATTR: Namespace Attributes (NVM Command Set 1.0, 4.1.5.1, byte 99).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Nsattr {
    /// The namespace is write protected.
    pub write_protected: bool,
    #[bits(7)]
    __: u8,
}

/// LBA Format (NVM Command Set 1.0, 4.1.5.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LbaFormat {
    /// MS: Metadata Size in bytes.
    pub ms: U16,
    /// LBADS: a block has `1 << lbads` bytes; 9 and above, 0 if the format is not available.
    pub lbads: u8,
    /// RP: Relative Performance: 0 best to 3 degraded.
    pub rp: u8,
}

/// Head of a Namespace Identification Descriptor; `nidl` bytes of the identifier follow. The list
/// ends with a descriptor whose `nidl` is 0 (NVMe Base 2.0, 5.17.2.3).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DescriptorHeader {
    /// NIDT: Namespace Identifier Type.
    pub nidt: u8,
    /// NIDL: Namespace Identifier Length in bytes.
    pub nidl: u8,
    _reserved_2: U16,
}

impl DescriptorHeader {
    /// A UUID, 16 bytes.
    pub const UUID: Self = Self::new(3, 16);
    /// A Command Set Identifier, 1 byte.
    pub const CSI: Self = Self::new(4, 1);

    const fn new(nidt: u8, nidl: u8) -> Self {
        Self {
            nidt,
            nidl,
            _reserved_2: U16::ZERO,
        }
    }
}

/// I/O command set independent Identify Namespace (NVMe Base 2.0, 5.17.2.8).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IndependentNamespace {
    /// NSFEAT: Common Namespace Features: only UIDREUSE of [`Nsfeat`].
    pub nsfeat: Nsfeat,
    /// NMIC: Namespace Multi-path I/O and Namespace Sharing Capabilities.
    pub nmic: Nmic,
    /// RESCAP: Reservation Capabilities.
    pub rescap: u8,
    /// FPI: Format Progress Indicator.
    pub fpi: u8,
    /// ANAGRPID: ANA Group Identifier.
    pub anagrpid: U32,
    /// NSATTR: Namespace Attributes.
    pub nsattr: Nsattr,
    _reserved_9: u8,
    /// NVMSETID: NVM Set Identifier.
    pub nvmsetid: U16,
    /// ENDGID: Endurance Group Identifier.
    pub endgid: U16,
    /// NSTAT: Namespace Status.
    pub nstat: Nstat,
    _reserved_15: [u8; 4081],
}

/// NSTAT: Namespace Status (NVMe Base 2.0, 5.17.2.8, byte 14).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Nstat {
    /// NRDY: the namespace is ready.
    pub nrdy: bool,
    #[bits(7)]
    __: u8,
}

/// I/O command set specific Identify Namespace of the NVM command set (NVM Command Set 1.0, 4.1.5).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NvmNamespace {
    /// LBSTM: Logical Block Storage Tag Mask.
    pub lbstm: U64,
    /// PIC: Protection Information Capabilities.
    pub pic: u8,
    _reserved_9: [u8; 3],
    /// ELBAF0 to ELBAF63: Extended LBA Formats.
    pub elbaf: [U32; 64],
    _reserved_268: [u8; 3828],
}

#[cfg(test)]
mod tests {
    use core::mem::{align_of, offset_of};

    use super::*;

    #[test]
    fn namespace_is_linux_nvme_id_ns() {
        assert_eq!(size_of::<Namespace>(), 4096);
        assert_eq!(align_of::<Namespace>(), 1);
        assert_eq!(offset_of!(Namespace, ncap), 8);
        assert_eq!(offset_of!(Namespace, nuse), 16);
        assert_eq!(offset_of!(Namespace, nsfeat), 24);
        assert_eq!(offset_of!(Namespace, nlbaf), 25);
        assert_eq!(offset_of!(Namespace, flbas), 26);
        assert_eq!(offset_of!(Namespace, mc), 27);
        assert_eq!(offset_of!(Namespace, dpc), 28);
        assert_eq!(offset_of!(Namespace, dps), 29);
        assert_eq!(offset_of!(Namespace, nmic), 30);
        assert_eq!(offset_of!(Namespace, rescap), 31);
        assert_eq!(offset_of!(Namespace, fpi), 32);
        assert_eq!(offset_of!(Namespace, dlfeat), 33);
        assert_eq!(offset_of!(Namespace, nawun), 34);
        assert_eq!(offset_of!(Namespace, nawupf), 36);
        assert_eq!(offset_of!(Namespace, nacwu), 38);
        assert_eq!(offset_of!(Namespace, nabsn), 40);
        assert_eq!(offset_of!(Namespace, nabo), 42);
        assert_eq!(offset_of!(Namespace, nabspf), 44);
        assert_eq!(offset_of!(Namespace, noiob), 46);
        assert_eq!(offset_of!(Namespace, nvmcap), 48);
        assert_eq!(offset_of!(Namespace, npwg), 64);
        assert_eq!(offset_of!(Namespace, npwa), 66);
        assert_eq!(offset_of!(Namespace, npdg), 68);
        assert_eq!(offset_of!(Namespace, npda), 70);
        assert_eq!(offset_of!(Namespace, nows), 72);
        assert_eq!(offset_of!(Namespace, mssrl), 74); // libnvme
        assert_eq!(offset_of!(Namespace, mcl), 76); // libnvme
        assert_eq!(offset_of!(Namespace, msrc), 80); // libnvme
        assert_eq!(offset_of!(Namespace, nulbaf), 82); // libnvme
        assert_eq!(offset_of!(Namespace, anagrpid), 92);
        assert_eq!(offset_of!(Namespace, nsattr), 99);
        assert_eq!(offset_of!(Namespace, nvmsetid), 100);
        assert_eq!(offset_of!(Namespace, endgid), 102);
        assert_eq!(offset_of!(Namespace, nguid), 104);
        assert_eq!(offset_of!(Namespace, eui64), 120);
        assert_eq!(offset_of!(Namespace, lbaf), 128);
        assert_eq!(offset_of!(Namespace, vendor), 384); // vs
    }

    #[test]
    fn namespace_flags_are_linux_nvme_ns() {
        assert_eq!(Nsfeat::new().with_thinp(true).into_bits(), 1 << 0); // NVME_NS_FEAT_THIN
        assert_eq!(Nsfeat::new().with_nsabp(true).into_bits(), 1 << 1); // NVME_NS_FEAT_ATOMICS
        assert_eq!(Nsfeat::new().with_dae(true).into_bits(), 1 << 2); // libnvme NVME_NS_FEAT_DULBE
        assert_eq!(Nsfeat::new().with_uidreuse(true).into_bits(), 1 << 3); // libnvme NVME_NS_FEAT_ID_REUSE
        assert_eq!(Nsfeat::new().with_optperf(true).into_bits(), 1 << 4); // NVME_NS_FEAT_IO_OPT
        assert_eq!(Flbas::new().with_format_low(0xf).into_bits(), 0xf); // NVME_NS_FLBAS_LBA_MASK
        assert_eq!(Flbas::new().with_extended(true).into_bits(), 0x10); // NVME_NS_FLBAS_META_EXT
        assert_eq!(Flbas::new().with_format_high(3).into_bits(), 0x60); // NVME_NS_FLBAS_LBA_UMASK
        assert_eq!(Nmic::new().with_shared(true).into_bits(), 1 << 0); // NVME_NS_NMIC_SHARED
        assert_eq!(Nsattr::new().with_write_protected(true).into_bits(), 1 << 0); // NVME_NS_ATTR_RO
        assert_eq!(
            Dlfeat::new()
                .with_read_behavior(Dlfeat::READS_ZEROES)
                .into_bits(),
            1
        ); // libnvme NVME_NS_DLFEAT_RB_ALL_0S
        assert_eq!(Dlfeat::new().with_write_zeroes(true).into_bits(), 1 << 3); // libnvme NVME_NS_DLFEAT_WRITE_ZEROES
        assert_eq!(Nstat::new().with_nrdy(true).into_bits(), 1 << 0); // NVME_NSTAT_NRDY
    }

    #[test]
    fn lba_format_is_linux_nvme_lbaf() {
        assert_eq!(size_of::<LbaFormat>(), 4);
        assert_eq!(offset_of!(LbaFormat, ms), 0);
        assert_eq!(offset_of!(LbaFormat, lbads), 2); // ds
        assert_eq!(offset_of!(LbaFormat, rp), 3);
    }

    #[test]
    fn descriptors_are_linux_nvme_ns_id_desc() {
        assert_eq!(size_of::<DescriptorHeader>(), 4);
        assert_eq!(DescriptorHeader::UUID.as_bytes(), [3, 16, 0, 0]); // NVME_NIDT_UUID, _LEN
        assert_eq!(DescriptorHeader::CSI.as_bytes(), [4, 1, 0, 0]); // NVME_NIDT_CSI, _LEN
    }

    #[test]
    fn independent_namespace_is_linux_nvme_id_ns_cs_indep() {
        assert_eq!(size_of::<IndependentNamespace>(), 4096);
        assert_eq!(offset_of!(IndependentNamespace, nmic), 1);
        assert_eq!(offset_of!(IndependentNamespace, anagrpid), 4);
        assert_eq!(offset_of!(IndependentNamespace, nsattr), 8);
        assert_eq!(offset_of!(IndependentNamespace, nvmsetid), 10);
        assert_eq!(offset_of!(IndependentNamespace, endgid), 12);
        assert_eq!(offset_of!(IndependentNamespace, nstat), 14);
    }

    #[test]
    fn nvm_namespace_is_linux_nvme_id_ns_nvm() {
        assert_eq!(size_of::<NvmNamespace>(), 4096);
        assert_eq!(offset_of!(NvmNamespace, pic), 8);
        assert_eq!(offset_of!(NvmNamespace, elbaf), 12);
    }
}
