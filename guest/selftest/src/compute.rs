//! One disk's data goes through GPU memory to another disk, and only the GPU processes it: every
//! kernel, in launches of many shapes, compared with a slow model.

use std::fs::File;

use anyhow::{Context, ensure};
use peerbar_agent::checks::route::judge;
use peerbar_agent::counters::TrafficWatch;
use peerbar_agent::guest_context::GuestContext;
use peerbar_agent::{disk, gpus};
use peerbar_gds::{Buffer, FileOptions, Gpu, GpuFile, Kernel};
use peerbar_pattern::launch::{self, BINS, Shape, bytes};
use peerbar_report::Buffer as Through;

use crate::{PAGE, Test};

/// Maximum number of elements of a launch, and their size in bytes.
const ELEMENTS: usize = 1 << 18;
const BYTES: u64 = 4 * ELEMENTS as u64;

/// More threads than elements, as many, and fewer; one block, one thread in a block, and a number
/// that no block divides.
const SHAPES: [Shape; 6] = [
    shape(1, 1, 1),
    shape(1000, 1, 1000),
    shape(4097, 5, 1000),
    shape(3000, 3000, 1),
    shape(100_000, 97, 1024),
    shape(ELEMENTS as u64, 256, 1024),
];

/// Offset of the results on their disk, behind the vectors if those are on the same one.
const RESULTS: u64 = 2 * BYTES;

const FACTOR: f32 = -1.7;

/// Initial value of a sum, and of each counter of a histogram.
const STALE: f32 = 1.0e9;
const COUNTED: u32 = 3;

const fn shape(elements: u64, grid: u32, block: u32) -> Shape {
    Shape {
        elements,
        grid,
        block,
    }
}

/// Returns the bytes of a vector of the shape, in whole pages.
fn bytes_of(shape: Shape) -> u64 {
    shape.elements.saturating_mul(4).next_multiple_of(PAGE)
}

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let guest = test.guest;
    let (gpu, from, to) = (test.gpu()?, test.disk()?, test.other_disk()?);
    let vectors = Vectors::fresh(guest.fresh_pattern(from).round);
    from.disk.check(0, 2 * BYTES)?;
    to.disk.check(RESULTS, 2 * BYTES + PAGE)?;
    disk::store(&from.disk.open_direct()?, &vectors.bytes(), 0)?;

    let opened = gpu.open()?;
    let options = FileOptions::new().write(true);
    let work = Work::new(
        &opened,
        options.open(&opened, &from.disk.node)?,
        options.open(&opened, &to.disk.node)?,
    )?;
    let plain = to.disk.open_direct()?;
    let mut watch = TrafficWatch::new(guest);
    let (mut read, mut written) = (0, 0);
    for shape in SHAPES {
        let sum = watch.watch(|| work.run(shape))?;
        vectors
            .verify(shape, &plain, sum)
            .with_context(|| shape.to_string())?;
        read += 2 * bytes_of(shape);
        written += 2 * bytes_of(shape) + PAGE;
    }
    let shares = if from.number == to.number {
        vec![from.share(read + written)]
    } else {
        vec![from.share(read), to.share(written)]
    };
    let through = Through::P2pmem(gpu.name.clone());
    judge(&through, &shares, watch.traffic()?)?;
    in_host_memory(guest, gpu, &vectors).context("operands in host memory")?;
    Ok(())
}

/// Runs the same kernel with one addend in VRAM, the other and the sum in guest RAM.
fn in_host_memory(guest: &GuestContext, gpu: &gpus::Gpu, vectors: &Vectors) -> anyhow::Result<()> {
    let shape = shape(ELEMENTS as u64, 256, 1024);
    let opened = gpu.open()?;
    let (vram, host) = (opened.allocate(BYTES)?, opened.allocate_host(2 * BYTES)?);
    vram.mapping().write(0, &bytes(&vectors.x))?;
    host.mapping().write(0, &bytes(&vectors.y))?;
    let add = Kernel::VectorAdd {
        a: vram.span(..BYTES)?,
        b: host.span(..BYTES)?,
        sum: host.span(BYTES..)?,
        elements: shape.elements,
    };
    let mut watch = TrafficWatch::new(guest);
    watch.watch(|| opened.launch(add, shape.grid, shape.block))?;
    let mut seen = vec![0; usize::try_from(BYTES)?];
    host.mapping().read(BYTES, &mut seen)?;
    let right = launch::vector_add(shape, &vectors.x, &vectors.y, vec![STALE; ELEMENTS]);
    same("the sum", &bytes(&right), &seen)?;
    judge(
        &Through::GuestRam,
        &[gpu.share(2 * BYTES)],
        watch.traffic()?,
    )
}

