//! Registers of the Controller Memory Buffer (NVMe Base 2.0, 8.5).

use bitfield_struct::bitfield;

/// CMBLOC, Controller Memory Buffer Location (NVMe Base 2.0, 3.1.3.11). Reads as 0 until CMBMSC.CRE
/// is 1.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cmbloc {
    /// BIR: the BAR that holds the buffer: 0, 2, 3, 4 or 5.
    #[bits(3)]
    pub bir: u8,
    /// CQMMS: one queue may lie partly in the buffer and partly elsewhere.
    pub cqmms: bool,
    /// CQPDS: of a queue and the PRP list that describes its memory, one may lie in the buffer and
    /// the other elsewhere.
    pub cqpds: bool,
    /// CDPMLS: a list may point into the buffer and elsewhere.
    pub cdpmls: bool,
    /// CDPCILS: of a list and the command that points to it, one may lie in the buffer and the
    /// other elsewhere.
    pub cdpcils: bool,
    /// CDMMMS: data and metadata of one command may lie partly in the buffer and partly elsewhere.
    pub cdmmms: bool,
    /// CQDA: queues in the buffer need only dword alignment.
    pub cqda: bool,
    #[bits(3)]
    __: u8,
    /// OFST: offset of the buffer in the BAR, in units of CMBSZ.SZU.
    #[bits(20)]
    pub ofst: u32,
}

/// CMBSZ, Controller Memory Buffer Size (NVMe Base 2.0, 3.1.3.12). Reads as 0 until CMBMSC.CRE is
/// 1.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cmbsz {
    /// SQS: submission queues may lie in the buffer.
    pub sqs: bool,
    /// CQS: completion queues may lie in the buffer.
    pub cqs: bool,
    /// LISTS: PRP lists and SGL segments may lie in the buffer.
    pub lists: bool,
    /// RDS: data that the controller transfers to the host may lie in the buffer.
    pub rds: bool,
    /// WDS: data that the host transfers to the controller may lie in the buffer.
    pub wds: bool,
    #[bits(3)]
    __: u8,
    /// SZU: the unit of SZ and of CMBLOC.OFST is `4096 << (4 * szu)` bytes; 7 and above are
    /// reserved.
    #[bits(4)]
    pub szu: u8,
    /// SZ: the size in units.
    #[bits(20)]
    pub sz: u32,
}

impl Cmbsz {
    /// The largest SZU: 64 GiB.
    pub const SZU_MAX: u8 = 6;

    /// Sets SZ and SZU to `bytes`, in the smallest unit that holds it exactly. Returns `None` if no
    /// unit does.
    pub fn with_bytes(self, bytes: u64) -> Option<Self> {
        (0..=Self::SZU_MAX).find_map(|szu| {
            let unit = unit(szu);
            if bytes % unit != 0 {
                return None;
            }
            let sz = u32::try_from(bytes / unit).ok()?;
            self.with_szu(szu).with_sz_checked(sz).ok()
        })
    }

    /// Returns the size in bytes, or `None` if SZU is reserved.
    pub fn bytes(self) -> Option<u64> {
        (self.szu() <= Self::SZU_MAX).then(|| u64::from(self.sz()) * unit(self.szu()))
    }
}

/// Returns the unit that `szu` stands for, in bytes. `szu` is at most [`Cmbsz::SZU_MAX`].
const fn unit(szu: u8) -> u64 {
    4096 << (4 * szu)
}

/// CMBMSC, Controller Memory Buffer Memory Space Control (NVMe Base 2.0, 3.1.3.16). Survives a
/// controller reset.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Cmbmsc {
    /// CRE: CMBLOC and CMBSZ read as their values instead of 0.
    pub cre: bool,
    /// CMSE: addresses from CBA on refer to the buffer.
    pub cmse: bool,
    #[bits(10)]
    __: u16,
    /// CBA: the address at which the buffer starts for commands, in units of 4 KiB.
    #[bits(52)]
    pub cba: u64,
}

impl Cmbmsc {
    /// Returns CBA in bytes.
    pub const fn base_address(self) -> u64 {
        self.cba() << 12
    }
}

