//! Controller properties: offsets and fields of the registers (NVMe Base 2.0, 3.1.3), and offsets
//! of the doorbells (NVMe over PCIe 1.0, 3.1.2). The registers of the Controller Memory Buffer are
//! in [`crate::cmb`], those of the Persistent Memory Region in [`crate::pmr`].

use bitfield_struct::bitfield;

/// Byte offsets of the registers (NVMe Base 2.0, 3.1.3).
pub mod offset {
    /// Controller Capabilities, 8 bytes.
    pub const CAP: u64 = 0x00;
    /// Version, 4 bytes.
    pub const VS: u64 = 0x08;
    /// Interrupt Mask Set, 4 bytes.
    pub const INTMS: u64 = 0x0c;
    /// Interrupt Mask Clear, 4 bytes.
    pub const INTMC: u64 = 0x10;
    /// Controller Configuration, 4 bytes.
    pub const CC: u64 = 0x14;
    /// Controller Status, 4 bytes.
    pub const CSTS: u64 = 0x1c;
    /// Admin Queue Attributes, 4 bytes.
    pub const AQA: u64 = 0x24;
    /// Admin Submission Queue Base Address, 8 bytes.
    pub const ASQ: u64 = 0x28;
    /// Admin Completion Queue Base Address, 8 bytes.
    pub const ACQ: u64 = 0x30;
    /// Controller Memory Buffer Location, 4 bytes.
    pub const CMBLOC: u64 = 0x38;
    /// Controller Memory Buffer Size, 4 bytes.
    pub const CMBSZ: u64 = 0x3c;
    /// Controller Memory Buffer Memory Space Control, 8 bytes.
    pub const CMBMSC: u64 = 0x50;
    /// Controller Memory Buffer Status, 4 bytes.
    pub const CMBSTS: u64 = 0x58;
    /// Controller Ready Timeouts, 4 bytes.
    pub const CRTO: u64 = 0x68;
    /// Persistent Memory Region Capabilities, 4 bytes.
    pub const PMRCAP: u64 = 0xe00;
    /// Persistent Memory Region Control, 4 bytes.
    pub const PMRCTL: u64 = 0xe04;
    /// Persistent Memory Region Status, 4 bytes.
    pub const PMRSTS: u64 = 0xe08;
    /// Persistent Memory Region Elasticity Buffer Size, 4 bytes.
    pub const PMREBS: u64 = 0xe0c;
    /// Persistent Memory Region Sustained Write Throughput, 4 bytes.
    pub const PMRSWTP: u64 = 0xe10;
    /// Persistent Memory Region Memory Space Control, lower half, 4 bytes.
    pub const PMRMSCL: u64 = 0xe14;
    /// Persistent Memory Region Memory Space Control, upper half, 4 bytes.
    pub const PMRMSCU: u64 = 0xe18;
    /// The first doorbell, the admin submission queue's (NVMe over PCIe 1.0, 3.1.2.1).
    pub const DOORBELLS: u64 = 0x1000;
}

