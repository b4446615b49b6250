//! Several ranges of a BAR as one dma-buf, which vfio-pci exports and the GPU's driver imports. The
//! exporter's memory shows which bytes of the dma-buf have reached which range.
//!
//! The kernel maps all ranges by one call (Linux drivers/dma-buf/dma-buf-mapping.c,
//! `dma_buf_phys_vec_to_sgt`). Each is first tried as a dma-buf of its own. If that is right and
//! the whole is not, the fault is the kernel's.

mod marks;
mod part;

use std::array;

use anyhow::ensure;
use peerbar_agent::checks::route::judge;
use peerbar_agent::counters::TrafficWatch;
use peerbar_agent::gpus::{self, APERTURE};
use peerbar_agent::guest_context::GuestContext;
use peerbar_agent::user_drivers;
use peerbar_gds::{Buffer, Gpu, ImportedBuffer, Mapping, Span};
use peerbar_report::{Buffer as With, VfioBackend};
use peerbar_vfio_nvme::{AddressSpace, BarRange, Binding, DmaRange, VfioDevice};

use self::marks::Marks;
use self::part::Part;
use crate::{PAGE, Test};

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

/// Bytes at the start of the exporter's memory that are watched. All ranges lie in them.
const WINDOW: u64 = 4 * MIB;

/// Number of faults that are shown of each list of ranges.
const SHOWN: usize = 2;

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let (guest, gpu, exporter) = (test.guest, test.gpu()?, test.other_gpu()?);
    let binding = user_drivers::take(guest, VfioBackend::Type1, &exporter.pci)?;
    let outcome = transfers(guest, gpu, exporter, &binding);
    let back = user_drivers::give_back_gpu(guest, exporter, binding);
    outcome.and(back)
}

fn transfers(
    guest: &GuestContext,
    gpu: &gpus::Gpu,
    exporter: &gpus::Gpu,
    binding: &Binding,
) -> anyhow::Result<()> {
    let mut fixture = Fixture::new(guest, gpu, binding)?;
    let faults = all_lists(&mut fixture)?;
    ensure!(
        faults.is_empty(),
        "the kernel's fault: each range is right as a dma-buf of its own, but not together with others:\n{}",
        faults.join("\n")
    );
    let through = With::P2pmem(exporter.name.clone());
    let copies = &fixture.copies;
    let share = gpu.share(copies.bytes);
    judge(&through, &[share], copies.watch.traffic()?)
}

/// Returns the faults of each list of ranges.
fn all_lists(fixture: &mut Fixture<'_>) -> anyhow::Result<Vec<String>> {
    let page = |index: usize| range(index as u64 * 3 * PAGE, PAGE);
    let faults = [
        fixture.compare([range(MIB, 64 * KIB), range(3 * MIB, 64 * KIB)])?,
        // In no order. The IOMMU can map the first one as a huge page.
        fixture.compare([
            range(2 * MIB, 2 * MIB),
            range(MIB, PAGE),
            range(PAGE, 64 * KIB),
        ])?,
        // Adjacent in the BAR, too.
        fixture.compare([range(MIB, PAGE), range(MIB + PAGE, 2 * PAGE)])?,
        fixture.compare(array::from_fn::<_, 16, _>(page))?,
    ];
    Ok(faults.into_iter().flatten().collect())
}

fn range(offset: u64, length: u64) -> DmaRange {
    DmaRange { offset, length }
}

struct Fixture<'a> {
    copies: Copies<'a>,
    /// As long as the longest dma-buf.
    vram: Buffer,
    exporter: VfioDevice,
    /// The exporter's memory, as this program sees it.
    window: Mapping,
    /// Its content between transfers.
    marks: Vec<u8>,
}

/// The importing GPU, and the bytes that it was told to copy.
struct Copies<'a> {
    gpu: Gpu,
    watch: TrafficWatch<'a>,
    bytes: u64,
}

impl Copies<'_> {
    fn copy(&mut self, from: Span<'_>, to: Span<'_>) -> peerbar_gds::Result<()> {
        self.bytes = self.bytes.saturating_add(from.length());
        self.watch.watch(|| self.gpu.copy(from, to))
    }
}

