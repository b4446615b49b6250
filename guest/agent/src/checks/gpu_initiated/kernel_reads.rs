//! The same reads by Linux' own drivers, for comparison: the disk's data goes to the GPU's memory
//! peer to peer.

use anyhow::{Context, ensure};
use peerbar_gds::{Buffer, Direction, Error, GpuFile, Policy, Queue, Request};

use super::figures::{KernelRates, Measurement, Rate};
use super::initiator::{BYTES, READ_BYTES};
use crate::devices::Controller;
use crate::disk::fill;
use crate::gpus::Gpu;
use peerbar_pattern::Pattern;

/// Writes the pattern to the disk and reads it. Returns `None` if the kernel refuses peer-to-peer
/// DMA between the two.
pub(super) fn read(
    measurement: Measurement<'_>,
    disk: &Controller,
    gpu: &Gpu,
    pattern: Pattern,
    depth: u16,
) -> anyhow::Result<Option<KernelRates>> {
    disk.disk.check(0, BYTES)?;
    fill(
        &disk.disk.open_direct()?,
        pattern,
        0,
        usize::try_from(BYTES)?,
    )?;
    let opened = gpu.open()?;
    let file = disk.open_for(&opened, Policy::PeerOnly)?;
    let buffer = opened.allocate(BYTES)?;
    match file.read_at(&buffer, ..READ_BYTES, 0) {
        Err(Error::PeerToPeer { .. }) => return Ok(None),
        first => first?,
    };
    let pread = measure(measurement, &buffer, pattern, 1, || {
        by_pread(&file, &buffer)
    });
    let io_uring = measure(measurement, &buffer, pattern, depth, || {
        by_io_uring(&file, &buffer, depth.into())
    });
    Ok(Some(KernelRates {
        pread: pread.context("by pread")?,
        io_uring: io_uring.context("by io_uring")?,
    }))
}

fn measure(
    measurement: Measurement<'_>,
    buffer: &Buffer,
    pattern: Pattern,
    depth: u16,
    round: impl FnMut() -> anyhow::Result<u64>,
) -> anyhow::Result<Rate> {
    let mut data = vec![0; usize::try_from(BYTES)?];
    buffer.mapping().write(0, &data)?;
    let rate = Rate::measure(measurement, depth.into(), round)?;
    buffer.mapping().read(0, &mut data)?;
    pattern.verify(0, &data)?;
    Ok(rate)
}

/// Returns the start of each read.
fn offsets() -> impl Iterator<Item = u64> {
    (0..BYTES).step_by(4096)
}

fn by_pread(file: &GpuFile, buffer: &Buffer) -> anyhow::Result<u64> {
    let mut reads = 0;
    for at in offsets() {
        let read = file.read_at(buffer, at..at.saturating_add(READ_BYTES), at)?;
        ensure!(read == READ_BYTES, "a read of {read} bytes");
        reads += 1;
    }
    Ok(reads)
}

fn by_io_uring(file: &GpuFile, buffer: &Buffer, depth: u32) -> anyhow::Result<u64> {
    let mut queue = Queue::new(depth)?;
    let most = usize::try_from(depth)?;
    let mut left = offsets().peekable();
    let mut reads = 0;
    while left.peek().is_some() || queue.pending() > 0 {
        while queue.pending() < most {
            let Some(at) = left.next() else { break };
            queue.push(Request {
                direction: Direction::Read,
                file: file.clone(),
                offset: at,
                buffer: buffer.clone(),
                range: at..at.saturating_add(READ_BYTES),
            })?;
        }
        let completion = queue.wait()?.context("a queue that loses requests")?;
        let read = completion.result?;
        ensure!(read == READ_BYTES, "a read of {read} bytes");
        reads += 1;
    }
    Ok(reads)
}
