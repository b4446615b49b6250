//! The Controller Memory Buffer: its memory, its registers, and the window that it opens for DMA.

use std::sync::Arc;

use peerbar_dma::{MemoryError, MemoryFile, OwnWindow, OwnWindowMemory, Span};
use peerbar_nvme_spec::cmb::{Cmbloc, Cmbmsc, Cmbsts, Cmbsz};
use peerbar_pci::{BusAddress, Range};
use thiserror::Error;

/// The BAR in which the buffer lies, from offset 0.
pub(crate) const CMB_BAR: u8 = 2;

/// The size of a Controller Memory Buffer is a multiple of this, in bytes: Linux takes peer-to-peer
/// memory in such sections and silently ignores any other buffer (Linux mm/sparse.c,
/// SUBSECTION_SIZE).
pub const CMB_UNIT: u64 = 2 << 20;

/// The largest Controller Memory Buffer, in bytes.
pub const LARGEST_CMB: u64 = 64 << 30;

/// Errors of a Controller Memory Buffer.
#[derive(Debug, Error)]
pub enum CmbError {
    /// The size is too large, or Linux would ignore a buffer of this size.
    #[error("CMB of {size} bytes: the size must be a multiple of 2 MiB up to 64 GiB, or Linux ignores it; try {}M", .size.div_ceil(CMB_UNIT).clamp(1, LARGEST_CMB / CMB_UNIT) * 2)]
    Size {
        /// The requested size.
        size: u64,
    },
    /// The memory could not be allocated.
    #[error("CMB of {size} bytes")]
    Memory {
        /// The requested size.
        size: u64,
        /// The cause.
        source: MemoryError,
    },
}

/// Checks that Linux takes all of a buffer of this size.
pub(crate) fn check_size(size: u64) -> Result<(), CmbError> {
    if size == 0 || size % CMB_UNIT != 0 || size > LARGEST_CMB {
        return Err(CmbError::Size { size });
    }
    Ok(())
}

/// A Controller Memory Buffer (NVMe Base 2.0, 8.5).
pub(crate) struct Cmb {
    memory: Arc<MemoryFile>,
    size: u64,
    queues: bool,
    /// The buffer behaves as before NVMe 1.4: there is no CMBMSC, and commands always find it at
    /// the addresses of its BAR.
    legacy: bool,
    control: Cmbmsc,
}

impl Cmb {
    /// Makes a buffer of `size` bytes for data, PRP lists and SGL segments, and if `queues` is set
    /// also for queues. With `legacy` it behaves as in NVMe 1.3.
    pub(crate) fn new(size: u64, queues: bool, legacy: bool) -> Result<Self, CmbError> {
        check_size(size)?;
        let memory = MemoryFile::create("peerbar-nvme-cmb", size.next_power_of_two())
            .map_err(|source| CmbError::Memory { size, source })?;
        Ok(Self {
            memory: Arc::new(memory),
            size,
            queues,
            legacy,
            control: Cmbmsc::new(),
        })
    }

    /// Returns the memory of the whole BAR, a power of two.
    pub(crate) fn memory(&self) -> Span {
        Span {
            file: self.memory.clone(),
            offset: 0,
        }
    }

    /// Returns the size of the BAR in bytes.
    pub(crate) fn bar_bytes(&self) -> u64 {
        self.memory.size()
    }

    /// Returns `true` if CAP announces the buffer. CAP announces only registers that CMBMSC enables
    /// (NVMe Base 2.0, 3.1.3.1, CMBS).
    pub(crate) fn is_announced(&self) -> bool {
        !self.legacy
    }

    /// Returns CMBLOC (NVMe Base 2.0, 3.1.3.11): zero until the host enables the registers. All
    /// mixes of buffer and host memory are allowed. CQDA is 0: queues in the buffer start at a
    /// page, too. NVMe 1.3 defines only the location (3.1.11), which can always be read.
    pub(crate) fn location(&self) -> Cmbloc {
        let place = Cmbloc::new().with_bir(CMB_BAR);
        if self.legacy {
            return place;
        }
        if !self.control.cre() {
            return Cmbloc::new();
        }
        place
            .with_cqmms(true)
            .with_cqpds(true)
            .with_cdpmls(true)
            .with_cdpcils(true)
            .with_cdmmms(true)
    }

    /// Returns CMBSZ (NVMe Base 2.0, 3.1.3.12): zero until the host enables the registers. In NVMe
    /// 1.3 it can always be read (3.1.12).
    pub(crate) fn size(&self) -> Cmbsz {
        if !self.legacy && !self.control.cre() {
            return Cmbsz::new();
        }
        let uses = Cmbsz::new()
            .with_sqs(self.queues)
            .with_cqs(self.queues)
            .with_lists(true)
            .with_rds(true)
            .with_wds(true);
        uses.with_bytes(self.size).unwrap_or_default()
    }