/// CAP, Controller Capabilities (NVMe Base 2.0, 3.1.3.1).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Cap {
    /// MQES: the most entries an I/O queue may have, 0's based.
    pub mqes: u16,
    /// CQR: queues must be physically contiguous.
    pub cqr: bool,
    /// AMS: weighted round robin with urgent priority class is supported.
    pub ams_wrr: bool,
    /// AMS: a vendor specific arbitration is supported.
    pub ams_vendor: bool,
    #[bits(5)]
    __: u8,
    /// TO: the longest wait for CSTS.RDY, in units of 500 ms.
    pub to: u8,
    /// DSTRD: doorbells are `4 << dstrd` bytes apart.
    #[bits(4)]
    pub dstrd: u8,
    /// NSSRS: an NVM subsystem reset by NSSR is supported.
    pub nssrs: bool,
    /// CSS: the NVM command set is supported.
    pub css_nvm: bool,
    #[bits(5)]
    __: u8,
    /// CSS: the host can select I/O command sets.
    pub css_iocs: bool,
    /// CSS: no I/O command set is supported.
    pub css_admin_only: bool,
    /// BPS: boot partitions are supported.
    pub bps: bool,
    /// CPS: the scope of a change of power state: 1 the controller, 2 its domain, 3 the NVM
    /// subsystem; 0 if not reported.
    #[bits(2)]
    pub cps: u8,
    /// MPSMIN: the smallest memory page is `1 << (12 + mpsmin)` bytes.
    #[bits(4)]
    pub mpsmin: u8,
    /// MPSMAX: the largest memory page is `1 << (12 + mpsmax)` bytes.
    #[bits(4)]
    pub mpsmax: u8,
    /// PMRS: there is a Persistent Memory Region.
    pub pmrs: bool,
    /// CMBS: there is a Controller Memory Buffer, and CMBMSC enables CMBLOC and CMBSZ.
    pub cmbs: bool,
    /// NSSS: an NVM subsystem shutdown by NSSD is supported.
    pub nsss: bool,
    /// CRMS: Controller Ready With Media is supported, and CRTO is valid.
    pub crwms: bool,
    /// CRMS: Controller Ready Independent Of Media is supported.
    pub crims: bool,
    #[bits(3)]
    __: u8,
}

/// VS, Version (NVMe Base 2.0, 3.1.3.2); Identify Controller's VER has the same layout.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Vs {
    /// TER: tertiary version.
    pub ter: u8,
    /// MNR: minor version.
    pub mnr: u8,
    /// MJR: major version.
    pub mjr: u16,
}

impl Vs {
    /// NVMe 2.0.
    pub const V2_0: Self = Self::new().with_mjr(2);
}

/// CC, Controller Configuration (NVMe Base 2.0, 3.1.3.5).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cc {
    /// EN: 1 starts the controller; 1 to 0 resets it.
    pub en: bool,
    #[bits(3)]
    __: u8,
    /// CSS: the I/O command sets in use, for example [`Cc::CSS_NVM`].
    #[bits(3)]
    pub css: u8,
    /// MPS: a memory page is `1 << (12 + mps)` bytes.
    #[bits(4)]
    pub mps: u8,
    /// AMS: arbitration, for example [`Cc::AMS_ROUND_ROBIN`].
    #[bits(3)]
    pub ams: u8,
    /// SHN: shutdown notification, for example [`Cc::SHN_NONE`].
    #[bits(2)]
    pub shn: u8,
    /// IOSQES: an I/O submission queue entry is `1 << iosqes` bytes.
    #[bits(4)]
    pub iosqes: u8,
    /// IOCQES: an I/O completion queue entry is `1 << iocqes` bytes.
    #[bits(4)]
    pub iocqes: u8,
    /// CRIME: become ready independent of media.
    pub crime: bool,
    #[bits(7)]
    __: u8,
}

impl Cc {
    /// CSS: the NVM command set.
    pub const CSS_NVM: u8 = 0;
    /// AMS: round robin.
    pub const AMS_ROUND_ROBIN: u8 = 0;
    /// SHN: no notification.
    pub const SHN_NONE: u8 = 0;
    /// SHN: a normal shutdown.
    pub const SHN_NORMAL: u8 = 1;
    /// Returns the size of a memory page in bytes: 4 KiB to 128 MiB.
    pub const fn page_size(self) -> u64 {
        4096 << self.mps()
    }
}

/// CSTS, Controller Status (NVMe Base 2.0, 3.1.3.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Csts {
    /// RDY: the controller processes commands.
    pub rdy: bool,
    /// CFS: a fatal error that the controller could not report otherwise.
    pub cfs: bool,
    /// SHST: shutdown status, for example [`Csts::SHST_NORMAL`].
    #[bits(2)]
    pub shst: u8,
    /// NSSRO: an NVM subsystem reset has occurred; writing 1 clears it.
    pub nssro: bool,
    /// PP: processing is paused.
    pub pp: bool,
    /// ST: the subject of SHST: 0 a controller shutdown, 1 an NVM subsystem shutdown.
    pub st: bool,
    #[bits(25)]
    __: u32,
}

