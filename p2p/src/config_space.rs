//! Reads a function's configuration space (PCIe Base 6.0, 7.5 to 7.8).
//!
//! An unprivileged reader gets the first 64 bytes of it, which have no capabilities.

use peerbar_rule::{AcsControl, DeviceId, PortType};

use crate::machine::{Acs, Function, Link};

/// Size of the configuration space without extended capabilities.
const CONVENTIONAL: usize = 0x100;
/// Capability ID of PCI Express.
const EXPRESS: u8 = 0x10;
/// Extended capability IDs.
const ACS: u16 = 0x0d;
const RESIZABLE_BAR: u16 = 0x15;

/// The answer to the search for an extended capability.
#[derive(Clone, Copy)]
enum Extended {
    /// Its offset.
    At(usize),
    /// The list ends without it.
    Absent,
    /// The list goes on beyond the part that was read.
    Unknown,
}

/// A configuration space, or the part of it that was read.
#[derive(Clone, Copy)]
struct ConfigSpace<'a>(&'a [u8]);

impl ConfigSpace<'_> {
    fn byte(self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    fn word(self, at: usize) -> Option<u16> {
        let bytes = self.0.get(at..at.checked_add(2)?)?;
        Some(u16::from_le_bytes(bytes.try_into().ok()?))
    }

    fn double_word(self, at: usize) -> Option<u32> {
        let bytes = self.0.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Returns the offset of the capability `id`.
    fn capability(self, id: u8) -> Option<usize> {
        let has_list = self.word(0x06)? & 0x10 != 0;
        let mut at = usize::from(self.byte(0x34).filter(|_| has_list)? & !3);
        // A list has at most 48 capabilities; a loop in it must end.
        for _ in 0..48 {
            if at < 0x40 {
                return None;
            }
            if self.byte(at)? == id {
                return Some(at);
            }
            at = usize::from(self.byte(at.checked_add(1)?)? & !3);
        }
        None
    }

    /// Returns the offset of the extended capability `id`.
    fn extended_capability(self, id: u16) -> Extended {
        let mut at = CONVENTIONAL;
        for _ in 0..960 {
            let header = match self.double_word(at) {
                None | Some(u32::MAX) => return Extended::Unknown,
                Some(0) => return Extended::Absent,
                Some(header) => header,
            };
            if header & 0xffff == u32::from(id) {
                return Extended::At(at);
            }
            at = usize::try_from(header >> 20 & !3).unwrap_or_default();
            if at < CONVENTIONAL {
                return Extended::Absent;
            }
        }
        Extended::Absent
    }
}

/// Vendor and device ID of every virtual function (PCIe Base 6.0, 9.3.4.1.1).
const VIRTUAL: DeviceId = DeviceId {
    vendor: 0xffff,
    device: 0xffff,
};

/// Takes everything that `bytes` shows of a function. BARs have no sizes there.
pub(crate) fn read(bytes: &[u8], function: &mut Function) {
    let space = ConfigSpace(bytes);
    let ids = space.word(0).zip(space.word(2));
    let id = ids.map(|(vendor, device)| DeviceId { vendor, device });
    let is_virtual = id == Some(VIRTUAL);
    function.id = id.filter(|_| !is_virtual).or(function.id);
    function.class = space.word(0x0a).or(function.class);
    if let Some(command) = space.word(0x04) {
        function.decodes_memory = Some(command & 0x2 != 0).filter(|_| !is_virtual);
        function.masters_bus = Some(command & 0x4 != 0);
    }
    let is_bridge = space.byte(0x0e).is_some_and(|kind| kind & 0x7f == 1);
    if is_bridge {
        function.buses = space.byte(0x19).zip(space.byte(0x1a)).or(function.buses);
    }
    if let Some(at) = space.capability(EXPRESS) {
        express(space, at, function);
    }
    if bytes.len() > CONVENTIONAL {
        match space.extended_capability(ACS) {
            Extended::At(at) => {
                let bits = space.word(at.saturating_add(6));
                function.acs = bits.map_or(function.acs, |bits| Acs::Control(AcsControl(bits)));
            }
            Extended::Absent => function.acs = Acs::Absent,
            Extended::Unknown => {}
        }
        resizable_bars(space, function);
    } else if bytes.len() == CONVENTIONAL && space.capability(EXPRESS).is_none() {
        function.acs = Acs::Absent;
    }
}

/// Reads the PCI Express capability at `at` (PCIe Base 6.0, 7.5.3).
fn express(space: ConfigSpace<'_>, at: usize, function: &mut Function) {
    let word = |offset: usize| space.word(at.saturating_add(offset));
    let flags = word(2).map(u16::to_le_bytes);
    function.port_type = flags.map(|[low, _]| PortType::from_number(low >> 4));
    function.has_slot = flags.map(|[_, high]| high & 1 != 0);
    if let Some(control) = word(8) {
        function.relaxed_ordering = Some(control & 0x10 != 0);
        function.max_payload = Some(128 << (control >> 5 & 7));
    }
    let has_link = function.port_type != Some(PortType::IntegratedEndpoint);
    if let Some((capability, status)) = word(0x0c).zip(word(0x12)).filter(|_| has_link) {
        function.link = Some(Link {
            speed: speed(status & 0xf),
            width: u8::try_from(status >> 4 & 0x3f).ok(),
            max_speed: speed(capability & 0xf),
            max_width: u8::try_from(capability >> 4 & 0x3f).ok(),
        });
    }
}

/// Link speeds in GT/s, by number (PCIe Base 6.0, 7.5.3.6).
fn speed(number: u16) -> Option<f32> {
    let speeds = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0];
    speeds.get(usize::from(number).checked_sub(1)?).copied()
}

