//! Registers of the Persistent Memory Region (NVMe Base 2.0, 8.14).

use bitfield_struct::bitfield;

/// PMRCAP, Persistent Memory Region Capabilities.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Pmrcap {
    #[bits(3)]
    __: u8,
    /// RDS: data that the controller transfers to the host may lie in the region.
    pub rds: bool,
    /// WDS: data that the host transfers to the controller may lie in the region.
    pub wds: bool,
    /// BIR: the BAR that the region fills: 2, 3, 4 or 5.
    #[bits(3)]
    pub bir: u8,
    /// PMRTU: the unit of PMRTO: 0 for 500 ms, 1 for minutes.
    #[bits(2)]
    pub pmrtu: u8,
    /// PMRWBM: the read that makes earlier writes persistent: one of the region (bit 0) or one of
    /// PMRSTS ([`Pmrcap::BARRIER_STATUS`]).
    #[bits(4)]
    pub pmrwbm: u8,
    #[bits(2)]
    __: u8,
    /// PMRTO: the longest wait for PMRSTS.NRDY after a change of PMRCTL.EN, in units of PMRTU.
    pub pmrto: u8,
    /// CMSS: PMRMSC is supported, so that commands can address the region.
    pub cmss: bool,
    #[bits(7)]
    __: u8,
}

impl Pmrcap {
    /// PMRWBM: a read of PMRSTS completes once earlier writes are persistent.
    pub const BARRIER_STATUS: u8 = 2;
}

/// PMRCTL, Persistent Memory Region Control. Survives a controller reset.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Pmrctl {
    /// EN: makes the region ready for reads and writes.
    pub en: bool,
    #[bits(31)]
    __: u32,
}

/// PMRSTS, Persistent Memory Region Status.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Pmrsts {
    /// ERR: 0 if all earlier writes have succeeded; otherwise the region has failed, and the value
    /// is vendor specific.
    pub err: u8,
    /// NRDY: the region is not ready for reads and writes.
    pub nrdy: bool,
    /// HSTS: health, for example [`Pmrsts::NORMAL`].
    #[bits(3)]
    pub hsts: u8,
    /// CBAI: commands cannot address the region, because PMRMSC's base address is invalid.
    pub cbai: bool,
    #[bits(19)]
    __: u32,
}

impl Pmrsts {
    /// HSTS: the region works.
    pub const NORMAL: u8 = 0;
    /// HSTS: writes have no effect.
    pub const READ_ONLY: u8 = 2;
    /// HSTS: reads may return anything, and writes may be lost.
    pub const UNRELIABLE: u8 = 3;
}

/// PMRMSCL and PMRMSCU as one, Persistent Memory Region Memory Space Control. Survives a controller
/// reset.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Pmrmsc {
    __: bool,
    /// CMSE: addresses from CBA on refer to the region.
    pub cmse: bool,
    #[bits(10)]
    __: u16,
    /// CBA: the address at which the region starts for commands, in units of 4 KiB.
    #[bits(52)]
    pub cba: u64,
}

impl Pmrmsc {
    /// Returns CBA in bytes.
    pub const fn base_address(self) -> u64 {
        self.cba() << 12
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pmrcap_is_as_linux_describes_it() {
        let pmrcap = |pmrcap: Pmrcap| pmrcap.into_bits();
        assert_eq!(pmrcap(Pmrcap::new().with_rds(true)), 1 << 3); // NVME_PMRCAP_RDS
        assert_eq!(pmrcap(Pmrcap::new().with_wds(true)), 1 << 4); // NVME_PMRCAP_WDS
        assert_eq!(pmrcap(Pmrcap::new().with_bir(7)), 7 << 5); // NVME_PMRCAP_BIR
        assert_eq!(pmrcap(Pmrcap::new().with_pmrtu(3)), 3 << 8); // NVME_PMRCAP_PMRTU
        assert_eq!(pmrcap(Pmrcap::new().with_pmrwbm(0xf)), 0xf << 10); // NVME_PMRCAP_PMRWBM
        assert_eq!(pmrcap(Pmrcap::new().with_pmrto(0xff)), 0xff << 16); // NVME_PMRCAP_PMRTO
        assert_eq!(pmrcap(Pmrcap::new().with_cmss(true)), 1 << 24); // NVME_PMRCAP_CMSS
    }

    #[test]
    fn pmrsts_is_as_linux_describes_it() {
        let pmrsts = |pmrsts: Pmrsts| pmrsts.into_bits();
        assert_eq!(Pmrctl::new().with_en(true).into_bits(), 1); // NVME_PMRCTL_EN
        assert_eq!(pmrsts(Pmrsts::new().with_err(0xff)), 0xff); // NVME_PMRSTS_ERR
        assert_eq!(pmrsts(Pmrsts::new().with_nrdy(true)), 1 << 8); // NVME_PMRSTS_NRDY
        assert_eq!(pmrsts(Pmrsts::new().with_hsts(7)), 7 << 9); // NVME_PMRSTS_HSTS
        assert_eq!(pmrsts(Pmrsts::new().with_cbai(true)), 1 << 12); // NVME_PMRSTS_CBAI
    }

    #[test]
    fn pmrmsc_is_as_spdk_writes_it() {
        // lib/nvme/nvme_pcie.c, nvme_pcie_ctrlr_map_pmr(): the BAR's address and CMSE.
        let pmrmsc = Pmrmsc::from_bits(0x38_1234_5000 | 1 << 1); // NVME_PMRMSCL_CMSE
        assert!(pmrmsc.cmse());
        assert_eq!(pmrmsc.base_address(), 0x38_1234_5000);
    }
}
