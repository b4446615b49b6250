//! Configuration space of an endpoint.

use bitfield_struct::bitfield;

use crate::CONFIG_BYTES;
use crate::address::{BusAddress, Range};
use crate::bar::Bar;
use crate::capability::{
    self, ATS_CONTROL, AtsControl, Capability, DEVICE_CAPABILITIES, DEVICE_CONTROL, DeviceControl,
    FUNCTION_LEVEL_RESET, MsiX, PM_CONTROL_STATUS,
};

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const BARS: usize = 0x10;
/// Six registers of 4 bytes.
const BARS_BYTES: usize = 24;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;
const INTERRUPT_PIN: usize = 0x3d;
const FIRST_CAPABILITY: usize = 0x40;
/// Start of the extended capabilities (PCIe Base 6.0, 7.6.1).
const EXTENDED: usize = 0x100;

/// The identity of a function (PCI Local Bus 3.0, 6.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Subsystem Vendor ID.
    pub subsystem_vendor: u16,
    /// Subsystem ID.
    pub subsystem: u16,
    /// Revision ID.
    pub revision: u8,
    /// Class code: base class, sub-class, programming interface, in the lower three bytes.
    pub class: u32,
}

/// Command register (PCI Local Bus 3.0, 6.2.2).
#[bitfield(u16)]
#[derive(PartialEq, Eq)]
pub struct CommandRegister {
    /// The function responds to I/O space; always 0 here.
    pub io_space: bool,
    /// The function responds to memory space: the BARs are decoded.
    pub memory_space: bool,
    /// The function may issue requests.
    pub bus_master: bool,
    #[bits(3)]
    __: u8,
    /// The function responds to parity errors.
    pub parity_error_response: bool,
    __: bool,
    /// SERR# is enabled.
    pub serr: bool,
    __: bool,
    /// INTx is disabled.
    pub interrupt_disable: bool,
    #[bits(5)]
    __: u8,
}

/// The effects of a write to configuration space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Effects {
    /// Bus mastering, ATS or the windows of the BARs have changed.
    pub routing: bool,
    /// A function-level reset was requested; [`ConfigSpace::reset`] has been done.
    pub function_reset: bool,
}

/// A type 0 configuration space: its bytes, and the mask of bits that the guest can write.
pub struct ConfigSpace {
    bytes: Box<[u8; CONFIG_BYTES]>,
    initial: Box<[u8; CONFIG_BYTES]>,
    writable: Box<[u8; CONFIG_BYTES]>,
    bars: Vec<Bar>,
    /// Offsets of the capabilities that have effects.
    power: Option<usize>,
    express: Option<usize>,
    ats: Option<usize>,
}

impl ConfigSpace {
    /// Makes the configuration space of an endpoint with these BARs and MSI-X.
    pub fn new(identity: &Identity, bars: &[Bar], msi_x: &MsiX) -> Self {
        let mut space = Self {
            bytes: Box::new([0; CONFIG_BYTES]),
            initial: Box::new([0; CONFIG_BYTES]),
            writable: Box::new([0; CONFIG_BYTES]),
            bars: bars.to_vec(),
            power: None,
            express: None,
            ats: None,
        };
        space.header(identity);
        let mut end = ListEnd {
            link: CAPABILITIES,
            at: FIRST_CAPABILITY,
        };
        space.power = Some(space.add(&mut end, &capability::power_management()));
        space.add(&mut end, &capability::msi_x(msi_x));
        space.express = Some(space.add(&mut end, &capability::pci_express()));
        space.initial = space.bytes.clone();
        space
    }

