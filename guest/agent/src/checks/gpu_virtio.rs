//! The GPU and the guest's virtio-gpu, whose memory is the guest's: buffers of virtio-gpu are the GPU's operands. The
//! reverse is refused, since virtio-gpu's import cannot be revoked; what is exported for static importers it maps, and then has no
//! use for.

use super::{CheckOutcome, Run};
use peerbar_report::{Buffer as With, GpuVirtio, Measure};
use std::io;
use std::os::fd::OwnedFd;

use anyhow::{Context, bail, ensure};
use peerbar_gds::ExportPolicy;

use super::gpu_dma_buf::{Bench, HALF, TIME_OUT};
use crate::checks::route::judge;
use crate::gpus::Gpu;
use crate::guest_context::GuestContext;
use crate::mapped_buffer::MappedBuffer;
use crate::virtio_gpu::Card;

/// What the driver of virtio-gpu calls itself.
const DRIVER: &str = "virtio_gpu";

impl Run for GpuVirtio {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let gpu = guest.gpu(&self.gpu)?;
        let mut bench = Bench::new(guest, gpu)?;
        let open = || guest.uevents.wait_for(TIME_OUT, || Card::open(DRIVER));
        of_virtio_gpu(&mut bench, open()?).context("memory of virtio-gpu")?;
        for_virtio_gpu(&mut bench, (guest, gpu), &open()?).context("memory of the GPU")?;
        measure.bytes = bench.bytes;
        bench.watch.write_to(measure);
        judge(
            &With::GuestRam,
            &[gpu.share(bench.bytes)],
            bench.watch.traffic()?,
        )?;
        Ok(CheckOutcome::Passed)
    }
}

/// The GPU reads and writes a buffer of virtio-gpu, which is closed meanwhile: the memory stays.
fn of_virtio_gpu(bench: &mut Bench<'_>, card: Card) -> anyhow::Result<()> {
    let (_, dma_buf) = card.make(2 * HALF)?;
    let mut memory = MappedBuffer::shared(&dma_buf, 0, usize::try_from(2 * HALF)?)?;
    let imported = bench.gpu.import(&dma_buf)?;
    bench.there_and_back(&imported, &mut memory)?;
    bench
        .amid_copies(&imported, || {
            drop((dma_buf, card));
            Ok(())
        })
        .context("its file is closed amid copies")?;
    bench
        .there_and_back(&imported, &mut memory)
        .context("after its file was closed")
}

/// An export is refused to virtio-gpu, which leaves nothing behind: the export is as good as before, and once it is gone all
/// of its memory is free.
fn for_virtio_gpu(
    bench: &mut Bench<'_>,
    (guest, gpu): (&GuestContext, &Gpu),
    card: &Card,
) -> anyhow::Result<()> {
    let before = gpu.free_vram()?;
    let buffer = bench.gpu.allocate(HALF)?;
    let dma_buf = buffer.export()?;
    is_refused(card, &dma_buf, libc::EOPNOTSUPP)?;
    mapped_and_given_back(bench, card).context("exported for static importers")?;

    let imported = bench.gpu.import(&dma_buf)?;
    let (own, again) = (bench.vram.span(..)?, imported.span(..HALF)?);
    bench.gpu.copy(own, again)?;
    let different = bench.gpu.compare(own, buffer.span(..)?)?;
    ensure!(
        different.is_none(),
        "what was written through the dma-buf is not in the buffer from byte {different:?} on"
    );

    buffer.revoke()?;
    is_refused(card, &dma_buf, libc::ENODEV).context("once it is revoked")?;
    bench.is_refused(&imported).context("once it is revoked")?;
    drop((imported, dma_buf, buffer));
    // The last user may be a worker of the kernel.
    let uevents = &guest.uevents;
    uevents.wait_for(TIME_OUT, || gpu.check_free_vram(before))
}

/// Without blob resources virtio-gpu attaches and maps, and then says that it has no import (ENODEV of
/// `virtgpu_gem_prime_import_sg_table`). No pin is left, so the buffer can be revoked.
fn mapped_and_given_back(bench: &Bench<'_>, card: &Card) -> anyhow::Result<()> {
    let buffer = bench.gpu.allocate(HALF)?;
    let dma_buf = buffer.export_as(ExportPolicy::Static)?;
    is_refused(card, &dma_buf, libc::ENODEV)?;
    Ok(buffer.revoke()?)
}

fn is_refused(card: &Card, dma_buf: &OwnedFd, wanted: i32) -> anyhow::Result<()> {
    let wanted = io::Error::from_raw_os_error(wanted);
    match card.import(dma_buf) {
        Err(error) if error.raw_os_error() == wanted.raw_os_error() => Ok(()),
        Err(error) => bail!("virtio-gpu is refused it with {error}, not with {wanted}"),
        Ok(()) => bail!("virtio-gpu takes it, though its import cannot be revoked"),
    }
}
