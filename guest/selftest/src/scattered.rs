//! VRAM in which no two pages that follow each other in a buffer do so in memory, for the
//! processor, the GPU itself, and another GPU that imports it as a dma-buf of several ranges.

use anyhow::{Context, ensure};
use peerbar_agent::checks::route::judge;
use peerbar_agent::counters::TrafficWatch;
use peerbar_gds::{Buffer, Gpu, Mapping};
use peerbar_report::Buffer as With;

use crate::load::{GPU_PAGE, memory_is_back};
use crate::pin_holder::Holder;
use crate::{Test, access};

/// Number of pages of the GPU in a buffer.
const PAGES: u64 = 5;
const SIZE: u64 = PAGES * GPU_PAGE;

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let (guest, importer, exporter) = (test.guest, test.gpu()?, test.other_gpu()?);
    let opened = exporter.open()?;
    {
        let buffer = opened.allocate_scattered(SIZE)?;
        no_page_follows_its_predecessor(&buffer)?;
        pins_have_the_addresses_of_their_pages(&opened, &buffer)?;
        processor_and_gpu_see_the_same(&opened, &buffer)?;
    }
    let mut watch = TrafficWatch::new(guest);
    let by = importer.open()?;
    let whole = opened.allocate(SIZE)?;
    watch
        .watch(|| importer_sees_the_same(&by, &whole))
        .context("a dma-buf of one range")?;
    let scattered = opened.allocate_scattered(SIZE)?;
    watch
        .watch(|| importer_sees_the_same(&by, &scattered))
        .with_context(|| {
            format!("the kernel's fault, since one range is right: a dma-buf of {PAGES} ranges")
        })?;
    revoke_reaches_all_pages(&scattered)?;
    drop((whole, scattered, by, opened));
    memory_is_back(guest, exporter)?;
    let through = With::P2pmem(exporter.name.clone());
    judge(&through, &[importer.share(4 * SIZE)], watch.traffic()?)
}

/// Returns bytes that differ in each `round`.
fn bytes(round: u64) -> Vec<u8> {
    let word = |index: u64| (round << 32 | index).to_le_bytes();
    (0..SIZE / 8).flat_map(word).collect()
}

/// Returns everything that `mapping` shows.
fn loaded(mapping: &Mapping) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(SIZE)?];
    mapping.read(0, &mut bytes)?;
    Ok(bytes)
}

fn no_page_follows_its_predecessor(buffer: &Buffer) -> anyhow::Result<()> {
    let mut last = None;
    for page in 0..PAGES {
        let placement = buffer.placement(page * GPU_PAGE)?;
        ensure!(
            placement.length == GPU_PAGE && last != Some(placement.vram_offset),
            "page {page} is not alone: {placement:x?}"
        );
        last = Some(placement.vram_offset + GPU_PAGE);
    }
    Ok(())
}

fn pins_have_the_addresses_of_their_pages(gpu: &Gpu, buffer: &Buffer) -> anyhow::Result<()> {
    let holder = Holder::open()?;
    for offset in (0..SIZE).step_by(usize::try_from(GPU_PAGE)?) {
        let pin = holder.pin(gpu, buffer.handle()?, (offset, GPU_PAGE), 0)?;
        let right = buffer.placement(offset)?.bus_address;
        ensure!(
            pin.bus_address == right,
            "the pin at {offset:#x} has the address {:#x}, not {right:#x}",
            pin.bus_address
        );
        let answer = pin.put()?;
        ensure!(answer == 0, "the pages are put with {answer}");
    }
    Ok(())
}

fn processor_and_gpu_see_the_same(gpu: &Gpu, buffer: &Buffer) -> anyhow::Result<()> {
    ensure!(
        loaded(buffer.mapping())?.iter().all(|byte| *byte == 0),
        "it still has the data of its last owner"
    );
    let (copy, bytes) = (gpu.allocate(SIZE)?, bytes(1));
    buffer.mapping().write(0, &bytes)?;
    gpu.copy(buffer.span(..)?, copy.span(..)?)?;
    ensure!(
        loaded(copy.mapping())? == bytes,
        "the GPU reads other bytes than the processor has stored"
    );
    ensure!(
        loaded(&buffer.map_again()?)? == bytes,
        "a second mapping shows other bytes"
    );
    Ok(())
}

/// Lets the importer write all of `buffer`, and read it.
fn importer_sees_the_same(importer: &Gpu, buffer: &Buffer) -> anyhow::Result<()> {
    let (own, dma_buf) = (importer.allocate(SIZE)?, buffer.export()?);
    let imported = importer.import(&dma_buf)?;
    let (written, read) = (bytes(2), bytes(3));
    own.mapping().write(0, &written)?;
    importer.copy(own.span(..)?, imported.span(..)?)?;
    ensure!(
        loaded(buffer.mapping())? == written,
        "bytes that the importer has written are elsewhere"
    );
    let shown = Mapping::of_file(&dma_buf, 0, SIZE).context("mmap of the dma-buf")?;
    ensure!(
        loaded(&shown)? == written,
        "a mapping of the dma-buf shows other bytes than one of the buffer"
    );
    buffer.mapping().write(0, &read)?;
    importer.copy(imported.span(..)?, own.span(..)?)?;
    ensure!(
        loaded(own.mapping())? == read,
        "the importer reads bytes of elsewhere"
    );
    Ok(())
}

fn revoke_reaches_all_pages(buffer: &Buffer) -> anyhow::Result<()> {
    let dma_buf = buffer.export()?;
    let shown = Mapping::of_file(&dma_buf, 0, SIZE).context("mmap of the dma-buf")?;
    for mapping in [buffer.mapping(), &shown] {
        loaded(mapping)?;
    }
    buffer.revoke()?;
    for mapping in [buffer.mapping(), &shown] {
        access::is_gone(mapping)?;
    }
    Ok(())
}
