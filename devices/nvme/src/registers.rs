//! The controller's registers: their values, and the requests to the engine that a write causes. No
//! I/O, no queues.

use peerbar_dma::OwnWindow;
use peerbar_nvme_spec::cmb::Cmbmsc;
use peerbar_nvme_spec::pmr::{Pmrctl, Pmrmsc};
use peerbar_nvme_spec::registers::{Aqa, Cap, Cc, Crto, Csts, Vs, offset};

use crate::cmb::Cmb;
use crate::pmr::Pmr;

/// Maximum entries of an I/O queue.
pub(crate) const MAX_ENTRIES: u16 = 2048;

/// Queue pairs: the admin queues and 64 for I/O, each with its own interrupt vector.
pub(crate) const QUEUE_PAIRS: u16 = 65;

/// Longest wait for CSTS.RDY, in units of 500 ms. Disabling waits for the commands in progress,
/// which may wait for a client that no longer answers.
const READY_TIMEOUT: u8 = 120;

/// Bits of CMBMSC that read as 0 regardless of writes.
const CMBMSC_RESERVED: u64 = 0xffc;

/// A request of the registers to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineRequest {
    /// Forget every queue and command; then the controller is not ready.
    Disable,
    /// Take commands, with this set-up of the admin queues.
    Enable(Setup),
    /// Bring everything to stable storage; then shutdown is complete.
    Shutdown,
}

/// The registers that take effect with an enable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) cc: Cc,
    pub(crate) aqa: Aqa,
    pub(crate) asq: u64,
    pub(crate) acq: u64,
}

/// The register file (NVMe Base 2.0, 3.1.3).
pub(crate) struct Registers {
    cc: Cc,
    csts: Csts,
    aqa: u32,
    asq: u64,
    acq: u64,
    interrupt_mask: u32,
    cmb: Option<Cmb>,
    pmr: Option<Pmr>,
    /// The engine still has the queues that existed before the last disable or reset.
    disabling: bool,
}

impl Registers {
    pub(crate) fn new(cmb: Option<Cmb>, pmr: Option<Pmr>) -> Self {
        Self {
            cc: Cc::new(),
            csts: Csts::new(),
            aqa: 0,
            asq: 0,
            acq: 0,
            interrupt_mask: 0,
            cmb,
            pmr,
            disabling: false,
        }
    }

    /// Returns the Controller Memory Buffer, if there is one.
    pub(crate) fn cmb(&self) -> Option<&Cmb> {
        self.cmb.as_ref()
    }

    /// Returns the Persistent Memory Region, if there is one.
    pub(crate) fn pmr(&self) -> Option<&Pmr> {
        self.pmr.as_ref()
    }

    /// Returns the window in which commands find the Controller Memory Buffer.
    pub(crate) fn cmb_window(&self) -> Option<OwnWindow> {
        self.cmb().and_then(Cmb::window)
    }

    /// Returns the window in which commands find the Persistent Memory Region.
    pub(crate) fn pmr_window(&self) -> Option<OwnWindow> {
        self.pmr()?.window(self.cmb_window().as_ref())
    }

    /// Keeps the Persistent Memory Region from becoming ready until [`Registers::release_pmr`].
    /// Returns `true` if the region is not enabled.
    pub(crate) fn hold_pmr(&mut self) -> bool {
        self.pmr.as_mut().is_none_or(Pmr::hold)
    }

    /// Ends a [`Registers::hold_pmr`].
    pub(crate) fn release_pmr(&mut self) {
        if let Some(pmr) = &mut self.pmr {
            pmr.release();
        }
    }

    /// Returns the current value of CC.
    pub(crate) fn configuration(&self) -> Cc {
        self.cc
    }

    /// INTMS / INTMC: returns the vectors that are masked while the INTx pin is used (NVMe Base
    /// 2.0, 3.1.3.3).
    pub(crate) fn interrupt_mask(&self) -> u32 {
        self.interrupt_mask
    }