impl<'a> Fixture<'a> {
    fn new(guest: &'a GuestContext, gpu: &gpus::Gpu, binding: &Binding) -> anyhow::Result<Self> {
        let gpu = gpu.open()?;
        let exporter = AddressSpace::type1()?.open(binding)?;
        let window = BarRange {
            bar: APERTURE,
            offset: 0,
            length: WINDOW,
        };
        let window = exporter.map(window)?;
        let marks = Marks::BAR.bytes(0..WINDOW);
        window.write(0, &marks)?;
        Ok(Self {
            vram: gpu.allocate(WINDOW)?,
            window,
            marks,
            exporter,
            copies: Copies {
                gpu,
                watch: TrafficWatch::new(guest),
                bytes: 0,
            },
        })
    }

    /// Checks that each range is right on its own. Returns the faults of all of them together.
    fn compare<const N: usize>(&mut self, ranges: [DmaRange; N]) -> anyhow::Result<Option<String>> {
        for range in ranges {
            let faults = self.faults_of([range])?;
            ensure!(
                faults.is_empty(),
                "a dma-buf of one range: {}",
                faults.join("; ")
            );
        }
        let faults = self.faults_of(ranges)?;
        Ok((!faults.is_empty()).then(|| format!("of {N} ranges: {}", first_of(&faults))))
    }

    /// Writes to and reads from the ranges as one dma-buf. Returns everything that is wrong.
    fn faults_of<const N: usize>(&mut self, ranges: [DmaRange; N]) -> anyhow::Result<Vec<String>> {
        let dma_buf = self.exporter.export_ranges(APERTURE, ranges)?;
        let imported = match self.copies.gpu.import(&dma_buf) {
            Ok(imported) => imported,
            Err(error) => {
                let error = anyhow::Error::from(error);
                return Ok(vec![format!("none is mapped: {error:#}")]);
            }
        };
        let parts = Part::list(&ranges);
        let mut faults = self.faults_of_writes(&imported, &parts)?;
        faults.extend(self.faults_of_reads(&imported, &parts)?);
        Ok(faults)
    }

    fn faults_of_writes(
        &mut self,
        imported: &ImportedBuffer,
        parts: &[Part],
    ) -> anyhow::Result<Vec<String>> {
        let mut expected = self.marks.clone();
        let mut outcomes = Vec::new();
        for part in parts {
            let marks = Marks::DMA_BUF.bytes(part.dma_buf.clone());
            self.vram.mapping().write(part.dma_buf.start, &marks)?;
            let from = self.vram.span(part.dma_buf.clone())?;
            let to = imported.span(part.dma_buf.clone())?;
            outcomes.push(self.copies.copy(from, to));
            part.bar_bytes(&mut expected)?.copy_from_slice(&marks);
        }
        let mut memory = vec![0; expected.len()];
        self.window.read(0, &mut memory)?;
        self.restore(&memory)?;
        let faults = parts.iter().zip(outcomes);
        let faults = faults.filter_map(|(part, outcome)| part.fault_of_write(outcome, &memory));
        let mut faults: Vec<String> = faults.collect();
        if faults.is_empty() && memory != expected {
            faults.push("the first page of each range is right, but others are not".to_owned());
        }
        Ok(faults)
    }

    /// Makes the exporter's memory, which contains `memory`, what it is between transfers.
    fn restore(&self, memory: &[u8]) -> anyhow::Result<()> {
        let page = usize::try_from(PAGE)?;
        let pages = memory.chunks(page).zip(self.marks.chunks(page));
        for ((seen, marks), offset) in pages.zip((0..).step_by(page)) {
            if seen != marks {
                self.window.write(offset, marks)?;
            }
        }
        Ok(())
    }

    fn faults_of_reads(
        &mut self,
        imported: &ImportedBuffer,
        parts: &[Part],
    ) -> anyhow::Result<Vec<String>> {
        let mut faults = Vec::new();
        for part in parts {
            let from = imported.span(part.dma_buf.clone())?;
            let to = self.vram.span(part.dma_buf.clone())?;
            let outcome = self.copies.copy(from, to);
            let mut bytes = vec![0; usize::try_from(from.length())?];
            self.vram.mapping().read(part.dma_buf.start, &mut bytes)?;
            faults.extend(part.fault_of_read(outcome, &bytes));
        }
        Ok(faults)
    }
}

/// Returns the first faults, and the number of the others.
fn first_of(faults: &[String]) -> String {
    let (first, others) = faults.split_at(faults.len().min(SHOWN));
    match others.len() {
        0 => first.join("; "),
        count => format!("{}; and {count} more", first.join("; ")),
    }
}
