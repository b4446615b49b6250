//! A channel's ring: the location of its entries, and the number of entries to take.

use peerbar_pci::Iova;

use crate::command::ENTRY_BYTES;
use crate::faults::FaultCode;
use crate::gpu_memory::GpuAddress;
use crate::registers::Setup;

/// RING_SPACE: RING_ADDRESS is an offset in VRAM.
const SPACE_VRAM: u32 = 1;
/// Valid numbers of entries of a ring.
const ENTRIES: std::ops::RangeInclusive<u32> = 2..=4096;

/// The ring of a channel that is on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    start: GpuAddress,
    entries: u32,
    head: u32,
    /// The generation of the channel.
    pub(crate) generation: u64,
}

impl Ring {
    /// Returns the ring that the registers describe. All of it must lie inside VRAM or the address
    /// space.
    pub(crate) fn new(setup: &Setup, vram_bytes: u64) -> Result<Self, FaultCode> {
        let Setup {
            address, entries, ..
        } = *setup;
        let possible =
            address % ENTRY_BYTES == 0 && entries.is_power_of_two() && ENTRIES.contains(&entries);
        let start = if setup.space == SPACE_VRAM {
            GpuAddress::Vram(address)
        } else {
            GpuAddress::Bus(Iova(address))
        };
        let length = u64::from(entries) * ENTRY_BYTES;
        if !possible || !start.holds(length, vram_bytes) {
            return Err(FaultCode::BadRing);
        }
        Ok(Self {
            start,
            entries,
            head: 0,
            generation: setup.generation,
        })
    }

    /// Returns the start of the ring.
    pub(crate) fn start(&self) -> GpuAddress {
        self.start
    }

    /// Returns the number of completed entries, modulo 2^32: the number of the next command.
    pub(crate) fn head(&self) -> u32 {
        self.head
    }

    /// Returns the address of the next entry, if the doorbell is ahead.
    pub(crate) fn next(&self, doorbell: u32) -> Result<Option<GpuAddress>, FaultCode> {
        match doorbell.wrapping_sub(self.head) {
            0 => Ok(None),
            ahead if ahead > self.entries => Err(FaultCode::BadRing),
            _ => {
                let slot = u64::from(self.head % self.entries);
                Ok(Some(self.start.after(slot * ENTRY_BYTES)))
            }
        }
    }

    /// Completes the next entry. Returns the number of completed entries since the start, modulo
    /// 2^32.
    pub(crate) fn advance(&mut self) -> u32 {
        self.head = self.head.wrapping_add(1);
        self.head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VRAM: u64 = 1 << 20;

    fn setup(address: u64, space: u32, entries: u32) -> Setup {
        Setup {
            address,
            space,
            entries,
            generation: 1,
        }
    }

    #[test]
    fn only_possible_rings_are_taken() {
        for (address, space, entries) in [
            (0, 0, 2),
            (0xffff_ffff_ffff_ff00, 0, 2),
            (VRAM - 4096 * 128, 1, 4096),
        ] {
            assert!(Ring::new(&setup(address, space, entries), VRAM).is_ok());
        }
        for (address, space, entries) in [
            (64, 0, 2),
            (0, 0, 0),
            (0, 0, 1),
            (0, 0, 3),
            (0, 0, 8192),
            (0, 0, u32::MAX),
            (0xffff_ffff_ffff_ff80, 0, 2),
            (VRAM, 1, 2),
            (VRAM - 128, 1, 2),
            (1 << 63, 1, 2),
        ] {
            let ring = Ring::new(&setup(address, space, entries), VRAM);
            assert_eq!(ring.unwrap_err(), FaultCode::BadRing, "{address:#x}");
        }
    }

    #[test]
    fn entries_are_taken_in_order_across_both_wraps() {
        let mut ring = Ring::new(&setup(0x1000, 0, 4), VRAM).unwrap();
        ring.head = u32::MAX - 1;
        let doorbell = 2u32;
        let mut slots = Vec::new();
        while let Some(GpuAddress::Bus(address)) = ring.next(doorbell).unwrap() {
            slots.push((address.0 - 0x1000) / 128);
            ring.advance();
        }
        assert_eq!(slots, [2, 3, 0, 1]);
        assert_eq!(ring.head, 2);
    }

    #[test]
    fn a_doorbell_more_than_a_ring_ahead_is_refused() {
        let ring = Ring::new(&setup(0, 0, 4), VRAM).unwrap();
        assert!(ring.next(4).unwrap().is_some());
        for doorbell in [5, u32::MAX, 1 << 31] {
            assert_eq!(ring.next(doorbell), Err(FaultCode::BadRing));
        }
    }
}