    /// Returns `true` if the engine has yet to forget the queues that existed before a disable or
    /// reset.
    pub(crate) fn is_disabling(&self) -> bool {
        self.disabling
    }

    /// Returns `true` if no command may be fetched: the engine has yet to forget the queues, or the
    /// controller has failed.
    pub(crate) fn is_quiet(&self) -> bool {
        self.disabling || self.csts.cfs()
    }

    /// Reads the 4 bytes at `offset`, a multiple of 4.
    pub(crate) fn read(&self, offset: u64) -> u32 {
        let register = offset & !4;
        let wide = match register {
            offset::CAP => Some(self.capabilities().into_bits()),
            offset::ASQ => Some(self.asq),
            offset::ACQ => Some(self.acq),
            offset::CMBMSC => Some(self.cmb_control().into_bits()),
            _ => None,
        };
        if let Some(value) = wide {
            let [low, high] = halves(value);
            return if offset == register { low } else { high };
        }
        match offset {
            offset::VS => Vs::V2_0.into_bits(),
            offset::INTMS | offset::INTMC => self.interrupt_mask,
            offset::CC => self.cc.into_bits(),
            offset::CSTS => self.csts.into_bits(),
            offset::AQA => self.aqa,
            offset::CMBLOC => self
                .cmb
                .as_ref()
                .map_or(0, |cmb| cmb.location().into_bits()),
            offset::CMBSZ => self.cmb.as_ref().map_or(0, |cmb| cmb.size().into_bits()),
            offset::CMBSTS => self.cmb.as_ref().map_or(0, |cmb| cmb.status().into_bits()),
            offset::PMRCAP..=offset::PMRMSCU => {
                self.pmr().map_or(0, |pmr| self.read_pmr(pmr, offset))
            }
            offset::CRTO => Crto::new().with_crwmt(u16::from(READY_TIMEOUT)).into_bits(),
            _ => 0,
        }
    }

    /// Writes the 4 bytes at `offset`, a multiple of 4. Ignores read-only and reserved bits.
    pub(crate) fn write(&mut self, offset: u64, value: u32) {
        match offset {
            offset::INTMS => self.interrupt_mask |= value,
            offset::INTMC => self.interrupt_mask &= !value,
            offset::CC => self.write_cc(Cc::from_bits(value)),
            offset::AQA => self.aqa = value & 0x0fff_0fff,
            offset::PMRCAP..=offset::PMRMSCU => self.write_pmr(offset, value),
            _ => match offset & !4 {
                offset::ASQ => self.asq = with_half(self.asq, offset, value) & !0xfff,
                offset::ACQ => self.acq = with_half(self.acq, offset, value) & !0xfff,
                offset::CMBMSC => {
                    let control = with_half(self.cmb_control().into_bits(), offset, value);
                    let control = Cmbmsc::from_bits(control & !CMBMSC_RESERVED);
                    if let Some(cmb) = &mut self.cmb {
                        cmb.set_control(control);
                    }
                }
                _ => {}
            },
        }
    }

    /// Reads a register of the Persistent Memory Region (NVMe Base 2.0, 8.14). There is no
    /// elasticity buffer, and no guaranteed write throughput.
    fn read_pmr(&self, pmr: &Pmr, offset: u64) -> u32 {
        let [low, high] = halves(pmr.space().into_bits());
        match offset {
            offset::PMRCAP => Pmr::capabilities().into_bits(),
            offset::PMRCTL => pmr.control().into_bits(),
            offset::PMRSTS => pmr.status(self.cmb_window().as_ref()).into_bits(),
            offset::PMRMSCL => low,
            offset::PMRMSCU => high,
            _ => 0,
        }
    }

    fn write_pmr(&mut self, offset: u64, value: u32) {
        let Some(pmr) = &mut self.pmr else {
            return;
        };
        let space = pmr.space().into_bits();
        match offset {
            offset::PMRCTL => pmr.set_control(Pmrctl::from_bits(value)),
            offset::PMRMSCL => pmr.set_space(Pmrmsc::from_bits(with_half(space, 0, value))),
            offset::PMRMSCU => pmr.set_space(Pmrmsc::from_bits(with_half(space, 4, value))),
            _ => {}
        }
    }

