//! A transfer that does not start and end at a block boundary, or of a file that the kernel copies,
//! is refused, or bounces if that is allowed, and is counted to the byte.

use std::fs;

use anyhow::{Context, bail, ensure};
use peerbar_agent::counters::{self, TrafficWatch};
use peerbar_agent::devices::Controller;
use peerbar_agent::disk;
use peerbar_agent::guest_context::GuestContext;
use peerbar_agent::mapped_buffer::MappedBuffer;
use peerbar_gds::{Buffer, Error, FileOptions, Gpu, GpuFile, Policy, Traffic};
use peerbar_pattern::Pattern;

use crate::Test;

/// The known part of the disk, in bytes.
const KNOWN: usize = 1 << 20;

/// Start and length of the transfer: within a block at both ends.
const OFFSET: u64 = 1000;
const LENGTH: u64 = 100_001;

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let guest = test.guest;
    let (gpu, disk) = (test.gpu()?, test.disk()?);
    disk.disk.check(0, 2 * KNOWN as u64)?;
    let pattern = guest.fresh_pattern(disk);
    let plain = disk.disk.open_direct()?;
    disk::fill(&plain, pattern, 0, KNOWN)?;
    MappedBuffer::guest_ram(KNOWN)?.write_to(&plain, KNOWN as u64, KNOWN)?;
    let opened = gpu.open()?;
    let buffer = opened.allocate(LENGTH * 2)?;
    refused(guest, &opened, disk, &buffer)?;
    copied(&opened, &buffer).context("a file in the page cache")?;

    let file = disk.open_for(&opened, Policy::AllowBounce)?;
    let split = BlockSplit::of(&file);
    let mut watch = TrafficWatch::new(guest);
    watch.watch(|| read(&file, &buffer, &split))?;
    verify_read(&buffer, pattern, &split).context("the unaligned read")?;
    watch.watch(|| file.write_at(&buffer, split.range(), OFFSET + KNOWN as u64))?;
    verify_write(disk, pattern).context("the unaligned write")?;
    judge(
        &split,
        file.traffic(),
        watch.traffic()?,
        (disk.number, gpu.number),
    )
}

/// Checks that nothing moves if a bounce is not allowed.
fn refused(
    guest: &GuestContext,
    gpu: &Gpu,
    disk: &Controller,
    buffer: &Buffer,
) -> anyhow::Result<()> {
    let file = FileOptions::new().open(gpu, &disk.disk.node)?;
    let mut watch = TrafficWatch::new(guest);
    match watch.watch(|| file.read_at(buffer, ..LENGTH, OFFSET)) {
        Err(Error::Unaligned { .. }) => {}
        Err(error) => bail!("an unaligned read should have been refused as such, but: {error:#}"),
        Ok(read) => bail!("an unaligned read that must not bounce has brought {read} bytes"),
    }
    let moved = watch.traffic()?.payload();
    ensure!(
        moved == 0,
        "a read that was refused has moved {moved} bytes of payload"
    );
    Ok(())
}

/// Checks a file on tmpfs, which accepts O_DIRECT, while the processor copies: that is not a
/// transfer between devices.
fn copied(gpu: &Gpu, buffer: &Buffer) -> anyhow::Result<()> {
    const PATH: &str = "/tmp/copied";
    fs::write(PATH, vec![7; usize::try_from(2 * crate::PAGE)?])?;
    match FileOptions::new().open(gpu, PATH) {
        Err(Error::NotDirect(_)) => {}
        other => bail!("it should have been refused as such, but: {other:?}"),
    }
    let options = FileOptions::new().policy(Policy::AllowBounce);
    let file = options.open(gpu, PATH)?;
    let read = file.read_at(buffer, ..2 * crate::PAGE, 0)?;
    let right = Traffic {
        peer_bytes: 0,
        bounced_bytes: 2 * crate::PAGE,
    };
    ensure!(
        read == 2 * crate::PAGE && file.traffic() == right,
        "{read} bytes were read of it, and counted as {:?}",
        file.traffic()
    );
    Ok(fs::remove_file(PATH)?)
}

