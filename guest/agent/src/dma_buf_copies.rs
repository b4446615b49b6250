//! A GPU's copy engine and memory that another exporter shares as a dma-buf.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::Context;
use peerbar_gds::Mapping;
use peerbar_gds::{Buffer, Command, Gpu, ImportedBuffer};
use peerbar_pattern::Pattern;

use crate::counters::TrafficWatch;
use crate::gpus;
use crate::guest_context::GuestContext;
use crate::mapped_buffer::MappedBuffer;

/// Bytes of each half of a dma-buf: the GPU reads the first half and writes the second.
pub const HALF: u64 = 512 << 10;

/// Number of copies that are in progress while the exporter does something else.
const COPIES: usize = 32;

/// Time limit for these copies.
pub const TIME_OUT: Duration = Duration::from_secs(30);

/// A GPU that copies memory of a dma-buf to VRAM and back.
#[derive(Debug)]
pub struct DmaBufCopies<'a> {
    guest: &'a GuestContext,
    number: u32,
    /// The GPU.
    pub gpu: Gpu,
    /// A buffer of [`HALF`] bytes in its VRAM.
    pub vram: Buffer,
    /// Counts the DMA of the copies.
    pub watch: TrafficWatch<'a>,
    /// Number of bytes that the copies have moved.
    pub bytes: u64,
}

impl<'a> DmaBufCopies<'a> {
    /// Opens `gpu` and allocates the buffer.
    pub fn new(guest: &'a GuestContext, gpu: &gpus::Gpu) -> anyhow::Result<Self> {
        let opened = gpu.open()?;
        Ok(DmaBufCopies {
            guest,
            number: gpu.number,
            vram: opened.allocate(HALF)?,
            gpu: opened,
            watch: TrafficWatch::new(guest),
            bytes: 0,
        })
    }

    /// Copies from the first half to VRAM, and from there to the second, and compares as the
    /// exporter sees it.
    pub fn there_and_back(
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

    /// Runs `work` of the exporter while copies are in progress. They must succeed all the same.
    pub fn amid_copies(
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
}

fn verify(pattern: Pattern, seen: &[u8]) -> anyhow::Result<()> {
    pattern
        .verify(0, seen)
        .context("after a copy to VRAM and back")
}

/// The exporter's own view of its memory.
pub trait Exported {
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
