//! Registers of config space, by their names.

use super::field::Fields;
use super::names::Flags;
use crate::device::CONFIG_REGION;
use crate::wire::RegionAccess;

/// Longest access whose registers are named.
const LONGEST: u32 = 8;
/// Offset of the command register.
const COMMAND: u64 = 4;

/// Offset, size and name of the registers of a type 0 header (PCIe Base, 7.5.1).
const REGISTERS: [(u64, u64, &str); 25] = [
    (0x00, 2, "VENDOR_ID"),
    (0x02, 2, "DEVICE_ID"),
    (COMMAND, 2, "COMMAND"),
    (0x06, 2, "STATUS"),
    (0x08, 1, "REVISION_ID"),
    (0x09, 3, "CLASS"),
    (0x0c, 1, "CACHE_LINE_SIZE"),
    (0x0d, 1, "LATENCY_TIMER"),
    (0x0e, 1, "HEADER_TYPE"),
    (0x0f, 1, "BIST"),
    (0x10, 4, "BAR0"),
    (0x14, 4, "BAR1"),
    (0x18, 4, "BAR2"),
    (0x1c, 4, "BAR3"),
    (0x20, 4, "BAR4"),
    (0x24, 4, "BAR5"),
    (0x28, 4, "CARDBUS_CIS"),
    (0x2c, 2, "SUBSYSTEM_VENDOR_ID"),
    (0x2e, 2, "SUBSYSTEM_ID"),
    (0x30, 4, "ROM_ADDRESS"),
    (0x34, 1, "CAPABILITY_LIST"),
    (0x3c, 1, "INTERRUPT_LINE"),
    (0x3d, 1, "INTERRUPT_PIN"),
    (0x3e, 1, "MIN_GNT"),
    (0x3f, 1, "MAX_LAT"),
];

/// Bits of the command register (PCIe Base, 7.5.1.1.3).
const COMMAND_BITS: [(u32, &str); 7] = [
    (1 << 0, "IO"),
    (1 << 1, "MEMORY"),
    (1 << 2, "MASTER"),
    (1 << 4, "INVALIDATE"),
    (1 << 6, "PARITY"),
    (1 << 8, "SERR"),
    (1 << 10, "INTX_DISABLE"),
];

/// Returns the registers that an access covers, or none if it is not a short one to the header.
pub(super) fn registers(access: &RegionAccess) -> Vec<&'static str> {
    if access.region.get() != CONFIG_REGION || access.count.get() > LONGEST {
        return Vec::new();
    }
    let from = access.offset.get();
    let to = from.saturating_add(access.count.get().into());
    let covered = REGISTERS.iter();
    let covered = covered.filter(|(offset, size, _)| *offset < to && from < offset + size);
    covered.map(|(.., name)| *name).collect()
}

/// Adds the bits of the command register, if `payload` is an access to it with its data.
pub(super) fn add_bits(access: &RegionAccess, payload: &[u8], fields: &mut Fields) {
    if access.region.get() != CONFIG_REGION || access.offset.get() != COMMAND {
        return;
    }
    let data = payload.get(size_of::<RegionAccess>()..);
    if let Some([low, high, ..]) = data {
        let command = u16::from_le_bytes([*low, *high]);
        Flags::of(command.into(), &COMMAND_BITS).add_if_set("command", fields);
    }
}