/// GPU memory and files.
struct Work<'a> {
    gpu: &'a Gpu,
    from: GpuFile,
    to: GpuFile,
    x: Buffer,
    y: Buffer,
    sum: Buffer,
    bins: Buffer,
}

impl<'a> Work<'a> {
    fn new(gpu: &'a Gpu, from: GpuFile, to: GpuFile) -> anyhow::Result<Self> {
        Ok(Work {
            gpu,
            from,
            to,
            x: gpu.allocate(BYTES)?,
            y: gpu.allocate(BYTES)?,
            sum: gpu.allocate(BYTES)?,
            bins: gpu.allocate(PAGE)?,
        })
    }

    /// Reads the vectors, launches every kernel, and writes the memory to the disk. Returns the
    /// result of the reduction.
    fn run(&self, shape: Shape) -> anyhow::Result<u64> {
        let bytes = bytes_of(shape);
        for (buffer, offset) in [(&self.x, 0), (&self.y, BYTES)] {
            let read = self.from.read_at(buffer, ..bytes, offset)?;
            ensure!(read == bytes, "{read} bytes were read of {bytes}");
        }
        let stale = u64::from(STALE.to_bits());
        self.gpu.fill(self.sum.span(..)?, stale << 32 | stale)?;
        let counted = u64::from(COUNTED);
        self.gpu
            .fill(self.bins.span(..)?, counted << 32 | counted)?;
        let word_sum = self.launch_all(shape)?;
        self.to.write_at(&self.sum, ..bytes, RESULTS)?;
        self.to.write_at(&self.y, ..bytes, RESULTS + BYTES)?;
        self.to.write_at(&self.bins, ..PAGE, RESULTS + 2 * BYTES)?;
        Ok(word_sum)
    }

    fn launch_all(&self, shape: Shape) -> anyhow::Result<u64> {
        let (x, y) = (self.x.span(..BYTES)?, self.y.span(..BYTES)?);
        let elements = shape.elements;
        let launch = |kernel| self.gpu.launch(kernel, shape.grid, shape.block);
        launch(Kernel::VectorAdd {
            a: x,
            b: y,
            sum: self.sum.span(..BYTES)?,
            elements,
        })?;
        launch(Kernel::Histogram {
            bytes: self.x.span(..elements)?,
            bins: self.bins.span(..4 * BINS as u64)?,
        })?;
        launch(Kernel::Saxpy {
            x,
            y,
            elements,
            factor: FACTOR,
        })?;
        Ok(launch(Kernel::Reduce { x, elements })?)
    }
}

/// The content of the first disk.
struct Vectors {
    x: Vec<f32>,
    y: Vec<f32>,
}

impl Vectors {
    /// Makes different vectors in each round.
    fn fresh(round: u64) -> Self {
        Vectors {
            x: launch::numbers(round, 0, ELEMENTS),
            y: launch::numbers(round, ELEMENTS, ELEMENTS),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        [bytes(&self.x), bytes(&self.y)].concat()
    }

    /// Compares the results on `disk` of a launch of each kernel, and the sum of the words, with
    /// the model.
    fn verify(&self, shape: Shape, disk: &File, word_sum: u64) -> anyhow::Result<()> {
        let length = usize::try_from(bytes_of(shape))?;
        let (x, y) = (&self.x, &self.y);
        let sum = launch::vector_add(shape, x, y, vec![STALE; ELEMENTS]);
        let product = launch::saxpy(shape, FACTOR, x, y.clone());
        let bins = launch::histogram(shape, &bytes(x), vec![COUNTED; BINS]);
        let bins: Vec<u8> = bins.iter().flat_map(|bin| bin.to_le_bytes()).collect();
        for (name, offset, right) in [
            ("the sum", 0, bytes(&sum)),
            ("saxpy", BYTES, bytes(&product)),
            ("the histogram", 2 * BYTES, bins),
        ] {
            let length = length.min(right.len()).next_multiple_of(512);
            let seen = disk::read(disk, RESULTS + offset, length)?;
            same(name, &right, &seen)?;
        }
        let right = launch::reduction(shape, x);
        ensure!(
            word_sum == right,
            "the GPU has summed the first vector's words to {word_sum}, the processor to {right}"
        );
        Ok(())
    }
}

/// Compares as much as both have.
fn same(name: &str, right: &[u8], seen: &[u8]) -> anyhow::Result<()> {
    let wrong = right
        .iter()
        .zip(seen)
        .position(|(right, seen)| right != seen);
    ensure!(wrong.is_none(), "byte {wrong:?} of {name} is wrong");
    Ok(())
}