    /// Makes a mirror of another function's configuration space, which has these bytes and whose
    /// BARs have these sizes. It follows the guest's writes, as far as they have [`Effects`], and
    /// begins in the state after power-on. I/O space is left out.
    pub fn mirror(bytes: &[u8; CONFIG_BYTES], bar_sizes: &[u64; 6]) -> Self {
        let mut space = Self {
            bytes: Box::new(*bytes),
            initial: Box::new([0; CONFIG_BYTES]),
            writable: Box::new([0; CONFIG_BYTES]),
            bars: Vec::new(),
            power: None,
            express: None,
            ats: None,
        };
        space.bars = space.mirrored_bars(bar_sizes);
        space.power = space.capability(capability::POWER_MANAGEMENT);
        space.express = space.capability(capability::PCI_EXPRESS);
        space.ats = space.extended_capability(capability::ATS);
        space.set(COMMAND, &[0; 2], &writable_command());
        for bar in space.bars.clone() {
            space.set_bar(&bar);
        }
        if let Some(power) = space.power {
            let [state, ..] = space.u16(power + PM_CONTROL_STATUS).to_le_bytes();
            space.set(power + PM_CONTROL_STATUS, &[state & !0b11], &[0b11]);
        }
        if let Some(ats) = space.ats {
            space.set(ats + ATS_CONTROL, &[0; 2], &[0xff; 2]);
        }
        space.initial = space.bytes.clone();
        space
    }

    fn mirrored_bars(&self, sizes: &[u64; 6]) -> Vec<Bar> {
        let mut bars = Vec::new();
        let mut rest = (0..).zip(sizes);
        while let Some((index, size)) = rest.next() {
            let mut register = [0; 4];
            self.read(bar_offset(index) as u64, &mut register);
            let bar = Bar::from_register(index, u32::from_le_bytes(register), *size);
            if bar.is_some_and(|bar| bar.is_wide()) {
                rest.next();
            }
            bars.extend(bar);
        }
        bars
    }

    fn set_bar(&mut self, bar: &Bar) {
        let (initial, mask) = (bar.initial().to_le_bytes(), bar.mask().to_le_bytes());
        let registers = if bar.is_wide() { 8 } else { 4 };
        let part = |bytes: [u8; 8]| bytes.into_iter().take(registers).collect::<Vec<_>>();
        self.set(bar_offset(bar.index()), &part(initial), &part(mask));
    }

    /// Returns the offset of a capability.
    fn capability(&self, id: u8) -> Option<usize> {
        let read = |at| {
            let mut bytes = [0; 2];
            self.read(at, &mut bytes);
            bytes
        };
        find_capability(id, read).and_then(|at| usize::try_from(at).ok())
    }

    /// Returns the offset of an extended capability (PCIe Base 6.0, 7.6.3).
    fn extended_capability(&self, id: u16) -> Option<usize> {
        let mut at = EXTENDED;
        for _ in 0..CONFIG_BYTES / 4 {
            if at < EXTENDED {
                return None;
            }
            if self.u16(at) == id {
                return Some(at);
            }
            at = usize::from(self.u16(at + 2) >> 4) & !0b11;
        }
        None
    }

    /// Offers ATS to the guest: the function requests translations of addresses (PCIe Base 6.0,
    /// 10.5.1). Must be called before the guest sees the function.
    pub fn offer_ats(&mut self) {
        let ats = capability::ats();
        self.set(EXTENDED, &ats.bytes, &ats.writable);
        self.initial = self.bytes.clone();
        self.ats = Some(EXTENDED);
    }

    /// Returns `true` if the guest has enabled ATS.
    pub fn ats(&self) -> bool {
        let control = |ats| AtsControl::from_bits(self.u16(ats + ATS_CONTROL));
        self.ats.is_some_and(|ats| control(ats).enable())
    }

    fn header(&mut self, identity: &Identity) {
        const CAPABILITIES_LIST: u16 = 1 << 4;
        self.set(0x00, &identity.vendor.to_le_bytes(), &[]);
        self.set(0x02, &identity.device.to_le_bytes(), &[]);
        self.set(COMMAND, &[], &writable_command());
        self.set(STATUS, &CAPABILITIES_LIST.to_le_bytes(), &[]);
        self.set(
            0x08,
            &(identity.class << 8 | u32::from(identity.revision)).to_le_bytes(),
            &[],
        );
        self.set(0x0c, &[], &[0xff]);
        self.set(0x2c, &identity.subsystem_vendor.to_le_bytes(), &[]);
        self.set(0x2e, &identity.subsystem.to_le_bytes(), &[]);
        self.set(INTERRUPT_LINE, &[], &[0xff]);
        self.set(INTERRUPT_PIN, &[1], &[]);
        for bar in self.bars.clone() {
            self.set_bar(&bar);
        }
    }

