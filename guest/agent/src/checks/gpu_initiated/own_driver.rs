//! A GPU with its own driver, which imports the doorbells of the disk.

use std::time::Duration;

use anyhow::{Context, ensure};
use peerbar_gds::{Buffer, Doorbells, GpuQueue, GpuRequest};
use peerbar_nvme_driver::QueueMemory;
use peerbar_vfio_nvme::{Disk, QueueDoorbells};

use super::initiator::{
    BYTES, Initiator, LIMIT, READ_BYTES, READS, blocks_of_a_read, give_queues, launch, verify,
};
use crate::gpus::Gpu;
use crate::user_gpu::TIME_OUT;
use peerbar_pattern::Pattern;

/// A channel of the GPU, opened for this, with queues and data that the disk addresses by bus
/// addresses.
pub(super) struct OwnDriverGpu {
    gpu: peerbar_gds::Gpu,
    queue: GpuQueue,
    entries: u16,
    buffer: Buffer,
    destinations: Vec<u64>,
    doorbells: Option<Doorbells>,
}

impl OwnDriverGpu {
    pub(super) fn open(gpu: &Gpu, depth: u16) -> anyhow::Result<Self> {
        Self::open_for(gpu, depth, READS)
    }

    /// Like [`OwnDriverGpu::open`], for launches of up to `most` reads.
    pub(super) fn open_for(gpu: &Gpu, depth: u16, most: u16) -> anyhow::Result<Self> {
        let gpu = gpu.open()?;
        // A queue is full when all entries except one are in use.
        let entries = depth.saturating_add(1);
        let queue = GpuQueue::allocate(&gpu, entries, most)?;
        let buffer = gpu.allocate(BYTES)?;
        let placements = (0..u64::from(READS)).map(|index| buffer.placement(index * READ_BYTES));
        let addresses =
            placements.map(|placement| placement.map(|placement| placement.bus_address));
        let destinations = addresses.collect::<peerbar_gds::Result<_>>()?;
        Ok(Self {
            gpu,
            queue,
            entries,
            buffer,
            destinations,
            doorbells: None,
        })
    }

    /// Frees the memory, once no disk uses the queues.
    pub(super) fn release(self) {
        self.queue.release();
    }

    /// Lets the GPU read all blocks, with this time limit for the next completion.
    pub(super) fn launch_with(&mut self, blocks: u16, limit: Duration) -> anyhow::Result<()> {
        let firsts: Vec<u64> = (0..READS.into())
            .map(|n: u64| n * u64::from(blocks))
            .collect();
        self.launch_from(&firsts, blocks, limit)
    }

    /// Lets the GPU read `blocks` logical blocks from each of `firsts` on, to the destinations in
    /// turn.
    pub(super) fn launch_from(
        &mut self,
        firsts: &[u64],
        blocks: u16,
        limit: Duration,
    ) -> anyhow::Result<()> {
        let doorbells = self
            .doorbells
            .as_ref()
            .context("queues without doorbells")?;
        let read = |(first, to): (&u64, &u64)| GpuRequest::read(*first, blocks.into(), *to);
        let destinations = self.destinations.iter().cycle();
        let requests: Vec<_> = firsts.iter().zip(destinations).map(read).collect();
        Ok(self.queue.submit(doorbells, 1, &requests, limit)?)
    }

    /// Fills all data with this byte.
    pub(super) fn fill(&self, byte: u8) -> anyhow::Result<()> {
        let bytes = vec![byte; usize::try_from(BYTES)?];
        Ok(self.buffer.mapping().write(0, &bytes)?)
    }

    /// Fills the memory of the queues, which neither disk nor GPU uses any more, with this byte.
    pub(super) fn fill_queues(&self, byte: u8) -> anyhow::Result<()> {
        let memory = self.queue.memory();
        let bytes = vec![byte; usize::try_from(memory.size())?];
        Ok(memory.mapping().write(0, &bytes)?)
    }

    /// Returns the content of the queues' memory.
    pub(super) fn contents_of_queues(&self) -> anyhow::Result<Vec<u8>> {
        let memory = self.queue.memory();
        let mut seen = vec![0; usize::try_from(memory.size())?];
        memory.mapping().read(0, &mut seen)?;
        Ok(seen)
    }

    /// Returns the statuses of the reads of the last launch.
    pub(super) fn statuses(&mut self, time_out: Duration) -> peerbar_gds::Result<Vec<u16>> {
        self.queue.wait(time_out)
    }
}

impl Initiator for OwnDriverGpu {
    /// A queue takes the next launch once the previous one has ended.
    const LAUNCHES: u16 = 1;

    fn queues(&self) -> anyhow::Result<QueueMemory> {
        Ok(QueueMemory {
            submission: self.queue.submission_address()?,
            completion: self.queue.completion_address()?,
            submission_entries: self.entries,
            completion_entries: self.entries,
        })
    }

    fn use_doorbells(&mut self, disk: &Disk, doorbells: QueueDoorbells) -> anyhow::Result<()> {
        let registers = self.gpu.import(disk.export_registers()?);
        self.doorbells = Some(Doorbells {
            registers: registers.context("the disk's registers")?,
            tail: doorbells.tail,
            head: doorbells.head,
        });
        Ok(())
    }

    fn destinations(&self) -> &[u64] {
        &self.destinations
    }

    fn launch(&mut self, blocks: u16) -> anyhow::Result<()> {
        self.launch_with(blocks, LIMIT)
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let statuses = self.statuses(TIME_OUT)?;
        let failed = (0..).zip(&statuses).find(|(_, status)| **status != 0);
        ensure!(
            failed.is_none() && statuses.len() == usize::from(READS),
            "of {READS} requests {} have ended; the first that has failed, and its status: {failed:x?}",
            statuses.len()
        );
        Ok(())
    }

    fn doorbells(&self) -> anyhow::Result<u64> {
        Ok(self.queue.statistics()?.doorbells)
    }

    fn clear(&self) -> anyhow::Result<()> {
        self.fill(0)
    }

    fn data(&self) -> anyhow::Result<Vec<u8>> {
        let mut seen = vec![0; usize::try_from(BYTES)?];
        self.buffer.mapping().read(0, &mut seen)?;
        Ok(seen)
    }
}

/// Reads by queues of the disk that did not exist before.
pub(super) fn read_by_new_queues(
    mut disk: Disk,
    (gpu, depth): (&Gpu, u16),
    pattern: Pattern,
) -> anyhow::Result<()> {
    let mut next = [OwnDriverGpu::open(gpu, depth)?];
    let outcome = read(&mut next, &mut disk, pattern).context("by new queues");
    drop(disk);
    next.into_iter().for_each(OwnDriverGpu::release);
    outcome
}

fn read(gpu: &mut [OwnDriverGpu; 1], disk: &mut Disk, pattern: Pattern) -> anyhow::Result<()> {
    give_queues(gpu, disk)?;
    let launches = launch(gpu, blocks_of_a_read(disk)?, 1)?;
    ensure!(launches == 1, "{launches} launches of one channel");
    let [gpu] = gpu;
    ensure!(gpu.doorbells()? > 0, "the GPU has written no doorbell");
    verify(gpu, pattern)
}
