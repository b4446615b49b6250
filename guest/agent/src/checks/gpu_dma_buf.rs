//! The GPU's copy engine and memory that another exporter shares as a dma-buf: a program (udmabuf), or the
//! driver of a device in user space (vfio-pci), which can revoke it at any time.

use super::{CheckOutcome, Run};
use peerbar_mapping::Mapping;
use peerbar_report::{Buffer as With, GpuDmaBuf, Measure, VfioBackend};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use peerbar_gds::{Buffer as Vram, Command, Error, Fault, Gpu, ImportedBuffer};
use peerbar_vfio_nvme::{AddressSpace, BarRange, Binding};

use super::route::judge;
use crate::counters::TrafficWatch;
use crate::gpus;
use crate::guest_context::GuestContext;
use crate::mapped_buffer::MappedBuffer;
use crate::udmabuf;
use crate::user_drivers::{self, APERTURE};
use peerbar_pattern::Pattern;

/// Bytes of each half of a dma-buf: what the GPU reads, and behind it what it writes.
pub(super) const HALF: u64 = 512 << 10;

/// Copies that are under way when the exporter is reset.
const COPIES: usize = 32;

/// Waits that are under way when the exporter is reset, and how long each would last.
const WAITS: usize = 20;
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// How long that reset may take: the GPU's driver gives commands 10 s, whatever their limits. The rest is for a slow host.
const RESET_LIMIT: Duration = Duration::from_secs(60);

/// How long these copies, or the return of a driver, may take.
pub(super) const TIME_OUT: Duration = Duration::from_secs(30);

impl Run for GpuDmaBuf {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let gpu = guest.gpu(&self.gpu)?;
        let mut bench = Bench::new(guest, gpu)?;
        match &self.with {
            With::GuestRam => of_a_program(&mut bench)?,
            With::P2pmem(exporter) => {
                let exporter = guest.gpu(exporter)?;
                let binding = user_drivers::take(guest, VfioBackend::Type1, &exporter.pci)?;
                let outcome = of_a_device(&mut bench, &binding);
                let back = user_drivers::give_back_gpu(guest, exporter, binding);
                outcome.and(back)?;
            }
        }
        measure.bytes = bench.bytes;
        bench.watch.write_to(measure);
        judge(
            &self.with,
            &[gpu.share(bench.bytes)],
            bench.watch.traffic()?,
        )?;
        Ok(CheckOutcome::Passed)
    }
}

/// The GPU that copies, and what it has copied.
pub(super) struct Bench<'a> {
    pub(super) guest: &'a GuestContext,
    pub(super) number: u32,
    pub(super) gpu: Gpu,
    pub(super) vram: Vram,
    pub(super) watch: TrafficWatch<'a>,
    pub(super) bytes: u64,
}

impl<'a> Bench<'a> {
    pub(super) fn new(guest: &'a GuestContext, gpu: &gpus::Gpu) -> anyhow::Result<Self> {
        let opened = gpu.open()?;
        Ok(Bench {
            guest,
            number: gpu.number,
            vram: opened.allocate(HALF)?,
            gpu: opened,
            watch: TrafficWatch::new(guest),
            bytes: 0,
        })
    }

    /// From the first half to VRAM, and from there to the second, seen from the exporter's side.
    pub(super) fn there_and_back(
        &mut self,
        imported: &ImportedBuffer,
        exported: &mut impl Exported,
    ) -> anyhow::Result<()> {
        let pattern = self.guest.fresh_pattern_of(self.number);
        let bytes = usize::try_from(HALF)?;
        exported.put(&pattern.bytes(0, bytes))?;
        let (gpu, vram) = (&self.gpu, self.vram.span(..)?);
        let (read, written) = (imported.span(..HALF)?, imported.span(HALF..)?);
        self.watch.watch(|| {
            gpu.copy(read, vram)?;
            gpu.copy(vram, written)
        })?;
        self.bytes = self.bytes.saturating_add(2 * HALF);
        verify(pattern, &exported.get(bytes)?)
    }