/// CMBSTS, Controller Memory Buffer Status (NVMe Base 2.0, 3.1.3.17).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cmbsts {
    /// CBAI: the buffer was not enabled, because CBA is invalid.
    pub cbai: bool,
    #[bits(31)]
    __: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cmbloc_is_as_linux_reads_it() {
        let cmbloc = Cmbloc::new().with_bir(2).with_ofst(0xabcde);
        assert_eq!(cmbloc.into_bits() & 0x7, 2); // NVME_CMB_BIR
        assert_eq!((cmbloc.into_bits() >> 12) & 0xfffff, 0xabcde); // NVME_CMB_OFST
        assert_eq!(Cmbloc::new().with_cqmms(true).into_bits(), 1 << 3); // libnvme NVME_CMBLOC_CQMMS_SHIFT
        assert_eq!(Cmbloc::new().with_cqpds(true).into_bits(), 1 << 4); // libnvme NVME_CMBLOC_CQPDS_SHIFT
        assert_eq!(Cmbloc::new().with_cdpmls(true).into_bits(), 1 << 5); // libnvme NVME_CMBLOC_CDPLMS_SHIFT
        assert_eq!(Cmbloc::new().with_cdpcils(true).into_bits(), 1 << 6); // libnvme NVME_CMBLOC_CDPCILS_SHIFT
        assert_eq!(Cmbloc::new().with_cdmmms(true).into_bits(), 1 << 7); // libnvme NVME_CMBLOC_CDMMMS_SHIFT
        assert_eq!(Cmbloc::new().with_cqda(true).into_bits(), 1 << 8); // libnvme NVME_CMBLOC_CQDA_SHIFT
    }

    #[test]
    fn cmbsz_is_as_linux_reads_it() {
        assert_eq!(Cmbsz::new().with_sqs(true).into_bits(), 1 << 0); // NVME_CMBSZ_SQS
        assert_eq!(Cmbsz::new().with_cqs(true).into_bits(), 1 << 1); // NVME_CMBSZ_CQS
        assert_eq!(Cmbsz::new().with_lists(true).into_bits(), 1 << 2); // NVME_CMBSZ_LISTS
        assert_eq!(Cmbsz::new().with_rds(true).into_bits(), 1 << 3); // NVME_CMBSZ_RDS
        assert_eq!(Cmbsz::new().with_wds(true).into_bits(), 1 << 4); // NVME_CMBSZ_WDS
        assert_eq!(Cmbsz::new().with_szu(0xf).into_bits(), 0xf << 8); // NVME_CMBSZ_SZU_SHIFT, _MASK
        assert_eq!(Cmbsz::new().with_sz(0xfffff).into_bits(), 0xfffff << 12); // NVME_CMBSZ_SZ_SHIFT, _MASK
    }

    #[test]
    fn sizes_come_out_as_linux_computes_them() {
        // drivers/nvme/host/pci.c: nvme_cmb_size_unit() is 1ULL << (12 + 4 * szu), times
        // NVME_CMBSZ_SZ.
        let linux = |cmbsz: Cmbsz| {
            let bits = cmbsz.into_bits();
            (1u64 << (12 + 4 * ((bits >> 8) & 0xf))) * u64::from((bits >> 12) & 0xfffff)
        };
        for bytes in [
            4096,
            2 << 20,
            64 << 20,
            (4 << 30) - 4096,
            4 << 30,
            6 << 30,
            1 << 46,
            0xfffff << 36,
        ] {
            let cmbsz = Cmbsz::new().with_wds(true).with_bytes(bytes).unwrap();
            assert_eq!(linux(cmbsz), bytes);
            assert_eq!(cmbsz.bytes(), Some(bytes));
            assert!(cmbsz.wds());
        }
    }

    #[test]
    fn sizes_that_no_unit_holds_are_refused() {
        for bytes in [1, 4095, 4097, (4 << 30) + 4096, 1 << 56, u64::MAX] {
            assert_eq!(Cmbsz::new().with_bytes(bytes), None, "{bytes}");
        }
        assert_eq!(Cmbsz::from_bits(u32::MAX).bytes(), None);
    }

    #[test]
    fn cmbmsc_is_as_linux_writes_it() {
        assert_eq!(Cmbmsc::new().with_cre(true).into_bits(), 1 << 0); // NVME_CMBMSC_CRE
        assert_eq!(Cmbmsc::new().with_cmse(true).into_bits(), 1 << 1); // NVME_CMBMSC_CMSE
        // nvme_map_cmb() writes NVME_CMBMSC_CRE | NVME_CMBMSC_CMSE | (bus address of the BAR +
        // offset)
        let cmbmsc = Cmbmsc::from_bits(0x3 | 0xffff_fff0_1234_5000);
        assert!(cmbmsc.cre() && cmbmsc.cmse());
        assert_eq!(cmbmsc.base_address(), 0xffff_fff0_1234_5000);
        assert_eq!(Cmbsts::new().with_cbai(true).into_bits(), 1); // libnvme NVME_CMBSTS_CBAI_SHIFT
    }
}
