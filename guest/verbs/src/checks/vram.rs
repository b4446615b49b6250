//! What an adapter must refuse of a GPU's memory, and what it keeps.

use anyhow::{Context as _, bail, ensure};
use peerbar_gds::{ExportPolicy, Gpu};
use peerbar_verbs::{Access, Operation, Region, Status};

use super::memory::{PAGE, VRAM_ADDRESS};
use super::refusals::{Bench, expect};
use super::report::Report;

/// What other memory of the GPU has.
const UNTOUCHED: [u8; 4096] = [0x3c; 4096];
/// Pages of a buffer.
const PAGES: u64 = 16;
const BYTES: u64 = PAGES * PAGE;

/// Asks the adapter `nic` for what it must refuse of memory of the GPU with the number `gpu`.
pub(crate) fn run(nic: &str, gpu: u32, report: &mut Report) -> anyhow::Result<()> {
    let bench = Bench::new(nic)?;
    let gpu = Gpu::open(gpu)?;
    report.add("more than the dma-buf has", longer(&bench, &gpu));
    report.add("dma-buf that can be revoked", revocable(&bench, &gpu));
    report.add("buffer that is freed", freed(&bench, &gpu));
    report.add("revoke of a pinned buffer", revoked(&bench, &gpu));
    Ok(())
}

fn longer(bench: &Bench, gpu: &Gpu) -> anyhow::Result<()> {
    let buffer = gpu.allocate(BYTES)?;
    let dma_buf = buffer.export_as(ExportPolicy::Pinned)?;
    let size = buffer.size().saturating_add(PAGE);
    let registered = Region::of_dma_buf(&bench.domain, dma_buf, size, VRAM_ADDRESS, Access::ALL);
    refused(registered, libc::EINVAL)
}

/// The kernel's driver pins memory, which an exporter of revocable memory does not let it.
fn revocable(bench: &Bench, gpu: &Gpu) -> anyhow::Result<()> {
    let buffer = gpu.allocate(BYTES)?;
    let dma_buf = buffer.export_as(ExportPolicy::Revocable)?;
    let size = buffer.size();
    let registered = Region::of_dma_buf(&bench.domain, dma_buf, size, VRAM_ADDRESS, Access::ALL);
    refused(registered, libc::EOPNOTSUPP)
}

fn refused(registered: peerbar_verbs::Result<Region>, wanted: i32) -> anyhow::Result<()> {
    match registered {
        Ok(region) => bail!("it was registered, as a region of {} bytes", region.size()),
        Err(error) => {
            ensure!(
                error.number() == Some(wanted),
                "the reason is not error {wanted}, but: {:#}",
                anyhow::Error::from(error)
            );
            Ok(())
        }
    }
}

/// Memory that an adapter has pinned is no other buffer's before it is deregistered, and is out of reach afterwards.
fn freed(bench: &Bench, gpu: &Gpu) -> anyhow::Result<()> {
    let buffer = gpu.allocate(BYTES)?;
    let dma_buf = buffer.export_as(ExportPolicy::Pinned)?;
    let region = register(bench, dma_buf, BYTES)?;
    buffer.free()?;
    let others = others(gpu)?;
    for page in 0..PAGES {
        let write = Operation::Write(region.remote(page * PAGE));
        expect(bench.asked(write)?, &[Status::SUCCESS]).context("pinned memory")?;
    }
    unchanged(&others)?;
    let place = region.remote(0);
    drop(region);
    expect(
        bench.asked(Operation::Write(place))?,
        &[Status::REMOTE_ACCESS],
    )?;
    unchanged(&others)?;
    bench.still_works()
}

fn revoked(bench: &Bench, gpu: &Gpu) -> anyhow::Result<()> {
    let buffer = gpu.allocate(BYTES)?;
    let region = register(bench, buffer.export_as(ExportPolicy::Pinned)?, BYTES)?;
    ensure!(
        buffer.revoke().is_err(),
        "memory that is pinned was revoked"
    );
    let write = Operation::Write(region.remote(0));
    expect(bench.asked(write)?, &[Status::SUCCESS])?;
    drop(region);
    buffer.revoke().context("a revoke after the region is gone")
}

fn register(bench: &Bench, dma_buf: impl std::os::fd::AsFd, size: u64) -> anyhow::Result<Region> {
    let region = Region::of_dma_buf(&bench.domain, dma_buf, size, VRAM_ADDRESS, Access::ALL);
    Ok(region?)
}

/// Buffers that take the places of freed ones, if there are such.
fn others(gpu: &Gpu) -> anyhow::Result<Vec<peerbar_gds::Buffer>> {
    let buffers = (0..8).map(|_| {
        let buffer = gpu.allocate(BYTES)?;
        for page in 0..PAGES {
            buffer.mapping().write(page * PAGE, &UNTOUCHED)?;
        }
        Ok(buffer)
    });
    buffers.collect()
}

fn unchanged(buffers: &[peerbar_gds::Buffer]) -> anyhow::Result<()> {
    for buffer in buffers {
        for page in 0..PAGES {
            let mut seen = [0; 4096];
            buffer.mapping().read(page * PAGE, &mut seen)?;
            ensure!(
                seen == UNTOUCHED,
                "the adapter wrote to memory of another buffer"
            );
        }
    }
    Ok(())
}