    /// Makes the configuration space of a test function: `bars`, one MSI-X vector with its table at
    /// 4 KiB of BAR0, and the class of a 3D controller.
    #[cfg(feature = "test-function")]
    #[must_use]
    pub fn of_test_function(bars: &[Bar]) -> Self {
        let identity = Identity {
            vendor: 0x1af4,
            device: 0x10f0,
            subsystem_vendor: 0,
            subsystem: 0,
            revision: 0,
            class: 0x03_02_00,
        };
        let msi_x = MsiX {
            vectors: 1,
            bar: 0,
            table: 0x1000,
            pending: 0x2000,
        };
        Self::new(&identity, bars, &msi_x)
    }

    /// Appends a capability to the list. Returns its offset.
    fn add(&mut self, end: &mut ListEnd, capability: &Capability) -> usize {
        let at = end.at;
        self.set(at, &capability.bytes, &capability.writable);
        self.set(end.link, &[u8::try_from(at).unwrap_or(0)], &[]);
        end.link = at + 1;
        end.at = (at + capability.bytes.len()).next_multiple_of(16);
        at
    }

    fn set(&mut self, offset: usize, value: &[u8], writable: &[u8]) {
        if let Some(bytes) = self.bytes.get_mut(offset..offset + value.len()) {
            bytes.copy_from_slice(value);
        }
        if let Some(mask) = self.writable.get_mut(offset..offset + writable.len()) {
            mask.copy_from_slice(writable);
        }
    }