/// The whole blocks of the transfer.
#[derive(Debug)]
struct BlockSplit {
    block: u64,
    head: u64,
    middle: u64,
}

impl BlockSplit {
    fn of(file: &GpuFile) -> Self {
        let block = file.alignment().block;
        let head = OFFSET.next_multiple_of(block).saturating_sub(OFFSET);
        let rest = LENGTH.saturating_sub(head);
        BlockSplit {
            block,
            head,
            middle: rest.saturating_sub(rest.checked_rem(block).unwrap_or(0)),
        }
    }

    /// Returns the part of the buffer that has its first whole block at a page.
    fn range(&self) -> std::ops::Range<u64> {
        let start = crate::PAGE.saturating_sub(self.head);
        start..start.saturating_add(LENGTH)
    }
}

fn read(file: &GpuFile, buffer: &Buffer, split: &BlockSplit) -> anyhow::Result<()> {
    let read = file.read_at(buffer, split.range(), OFFSET)?;
    ensure!(read == LENGTH, "{read} bytes were read of {LENGTH}");
    Ok(())
}

fn verify_read(buffer: &Buffer, pattern: Pattern, split: &BlockSplit) -> anyhow::Result<()> {
    let known = pattern.bytes(0, KNOWN);
    let wanted = known.get(wanted_range()?).context("too little is known")?;
    let mut seen = vec![0; usize::try_from(LENGTH)?];
    buffer.mapping().read(split.range().start, &mut seen)?;
    let wrong = wanted
        .iter()
        .zip(&seen)
        .position(|(wanted, seen)| wanted != seen);
    ensure!(wrong.is_none(), "byte {wrong:?} of it is wrong");
    Ok(())
}

/// Checks that the second part of the disk has the pattern's bytes where it was written, and zeros
/// before and after.
fn verify_write(disk: &Controller, pattern: Pattern) -> anyhow::Result<()> {
    let mut wanted = vec![0; KNOWN];
    let known = pattern.bytes(0, KNOWN);
    let range = wanted_range()?;
    if let (Some(to), Some(from)) = (wanted.get_mut(range.clone()), known.get(range)) {
        to.copy_from_slice(from);
    }
    let seen = disk::read(&disk.disk.open_direct()?, KNOWN as u64, KNOWN)?;
    let wrong = wanted
        .iter()
        .zip(&seen)
        .position(|(wanted, seen)| wanted != seen);
    ensure!(
        wrong.is_none(),
        "byte {wrong:?} of the disk's second part is wrong: {LENGTH} bytes were written at {OFFSET} of it"
    );
    Ok(())
}

fn wanted_range() -> anyhow::Result<std::ops::Range<usize>> {
    Ok(usize::try_from(OFFSET)?..usize::try_from(OFFSET + LENGTH)?)
}

/// Judges read and write together. The middle goes twice peer to peer, the rest twice through guest
/// RAM, where the GPU's copy engine moves only the bytes, but the disk moves their blocks: one for
/// a read, one more to write it back.
fn judge(
    split: &BlockSplit,
    counted_by_library: Traffic,
    seen: &counters::Traffic,
    (disk, gpu): (u32, u32),
) -> anyhow::Result<()> {
    let straight = split.middle.saturating_mul(2);
    let bounced = LENGTH.saturating_sub(split.middle).saturating_mul(2);
    let blocks = split.block.saturating_mul(6);
    let wanted = (straight, bounced, straight, blocks, bounced);
    let counted = (
        counted_by_library.peer_bytes,
        counted_by_library.bounced_bytes,
        seen.payload_to_devices(disk),
        seen.payload_to_guest_ram(disk),
        seen.payload_to_guest_ram(gpu),
    );
    ensure!(
        counted == wanted && seen.failures() == 0,
        "counted were {counted:?} bytes: by the library peer to peer and bounced, by the disk peer to peer and through guest \
         RAM, by the GPU through guest RAM; right is {wanted:?}; {} DMA requests failed",
        seen.failures()
    );
    Ok(())
}