    fn write_cc(&mut self, cc: Cc) {
        if self.cc.en() && !cc.en() {
            self.disabling = true;
            // A controller that failed is not ready, so the host need not wait before it enables
            // the controller again.
            self.csts.set_cfs(false);
        }
        if !self.cc.en() && cc.en() && self.csts.shst() == Csts::SHST_COMPLETE {
            // The controller was shut down before it was ever enabled: this completes the shutdown.
            self.csts.set_shst(Csts::SHST_NORMAL);
        }
        let starts_shutdown = cc.shn() != Cc::SHN_NONE && self.cc.shn() == Cc::SHN_NONE;
        self.cc = cc;
        if starts_shutdown && self.csts.shst() == Csts::SHST_NORMAL {
            self.csts.set_shst(Csts::SHST_OCCURRING);
        }
    }

    /// Resets the function: every register is as after power-on, also those of the Controller
    /// Memory Buffer and of the Persistent Memory Region (NVMe Base 2.0, 3.7.2).
    pub(crate) fn reset(&mut self) {
        let (mut cmb, mut pmr) = (self.cmb.take(), self.pmr.take());
        if let Some(cmb) = &mut cmb {
            cmb.set_control(Cmbmsc::new());
        }
        if let Some(pmr) = &mut pmr {
            pmr.reset();
        }
        *self = Self {
            disabling: true,
            ..Self::new(cmb, pmr)
        };
    }

    /// Returns the next request to the engine, if there is one. `enabled`: the engine has acted on
    /// an enable.
    pub(crate) fn request(&self, enabled: bool) -> Option<EngineRequest> {
        if self.disabling {
            return Some(EngineRequest::Disable);
        }
        if self.csts.shst() == Csts::SHST_OCCURRING {
            return Some(EngineRequest::Shutdown);
        }
        let starts = self.cc.en() && !enabled && !self.csts.cfs();
        starts.then(|| {
            EngineRequest::Enable(Setup {
                cc: self.cc,
                aqa: Aqa::from_bits(self.aqa),
                asq: self.asq,
                acq: self.acq,
            })
        })
    }

    /// Completes a controller reset: the engine has forgotten all queues (NVMe Base 2.0, 3.7.2).
    /// The admin queue registers and CMBMSC stay, and so does a shutdown that has been requested
    /// since.
    pub(crate) fn disabled(&mut self) {
        self.disabling = false;
        let asked = self.csts.shst() == Csts::SHST_OCCURRING && self.cc.shn() != Cc::SHN_NONE;
        self.csts = Csts::new();
        if asked {
            self.csts.set_shst(Csts::SHST_OCCURRING);
        }
        self.interrupt_mask = 0;
    }

    /// Sets CSTS.RDY: the engine takes commands. Has no effect during a reset that has not reached
    /// the engine.
    pub(crate) fn ready(&mut self) {
        if !self.disabling {
            self.csts.set_rdy(true);
        }
    }

    /// Sets CSTS.CFS: the controller has failed until it is disabled (NVMe Base 2.0, 9.5). Has no
    /// effect if a disable is already requested.
    pub(crate) fn fatal(&mut self) {
        if !self.disabling {
            self.csts.set_cfs(true);
        }
    }

    /// Completes a shutdown: all data is on stable storage.
    pub(crate) fn shut_down(&mut self) {
        if self.csts.shst() == Csts::SHST_OCCURRING {
            self.csts.set_shst(Csts::SHST_COMPLETE);
        }
    }

    fn capabilities(&self) -> Cap {
        Cap::new()
            .with_mqes(MAX_ENTRIES - 1)
            .with_cqr(true)
            .with_to(READY_TIMEOUT)
            .with_css_nvm(true)
            .with_pmrs(self.pmr.is_some())
            .with_cmbs(self.cmb.as_ref().is_some_and(Cmb::is_announced))
            .with_crwms(true)
    }

