//! The GPU's copy engine and memory that another exporter shares as a dma-buf: a program (udmabuf),
//! or the driver of a device in user space (vfio-pci), which can revoke it at any time.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use peerbar_agent::checks::route::judge;
use peerbar_agent::dma_buf_copies::{DmaBufCopies, HALF, TIME_OUT};
use peerbar_agent::gpus::APERTURE;
use peerbar_agent::user_drivers;
use peerbar_gds::{Command, Error, Fault, ImportedBuffer};
use peerbar_report::{Buffer as With, VfioBackend};
use peerbar_vfio_nvme::{AddressSpace, BarRange, Binding};

use crate::expect::driver_refused;
use crate::{Test, udmabuf};

/// Number of waits in progress when the exporter is reset, and the duration of each.
const WAITS: usize = 20;
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// Time limit of that reset: the GPU's driver gives commands 10 s, regardless of their limits. The
/// rest is for a slow host.
const RESET_LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let guest = test.guest;
    let gpu = test.gpu()?;
    let mut bench = DmaBufCopies::new(guest, gpu)?;
    let with = match test.other_gpu() {
        Err(_) => {
            of_a_program(&mut bench)?;
            With::GuestRam
        }
        Ok(exporter) => {
            let binding = user_drivers::take(guest, VfioBackend::Type1, &exporter.pci)?;
            let outcome = of_a_device(&mut bench, &binding);
            let back = user_drivers::give_back_gpu(guest, exporter, binding);
            outcome.and(back)?;
            With::P2pmem(exporter.name.clone())
        }
    };
    judge(&with, &[gpu.share(bench.bytes)], bench.watch.traffic()?)
}

/// Runs `work` of the exporter while waits for a word that never comes are in progress. The waits
/// must fail without delaying it, and a command behind them that uses other memory must succeed.
fn amid_waits(
    copies: &DmaBufCopies<'_>,
    imported: &ImportedBuffer,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let wait = Command::Wait {
        word: imported.span(..8)?,
        value: 1,
        mask: 0,
        limit: WAIT_LIMIT,
    };
    let fences = (0..WAITS).map(|_| copies.gpu.submit(&wait));
    let fences = fences.collect::<peerbar_gds::Result<Vec<_>>>()?;
    let behind = copies.gpu.submit(&Command::Crc32c {
        from: copies.vram.span(..)?,
    })?;
    let begun = Instant::now();
    work()?;
    let taken = begun.elapsed();
    ensure!(taken < RESET_LIMIT, "it was held up for {taken:?}");
    for fence in fences {
        match fence.wait(TIME_OUT) {
            Err(Error::Fault(Fault::Revoked)) => {}
            other => bail!("a wait for revoked memory ends with {other:?}"),
        }
    }
    let crc = behind.wait(TIME_OUT).context("the command behind them")?;
    let again = copies.gpu.crc32c(copies.vram.span(..)?)?;
    ensure!(crc == u64::from(again), "CRC-32C {crc:#x}, not {again:#x}");
    Ok(())
}

/// Checks that a copy out of it is refused, with ENODEV.
pub(crate) fn is_refused(
    copies: &DmaBufCopies<'_>,
    imported: &ImportedBuffer,
) -> anyhow::Result<()> {
    let copy = copies
        .gpu
        .copy(imported.span(..HALF)?, copies.vram.span(..)?);
    driver_refused(copy, libc::ENODEV).context("a copy")
}

fn of_a_program(bench: &mut DmaBufCopies<'_>) -> anyhow::Result<()> {
    let (mut file, dma_buf) = udmabuf::create(2 * HALF)?;
    let imported = bench.gpu.import(&dma_buf)?;
    drop(dma_buf);
    bench.there_and_back(&imported, &mut file)
}

fn of_a_device(bench: &mut DmaBufCopies<'_>, binding: &Binding) -> anyhow::Result<()> {
    let device = AddressSpace::type1()?.open(binding)?;
    let halves = BarRange {
        bar: APERTURE,
        offset: 0,
        length: 2 * HALF,
    };
    let dma_buf = device.export(halves)?;
    let mut aperture = device.map(halves)?;
    let imported = bench.gpu.import(&dma_buf)?;
    drop(dma_buf);
    bench.there_and_back(&imported, &mut aperture)?;

    bench
        .amid_copies(&imported, || Ok(device.reset()?))
        .context("a reset of the exporter amid copies")?;
    bench
        .there_and_back(&imported, &mut aperture)
        .context("after the reset")?;
    amid_waits(bench, &imported, || Ok(device.reset()?))
        .context("a reset of the exporter amid waits")?;
    bench
        .there_and_back(&imported, &mut aperture)
        .context("after the reset amid waits")?;

    device.decode(false)?;
    is_refused(bench, &imported).context("while the exporter's BARs are not decoded")?;
    device.decode(true)?;
    bench
        .there_and_back(&imported, &mut aperture)
        .context("after decoding came back")?;

    drop((aperture, device));
    is_refused(bench, &imported).context("once the exporter is closed")
}
