//! GPU memory in the hands of the processor, as gdrcopy gives it: mappings, and what they outlive.

use super::{CheckOutcome, Run};
use peerbar_report::{GpuMapping, Measure};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use anyhow::{Context, bail, ensure};
use peerbar_gds::{Buffer, Gpu, Kernel};
use peerbar_mapping::Mapping;

use crate::fork::in_child;
use crate::gpus;
use crate::guest_context::GuestContext;

/// Pages of the GPU, in bytes.
const GPU_PAGE: u64 = 64 << 10;

/// Size of the buffers in bytes.
const SIZE: u64 = 5 * GPU_PAGE;

/// Size of the buffers that take all remaining memory, and how many threads read each.
const LARGE: u64 = 16 << 20;
const THREADS: u32 = 4 << 20;
const BLOCK: u32 = 1024;

/// What a child stores.
const MARK: u8 = 0xc5;

/// How a child ends that has seen what it should, and one that has not.
const RIGHT: u8 = 0;
const WRONG: u8 = 1;

impl Run for GpuMapping {
    fn run(&self, guest: &GuestContext, _measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let gpu = guest.gpu(&self.gpu)?;
        let opened = gpu.open()?;
        processor_and_gpu_see_the_same(&opened).context("a mapping")?;
        the_gpu_finds_a_difference(&opened).context("one byte that differs")?;
        two_mappings_are_one_memory(&opened).context("two mappings of a buffer")?;
        placement_is_in_the_bar(gpu, &opened).context("where a buffer lies")?;
        a_child_leaves_the_parent_s_mapping_alone(&opened).context("fork")?;
        freed_memory_has_no_other_owner(&opened).context("a mapping after its buffer was freed")?;
        a_dma_buf_is_the_buffer(gpu, &opened).context("a descriptor that is passed on")?;
        Ok(CheckOutcome::Passed)
    }
}

fn numbers(seed: u8) -> Vec<u8> {
    let steps = (0..SIZE).map(|index| (index % 251).to_le_bytes());
    steps
        .map(|[low, ..]| low.wrapping_mul(7).wrapping_add(seed))
        .collect()
}

fn loaded(mapping: &Mapping) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(SIZE)?];
    mapping.read(0, &mut bytes)?;
    Ok(bytes)
}

fn processor_and_gpu_see_the_same(gpu: &Gpu) -> anyhow::Result<()> {
    let buffer = gpu.allocate(SIZE)?;
    let bytes = numbers(1);
    buffer.mapping().write(0, &bytes)?;
    let (crc, right) = (gpu.crc32c(buffer.span(..SIZE)?)?, crc32c::crc32c(&bytes));
    ensure!(
        crc == right,
        "the GPU sees CRC-32C {crc:08x} of what the processor has stored, not {right:08x}"
    );
    gpu.fill(buffer.span(8..SIZE)?, u64::from_le_bytes(*b"ABCDEFGH"))?;
    for (offset, right) in [
        (8, &b"ABCDEFGH"[..]),
        (13, b"FGHAB"),
        (SIZE - 3, b"FGH"),
        (7, &[50, b'A']),
    ] {
        let mut seen = vec![0; right.len()];
        buffer.mapping().read(offset, &mut seen)?;
        ensure!(
            seen == right,
            "the processor loads {seen:x?} at {offset}, not {right:x?} that the GPU has stored"
        );
    }
    Ok(())
}

/// What other checks rely on when the GPU says that all is equal.
fn the_gpu_finds_a_difference(gpu: &Gpu) -> anyhow::Result<()> {
    const OFFSET: u64 = 77_777;
    let (left, right) = (gpu.allocate(SIZE)?, gpu.allocate(SIZE)?);
    for buffer in [&left, &right] {
        buffer.mapping().write(0, &numbers(6))?;
    }
    let compare = || gpu.compare(left.span(..SIZE)?, right.span(..SIZE)?);
    let equal = compare()?;
    right.mapping().write(OFFSET, &[MARK])?;
    let different = compare()?;
    ensure!(
        equal.is_none() && different == Some(OFFSET),
        "the GPU finds {equal:?} in equal buffers, and {different:?} where byte {OFFSET} differs"
    );
    Ok(())
}

fn two_mappings_are_one_memory(gpu: &Gpu) -> anyhow::Result<()> {
    let buffer = gpu.allocate(SIZE)?;
    let second = buffer.map_again()?;
    let bytes = numbers(2);
    buffer.mapping().write(0, &bytes)?;
    ensure!(loaded(&second)? == bytes, "the second shows something else");
    second.write(4097, &[MARK; 3])?;
    drop(second);
    let mut seen = [0; 3];
    buffer.mapping().read(4097, &mut seen)?;
    ensure!(
        seen == [MARK; 3],
        "what went through the second is lost with it"
    );
    Ok(())
}

