//! The expected content of disk and buffer, byte for byte, during transfers between them.

use std::ops::Range;

use anyhow::{Context, ensure};
use peerbar_agent::disk::{self, Disk};
use peerbar_gds::{Buffer, Direction, Gpu};
use peerbar_pattern::Pattern;

use crate::PAGE;

/// Bytes of the disk, and of the buffer, that belong to one transfer.
pub(super) const SLOT: u64 = 64 << 10;

/// One transfer: within a slot of the disk, and the same slot of the buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Move {
    pub(super) direction: Direction,
    /// Its offset on the disk.
    pub(super) offset: u64,
    /// Its offset in the buffer.
    pub(super) at: u64,
    pub(super) length: u64,
}

impl Move {
    /// Makes a transfer of whole pages. Every other one is a write.
    pub(super) fn aligned(slot: u64) -> Self {
        Move {
            direction: direction(slot),
            offset: slot * SLOT,
            at: slot * SLOT + PAGE * (slot % 3),
            length: PAGE * (1 + slot % 7),
        }
    }

    /// Makes a transfer from within a block of `block` bytes to within another one, with the first
    /// whole block at a page of the buffer.
    pub(super) fn unaligned(slot: u64, block: u64) -> Self {
        const END: u64 = 5 * 4096 + 1;
        let lead = 1000 + 7 * slot;
        let head = lead.next_multiple_of(block) - lead;
        Move {
            direction: direction(slot),
            offset: slot * SLOT + lead,
            at: slot * SLOT + block.max(PAGE) - head,
            length: END.max(3 * block + 1) - lead,
        }
    }

    /// Returns the bytes of its whole blocks.
    pub(super) fn whole_blocks(&self, block: u64) -> u64 {
        let end = self.offset + self.length;
        let end = end - end.checked_rem(block).unwrap_or(0);
        end.saturating_sub(self.offset.next_multiple_of(block))
    }
}

fn direction(slot: u64) -> Direction {
    match slot % 2 {
        0 => Direction::Read,
        _ => Direction::Write,
    }
}

/// The expected content of the disk and of the buffer.
pub(super) struct Images {
    disk: Vec<u8>,
    buffer: Vec<u8>,
}

impl Images {
    /// Fills this many slots of `disk` and of `buffer`, each with different contents.
    pub(super) fn store(
        pattern: Pattern,
        slots: u64,
        disk: &Disk,
        buffer: &Buffer,
    ) -> anyhow::Result<Self> {
        let length = usize::try_from(slots * SLOT)?;
        let images = Images {
            disk: pattern.bytes(0, length),
            buffer: pattern.bytes(slots * SLOT, length),
        };
        disk::store(&disk.open_direct()?, &images.disk, 0)?;
        buffer.mapping().write(0, &images.buffer)?;
        Ok(images)
    }

    /// Applies a transfer.
    pub(super) fn apply(&mut self, part: &Move) -> anyhow::Result<()> {
        let on_disk = range(part.offset, part.length)?;
        let in_buffer = range(part.at, part.length)?;
        let (from, to) = match part.direction {
            Direction::Read => (self.disk.get(on_disk), self.buffer.get_mut(in_buffer)),
            Direction::Write => (self.buffer.get(in_buffer), self.disk.get_mut(on_disk)),
        };
        let (from, to) = from.zip(to).context("a transfer beyond the images")?;
        to.copy_from_slice(from);
        Ok(())
    }

    /// Compares both. The GPU reads the buffer.
    pub(super) fn verify(&self, gpu: &Gpu, buffer: &Buffer, disk: &Disk) -> anyhow::Result<()> {
        let seen = disk::read(&disk.open_direct()?, 0, self.disk.len())?;
        let wrong = (0..).zip(self.disk.iter().zip(&seen));
        let wrong = wrong.filter(|(_, (right, seen))| right != seen);
        let wrong = wrong.map(|(index, _): (u64, _)| index).next();
        ensure!(
            wrong.is_none(),
            "byte {wrong:?} of the disk is wrong, each slot has {SLOT}"
        );
        let span = buffer.span(..self.buffer.len() as u64)?;
        let (crc, right) = (gpu.crc32c(span)?, crc32c::crc32c(&self.buffer));
        ensure!(
            crc == right,
            "the GPU sees CRC-32C {crc:08x} of the buffer, not {right:08x}"
        );
        Ok(())
    }
}

fn range(start: u64, length: u64) -> anyhow::Result<Range<usize>> {
    Ok(usize::try_from(start)?..usize::try_from(start + length)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_transfer_leaves_its_slot() {
        let moves = (0..80).map(Move::aligned);
        let moves = moves.chain((0..16).map(|slot| Move::unaligned(slot, 512)));
        let moves = moves.chain((0..16).map(|slot| Move::unaligned(slot, 4096)));
        for part in moves {
            let slot = part.offset / SLOT;
            assert_eq!((part.offset + part.length - 1) / SLOT, slot, "{part:?}");
            assert_eq!(part.at / SLOT, slot, "{part:?}");
            assert_eq!((part.at + part.length - 1) / SLOT, slot, "{part:?}");
        }
    }

    #[test]
    fn an_unaligned_transfer_has_a_part_of_a_block_at_both_ends() {
        for slot in 0..16 {
            let part = Move::unaligned(slot, 512);
            assert_ne!(part.offset % 512, 0);
            assert_ne!((part.offset + part.length) % 512, 0);
            let head = part.offset.next_multiple_of(512) - part.offset;
            assert_eq!((part.at + head) % 4096, 0);
            let tail = (part.offset + part.length) % 512;
            assert_eq!(part.whole_blocks(512), part.length - head - tail);
        }
        assert_eq!(Move::aligned(4).whole_blocks(512), Move::aligned(4).length);
    }

    #[test]
    fn a_read_changes_the_buffer_and_a_write_the_disk() {
        let mut images = Images {
            disk: vec![1; 4],
            buffer: vec![2; 4],
        };
        let part = |direction, offset, at| Move {
            direction,
            offset,
            at,
            length: 1,
        };
        images.apply(&part(Direction::Read, 3, 0)).unwrap();
        images.apply(&part(Direction::Write, 1, 3)).unwrap();
        assert_eq!(
            (images.disk, images.buffer),
            (vec![1, 2, 1, 1], vec![1, 2, 2, 2])
        );
        let mut images = Images {
            disk: vec![1; 4],
            buffer: vec![2; 4],
        };
        assert!(images.apply(&part(Direction::Read, 4, 0)).is_err());
    }
}
