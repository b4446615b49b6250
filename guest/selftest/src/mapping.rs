//! GPU memory accessed by the processor, as gdrcopy provides it: mappings, and their lifetime.

use std::os::unix::process::ExitStatusExt;

use anyhow::{Context, ensure};
use peerbar_agent::gpus;
use peerbar_gds::Mapping;
use peerbar_gds::{Gpu, Kernel};

use crate::expect::{refused, take_all};
use crate::fork::in_child;
use crate::{Test, access};

/// Pages of the GPU, in bytes.
const GPU_PAGE: u64 = 64 << 10;

/// Pages of the processor, in bytes.
const PAGE: u64 = 4096;

/// Size of the buffers in bytes.
const SIZE: u64 = 5 * GPU_PAGE;

/// Number of threads that read each buffer of those that take all remaining memory.
const THREADS: u32 = 4 << 20;
const BLOCK: u32 = 1024;

/// The value that a child stores.
const MARK: u8 = 0xc5;

/// Exit code of a child that has seen its stored value, and of one that has not.
const RIGHT: u8 = 0;
const WRONG: u8 = 1;

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let gpu = test.gpu()?;
    let opened = gpu.open()?;
    processor_and_gpu_see_the_same(&opened).context("a mapping")?;
    the_gpu_finds_a_difference(&opened).context("one byte that differs")?;
    two_mappings_are_one_memory(&opened).context("two mappings of a buffer")?;
    placement_is_in_the_bar(gpu, &opened).context("where a buffer lies")?;
    a_child_makes_its_own_mapping(&opened).context("fork")?;
    freed_memory_has_no_other_owner(&opened).context("a mapping after its buffer was freed")?;
    a_dma_buf_is_the_buffer(gpu, &opened).context("a descriptor that is passed on")?;
    a_dma_buf_is_mapped(&opened).context("a mapping of a dma-buf")?;
    Ok(())
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
        "the GPU sees CRC-32C {crc:08x} of the data that the processor stored, not {right:08x}"
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

/// Checks that the GPU finds a difference, since other tests rely on its result when it says that
/// all is equal.
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
        "the data stored through the second is lost with it"
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

/// Checks that a child has no mapping of GPU memory, as with gdrcopy, and may make one by the
/// descriptors that it has inherited.
fn a_child_makes_its_own_mapping(gpu: &Gpu) -> anyhow::Result<()> {
    let buffer = gpu.allocate(SIZE)?;
    let dma_buf = buffer.export()?;
    let second = Mapping::of_file(&dma_buf, 0, SIZE).context("mmap of a dma-buf")?;
    for inherited in [buffer.mapping(), &second] {
        let ended = in_child(|| store_in_child(inherited))?;
        ensure!(
            ended.signal() == Some(libc::SIGSEGV),
            "a child that uses its parent's mapping ended with {ended}, not with SIGSEGV"
        );
    }
    for by_dma_buf in [false, true] {
        let ended = in_child(|| {
            let own = if by_dma_buf {
                Mapping::of_file(&dma_buf, 0, SIZE).ok()
            } else {
                buffer.map_again().ok()
            };
            own.map_or(WRONG, |own| store_in_child(&own))
        })?;
        ensure!(
            ended.code() == Some(RIGHT.into()),
            "a child that uses a mapping of its own ended with {ended}"
        );
        let mut seen = [[0]; 2];
        buffer.mapping().read(0, &mut seen[0])?;
        second.read(0, &mut seen[1])?;
        ensure!(
            seen == [[MARK]; 2],
            "the parent's mappings show {seen:x?}, not {MARK:x} that a child has stored"
        );
        buffer.mapping().write(0, &[0])?;
    }
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

/// Checks that an old mapping shows its old memory or none: no new buffer is behind it.
fn freed_memory_has_no_other_owner(gpu: &Gpu) -> anyhow::Result<()> {
    let old = gpu.allocate(SIZE)?;
    old.mapping().write(0, &numbers(4))?;
    old.free()?;
    let owners = take_all(gpu);
    for buffer in &owners {
        gpu.fill(buffer.span(..)?, 0)?;
    }
    ensure!(!owners.is_empty(), "no new buffer could be allocated");
    access::store(old.mapping(), 0, MARK)?;
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

/// Checks that another opening of the GPU gets the memory by a descriptor, and keeps it after the
/// exporter has freed it.
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
        "the GPU copies other data out of a dma-buf than the buffer held"
    );
    Ok(())
}

/// Checks that the processor maps any pages of a dma-buf and nothing beyond it. A mapping outlives
/// buffer and descriptor, and ends with a revocation.
fn a_dma_buf_is_mapped(gpu: &Gpu) -> anyhow::Result<()> {
    let bytes = numbers(8);
    // In front of the buffer, so that the buffer does not lie at the start of VRAM.
    let _other = gpu.allocate(GPU_PAGE)?;
    let buffer = gpu.allocate(SIZE)?;
    let dma_buf = buffer.export()?;
    let whole = Mapping::of_file(&dma_buf, 0, SIZE)?;
    whole.write(0, &bytes)?;
    let (crc, right) = (gpu.crc32c(buffer.span(..)?)?, crc32c::crc32c(&bytes));
    ensure!(
        loaded(buffer.mapping())? == bytes && crc == right,
        "the data that goes through it is not in the buffer"
    );
    let last = Mapping::of_file(&dma_buf, SIZE - PAGE, PAGE)?;
    let mut seen = vec![0; usize::try_from(PAGE)?];
    last.read(0, &mut seen)?;
    ensure!(
        bytes.ends_with(&seen),
        "its last page is not that of the buffer"
    );
    for (offset, length) in [
        (0, SIZE + PAGE),
        (PAGE, SIZE),
        (SIZE, PAGE),
        (1 << 40, PAGE),
    ] {
        refused(Mapping::of_file(&dma_buf, offset, length), libc::EINVAL)
            .with_context(|| format!("{length} bytes at offset {offset} of {SIZE}"))?;
    }
    drop((buffer, dma_buf));
    ensure!(
        loaded(&whole)? == bytes,
        "it is gone with the buffer and the descriptor"
    );
    drop((whole, last));

    let buffer = gpu.allocate(SIZE)?;
    let dma_buf = buffer.export()?;
    let whole = Mapping::of_file(&dma_buf, 0, SIZE)?;
    whole.write(0, &bytes)?;
    let ended = in_child(|| {
        let own = Mapping::of_file(&dma_buf, 0, SIZE).map(|own| (store_in_child(&own), own));
        match (own, buffer.revoke()) {
            (Ok((RIGHT, own)), Ok(())) => store_in_child(&own),
            _ => WRONG,
        }
    })?;
    ensure!(
        ended.signal() == Some(libc::SIGBUS),
        "a child that uses its mapping after a revocation ended with {ended}, not with SIGBUS"
    );
    access::is_gone(&whole).context("after a revocation")?;
    refused(Mapping::of_file(&dma_buf, 0, SIZE), libc::ENODEV).context("after a revocation")
}
