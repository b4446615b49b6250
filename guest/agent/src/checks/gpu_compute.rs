//! A disk's data becomes another disk's, and on the way only the GPU has had it in its hands.

use anyhow::{Context, ensure};
use peerbar_gds::{Buffer, FileOptions, Gpu, GpuFile, Kernel};
use peerbar_report::{Buffer as Through, Measure};

use super::gpu_unaddressed;
use super::way::judge;
use crate::counters::Witness;
use crate::disk;
use crate::lab::Lab;
use crate::memory::Memory;

/// Elements of each vector.
const ELEMENTS: usize = 1 << 18;

/// Size of a vector of f32 in bytes.
const BYTES: u64 = 4 * ELEMENTS as u64;

/// Counters of a histogram, and their size in bytes.
const BINS: usize = 256;

/// Threads of a block.
const BLOCK: u32 = 1024;

pub(super) fn run(
    lab: &Lab,
    gpu: &str,
    from: &str,
    to: &str,
    measure: &mut Measure,
) -> anyhow::Result<()> {
    let (from, to) = (lab.controller(from)?, lab.controller(to)?);
    let vectors = Vectors::fresh(lab.fresh_pattern(from).round);
    from.disk.check(0, BYTES * 2)?;
    to.disk.check(0, BYTES)?;
    vectors.store(&from.disk.open_direct()?)?;

    gpu_unaddressed::refused(lab.gpu(gpu)?)?;
    let opened = lab.gpu(gpu)?.open()?;
    let options = FileOptions::new().write(true);
    let work = Work::new(
        &opened,
        options.open(&opened, &from.disk.node)?,
        options.open(&opened, &to.disk.node)?,
    )?;
    let mut witness = Witness::new(lab);
    let told = witness.watch(|| work.run())?;
    measure.sizes = "1M".to_owned();
    measure.bytes = BYTES * 3;
    witness.tell(measure);

    let length = usize::try_from(BYTES)?;
    let seen = disk::read(&to.disk.open_direct()?, 0, length)?;
    vectors.verify(&seen, &told)?;
    let shares = if from.number == to.number {
        vec![from.share(BYTES * 3)]
    } else {
        vec![from.share(BYTES * 2), to.share(BYTES)]
    };
    judge(
        &Through::P2pmem(gpu.to_owned()),
        &shares,
        witness.traffic()?,
    )
}

/// What the GPU has found out besides the sum.
#[derive(Debug)]
struct Told {
    /// Of all words of the first vector.
    word_sum: u64,
    /// How often each byte is in it.
    histogram: Vec<u8>,
}

/// GPU memory and files.
struct Work<'a> {
    gpu: &'a Gpu,
    from: GpuFile,
    to: GpuFile,
    a: Buffer,
    b: Buffer,
    sum: Buffer,
    bins: Buffer,
}

impl<'a> Work<'a> {
    fn new(gpu: &'a Gpu, from: GpuFile, to: GpuFile) -> anyhow::Result<Self> {
        Ok(Work {
            gpu,
            from,
            to,
            a: gpu.allocate(BYTES)?,
            b: gpu.allocate(BYTES)?,
            sum: gpu.allocate(BYTES)?,
            bins: gpu.allocate(4 * BINS as u64)?,
        })
    }

    fn run(&self) -> anyhow::Result<Told> {
        let elements = ELEMENTS as u64;
        let grid = u32::try_from(ELEMENTS)?.div_ceil(BLOCK);
        let (a, b, sum) = (
            self.a.span(..BYTES)?,
            self.b.span(..BYTES)?,
            self.sum.span(..BYTES)?,
        );
        self.gpu.fill(self.bins.span(..)?, 0)?;
        for (buffer, offset) in [(&self.a, 0), (&self.b, BYTES)] {
            let read = self.from.read_at(buffer, ..BYTES, offset)?;
            ensure!(read == BYTES, "{read} bytes were read of {BYTES}");
        }
        let add = Kernel::VectorAdd {
            a,
            b,
            sum,
            elements,
        };
        self.gpu.launch(add, grid, BLOCK)?;
        self.to.write_at(&self.sum, ..BYTES, 0)?;
        let word_sum = self
            .gpu
            .launch(Kernel::Reduce { x: a, elements }, grid, BLOCK)?;
        let bins = self.bins.span(..4 * BINS as u64)?;
        let count = Kernel::Histogram { bytes: a, bins };
        self.gpu.launch(count, grid.saturating_mul(4), BLOCK)?;
        let mut histogram = vec![0; 4 * BINS];
        self.bins.mapping().read(0, &mut histogram)?;
        Ok(Told {
            word_sum,
            histogram,
        })
    }
}

/// What the disk holds.
struct Vectors {
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Vectors {
    /// Numbers of which no two sums are the same, other ones in each round.
    fn fresh(round: u64) -> Self {
        let seed = u16::try_from(round % 1000).unwrap_or(0);
        let number = |index: usize| u16::try_from(index % 60_000).unwrap_or(0);
        let a = (0..ELEMENTS).map(|index| f32::from(number(index)) + f32::from(seed) / 8.0);
        let b = (0..ELEMENTS).map(|index| f32::from(number(index / 7)) * -0.25);
        Vectors {
            a: a.collect(),
            b: b.collect(),
        }
    }

    fn store(&self, disk: &std::fs::File) -> anyhow::Result<()> {
        let bytes = [bytes(&self.a), bytes(&self.b)].concat();
        let mut memory = Memory::guest_ram(bytes.len())?;
        memory.copy_in(&bytes)?;
        memory.write_to(disk, 0, bytes.len())?;
        disk.sync_data().context("cannot flush the disk")
    }

    fn verify(&self, sum: &[u8], told: &Told) -> anyhow::Result<()> {
        let right: Vec<f32> = self.a.iter().zip(&self.b).map(|(a, b)| a + b).collect();
        let wrong = bytes(&right).iter().zip(sum).position(|(a, b)| a != b);
        ensure!(
            wrong.is_none(),
            "the sum of the two vectors is wrong on the disk from byte {wrong:?} on"
        );
        let word_sum: u64 = self.a.iter().map(|a| u64::from(a.to_bits())).sum();
        let mut bins = [0_u32; BINS];
        for byte in bytes(&self.a) {
            if let Some(bin) = bins.get_mut(usize::from(byte)) {
                *bin = bin.saturating_add(1);
            }
        }
        let histogram: Vec<u8> = bins.iter().flat_map(|bin| bin.to_le_bytes()).collect();
        ensure!(
            told.word_sum == word_sum && told.histogram == histogram,
            "the GPU has summed the first vector's words to {}, the processor to {word_sum}; their histograms agree: {}",
            told.word_sum,
            told.histogram == histogram
        );
        Ok(())
    }
}

fn bytes(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|x| x.to_le_bytes()).collect()
}
