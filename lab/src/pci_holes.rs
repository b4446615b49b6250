//! The address ranges in which QEMU's machine q35 has no RAM.

use peerbar_pci::{BusAddress, Range};

/// 4 GiB and 1 TiB. RAM that does not fit below the first continues there, or with an AMD processor
/// and BARs beyond the HyperTransport range at the second (QEMU, `pc_memory_init`).
const HIGH_RAM: [u64; 2] = [1 << 32, 1 << 40];
/// Address of the I/O APIC, which ends the lower hole (QEMU, `mch_realize`).
const IO_APIC: u64 = 0xfec0_0000;

/// Returns the PCI holes of a q35 machine with `memory` bytes of RAM, in ascending order.
pub(crate) fn pci_holes(memory: u64) -> Vec<Range<BusAddress>> {
    // The size of the low RAM (QEMU, `pc_q35_init`).
    let low = if memory >= 0xb000_0000 {
        0x8000_0000
    } else {
        memory
    };
    let high = memory - low;
    let [first, second] = HIGH_RAM.map(|start| start.saturating_add(high));
    let holes = if high == 0 {
        vec![(low, IO_APIC), (first, u64::MAX)]
    } else {
        vec![(low, IO_APIC), (first, HIGH_RAM[1]), (second, u64::MAX)]
    };
    let holes = holes.into_iter();
    holes
        .filter_map(|(start, end)| {
            let last = end.checked_sub(u64::from(end < u64::MAX))?;
            Range::from_bounds(BusAddress(start), BusAddress(last))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(memory: u64) -> String {
        let holes = pci_holes(memory).into_iter();
        holes
            .map(|hole| hole.to_string())
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn holes_are_where_q35_has_no_ram() {
        assert_eq!(
            text(512 << 20),
            "0x20000000-0xfebfffff 0x100000000-0xffffffffffffffff"
        );
        assert_eq!(
            text(4 << 30),
            "0x80000000-0xfebfffff 0x180000000-0xffffffffff 0x10080000000-0xffffffffffffffff"
        );
        assert_eq!(
            text(u64::MAX),
            "0x80000000-0xfebfffff 0xffffffffffffffff-0xffffffffffffffff"
        );
    }
}
