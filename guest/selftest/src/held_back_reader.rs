//! A GPU with queues of a disk that Linux' driver keeps. It reads blocks whose reads the disk holds
//! back by its rules.

use std::path::Path;
use std::time::Duration;

use peerbar_agent::checks::held_back::{LIMIT, READ_BYTES, firsts, requests};
use peerbar_gds::{
    Buffer, DiskMemory, DiskQueues, Doorbells, Gpu, GpuQueue, GpuRequest, QueuePair,
};

/// Queues, and memory for the data.
pub(crate) struct HeldBackReader {
    doorbells: Doorbells,
    pub(crate) pair: QueuePair,
    queue: GpuQueue,
    pub(crate) data: Buffer,
    requests: Vec<GpuRequest>,
    _mapped: DiskMemory,
}

impl HeldBackReader {
    /// Makes a pair of queues of the controller `disk`, with blocks of `block` bytes, for `depth`
    /// commands in progress.
    pub(crate) fn make(gpu: &Gpu, disk: &Path, (depth, block): (u16, u64)) -> anyhow::Result<Self> {
        // A queue is full when all entries except one are in use.
        let queue = GpuQueue::allocate(gpu, depth.saturating_add(1), requests(depth))?;
        let firsts = firsts(depth, block);
        let data = gpu.allocate(READ_BYTES.saturating_mul(u64::try_from(firsts.len())?))?;
        let queues = DiskQueues::open(disk)?;
        let mapped = queues.map(&data)?;
        let pair = queues.create(&queue)?;
        let blocks = u32::try_from(READ_BYTES / block)?;
        let request = |(index, first): (u64, u64)| {
            let to = mapped.address().saturating_add(index * READ_BYTES);
            GpuRequest::read(first, blocks, to)
        };
        Ok(Self {
            doorbells: pair.doorbells(gpu)?,
            pair,
            queue,
            data,
            requests: (0..).zip(firsts).map(request).collect(),
            _mapped: mapped,
        })
    }

    /// Lets the GPU begin to read.
    pub(crate) fn launch(&mut self) -> peerbar_gds::Result<()> {
        self.queue.submit(&self.doorbells, 1, &self.requests, LIMIT)
    }

    /// Returns the statuses of the reads.
    pub(crate) fn statuses(&mut self, time_out: Duration) -> peerbar_gds::Result<Vec<u16>> {
        self.queue.wait(time_out)
    }

    /// Deletes the queues of the disk. Returns the rest.
    pub(crate) fn delete(self) -> DeletedReader {
        drop((self.doorbells, self.pair));
        DeletedReader {
            queue: self.queue,
            data: self.data,
        }
    }
}

/// The rest of a reader whose queues are deleted.
pub(crate) struct DeletedReader {
    queue: GpuQueue,
    pub(crate) data: Buffer,
}

impl DeletedReader {
    /// Returns the memory of the queues.
    pub(crate) fn queue_memory(&self) -> &Buffer {
        self.queue.memory()
    }

    /// Returns the statuses of the reads.
    pub(crate) fn statuses(&mut self, time_out: Duration) -> peerbar_gds::Result<Vec<u16>> {
        self.queue.wait(time_out)
    }

    /// Frees the memory, which no disk uses.
    pub(crate) fn release(self) {
        self.queue.release();
    }
}