    /// Copies are under way when the exporter does `work`: they are done all the same.
    pub(super) fn amid_copies(
        &mut self,
        imported: &ImportedBuffer,
        work: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let command = Command::Copy {
            from: imported.span(..HALF)?,
            to: self.vram.span(..)?,
        };
        let gpu = &self.gpu;
        self.watch.watch(|| {
            let fences = (0..COPIES).map(|_| gpu.submit(&command));
            let fences = fences.collect::<peerbar_gds::Result<Vec<_>>>()?;
            work()?;
            fences.iter().try_for_each(|fence| {
                fence.wait(TIME_OUT)?;
                anyhow::Ok(())
            })
        })?;
        self.bytes = self.bytes.saturating_add(HALF * COPIES as u64);
        Ok(())
    }

    /// Waits for a word that never comes are under way when the exporter does `work`, which is not held up by them: they fail.
    /// A command behind them that uses other memory is done.
    fn amid_waits(
        &mut self,
        imported: &ImportedBuffer,
        work: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let wait = Command::Wait {
            word: imported.span(..8)?,
            value: 1,
            mask: 0,
            limit: WAIT_LIMIT,
        };
        let fences = (0..WAITS).map(|_| self.gpu.submit(&wait));
        let fences = fences.collect::<peerbar_gds::Result<Vec<_>>>()?;
        let behind = self.gpu.submit(&Command::Crc32c {
            from: self.vram.span(..)?,
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
        let again = self.gpu.crc32c(self.vram.span(..)?)?;
        ensure!(crc == u64::from(again), "CRC-32C {crc:#x}, not {again:#x}");
        Ok(())
    }

    pub(super) fn is_refused(&self, imported: &ImportedBuffer) -> anyhow::Result<()> {
        match self.gpu.copy(imported.span(..HALF)?, self.vram.span(..)?) {
            Err(Error::Driver { source, .. }) if source.raw_os_error() == Some(libc::ENODEV) => {
                Ok(())
            }
            Err(other) => bail!("a copy is refused with {other:?}, not with ENODEV"),
            Ok(()) => bail!("a copy is done"),
        }
    }
}

fn verify(pattern: Pattern, seen: &[u8]) -> anyhow::Result<()> {
    pattern
        .verify(0, seen)
        .context("after a copy to VRAM and back")
}

/// The exporter's own view of its memory.
pub(super) trait Exported {
    /// Writes the first half.
    fn put(&mut self, bytes: &[u8]) -> anyhow::Result<()>;
    /// Reads the second half, of `length` bytes.
    fn get(&self, length: usize) -> anyhow::Result<Vec<u8>>;
}

impl Exported for File {
    fn put(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.write_all_at(bytes, 0)?)
    }

    fn get(&self, length: usize) -> anyhow::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.read_exact_at(&mut bytes, HALF)?;
        Ok(bytes)
    }
}

impl Exported for MappedBuffer {
    fn put(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.copy_in(bytes)
    }

    fn get(&self, length: usize) -> anyhow::Result<Vec<u8>> {
        let all = self.to_vec(length.saturating_mul(2))?;
        Ok(all.get(length..).unwrap_or_default().to_vec())
    }
}

impl Exported for Mapping {
    fn put(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.write(0, bytes)?)
    }

    fn get(&self, length: usize) -> anyhow::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.read(HALF, &mut bytes)?;
        Ok(bytes)
    }
}

fn of_a_program(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let (mut file, dma_buf) = udmabuf::create(2 * HALF)?;
    let imported = bench.gpu.import(&dma_buf)?;
    drop(dma_buf);
    bench.there_and_back(&imported, &mut file)
}

fn of_a_device(bench: &mut Bench<'_>, binding: &Binding) -> anyhow::Result<()> {
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
    bench
        .amid_waits(&imported, || Ok(device.reset()?))
        .context("a reset of the exporter amid waits")?;
    bench
        .there_and_back(&imported, &mut aperture)
        .context("after the reset amid waits")?;

    device.decode(false)?;
    bench
        .is_refused(&imported)
        .context("while the exporter's BARs are not decoded")?;
    device.decode(true)?;
    bench
        .there_and_back(&imported, &mut aperture)
        .context("after decoding came back")?;

    drop((aperture, device));
    bench
        .is_refused(&imported)
        .context("once the exporter is closed")
}