impl Csts {
    /// SHST: no shutdown has been requested.
    pub const SHST_NORMAL: u8 = 0;
    /// SHST: a shutdown is in progress.
    pub const SHST_OCCURRING: u8 = 1;
    /// SHST: the shutdown is complete.
    pub const SHST_COMPLETE: u8 = 2;
}

/// AQA, Admin Queue Attributes (NVMe Base 2.0, 3.1.3.8).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Aqa {
    /// ASQS: entries of the admin submission queue, 0's based.
    #[bits(12)]
    pub asqs: u16,
    #[bits(4)]
    __: u8,
    /// ACQS: entries of the admin completion queue, 0's based.
    #[bits(12)]
    pub acqs: u16,
    #[bits(4)]
    __: u8,
}

/// CRTO, Controller Ready Timeouts, in units of 500 ms (NVMe Base 2.0, 3.1.3.21).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Crto {
    /// CRWMT: the longest wait until ready with media.
    pub crwmt: u16,
    /// CRIMT: the longest wait until ready independent of media.
    pub crimt: u16,
}

/// A doorbell register, named by its queue (NVMe over PCIe 1.0, 3.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// SQyTDBL: the tail of submission queue y.
    SubmissionTail(u16),
    /// CQyHDBL: the head of completion queue y.
    CompletionHead(u16),
}

impl Doorbell {
    /// Returns the number of its queue.
    pub fn queue(self) -> u16 {
        match self {
            Self::SubmissionTail(queue) | Self::CompletionHead(queue) => queue,
        }
    }

    /// Returns the offset from the start of the registers for a stride of `4 << dstrd` bytes, or
    /// `None` if `dstrd` does not fit CAP.DSTRD.
    pub fn offset(self, dstrd: u8) -> Option<u64> {
        let head = match self {
            Self::SubmissionTail(_) => 0,
            Self::CompletionHead(_) => 1,
        };
        let index = u64::from(self.queue()) * 2 + head;
        Some(offset::DOORBELLS + index * stride(dstrd)?)
    }

    /// Returns the doorbell that starts at `offset` from the start of the registers, or `None` if
    /// none does.
    pub fn at(offset: u64, dstrd: u8) -> Option<Self> {
        let distance = offset.checked_sub(offset::DOORBELLS)?;
        let stride = stride(dstrd)?;
        if distance % stride != 0 {
            return None;
        }
        let index = distance / stride;
        let queue = u16::try_from(index / 2).ok()?;
        Some(if index % 2 == 0 {
            Self::SubmissionTail(queue)
        } else {
            Self::CompletionHead(queue)
        })
    }
}

