//! The Persistent Memory Region (NVMe Base 2.0, 8.14): its registers, and the window that it opens
//! for DMA.

mod persistent_memory;
mod unsynced;

use std::sync::Arc;

use peerbar_dma::{OwnWindow, OwnWindowMemory, Span};
use peerbar_nvme_spec::pmr::{Pmrcap, Pmrctl, Pmrmsc, Pmrsts};
use peerbar_pci::{BusAddress, Range};

pub(crate) use persistent_memory::PersistentMemory;
#[cfg(test)]
pub(crate) use persistent_memory::PmrFailure;
pub use persistent_memory::{PMR_SIZES, PmrError};
pub(crate) use unsynced::LARGEST_UNSYNCED;

/// The BAR that the region fills.
pub(crate) const PMR_BAR: u8 = 4;

/// Longest wait for PMRSTS.NRDY, in units of 500 ms. The region is ready, or has failed, once the
/// write of PMRCTL has been answered.
const READY_TIMEOUT: u8 = 1;

/// Bits of PMRMSC that read as 0 regardless of writes.
const PMRMSC_RESERVED: u64 = 0xffd;

/// A Persistent Memory Region.
pub(crate) struct Pmr {
    memory: Arc<PersistentMemory>,
    control: Pmrctl,
    space: Pmrmsc,
    /// The region is being sanitized.
    is_held: bool,
}

impl Pmr {
    pub(crate) fn new(memory: Arc<PersistentMemory>) -> Self {
        Self {
            memory,
            control: Pmrctl::new(),
            space: Pmrmsc::new(),
            is_held: false,
        }
    }

    /// Returns its memory, which fills the BAR.
    pub(crate) fn memory(&self) -> &Arc<PersistentMemory> {
        &self.memory
    }

    /// Returns PMRCAP. A read of the region is not a barrier: the guest has mapped the region, so
    /// the controller sees no read.
    pub(crate) fn capabilities() -> Pmrcap {
        Pmrcap::new()
            .with_rds(true)
            .with_wds(true)
            .with_bir(PMR_BAR)
            .with_pmrwbm(Pmrcap::BARRIER_STATUS)
            .with_pmrto(READY_TIMEOUT)
            .with_cmss(true)
    }

    /// Returns PMRCTL.
    pub(crate) fn control(&self) -> Pmrctl {
        self.control
    }

    /// Writes PMRCTL.
    pub(crate) fn set_control(&mut self, control: Pmrctl) {
        self.control = Pmrctl::new().with_en(control.en());
    }

    /// Returns `true` if the region accepts reads and writes.
    pub(crate) fn is_ready(&self) -> bool {
        self.control.en() && !self.is_held
    }

    /// Keeps the region from becoming ready until [`Pmr::release`]. Returns `true` if the region is
    /// not enabled.
    pub(crate) fn hold(&mut self) -> bool {
        self.is_held = !self.control.en();
        self.is_held
    }

    /// Ends a [`Pmr::hold`], which outlasts a reset.
    pub(crate) fn release(&mut self) {
        self.is_held = false;
    }

    /// Returns PMRSTS. `cmb` is the window in which commands find the Controller Memory Buffer.
    pub(crate) fn status(&self, cmb: Option<&OwnWindow>) -> Pmrsts {
        let failure = self.memory.failure().filter(|_| self.is_ready());
        let health = match failure {
            Some(_) => Pmrsts::UNRELIABLE,
            None => Pmrsts::NORMAL,
        };
        Pmrsts::new()
            .with_err(failure.map_or(0, |failure| failure as u8))
            .with_nrdy(!self.is_ready())
            .with_hsts(health)
            .with_cbai(self.space.cmse() && self.valid_range(cmb).is_none())
    }

    /// Returns PMRMSCL and PMRMSCU. A controller reset (CC.EN) changes neither them nor PMRCTL.
    pub(crate) fn space(&self) -> Pmrmsc {
        self.space
    }

    /// Writes PMRMSCL and PMRMSCU.
    pub(crate) fn set_space(&mut self, space: Pmrmsc) {
        self.space = Pmrmsc::from_bits(space.into_bits() & !PMRMSC_RESERVED);
    }

    /// Resets the function. The region keeps its contents.
    pub(crate) fn reset(&mut self) {
        self.control = Pmrctl::new();
        self.space = Pmrmsc::new();
    }

    /// Returns the addresses at which commands find the region, once the host has enabled both.
    pub(crate) fn window(&self, cmb: Option<&OwnWindow>) -> Option<OwnWindow> {
        let is_open = self.is_ready() && self.space.cmse();
        let range = self.valid_range(cmb).filter(|_| is_open)?;
        Some(OwnWindow {
            range,
            memory: OwnWindowMemory::Span(Span {
                file: self.memory.file().clone(),
                offset: 0,
            }),
        })
    }