/// Reads the largest sizes of resizable BARs (PCIe Base 6.0, 7.8.6).
fn resizable_bars(space: ConfigSpace<'_>, function: &mut Function) {
    let Extended::At(at) = space.extended_capability(RESIZABLE_BAR) else {
        return;
    };
    for entry in 0..6_usize {
        let at = at.saturating_add(entry.saturating_mul(8));
        let registers = space
            .double_word(at.saturating_add(4))
            .zip(space.double_word(at.saturating_add(8)));
        let Some((capability, control)) = registers else {
            return;
        };
        let largest = (4_u32..32).rev().find(|bit| capability >> bit & 1 != 0);
        let bar = function
            .bars
            .iter_mut()
            .find(|bar| u32::from(bar.index) == control & 7);
        if let Some(bar) = bar {
            // Bit 4 stands for 1 MiB.
            bar.largest = largest.map(|bit| 1 << bit.saturating_add(16));
        }
        // The first entry's control register has the number of entries.
        if entry.saturating_add(1) >= entries(space, at, entry) {
            return;
        }
    }
}

fn entries(space: ConfigSpace<'_>, at: usize, entry: usize) -> usize {
    let first = at.saturating_sub(entry.saturating_mul(8));
    let control = space
        .double_word(first.saturating_add(8))
        .unwrap_or_default();
    usize::try_from(control >> 5 & 7).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Bar;

    /// A downstream port with ACS, and a BAR that can be 256 MiB.
    fn space() -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        bytes[..4].copy_from_slice(&[0xb5, 0x10, 0x47, 0x87]);
        bytes[4] = 0x6;
        bytes[6] = 0x10;
        bytes[0x0a..0x0c].copy_from_slice(&[0x04, 0x06]);
        bytes[0x0e] = 0x81;
        bytes[0x19] = 5;
        bytes[0x1a] = 7;
        bytes[0x34] = 0x40;
        bytes[0x40..0x44].copy_from_slice(&[0x01, 0x68, 0, 0]);
        bytes[0x68..0x6c].copy_from_slice(&[EXPRESS, 0, 0x62, 0]);
        bytes[0x70] = 0x30;
        bytes[0x74..0x76].copy_from_slice(&[0x04, 0x01]);
        bytes[0x7a..0x7c].copy_from_slice(&[0x83, 0x00]);
        bytes[0x100..0x104].copy_from_slice(&[0x0d, 0, 0x01, 0x20]);
        bytes[0x106] = 0x1d;
        bytes[0x200..0x204].copy_from_slice(&[0x15, 0, 0x01, 0]);
        bytes[0x204..0x208].copy_from_slice(&(1_u32 << 12 | 1 << 10).to_le_bytes());
        bytes[0x208] = 1 << 5;
        bytes
    }

    fn function(bytes: &[u8]) -> Function {
        let bars = vec![Bar::default()];
        let mut function = Function {
            bars,
            ..Function::default()
        };
        read(bytes, &mut function);
        function
    }

    #[test]
    fn port_s_registers_are_read() {
        let port = function(&space());
        assert_eq!(
            port.id,
            Some(DeviceId {
                vendor: 0x10b5,
                device: 0x8747
            })
        );
        assert_eq!((port.class, port.buses), (Some(0x0604), Some((5, 7))));
        assert_eq!(port.port_type, Some(PortType::DownstreamPort));
        assert_eq!(port.acs, Acs::Control(AcsControl(0x1d)));
        assert_eq!(
            (port.masters_bus, port.decodes_memory),
            (Some(true), Some(true))
        );
        assert_eq!(
            (port.max_payload, port.relaxed_ordering),
            (Some(256), Some(true))
        );
        let link = port.link.unwrap();
        assert_eq!((link.speed, link.width), (Some(8.0), Some(8)));
        assert_eq!((link.max_speed, link.max_width), (Some(16.0), Some(16)));
        assert_eq!(port.bars[0].largest, Some(256 << 20));
    }

    #[test]
    fn virtual_function_shows_neither_its_id_nor_its_memory_decoding() {
        let mut bytes = space();
        bytes[..6].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0x04, 0]);
        let virtual_function = function(&bytes);
        assert_eq!(
            (virtual_function.id, virtual_function.decodes_memory),
            (None, None)
        );
        assert_eq!(virtual_function.masters_bus, Some(true));
    }

    #[test]
    fn short_space_leaves_capabilities_unknown() {
        let port = function(&space()[..64]);
        assert_eq!(port.port_type, None);
        assert_eq!(port.acs, Acs::Unknown);
        assert_eq!(function(&space()[..256]).acs, Acs::Unknown);
    }

    #[test]
    fn without_the_capability_acs_is_absent() {
        let mut bytes = space();
        bytes[0x100] = 0x01;
        assert_eq!(function(&bytes).acs, Acs::Absent);
        let mut conventional = space()[..256].to_vec();
        conventional[6] = 0;
        assert_eq!(function(&conventional).acs, Acs::Absent);
    }

    #[test]
    fn list_that_is_cut_leaves_acs_unknown() {
        let mut bytes = space();
        bytes[0x100..0x104].copy_from_slice(&[0x01, 0, 0x01, 0x20]);
        assert_eq!(function(&bytes[..0x200]).acs, Acs::Unknown);
        assert_eq!(function(&bytes).acs, Acs::Absent);
        bytes[0x100..0x104].copy_from_slice(&[0xff; 4]);
        assert_eq!(function(&bytes).acs, Acs::Unknown);
    }

    #[test]
    fn loops_in_lists_end() {
        let mut bytes = space();
        bytes[0x41] = 0x40;
        bytes[0x102..0x104].copy_from_slice(&[0x01, 0x10]);
        bytes[0x100] = 0x01;
        let port = function(&bytes);
        assert_eq!((port.port_type, port.acs), (None, Acs::Absent));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..4096)) {
            function(&bytes);
        }
    }
}