/// Returns the distance between two doorbells in bytes.
fn stride(dstrd: u8) -> Option<u64> {
    (dstrd <= 15).then(|| 4 << dstrd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_linux_nvme_reg() {
        assert_eq!(offset::CAP, 0x00); // NVME_REG_CAP
        assert_eq!(offset::VS, 0x08); // NVME_REG_VS
        assert_eq!(offset::INTMS, 0x0c); // NVME_REG_INTMS
        assert_eq!(offset::INTMC, 0x10); // NVME_REG_INTMC
        assert_eq!(offset::CC, 0x14); // NVME_REG_CC
        assert_eq!(offset::CSTS, 0x1c); // NVME_REG_CSTS
        assert_eq!(offset::AQA, 0x24); // NVME_REG_AQA
        assert_eq!(offset::ASQ, 0x28); // NVME_REG_ASQ
        assert_eq!(offset::ACQ, 0x30); // NVME_REG_ACQ
        assert_eq!(offset::CMBLOC, 0x38); // NVME_REG_CMBLOC
        assert_eq!(offset::CMBSZ, 0x3c); // NVME_REG_CMBSZ
        assert_eq!(offset::CMBMSC, 0x50); // NVME_REG_CMBMSC
        assert_eq!(offset::CMBSTS, 0x58); // libnvme NVME_REG_CMBSTS
        assert_eq!(offset::CRTO, 0x68); // NVME_REG_CRTO
        assert_eq!(offset::PMRCAP, 0xe00); // NVME_REG_PMRCAP
        assert_eq!(offset::PMRCTL, 0xe04); // NVME_REG_PMRCTL
        assert_eq!(offset::PMRSTS, 0xe08); // NVME_REG_PMRSTS
        assert_eq!(offset::PMREBS, 0xe0c); // NVME_REG_PMREBS
        assert_eq!(offset::PMRSWTP, 0xe10); // NVME_REG_PMRSWTP
        assert_eq!(offset::PMRMSCL, 0xe14); // NVME_REG_PMRMSCL
        assert_eq!(offset::PMRMSCU, 0xe18); // NVME_REG_PMRMSCU
        assert_eq!(offset::DOORBELLS, 0x1000); // NVME_REG_DBS
    }

    #[test]
    fn cap_is_as_linux_reads_it() {
        let cap = |cap: Cap| cap.into_bits();
        assert_eq!(cap(Cap::new().with_mqes(0xffff)), 0xffff); // NVME_CAP_MQES
        assert_eq!(cap(Cap::new().with_cqr(true)), 1 << 16); // libnvme NVME_CAP_CQR_SHIFT
        assert_eq!(cap(Cap::new().with_ams_wrr(true)), 1 << 17); // libnvme NVME_CAP_AMS_SHIFT
        assert_eq!(cap(Cap::new().with_to(0xff)), 0xff << 24); // NVME_CAP_TIMEOUT
        assert_eq!(cap(Cap::new().with_dstrd(0xf)), 0xf << 32); // NVME_CAP_STRIDE
        assert_eq!(cap(Cap::new().with_nssrs(true)), 1 << 36); // NVME_CAP_NSSRC
        assert_eq!(cap(Cap::new().with_css_nvm(true)), 1 << 37); // NVME_CAP_CSS, NVME_CAP_CSS_NVM
        assert_eq!(cap(Cap::new().with_css_iocs(true)), 1 << (37 + 6)); // NVME_CAP_CSS_CSI
        assert_eq!(cap(Cap::new().with_css_admin_only(true)), 1 << (37 + 7)); // libnvme NVME_CAP_CSS_ADMIN
        assert_eq!(cap(Cap::new().with_bps(true)), 1 << 45); // libnvme NVME_CAP_BPS_SHIFT
        assert_eq!(cap(Cap::new().with_mpsmin(0xf)), 0xf << 48); // NVME_CAP_MPSMIN
        assert_eq!(cap(Cap::new().with_mpsmax(0xf)), 0xf << 52); // NVME_CAP_MPSMAX
        assert_eq!(cap(Cap::new().with_pmrs(true)), 1 << 56); // libnvme NVME_CAP_PMRS_SHIFT
        assert_eq!(cap(Cap::new().with_cmbs(true)), 1 << 57); // NVME_CAP_CMBS
        assert_eq!(cap(Cap::new().with_crwms(true)), 1 << 59); // NVME_CAP_CRMS_CRWMS
        assert_eq!(cap(Cap::new().with_crims(true)), 1 << 60); // NVME_CAP_CRMS_CRIMS
    }

    #[test]
    fn cc_is_as_linux_writes_it() {
        // NVME_CC_ENABLE | NVME_CC_CSS_NVM | NVME_CC_AMS_RR | NVME_CC_SHN_NONE | NVME_CC_IOSQES |
        // NVME_CC_IOCQES
        let enabled = Cc::from_bits(0x0046_0001);
        assert!(enabled.en());
        assert_eq!(enabled.css(), Cc::CSS_NVM);
        assert_eq!(enabled.ams(), Cc::AMS_ROUND_ROBIN);
        assert_eq!(enabled.shn(), Cc::SHN_NONE);
        assert_eq!((enabled.iosqes(), enabled.iocqes()), (6, 4));
        assert_eq!(enabled.page_size(), 4096);

        assert_eq!(Cc::from_bits(15 << 7).mps(), 15); // NVME_CC_MPS_SHIFT
        assert_eq!(Cc::from_bits(15 << 7).page_size(), 128 << 20);
        assert_eq!(Cc::from_bits(1 << 14).shn(), Cc::SHN_NORMAL); // NVME_CC_SHN_NORMAL
        assert!(Cc::from_bits(1 << 24).crime()); // NVME_CC_CRIME
    }

    #[test]
    fn csts_is_as_linux_reads_it() {
        assert_eq!(Csts::new().with_rdy(true).into_bits(), 1); // NVME_CSTS_RDY
        assert_eq!(Csts::new().with_cfs(true).into_bits(), 2); // NVME_CSTS_CFS
        assert_eq!(Csts::new().with_shst(Csts::SHST_NORMAL).into_bits(), 0); // NVME_CSTS_SHST_NORMAL
        assert_eq!(Csts::new().with_shst(Csts::SHST_OCCURRING).into_bits(), 4); // NVME_CSTS_SHST_OCCUR
        assert_eq!(Csts::new().with_shst(Csts::SHST_COMPLETE).into_bits(), 8); // NVME_CSTS_SHST_CMPLT
        assert_eq!(Csts::new().with_nssro(true).into_bits(), 0x10); // NVME_CSTS_NSSRO
        assert_eq!(Csts::new().with_pp(true).into_bits(), 0x20); // NVME_CSTS_PP
    }

    #[test]
    fn small_registers() {
        assert_eq!(Vs::V2_0.into_bits(), 0x0002_0000); // NVME_VS(2, 0, 0)
        assert_eq!(Vs::from_bits(0x0001_0401).mnr(), 4); // NVME_MINOR
        assert_eq!(Vs::from_bits(0x0001_0401).ter(), 1); // NVME_TERTIARY
        let aqa = Aqa::from_bits(31 | 31 << 16); // NVME_AQ_DEPTH - 1, twice, as nvme_pci_configure_admin_queue does
        assert_eq!((aqa.asqs(), aqa.acqs()), (31, 31));
        let crto = Crto::from_bits(0x0014_000a);
        assert_eq!((crto.crimt(), crto.crwmt()), (0x14, 0x0a)); // NVME_CRTO_CRIMT, NVME_CRTO_CRWMT
    }

    #[test]
    fn doorbells_are_where_linux_rings_them() {
        // drivers/nvme/host/pci.c: q_db = &dbs[qid * 2 * db_stride], cq doorbell at q_db +
        // db_stride.
        assert_eq!(Doorbell::SubmissionTail(0).offset(0), Some(0x1000));
        assert_eq!(Doorbell::CompletionHead(0).offset(0), Some(0x1004));
        assert_eq!(Doorbell::SubmissionTail(3).offset(0), Some(0x1018));
        assert_eq!(Doorbell::CompletionHead(3).offset(2), Some(0x1070));
        assert_eq!(
            Doorbell::CompletionHead(u16::MAX).offset(15),
            Some(0x1000 + 131_071 * 131_072)
        );
        assert_eq!(Doorbell::SubmissionTail(0).offset(16), None);
    }

    #[test]
    fn only_the_first_byte_of_a_doorbell_names_it() {
        for dstrd in [0, 1, 15] {
            for doorbell in [
                Doorbell::SubmissionTail(0),
                Doorbell::CompletionHead(7),
                Doorbell::CompletionHead(u16::MAX),
            ] {
                let offset = doorbell.offset(dstrd).unwrap();
                assert_eq!(Doorbell::at(offset, dstrd), Some(doorbell));
                assert_eq!(Doorbell::at(offset + 1, dstrd), None);
            }
        }
        assert_eq!(Doorbell::at(0xfff, 0), None);
        assert_eq!(Doorbell::at(0, 0), None);
        assert_eq!(
            Doorbell::at(0x1000 + 131_072 * 4, 0),
            None,
            "there is no queue 65536"
        );
        assert_eq!(Doorbell::at(u64::MAX - 3, 0), None);
        assert_eq!(Doorbell::at(0x1000, 255), None);
    }
}