    /// Reads configuration space for the guest. Bytes beyond the end read as zero.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|start| self.bytes.get(start..))
            .unwrap_or_default();
        for (to, from) in data.iter_mut().zip(bytes) {
            *to = *from;
        }
    }

    /// Writes the writable bits and ignores the others. Returns the effects.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Effects {
        let before = self.routing();
        let Ok(start) = usize::try_from(offset) else {
            return Effects::default();
        };
        let bytes = self.bytes.get_mut(start..).unwrap_or_default();
        let masks = self.writable.get(start..).unwrap_or_default();
        for ((byte, mask), new) in bytes.iter_mut().zip(masks).zip(data) {
            *byte = *byte & !mask | new & mask;
        }
        let function_reset = self.asks_for_reset(start, data);
        if function_reset {
            self.reset_function();
        }
        Effects {
            routing: self.routing() != before,
            function_reset,
        }
    }

    /// Returns `true` if a write sets Initiate Function Level Reset, which is never stored.
    fn asks_for_reset(&self, start: usize, data: &[u8]) -> bool {
        let Some(express) = self.express.filter(|express| self.can_reset(*express)) else {
            return false;
        };
        let high = express + DEVICE_CONTROL + 1;
        let [_, bit] = DeviceControl::new()
            .with_initiate_flr(true)
            .into_bits()
            .to_le_bytes();
        high.checked_sub(start)
            .and_then(|at| data.get(at))
            .is_some_and(|byte| byte & bit != 0)
    }

    /// Returns `true` if the function supports a function-level reset (PCIe Base 6.0, 7.5.3.3).
    fn can_reset(&self, express: usize) -> bool {
        let high = self.u16(express + DEVICE_CAPABILITIES + 2);
        u32::from(high) << 16 & FUNCTION_LEVEL_RESET != 0
    }

    /// Restores the state after power-on. The interrupt line, which belongs to the firmware, stays.
    pub fn reset(&mut self) {
        let mut line = [0];
        self.read(INTERRUPT_LINE as u64, &mut line);
        self.bytes = self.initial.clone();
        self.set(INTERRUPT_LINE, &line, &[]);
    }

    /// Resets the function without QEMU's knowledge: a function-level reset by the guest, or the
    /// reset by a link that goes down. The BARs stay: QEMU answers reads of them itself and does
    /// not see this reset, so a guest that restores only changed registers would never write them
    /// again.
    pub fn reset_function(&mut self) {
        let mut bars = [0; BARS_BYTES];
        self.read(BARS as u64, &mut bars);
        self.reset();
        self.set(BARS, &bars, &[]);
    }

    /// Returns the command register.
    pub fn command(&self) -> CommandRegister {
        CommandRegister::from_bits(self.u16(COMMAND))
    }

    /// Returns `true` if the function may issue requests: bus mastering is on and the function is
    /// in D0.
    pub fn bus_master(&self) -> bool {
        self.command().bus_master() && self.in_d0()
    }

    /// Returns the bus addresses of a BAR, if the function responds there: memory space is on, the
    /// function is in D0, and the guest has given the BAR an address.
    pub fn window(&self, bar: &Bar) -> Option<Range<BusAddress>> {
        let mut register = [0; 8];
        self.read(bar_offset(bar.index()) as u64, &mut register);
        let address = u64::from_le_bytes(register) & bar.mask();
        let is_open = self.command().memory_space() && self.in_d0();
        let is_set = address != 0 && address != bar.mask();
        Range::new(BusAddress(address), bar.size()).filter(|_| is_open && is_set)
    }

    /// Returns the BARs.
    pub fn bars(&self) -> &[Bar] {
        &self.bars
    }

    fn in_d0(&self) -> bool {
        let state = |power| self.u16(power + PM_CONTROL_STATUS) & 0b11;
        self.power.is_none_or(|power| state(power) == 0)
    }

    fn routing(&self) -> (bool, bool, Vec<Option<Range<BusAddress>>>) {
        (
            self.bus_master(),
            self.ats(),
            self.bars.iter().map(|bar| self.window(bar)).collect(),
        )
    }

    fn u16(&self, offset: usize) -> u16 {
        let mut value = [0; 2];
        self.read(offset as u64, &mut value);
        u16::from_le_bytes(value)
    }
}

/// The end of the capability list: the offset of its last next pointer, and the next free offset.
struct ListEnd {
    link: usize,
    at: usize,
}

fn bar_offset(index: u8) -> usize {
    BARS + usize::from(index) * 4
}

/// Returns the bits of the command register that the guest can write.
fn writable_command() -> [u8; 2] {
    let writable = CommandRegister::new()
        .with_memory_space(true)
        .with_bus_master(true)
        .with_parity_error_response(true)
        .with_serr(true)
        .with_interrupt_disable(true);
    writable.into_bits().to_le_bytes()
}

