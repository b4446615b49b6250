//! The GPU's copy engine and memory that somebody else has exported as a dma-buf: of a program (udmabuf), or behind the BAR
//! of a device that a program drives (vfio-pci), which can take it back at any time.

pub(super) mod virtio;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use peerbar_gds::{Buffer as Vram, Command, Error, Gpu, ImportedBuffer};
use peerbar_report::{Buffer as With, Measure};

use super::way::judge;
use crate::counters::Witness;
use crate::gpus;
use crate::lab::Lab;
use crate::memory::Memory;
use crate::pattern::Pattern;
use crate::{udmabuf, vfio};

/// A dma-buf has so many bytes twice: what the GPU reads, and behind it what it writes.
const HALF: u64 = 512 << 10;

/// Copies that are under way when the exporter is reset.
const COPIES: usize = 32;

/// How long these copies, or the return of a driver, may take.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn run(lab: &Lab, gpu: &str, with: &With, measure: &mut Measure) -> anyhow::Result<()> {
    let gpu = lab.gpu(gpu)?;
    let mut bench = Bench::new(lab, gpu)?;
    match with {
        With::GuestRam => of_a_program(&mut bench)?,
        With::P2pmem(exporter) => {
            let exporter = lab.gpu(exporter)?;
            let lent = lend(lab, exporter)?;
            let outcome = of_a_device(&mut bench, &lent);
            let back = lent.give_back().and_then(|()| is_back(lab, exporter));
            outcome.and(back)?;
        }
    }
    measure.bytes = bench.bytes;
    bench.witness.tell(measure);
    judge(with, &[gpu.share(bench.bytes)], bench.witness.traffic()?)
}

/// The GPU that copies, and what it has copied.
struct Bench<'a> {
    lab: &'a Lab,
    number: u32,
    gpu: Gpu,
    vram: Vram,
    witness: Witness<'a>,
    bytes: u64,
}

impl<'a> Bench<'a> {
    fn new(lab: &'a Lab, gpu: &gpus::Gpu) -> anyhow::Result<Self> {
        let opened = gpu.open()?;
        Ok(Bench {
            lab,
            number: gpu.number,
            vram: opened.allocate(HALF)?,
            gpu: opened,
            witness: Witness::new(lab),
            bytes: 0,
        })
    }

    /// From the first half to VRAM, and from there to the second, seen from the exporter's side.
    fn there_and_back(
        &mut self,
        imported: &ImportedBuffer,
        exported: &mut impl Exported,
    ) -> anyhow::Result<()> {
        let pattern = self.lab.fresh_pattern_of(self.number);
        let bytes = usize::try_from(HALF)?;
        exported.put(&pattern.bytes(0, bytes))?;
        let (gpu, vram) = (&self.gpu, self.vram.span(..)?);
        let (read, written) = (imported.span(..HALF)?, imported.span(HALF..)?);
        self.witness.watch(|| {
            gpu.copy(read, vram)?;
            gpu.copy(vram, written)
        })?;
        self.bytes = self.bytes.saturating_add(2 * HALF);
        verify(pattern, &exported.get(bytes)?)
    }

    /// Copies are under way when the exporter does `work`: they are done all the same.
    fn amid_copies(
        &mut self,
        imported: &ImportedBuffer,
        work: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let command = Command::Copy {
            from: imported.span(..HALF)?,
            to: self.vram.span(..)?,
        };
        let gpu = &self.gpu;
        self.witness.watch(|| {
            let fences = (0..COPIES).map(|_| gpu.submit(&command));
            let fences = fences.collect::<peerbar_gds::Result<Vec<_>>>()?;
            work()?;
            fences.iter().try_for_each(|fence| {
                fence.wait(PATIENCE)?;
                anyhow::Ok(())
            })
        })?;
        self.bytes = self.bytes.saturating_add(HALF * COPIES as u64);
        Ok(())
    }

    fn is_refused(&self, imported: &ImportedBuffer) -> anyhow::Result<()> {
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
trait Exported {
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

impl Exported for Memory {
    fn put(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.copy_in(bytes)
    }

    fn get(&self, length: usize) -> anyhow::Result<Vec<u8>> {
        let all = self.to_vec(length.saturating_mul(2))?;
        Ok(all.get(length..).unwrap_or_default().to_vec())
    }
}

fn of_a_program(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let (mut file, dma_buf) = udmabuf::create(2 * HALF)?;
    let imported = bench.gpu.import(&dma_buf)?;
    drop(dma_buf);
    bench.there_and_back(&imported, &mut file)
}

fn of_a_device(bench: &mut Bench<'_>, lent: &vfio::Lent) -> anyhow::Result<()> {
    let device = lent.open()?;
    let dma_buf = device.export(2 * HALF)?;
    let mut aperture = device.aperture(usize::try_from(2 * HALF)?)?;
    let imported = bench.gpu.import(&dma_buf)?;
    drop(dma_buf);
    bench.there_and_back(&imported, &mut aperture)?;

    bench
        .amid_copies(&imported, || device.reset())
        .context("a reset of the exporter amid copies")?;
    bench
        .there_and_back(&imported, &mut aperture)
        .context("after the reset")?;

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

fn lend(lab: &Lab, exporter: &gpus::Gpu) -> anyhow::Result<vfio::Lent> {
    for module in ["vfio_iommu_type1", "vfio_pci"] {
        lab.load_module(module)?;
    }
    vfio::Lent::take(&exporter.pci)
}

/// Its own driver has it again.
fn is_back(lab: &Lab, exporter: &gpus::Gpu) -> anyhow::Result<()> {
    let opened = lab.uevents.wait_for(PATIENCE, || exporter.open())?;
    let buffer = opened.allocate(HALF)?;
    let different = opened.compare(buffer.span(..HALF)?, buffer.span(..HALF)?)?;
    ensure!(different.is_none(), "its memory is not equal to itself");
    Ok(())
}