    /// Returns CMBMSC (NVMe Base 2.0, 3.1.3.16). A controller reset (CC.EN) does not change it.
    pub(crate) fn control(&self) -> Cmbmsc {
        self.control
    }

    /// Writes CMBMSC, which NVMe 1.3 does not define.
    pub(crate) fn set_control(&mut self, control: Cmbmsc) {
        if !self.legacy {
            self.control = control;
        }
    }

    /// Returns CMBSTS (NVMe Base 2.0, 3.1.3.17): CBAI is 1 if the buffer at the host's base address
    /// would exceed the address space.
    pub(crate) fn status(&self) -> Cmbsts {
        Cmbsts::new().with_cbai(
            self.control.cmse() && self.control.base_address().checked_add(self.size).is_none(),
        )
    }

    /// Returns the addresses at which commands find the buffer in addition to those of its BAR,
    /// once the host has enabled it.
    pub(crate) fn window(&self) -> Option<OwnWindow> {
        let enabled = self.control.cre() && self.control.cmse() && !self.status().cbai();
        let range = Range::new(BusAddress(self.control.base_address()), self.size);
        range.filter(|_| enabled).map(|range| OwnWindow {
            range,
            memory: OwnWindowMemory::Span(self.memory()),
        })
    }

    /// Returns `true` if queues may lie in the buffer.
    pub(crate) fn takes_queues(&self) -> bool {
        self.queues
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sizes_that_linux_takes_are_accepted() {
        for size in [2 << 20, 6 << 20, 64 << 20] {
            assert!(Cmb::new(size, true, false).is_ok(), "{size}");
        }
        for size in [
            0,
            4096,
            3 << 20,
            (2 << 20) + 1,
            LARGEST_CMB + CMB_UNIT,
            u64::MAX,
        ] {
            let error = Cmb::new(size, true, false).err().unwrap();
            assert!(matches!(error, CmbError::Size { .. }), "{error}");
        }
        assert!(
            Cmb::new(3 << 20, false, false)
                .err()
                .unwrap()
                .to_string()
                .ends_with("try 4M")
        );
    }

    #[test]
    fn cmb_registers_are_hidden_until_enabled() {
        let mut cmb = Cmb::new(6 << 20, true, false).unwrap();
        assert_eq!((cmb.location().into_bits(), cmb.size().into_bits()), (0, 0));
        cmb.set_control(Cmbmsc::from_bits(1)); // NVME_CMBMSC_CRE
        assert_eq!(cmb.location().into_bits() & 7, 2, "NVME_CMB_BIR");
        assert_eq!(cmb.location().into_bits() >> 12, 0, "NVME_CMB_OFST");
        let dword_aligned = cmb.location().into_bits() >> 8 & 1; // libnvme NVME_CMBLOC_CQDA_SHIFT
        assert_eq!(dword_aligned, 0, "Create I/O Queue wants a page");
        let size = cmb.size().into_bits();
        assert_eq!(
            size & 0x1f,
            0x1f,
            "NVME_CMBSZ_SQS | CQS | LISTS | RDS | WDS"
        );
        let unit = 1u64 << (12 + 4 * (size >> 8 & 0xf)); // nvme_cmb_size_unit
        assert_eq!(unit * u64::from(size >> 12), 6 << 20);
        assert_eq!(cmb.bar_bytes(), 8 << 20);
    }

    #[test]
    fn legacy_registers_are_always_there_and_have_no_control() {
        let mut cmb = Cmb::new(6 << 20, true, true).unwrap();
        assert!(!cmb.is_announced());
        for _ in 0..2 {
            assert_eq!(cmb.location().into_bits(), 2, "NVME_CMB_BIR alone");
            assert_eq!(cmb.size().into_bits() & 0x1f, 0x1f);
            cmb.set_control(Cmbmsc::from_bits(0x38_0000_0000 | 3));
            assert_eq!(cmb.control().into_bits(), 0);
            assert!(cmb.window().is_none());
        }
    }

    #[test]
    fn without_queues_only_data_and_lists_are_offered() {
        let mut cmb = Cmb::new(2 << 20, false, false).unwrap();
        cmb.set_control(Cmbmsc::from_bits(1));
        assert_eq!(cmb.size().into_bits() & 0x1f, 0x1c);
    }

    #[test]
    fn the_window_opens_at_the_host_s_base_address() {
        let mut cmb = Cmb::new(2 << 20, true, false).unwrap();
        assert!(cmb.window().is_none());
        cmb.set_control(Cmbmsc::from_bits(0x38_0000_0000 | 3)); // CRE | CMSE
        let window = cmb.window().unwrap();
        assert_eq!(window.range.first(), BusAddress(0x38_0000_0000));
        assert_eq!(window.range.size(), 2 << 20);
        cmb.set_control(Cmbmsc::from_bits(!0xfff | 3));
        assert!(cmb.window().is_none());
        assert_eq!(cmb.status().into_bits(), 1, "NVME_CMBSTS_CBAI");
    }
}