    fn cmb_control(&self) -> Cmbmsc {
        self.cmb.as_ref().map_or(Cmbmsc::new(), Cmb::control)
    }
}

/// Returns the lower and the upper half of a 64-bit register.
fn halves(register: u64) -> [u32; 2] {
    [register, register >> 32].map(|half| u32::try_from(half & 0xffff_ffff).unwrap_or(0))
}

/// Returns a 64-bit register with the half at `offset` replaced.
fn with_half(register: u64, offset: u64, value: u32) -> u64 {
    let value = u64::from(value);
    if offset & 4 == 0 {
        register & !0xffff_ffff | value
    } else {
        register & 0xffff_ffff | value << 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EN: u32 = 1; // NVME_CC_ENABLE
    const SHN_NORMAL: u32 = 1 << 14; // NVME_CC_SHN_NORMAL
    const RDY: u32 = 1; // NVME_CSTS_RDY
    const SHST_OCCUR: u32 = 1 << 2; // NVME_CSTS_SHST_OCCUR
    const SHST_CMPLT: u32 = 2 << 2; // NVME_CSTS_SHST_CMPLT

    fn registers() -> Registers {
        Registers::new(Some(Cmb::new(2 << 20, true, false).unwrap()), None)
    }

    fn wide(registers: &Registers, offset: u64) -> u64 {
        u64::from(registers.read(offset)) | u64::from(registers.read(offset + 4)) << 32
    }

    #[test]
    fn capabilities_read_as_linux_takes_them_apart() {
        let cap = wide(&registers(), 0);
        assert_eq!(cap & 0xffff, 2047, "NVME_CAP_MQES");
        assert_eq!(cap >> 32 & 0xf, 0, "NVME_CAP_STRIDE");
        assert_eq!(cap >> 48 & 0xff, 0, "NVME_CAP_MPSMIN and MPSMAX: 4 KiB");
        assert_eq!(cap >> 57 & 1, 1, "NVME_CAP_CMBS");
        assert_eq!(wide(&Registers::new(None, None), 0) >> 57 & 1, 0);
        assert_eq!(registers().read(8), 0x0002_0000, "NVME_VS(2, 0, 0)");
    }

    #[test]
    fn enable_is_requested_once_with_the_admin_queues() {
        let mut registers = registers();
        registers.write(0x24, 0x001f_000f);
        registers.write(0x28, 0x1000_0fff);
        registers.write(0x2c, 1);
        registers.write(0x30, 0x2000_0000);
        assert_eq!(registers.request(false), None);
        registers.write(0x14, 0x0046_0000 | EN);
        let Some(EngineRequest::Enable(setup)) = registers.request(false) else {
            panic!("no enable")
        };
        assert_eq!(
            (setup.asq, setup.acq),
            (0x1_1000_0000, 0x2000_0000),
            "the lower 12 bits are reserved"
        );
        assert_eq!((setup.aqa.asqs(), setup.aqa.acqs()), (15, 31));
        registers.ready();
        assert_eq!(registers.read(0x1c), RDY);
        assert_eq!(registers.request(true), None);
        assert_eq!(wide(&registers, 0x28), 0x1_1000_0000);
        assert_eq!(wide(&registers, 0x30), 0x2000_0000);
    }

    #[test]
    fn a_controller_reset_keeps_the_admin_queues_and_the_cmb() {
        let mut registers = registers();
        registers.write(0x28, 0x1000_0000);
        registers.write(0x50, 3);
        registers.write(0x54, 0x38);
        registers.write(0x14, EN);
        registers.ready();
        registers.write(0x14, 0);
        assert_eq!(
            registers.read(0x1c),
            RDY,
            "ready until the engine has let go"
        );
        registers.write(0x14, EN);
        assert_eq!(
            registers.request(true),
            Some(EngineRequest::Disable),
            "an early enable does not hide the disable"
        );
        registers.disabled();
        assert_eq!(registers.read(0x1c), 0);
        assert!(matches!(
            registers.request(false),
            Some(EngineRequest::Enable(_))
        ));
        assert_eq!(wide(&registers, 0x50), 0x38_0000_0003);
        assert_eq!(wide(&registers, 0x28), 0x1000_0000);
        assert!(registers.cmb().unwrap().window().is_some());
    }

    #[test]
    fn function_reset_clears_everything() {
        let mut registers = registers();
        registers.write(0x50, 3);
        registers.write(0x0c, 0xff);
        registers.write(0x14, EN);
        registers.ready();
        registers.reset();
        for offset in [0x0c, 0x14, 0x1c, 0x24, 0x28, 0x50, 0x54] {
            assert_eq!(registers.read(offset), 0, "{offset:#x}");
        }
        assert_eq!(registers.request(true), Some(EngineRequest::Disable));
    }

    #[test]
    fn engine_report_before_a_reset_is_handled_is_not_seen() {
        let mut registers = registers();
        registers.write(0x14, EN);
        registers.reset();
        registers.ready();
        registers.fatal();
        registers.write(0x14, EN);
        assert_eq!(registers.read(0x1c), 0);
        registers.disabled();
        registers.ready();
        assert_eq!(registers.read(0x1c), RDY);
    }

    #[test]
    fn shutdown_is_requested_once_and_completes() {
        let mut registers = registers();
        registers.write(0x14, EN);
        registers.ready();
        registers.write(0x14, EN | SHN_NORMAL);
        assert_eq!(registers.read(0x1c), RDY | SHST_OCCUR);
        assert_eq!(registers.request(true), Some(EngineRequest::Shutdown));
        registers.shut_down();
        assert_eq!(registers.read(0x1c), RDY | SHST_CMPLT);
        registers.write(0x14, EN | SHN_NORMAL);
        assert_eq!(registers.request(true), None);
    }

    #[test]
    fn shutdown_with_a_disable_completes_after_it() {
        let mut registers = registers();
        registers.write(0x14, EN);
        registers.ready();
        registers.write(0x14, SHN_NORMAL);
        assert_eq!(registers.request(true), Some(EngineRequest::Disable));
        registers.disabled();
        assert_eq!(registers.request(false), Some(EngineRequest::Shutdown));
        registers.shut_down();
        assert_eq!(registers.read(0x1c), SHST_CMPLT);
        registers.write(0x14, EN);
        assert_eq!(registers.read(0x1c), 0, "a start begins afresh");
    }

    #[test]
    fn reserved_bits_of_cmbmsc_read_as_zero() {
        let mut registers = registers();
        registers.write(0x50, !0);
        registers.write(0x54, 0x38);
        assert_eq!(wide(&registers, 0x50), 0x38_ffff_f003);
    }

    #[test]
    fn fatal_controller_waits_for_its_disable() {
        let mut registers = registers();
        registers.write(0x14, EN);
        registers.fatal();
        assert_eq!(registers.request(false), None);
        registers.write(0x14, 0);
        assert_eq!(registers.request(false), Some(EngineRequest::Disable));
        registers.write(0x14, EN);
        assert_eq!(
            registers.read(0x1c),
            0,
            "an early enable does not see the old failure"
        );
    }

    #[test]
    fn interrupt_mask_is_set_and_cleared_by_two_registers() {
        let mut registers = registers();
        registers.write(0x0c, 0b110);
        registers.write(0x10, 0b010);
        assert_eq!((registers.read(0x0c), registers.read(0x10)), (0b100, 0b100));
    }

    #[test]
    fn any_offset_or_value_does_not_panic() {
        let mut registers = registers();
        for offset in (0..0x1000).step_by(4) {
            registers.write(offset, 0xffff_ffff);
            registers.read(offset);
            registers.request(true);
        }
        registers.write(!3, 1);
        registers.read(!3);
    }
}