/// Returns the offset of the capability with this number, found as a guest finds it: by a walk of
/// the list (PCI Local Bus 3.0, 6.7), which has no more entries than configuration space has room
/// for. `read` reads configuration space.
pub fn find_capability(id: u8, mut read: impl FnMut(u64) -> [u8; 2]) -> Option<u64> {
    let [mut at, _] = read(CAPABILITIES as u64);
    for _ in 0..EXTENDED / 4 {
        if at == 0 {
            return None;
        }
        let [found, next] = read(at.into());
        if found == id {
            return Some(at.into());
        }
        at = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn space() -> ConfigSpace {
        let identity = Identity {
            vendor: 0x1b36,
            device: 0x0010,
            subsystem_vendor: 0x1af4,
            subsystem: 0x1100,
            revision: 2,
            class: 0x01_08_02,
        };
        let bars = [
            Bar::new(0, 0x4000, false).unwrap(),
            Bar::new(2, 0x1_0000_0000, true).unwrap(),
        ];
        let msi_x = MsiX {
            vectors: 65,
            bar: 0,
            table: 0x2000,
            pending: 0x3000,
        };
        ConfigSpace::new(&identity, &bars, &msi_x)
    }

    fn read<const N: usize>(space: &ConfigSpace, offset: u64) -> u64 {
        let mut data = [0; 8];
        space.read(offset, &mut data[..N]);
        u64::from_le_bytes(data)
    }

    /// Walks the capability list as a guest does. Returns (ID, offset) of each capability.
    fn capabilities(space: &ConfigSpace) -> Vec<(u64, u64)> {
        let mut list = Vec::new();
        let mut at = read::<1>(space, 0x34);
        while at != 0 && list.len() < 16 {
            list.push((read::<1>(space, at), at));
            at = read::<1>(space, at + 1);
        }
        list
    }

    #[test]
    fn the_header_reads_as_a_guest_expects() {
        let space = space();
        assert_eq!(read::<4>(&space, 0x00), 0x0010_1b36);
        assert_eq!(read::<4>(&space, 0x08), 0x0108_0202);
        assert_eq!(read::<1>(&space, 0x0e), 0, "type 0 header, one function");
        assert_eq!(read::<4>(&space, 0x2c), 0x1100_1af4);
        assert_eq!(
            read::<2>(&space, 0x06) & 0x10,
            0x10,
            "there is a capability list"
        );
        assert_eq!(read::<1>(&space, 0x3d), 1, "INTA#");
        assert_eq!(
            capabilities(&space).iter().map(|c| c.0).collect::<Vec<_>>(),
            [0x01, 0x11, 0x10]
        );
        assert_eq!(read::<4>(&space, 0x100), 0, "no extended capabilities");
    }

    #[test]
    fn ats_capability_matches_pci_regs_h_and_starts_disabled() {
        let mut space = space();
        let _ = space.write(0x106, &[0, 0x80]);
        assert!(!space.ats(), "it is not offered");
        space.offer_ats();
        assert_eq!(
            read::<4>(&space, 0x100),
            0x0001_000f,
            "PCI_EXT_CAP_ID_ATS, version 1, the last"
        );
        assert_eq!(
            read::<2>(&space, 0x104),
            0x20,
            "PCI_ATS_CAP_QDEP: 32; PCI_ATS_CAP_PAGE_ALIGNED"
        );
        assert!(!space.ats());
        assert!(space.write(0x106, &[0, 0x80]).routing);
        assert!(space.ats());
        assert_eq!(read::<2>(&space, 0x106), 0x8000, "PCI_ATS_CTRL_ENABLE");
        space.reset();
        assert!(!space.ats());
        assert_eq!(read::<4>(&space, 0x100), 0x0001_000f);
    }

    #[test]
    fn msi_x_reads_as_pci_regs_h_defines_it() {
        let space = space();
        let (_, at) = capabilities(&space)[1];
        assert_eq!(
            read::<2>(&space, at + 2),
            64,
            "PCI_MSIX_FLAGS_QSIZE: vectors less one"
        );
        assert_eq!(
            read::<4>(&space, at + 4),
            0x2000,
            "PCI_MSIX_TABLE: offset and BIR"
        );
        assert_eq!(
            read::<4>(&space, at + 8),
            0x3000,
            "PCI_MSIX_PBA: offset and BIR"
        );
    }

    #[test]
    fn pci_express_reads_as_pci_regs_h_defines_it() {
        let space = space();
        let (_, at) = capabilities(&space)[2];
        assert_eq!(
            read::<2>(&space, at + 2),
            0x0002,
            "PCI_EXP_FLAGS: version 2, PCI_EXP_TYPE_ENDPOINT"
        );
        assert_eq!(
            read::<4>(&space, at + 4) & 0x1000_0000,
            0x1000_0000,
            "PCI_EXP_DEVCAP_FLR"
        );
        assert_eq!(
            read::<2>(&space, at + 18),
            0x0043,
            "PCI_EXP_LNKSTA: 8 GT/s, x4"
        );
        assert_eq!(
            read::<4>(&space, at + 44),
            0x0e,
            "PCI_EXP_LNKCAP2_SLS: 2.5, 5 and 8 GT/s"
        );
    }

    #[test]
    fn sizing_a_bar_tells_its_size_and_keeps_its_type() {
        let mut space = space();
        let _ = space.write(0x10, &[0xff; 8]);
        assert_eq!(read::<8>(&space, 0x10), 0xffff_ffff_ffff_c004);
        let _ = space.write(0x18, &[0xff; 4]);
        let _ = space.write(0x1c, &[0xff; 4]);
        assert_eq!(read::<8>(&space, 0x18), 0xffff_ffff_0000_000c);
        let _ = space.write(0x20, &[0xff; 8]);
        assert_eq!(read::<8>(&space, 0x20), 0, "there is no BAR4");
    }

    #[test]
    fn a_window_opens_with_address_and_decode_and_closes_in_d3() {
        let mut space = space();
        let bar = space.bars()[1];
        let window_at = |address| Range::new(BusAddress(address), bar.size());
        let (_, power) = capabilities(&space)[0];
        assert!(
            !space.write(0x18, &0x38_0000_0000_u64.to_le_bytes()).routing,
            "decode is off"
        );
        assert_eq!(space.window(&bar), None);
        assert!(space.write(0x04, &[0x06, 0]).routing);
        assert_eq!(space.window(&bar), window_at(0x38_0000_0000));
        assert!(space.bus_master());
        assert!(space.write(power + 4, &[3]).routing);
        assert_eq!(space.window(&bar), None);
        assert!(!space.bus_master());
        assert!(space.write(power + 4, &[0]).routing);
        assert_eq!(space.window(&bar), window_at(0x38_0000_0000));
        assert!(space.write(0x1c, &[0x39]).routing);
        assert_eq!(space.window(&bar), window_at(0x39_0000_0000));
    }

    #[test]
    fn a_bar_that_is_being_sized_is_no_window() {
        let mut space = space();
        let bar = space.bars()[0];
        let _ = space.write(0x04, &[0x02, 0]);
        let _ = space.write(0x10, &[0xff; 8]);
        assert_eq!(space.window(&bar), None);
    }

    #[test]
    fn a_function_level_reset_clears_what_the_guest_wrote() {
        let mut space = space();
        let (_, express) = capabilities(&space)[2];
        let _ = space.write(0x04, &[0x06, 0]);
        let _ = space.write(0x10, &0x39_0000_0000_u64.to_le_bytes());
        let _ = space.write(0x3c, &[11]);
        let effects = space.write(express + 8, &0x8000_u16.to_le_bytes());
        assert_eq!(
            effects,
            Effects {
                routing: true,
                function_reset: true
            }
        );
        assert_eq!(read::<2>(&space, 0x04), 0);
        assert_eq!(
            read::<1>(&space, 0x3c),
            11,
            "the interrupt line is the firmware's"
        );
        assert_eq!(read::<2>(&space, express + 8) & 0x8000, 0);
        let _ = space.write(0x04, &[0x02, 0]);
        assert_eq!(
            space.window(&space.bars()[0]),
            Range::new(BusAddress(0x39_0000_0000), space.bars()[0].size()),
            "the guest does not write the BARs again"
        );
        assert!(
            space.write(express + 9, &[0x80]).function_reset,
            "the upper byte alone asks for it too"
        );
        assert!(
            !space.write(express + 8, &[0xff]).function_reset,
            "the lower byte alone does not"
        );
    }

    /// Returns the bytes of a function with a 32-bit BAR0 of 256 bytes, I/O BAR1, a 64-bit BAR2 of
    /// a page, power management at 0x40, PCI Express at 0x50 and ATS at 0x200, in operation.
    fn foreign() -> [u8; CONFIG_BYTES] {
        let mut bytes = [0; CONFIG_BYTES];
        let mut put = |at: usize, new: &[u8]| bytes[at..at + new.len()].copy_from_slice(new);
        put(COMMAND, &[0b111, 0]);
        put(BARS, &0xfebf_1000_u32.to_le_bytes());
        put(BARS + 4, &0xc001_u32.to_le_bytes());
        put(BARS + 8, &0x38_0000_000c_u64.to_le_bytes());
        put(CAPABILITIES, &[0x40]);
        put(0x40, &[0x01, 0x50, 3, 0, 0b11]);
        put(0x50, &[0x10, 0, 2, 0, 0, 0, 0, 0x10]);
        put(EXTENDED, &[0x0d, 0, 1, 0x20]);
        put(0x200, &[0x0f, 0, 1, 0, 0, 0, 0, 0x80]);
        bytes
    }

    #[test]
    fn mirror_follows_what_the_guest_writes() {
        let mut mirror = ConfigSpace::mirror(&foreign(), &[0x100, 0x20, 0x1000, 0, 0, 0]);
        let bars: Vec<_> = mirror
            .bars()
            .iter()
            .map(|b| (b.index(), b.size()))
            .collect();
        assert_eq!(bars, [(0, 0x100), (2, 0x1000)]);
        let windows = |mirror: &ConfigSpace| {
            let windows = mirror.bars().iter().map(|bar| mirror.window(bar));
            windows
                .map(|range| range.map(|range| range.first().0))
                .collect::<Vec<_>>()
        };
        // The state from before is no longer there.
        assert!(!mirror.bus_master() && !mirror.ats());
        assert_eq!(windows(&mirror), [None, None]);
        let mut write = |at: usize, data: &[u8]| mirror.write(at as u64, data);
        let _ = write(BARS, &[0xff; 4]);
        let _ = write(BARS, &0xe000_0100_u32.to_le_bytes());
        let _ = write(BARS + 8, &0x40_0000_0000_u64.to_le_bytes());
        assert!(write(COMMAND, &[0b110, 0]).routing);
        assert!(write(0x206, &[0, 0x80]).routing);
        assert_eq!(windows(&mirror), [Some(0xe000_0100), Some(0x40_0000_0000)]);
        assert!(mirror.bus_master() && mirror.ats());
        assert!(mirror.write(0x44, &[0b11]).routing, "D3hot");
        assert!(!mirror.bus_master());
        let effects = mirror.write(0x58, &[0, 0x80]);
        assert!(effects.function_reset);
        assert!(!mirror.bus_master() && !mirror.ats());
        let _ = mirror.write(COMMAND as u64, &[0b10, 0]);
        assert_eq!(windows(&mirror), [Some(0xe000_0100), Some(0x40_0000_0000)]);
    }

    #[test]
    fn mirror_of_any_bytes_ends_and_has_no_impossible_bar() {
        let looped = {
            let mut bytes = foreign();
            bytes[0x51] = 0x40;
            bytes[0x202..0x204].copy_from_slice(&[1, 0x10]);
            bytes
        };
        for bytes in [[0xff; CONFIG_BYTES], [0; CONFIG_BYTES], looped] {
            for size in [0, 1, 0x18, 0x1000, u64::MAX, 1 << 63] {
                let mut mirror = ConfigSpace::mirror(&bytes, &[size; 6]);
                let _ = mirror.write(COMMAND as u64, &[0b110, 0]);
                let _ = mirror.write(BARS as u64, &[0x5a; BARS_BYTES]);
                for bar in mirror.bars() {
                    assert!(bar.size().is_power_of_two() && bar.size() >= 16);
                    let _ = mirror.window(bar);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn no_access_panics_and_what_is_read_only_stays(
            writes in prop::collection::vec((any::<u64>().prop_map(|o| o % 5000), prop::collection::vec(any::<u8>(), 0..9)), 0..50),
        ) {
            let mut space = space();
            for (offset, data) in writes {
                let _ = space.write(offset, &data);
                space.read(offset, &mut [0; 8]);
            }
            let _ = space.write(u64::MAX, &[0xff; 4]);
            prop_assert_eq!(read::<4>(&space, 0x00), 0x0010_1b36);
            prop_assert_eq!(capabilities(&space).len(), 3);
        }
    }
}
