//! A program exports memory and is killed: an importer that cannot be notified keeps the memory until it lets go.

use std::os::fd::OwnedFd;

use anyhow::{Context, ensure};
use peerbar_gds::{Buffer, ExportPolicy, Gpu};

use super::{Bench, MARK};
use crate::checks::gpu_load::{GPU_PAGE, memory_is_back};
use crate::dma_buf_importer::Kind;
use crate::gpu_user::GpuUser;
use crate::gpus;

/// Size of the memory in bytes.
const BYTES: u64 = 1 << 20;

/// What the next owners of all other memory write.
const OTHER: u64 = 0x0bad_0bad_0bad_0bad;

/// Returns how many bytes `reader` has copied out of the memory.
pub(super) fn memory_stays(bench: &Bench<'_>, reader: &gpus::Gpu) -> anyhow::Result<u64> {
    for (policy, kind) in [
        (ExportPolicy::Pinned, Kind::Pinning),
        (ExportPolicy::Static, Kind::Static),
    ] {
        once(bench, &reader.open()?, policy, kind)
            .with_context(|| format!("a program is killed whose export is {policy:?}"))?;
        memory_is_back(bench.guest, bench.gpu)?;
    }
    Ok(2 * BYTES)
}

fn once(bench: &Bench<'_>, reader: &Gpu, policy: ExportPolicy, kind: Kind) -> anyhow::Result<()> {
    let before = bench.gpu.free_vram()?;
    let (user, dma_buf) = GpuUser::exporter(bench.gpu.node(), BYTES, MARK, policy)?;
    let import = bench.import(&dma_buf, kind)?;
    drop(dma_buf);
    user.kill()?;
    let others = take_all(&bench.gpu.open()?)?;
    let taken: u64 = others.iter().map(Buffer::size).sum();
    ensure!(
        taken + BYTES == before,
        "{before} bytes of VRAM were free; with {BYTES} of them in the hands of an importer, others can have {taken}"
    );
    shows_the_mark(reader, &import.reopen()?)
}

/// Takes all memory that there is, and writes to it.
fn take_all(gpu: &Gpu) -> anyhow::Result<Vec<Buffer>> {
    let mut buffers = Vec::new();
    for size in [16 << 20, BYTES, GPU_PAGE] {
        while let Ok(buffer) = gpu.allocate(size) {
            gpu.fill(buffer.span(..)?, OTHER)?;
            buffers.push(buffer);
        }
    }
    Ok(buffers)
}

/// The memory is what the program has left, also when a device reads it.
fn shows_the_mark(reader: &Gpu, dma_buf: &OwnedFd) -> anyhow::Result<()> {
    let imported = reader.import(dma_buf)?;
    let (copy, expected) = (reader.allocate(BYTES)?, reader.allocate(BYTES)?);
    reader.copy(imported.span(..BYTES)?, copy.span(..)?)?;
    reader.fill(expected.span(..)?, MARK)?;
    let different = reader.compare(copy.span(..)?, expected.span(..)?)?;
    ensure!(
        different.is_none(),
        "byte {different:?} of memory that an importer holds has changed: others have got it"
    );
    Ok(())
}