fn placement_is_in_the_bar(gpu: &gpus::Gpu, opened: &Gpu) -> anyhow::Result<()> {
    let asked = SIZE - GPU_PAGE + 1;
    let buffer = opened.allocate(asked)?;
    ensure!(
        buffer.size() == SIZE,
        "{asked} bytes have become {} where whole pages of the GPU are {SIZE}",
        buffer.size()
    );
    let start = gpu.aperture_start()?;
    let mut offset = 0;
    while offset < SIZE {
        let placement = buffer.placement(offset)?;
        let end = placement.vram_offset.saturating_add(placement.length);
        ensure!(
            placement.length > 0
                && end <= gpu.aperture_bytes
                && placement.bus_address == start.saturating_add(placement.vram_offset),
            "byte {offset} is reported to be at {placement:x?}, with the BAR at {start:x} and {:x} bytes of it",
            gpu.aperture_bytes
        );
        offset = offset.saturating_add(placement.length);
    }
    ensure!(
        offset == SIZE && buffer.placement(SIZE).is_err(),
        "the pieces are {offset} bytes, not {SIZE}"
    );
    Ok(())
}

/// A child may read the memory or die of the access: with gdrcopy it has none.
fn a_child_leaves_the_parent_s_mapping_alone(gpu: &Gpu) -> anyhow::Result<()> {
    let buffer = gpu.allocate(SIZE)?;
    let mut bytes = numbers(3);
    buffer.mapping().write(0, &bytes)?;
    let ended = in_child(|| store_in_child(buffer.mapping()))?;
    if lived(ended)? {
        if let Some(first) = bytes.first_mut() {
            *first = MARK;
        }
    }
    ensure!(
        loaded(buffer.mapping())? == bytes,
        "after a child's end ({ended}) the parent's mapping shows something else"
    );
    Ok(())
}

fn store_in_child(mapping: &Mapping) -> u8 {
    let mut seen = [0];
    let stored = mapping
        .write(0, &[MARK])
        .and_then(|()| mapping.read(0, &mut seen));
    if stored.is_ok() && seen == [MARK] {
        RIGHT
    } else {
        WRONG
    }
}

/// Whether the child could read the memory. It may also die of the access, by SIGSEGV or SIGBUS.
fn lived(ended: ExitStatus) -> anyhow::Result<bool> {
    match (ended.code(), ended.signal()) {
        (Some(code), _) if code == i32::from(RIGHT) => Ok(true),
        (None, Some(libc::SIGSEGV | libc::SIGBUS)) => Ok(false),
        _ => bail!("a child that uses the mapping ended with {ended}"),
    }
}

/// An old mapping reads its old memory or its access is fatal: no new buffer is behind it.
fn freed_memory_has_no_other_owner(gpu: &Gpu) -> anyhow::Result<()> {
    let old = gpu.allocate(SIZE)?;
    old.mapping().write(0, &numbers(4))?;
    old.free()?;
    let mut owners: Vec<Buffer> = Vec::new();
    for size in [LARGE, SIZE] {
        while let Ok(buffer) = gpu.allocate(size) {
            gpu.fill(buffer.span(..)?, 0)?;
            owners.push(buffer);
        }
    }
    ensure!(!owners.is_empty(), "no new buffer could be allocated");
    let ended = in_child(|| store_in_child(old.mapping()))?;
    lived(ended)?;
    for buffer in &owners {
        let everything = Kernel::Reduce {
            x: buffer.span(..)?,
            elements: buffer.size() / 4,
        };
        let sum = gpu.launch(everything, THREADS / BLOCK, BLOCK)?;
        ensure!(
            sum == 0,
            "a store through the old mapping has met a new buffer"
        );
    }
    Ok(())
}

/// Another opening of the GPU gets the memory by a descriptor, and keeps it after the exporter has freed it.
fn a_dma_buf_is_the_buffer(gpu: &gpus::Gpu, opened: &Gpu) -> anyhow::Result<()> {
    let bytes = numbers(5);
    let buffer = opened.allocate(SIZE)?;
    buffer.mapping().write(0, &bytes)?;
    let dma_buf = buffer.export()?;
    drop(buffer);

    let other = gpu.open()?;
    let imported = other.import(&dma_buf)?;
    drop(dma_buf);
    ensure!(
        imported.size() == SIZE,
        "a dma-buf of {SIZE} bytes is imported as {}",
        imported.size()
    );
    let copy = other.allocate(SIZE)?;
    other.copy(imported.span(..)?, copy.span(..)?)?;
    ensure!(
        loaded(copy.mapping())? == bytes,
        "what the GPU copies out of a dma-buf is not what was in the buffer"
    );
    Ok(())
}
