//! The target of a mapping: guest RAM and its address, or a device's BAR.

use peerbar_flight::{Backing, Mapping, WindowEvent, WindowId};
use peerbar_pci::{BusAddress, Range};

use super::recorded::{Recorded, RecordedDevice};

const GIB: u64 = 1 << 30;

/// The place of the guest's RAM: a file in two parts.
///
/// QEMU's q35 keeps RAM of less than 2.75 GiB in one piece. Of more RAM, it puts 2 GiB at address 0
/// and the rest from 4 GiB on (QEMU hw/i386/pc_q35.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ram {
    low: u64,
    size: u64,
}

impl Ram {
    /// Returns the RAM of a q35 machine with this number of bytes.
    pub(super) fn of_q35(size: u64) -> Self {
        const LIMIT: u64 = 0xb000_0000;
        let low = if size >= LIMIT { 2 * GIB } else { LIMIT };
        Self { low, size }
    }

    /// Returns the guest-physical address of an offset in the file.
    pub(super) fn address(&self, offset: u64) -> Option<u64> {
        let inside = Some(offset).filter(|offset| *offset < self.size)?;
        match inside.checked_sub(self.low) {
            None => Some(offset),
            Some(above) => Some(above + 4 * GIB),
        }
    }
}

/// The target of a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// Guest RAM at this guest-physical address.
    Ram(u64),
    /// An offset in an unknown file.
    File(u64),
    /// The BAR of a device.
    Bar(String, WindowId),
    /// Some device's BAR, or a ROM.
    Device,
}

impl Behind {
    pub(super) fn of(mapping: &Mapping, recorded: &Recorded) -> Self {
        match mapping.backing {
            Backing::Ram(span) | Backing::RemoteRam(span) => recorded
                .ram
                .and_then(|ram| ram.address(span.offset))
                .map_or(Self::File(span.offset), Self::Ram),
            Backing::Device => recorded
                .devices
                .iter()
                .find_map(|device| {
                    Some((device, window_at(device, mapping.range.first().on_bus())?))
                })
                .map_or(Self::Device, |(device, window)| {
                    Self::Bar(device.name.clone(), window.id)
                }),
        }
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::Ram(address) => format!("guest RAM at {address:#x}"),
            Self::File(offset) => format!("a file, {offset:#x} bytes into it"),
            Self::Bar(name, id) => format!("{} of {name}", window_name(*id)),
            Self::Device => "a BAR or ROM; QEMU does not tell whose".to_owned(),
        }
    }
}

/// Returns the usual name of a window.
pub(super) fn window_name(id: WindowId) -> String {
    match id {
        WindowId::Cmb => "the CMB".to_owned(),
        WindowId::Pmr => "the PMR".to_owned(),
        WindowId::Bar(bar) => format!("BAR {bar}"),
    }
}

/// Returns the window of the device itself at a bus address, its BARs first, since the CMB and the
/// PMR are in one.
pub(super) fn window_at(device: &RecordedDevice, address: BusAddress) -> Option<WindowEvent> {
    let mut windows = device.windows();
    windows.sort_by_key(|window| !matches!(window.id, WindowId::Bar(_)));
    let holds = |range: Range<BusAddress>| range.contains(address);
    windows
        .into_iter()
        .find(|window| window.range.is_some_and(holds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_is_in_one_part_or_two() {
        let small = Ram::of_q35(512 << 20);
        assert_eq!(small.address(0x1000), Some(0x1000));
        assert_eq!(small.address(512 << 20), None);
        let large = Ram::of_q35(4 * GIB);
        assert_eq!(large.address(2 * GIB - 1), Some(2 * GIB - 1));
        assert_eq!(large.address(2 * GIB), Some(4 * GIB));
        assert_eq!(large.address(4 * GIB - 1), Some(6 * GIB - 1));
        let brim = Ram::of_q35(0xb000_0000 - 0x1000);
        assert_eq!(brim.address(0xafff_e000), Some(0xafff_e000));
    }
}
