//! The GPU and the guest's virtio-gpu, whose memory is the guest's: buffers of virtio-gpu are the
//! GPU's operands. The reverse is refused, since virtio-gpu's import cannot be revoked. It maps
//! exports for static importers, but then has no use for them.

use anyhow::Context;
use peerbar_agent::checks::route::judge;
use peerbar_agent::dma_buf_copies::{DmaBufCopies, HALF, TIME_OUT};
use peerbar_agent::gpus::Gpu;
use peerbar_agent::guest_context::GuestContext;
use peerbar_agent::mapped_buffer::MappedBuffer;
use peerbar_gds::ExportPolicy;
use peerbar_report::Buffer as With;

use crate::drm_card::Card;
use crate::expect::{refused, same};
use crate::{Test, dma_buf};

/// The driver name of virtio-gpu.
const DRIVER: &str = "virtio_gpu";

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let guest = test.guest;
    let gpu = test.gpu()?;
    let mut bench = DmaBufCopies::new(guest, gpu)?;
    let open = || guest.uevents.wait_for(TIME_OUT, || Card::open(DRIVER));
    of_virtio_gpu(&mut bench, open()?).context("memory of virtio-gpu")?;
    for_virtio_gpu(&mut bench, (guest, gpu), &open()?).context("memory of the GPU")?;
    judge(
        &With::GuestRam,
        &[gpu.share(bench.bytes)],
        bench.watch.traffic()?,
    )
}

/// Lets the GPU read and write a buffer of virtio-gpu, which is closed in between: the memory
/// stays.
fn of_virtio_gpu(bench: &mut DmaBufCopies<'_>, card: Card) -> anyhow::Result<()> {
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

/// Checks that an export is refused to virtio-gpu without a trace: the export works as before, and
/// once it is closed all of its memory is free.
fn for_virtio_gpu(
    bench: &mut DmaBufCopies<'_>,
    (guest, gpu): (&GuestContext, &Gpu),
    card: &Card,
) -> anyhow::Result<()> {
    let before = gpu.free_vram()?;
    let buffer = bench.gpu.allocate(HALF)?;
    let dma_buf = buffer.export()?;
    refused(card.import(&dma_buf), libc::EOPNOTSUPP)?;
    mapped_and_given_back(bench, card).context("exported for static importers")?;

    let imported = bench.gpu.import(&dma_buf)?;
    let (own, again) = (bench.vram.span(..)?, imported.span(..HALF)?);
    bench.gpu.copy(own, again)?;
    same(&bench.gpu, buffer.span(..)?, own).context("the data written through the dma-buf")?;

    buffer.revoke()?;
    refused(card.import(&dma_buf), libc::ENODEV).context("once it is revoked")?;
    dma_buf::is_refused(bench, &imported).context("once it is revoked")?;
    drop((imported, dma_buf, buffer));
    // The last user may be a worker of the kernel.
    let uevents = &guest.uevents;
    uevents.wait_for(TIME_OUT, || gpu.check_free_vram(before))
}

/// Checks an export that virtio-gpu attaches and maps, without blob resources, before it reports
/// that it has no import (ENODEV of `virtgpu_gem_prime_import_sg_table`). No pin is left, so the
/// buffer can be revoked.
fn mapped_and_given_back(bench: &DmaBufCopies<'_>, card: &Card) -> anyhow::Result<()> {
    let buffer = bench.gpu.allocate(HALF)?;
    let dma_buf = buffer.export_as(ExportPolicy::Static)?;
    refused(card.import(&dma_buf), libc::ENODEV)?;
    Ok(buffer.revoke()?)
}