    /// Returns the region at its base address, or `None` if it would leave the address space or
    /// overlap the Controller Memory Buffer.
    fn valid_range(&self, cmb: Option<&OwnWindow>) -> Option<Range<BusAddress>> {
        let range = Range::new(BusAddress(self.space.base_address()), self.memory.size())?;
        let is_taken = cmb.is_some_and(|cmb| cmb.range.overlaps(&range));
        (!is_taken).then_some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 2 << 20;
    const BASE: u64 = 0x38_0000_0000;

    fn pmr() -> (tempfile::NamedTempFile, Pmr) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(BYTES).unwrap();
        let memory = PersistentMemory::open(file.path()).unwrap();
        (file, Pmr::new(Arc::new(memory)))
    }

    fn open(pmr: &mut Pmr, base: u64) {
        pmr.set_control(Pmrctl::from_bits(!0));
        pmr.set_space(Pmrmsc::from_bits(base | 2)); // NVME_PMRMSCL_CMSE
    }

    #[test]
    fn pmrcap_offers_a_barrier_that_the_server_notices() {
        let pmrcap = Pmr::capabilities().into_bits();
        assert_eq!(pmrcap >> 3 & 3, 3, "NVME_PMRCAP_RDS, NVME_PMRCAP_WDS");
        assert_eq!(pmrcap >> 5 & 7, 4, "NVME_PMRCAP_BIR");
        assert_eq!(pmrcap >> 10 & 0xf, 2, "NVME_PMRCAP_PMRWBM");
        assert_eq!(pmrcap >> 24, 1, "NVME_PMRCAP_CMSS");
    }

    #[test]
    fn window_needs_both_enables_and_ends_with_a_reset() {
        let (_file, mut pmr) = pmr();
        assert_eq!(pmr.status(None).into_bits(), 1 << 8, "NVME_PMRSTS_NRDY");
        pmr.set_space(Pmrmsc::from_bits(BASE | 2));
        assert!(pmr.window(None).is_none());
        pmr.set_control(Pmrctl::from_bits(!0));
        assert_eq!(pmr.control().into_bits(), 1);
        assert_eq!(pmr.status(None).into_bits(), 0);
        let window = pmr.window(None).unwrap();
        assert_eq!(Some(window.range), Range::new(BusAddress(BASE), BYTES));
        pmr.reset();
        assert!(pmr.window(None).is_none());
        assert_eq!((pmr.control().into_bits(), pmr.space().into_bits()), (0, 0));
    }

    #[test]
    fn held_region_becomes_ready_when_it_is_released() {
        let (_file, mut pmr) = pmr();
        assert!(pmr.hold());
        open(&mut pmr, BASE);
        assert!(pmr.status(None).nrdy() && pmr.window(None).is_none());
        pmr.reset();
        open(&mut pmr, BASE);
        assert!(!pmr.is_ready(), "a reset does not end it");
        pmr.release();
        assert!(pmr.is_ready() && pmr.window(None).is_some());
        assert!(!pmr.hold(), "it is enabled");
        assert!(pmr.is_ready());
    }

    #[test]
    fn base_that_wraps_or_meets_the_cmb_is_invalid() {
        let (_file, mut pmr) = pmr();
        let cmb = |address| OwnWindow {
            range: Range::new(BusAddress(address), BYTES).unwrap(),
            memory: OwnWindowMemory::Registers,
        };
        for (base, cmb, is_valid) in [
            (BASE, Some(cmb(BASE - BYTES)), true),
            (BASE, Some(cmb(BASE + BYTES)), true),
            (BASE, Some(cmb(BASE - BYTES + 1)), false),
            (BASE, Some(cmb(BASE + BYTES - 1)), false),
            (!0xfff, None, false),
            (u64::MAX - BYTES + 1, None, true),
        ] {
            open(&mut pmr, base);
            assert_eq!(pmr.window(cmb.as_ref()).is_some(), is_valid, "{base:#x}");
            assert_eq!(pmr.status(cmb.as_ref()).cbai(), !is_valid, "{base:#x}");
        }
    }

    #[test]
    fn failure_shows_as_an_unreliable_region() {
        let (file, mut pmr) = pmr();
        open(&mut pmr, BASE);
        file.as_file().set_len(0).unwrap();
        pmr.memory().sync(false);
        assert_eq!(pmr.status(None).into_bits(), 2 | 3 << 9, "ERR, HSTS");
        pmr.reset();
        assert_eq!(pmr.status(None).into_bits(), 1 << 8, "NVME_PMRSTS_NRDY");
    }
}
