//! A program exports memory and is killed: an importer that cannot be notified keeps the memory
//! until it releases it.

use std::os::fd::OwnedFd;

use anyhow::{Context, ensure};
use peerbar_agent::dma_buf_importer::Kind;
use peerbar_agent::gpus;
use peerbar_gds::{ExportPolicy, Gpu};

use super::{Fixture, MARK};
use crate::expect::{same, sizes, take_all};
use crate::load::memory_is_back;
use crate::user::GpuUser;

/// Size of the memory in bytes.
const BYTES: u64 = 1 << 20;

/// Content that the next owners of all other memory write.
const OTHER: u64 = 0x0bad_0bad_0bad_0bad;

/// Returns the number of bytes that `reader` has copied out of the memory.
pub(super) fn memory_stays(fixture: &Fixture<'_>, reader: &gpus::Gpu) -> anyhow::Result<u64> {
    for (policy, kind) in [
        (ExportPolicy::Pinned, Kind::Pinning),
        (ExportPolicy::Static, Kind::Static),
    ] {
        once(fixture, &reader.open()?, policy, kind)
            .with_context(|| format!("a program is killed whose export is {policy:?}"))?;
        memory_is_back(fixture.guest, fixture.gpu)?;
    }
    Ok(2 * BYTES)
}

fn once(
    fixture: &Fixture<'_>,
    reader: &Gpu,
    policy: ExportPolicy,
    kind: Kind,
) -> anyhow::Result<()> {
    let before = fixture.gpu.free_vram()?;
    let (user, dma_buf) = GpuUser::exporter(fixture.gpu.node(), BYTES, MARK, policy)?;
    let import = fixture.import(&dma_buf, kind)?;
    drop(dma_buf);
    user.kill()?;
    let gpu = fixture.gpu.open()?;
    let others = take_all(&gpu);
    for buffer in &others {
        gpu.fill(buffer.span(..)?, OTHER)?;
    }
    let taken = sizes(&others);
    ensure!(
        taken + BYTES == before,
        "{before} bytes of VRAM were free; with {BYTES} of them in the hands of an importer, others can have {taken}"
    );
    shows_the_mark(reader, &import.reopen()?)
}

/// Checks that the memory has the program's content, also when a device reads it.
fn shows_the_mark(reader: &Gpu, dma_buf: &OwnedFd) -> anyhow::Result<()> {
    let imported = reader.import(dma_buf)?;
    let (copy, expected) = (reader.allocate(BYTES)?, reader.allocate(BYTES)?);
    reader.copy(imported.span(..BYTES)?, copy.span(..)?)?;
    reader.fill(expected.span(..)?, MARK)?;
    same(reader, copy.span(..)?, expected.span(..)?)
        .context("memory that an importer holds: others have got it")
}
