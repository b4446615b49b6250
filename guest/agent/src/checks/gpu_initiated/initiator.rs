//! A GPU's channel that drives queues of a disk, and the reads that it makes.

use std::time::Duration;

use peerbar_nvme_driver::QueueMemory;
use peerbar_pattern::Pattern;
use peerbar_vfio_nvme::{Disk, QueueDoorbells};

/// Number of reads of a launch, and bytes of each.
pub(super) const READS: u16 = 1000;
pub(super) const READ_BYTES: u64 = 4096;
pub(super) const BYTES: u64 = READS as u64 * READ_BYTES;
/// The first queue pair of the GPU. The queue pair before it belongs to the program.
pub(super) const QUEUE: u16 = 2;
/// Time limit from one completion to the next.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// A channel of a GPU that drives a pair of queues of a disk, regardless of the GPU's driver.
pub(super) trait Initiator {
    /// Limit of the launches that are waited for together.
    const LAUNCHES: u16;

    /// Returns the queues, by addresses that the disk uses.
    fn queues(&self) -> anyhow::Result<QueueMemory>;

    /// Sets the doorbells' locations. Must precede the first launch.
    fn use_doorbells(&mut self, disk: &Disk, doorbells: QueueDoorbells) -> anyhow::Result<()>;

    /// Returns the destination of each read, by addresses that the disk uses.
    fn destinations(&self) -> &[u64];

    /// Lets the GPU read `blocks` logical blocks to each destination, after the earlier launches.
    fn launch(&mut self, blocks: u16) -> anyhow::Result<()>;

    /// Waits for all launches.
    fn wait(&mut self) -> anyhow::Result<()>;

    /// Returns the number of doorbells that the GPU says it has written.
    fn doorbells(&self) -> anyhow::Result<u64>;

    /// Zeroes all data.
    fn clear(&self) -> anyhow::Result<()>;

    /// Returns the data.
    fn data(&self) -> anyhow::Result<Vec<u8>>;
}

/// Makes a pair of queues of the disk for each channel.
pub(super) fn give_queues(gpus: &mut [impl Initiator], disk: &mut Disk) -> anyhow::Result<()> {
    for (queue, gpu) in (QUEUE..).zip(gpus) {
        let doorbells = disk.create_queue(queue, gpu.queues()?)?;
        gpu.use_doorbells(disk, doorbells)?;
        gpu.clear()?;
    }
    Ok(())
}

pub(super) fn blocks_of_a_read(disk: &Disk) -> anyhow::Result<u16> {
    Ok(u16::try_from(READ_BYTES / disk.identity().block_bytes)?)
}

/// Launches equally often on each channel, and waits for all. Returns the total number of launches.
pub(super) fn launch(gpus: &mut [impl Initiator], blocks: u16, each: u16) -> anyhow::Result<u64> {
    for gpu in &mut *gpus {
        for _ in 0..each {
            gpu.launch(blocks)?;
        }
    }
    for gpu in &mut *gpus {
        gpu.wait()?;
    }
    Ok(u64::from(each).saturating_mul(gpus.len() as u64))
}

pub(super) fn verify(gpu: &impl Initiator, pattern: Pattern) -> anyhow::Result<()> {
    Ok(pattern.verify(0, &gpu.data()?)?)
}
