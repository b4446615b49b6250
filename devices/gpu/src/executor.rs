//! The executor of commands: its buffers, the progress of an operation, and the steps in which
//! operands are processed.

use std::time::{Duration, Instant};

use peerbar_dma::Purpose;

use crate::faults::Fault;
use crate::gpu_memory::{GpuAddress, GpuMemory};
use crate::nvme_queue::QueueProgress;

/// The most bytes of each operand in a step.
pub(crate) const STEP: usize = 256 << 10;

/// The progress of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Bytes of each operand that are processed; for an atomic addition, threads.
    pub(crate) done: u64,
    /// The result so far.
    pub(crate) result: u64,
    /// Time for which the engine has worked on it or waited for it, up to the step in progress.
    pub(crate) worked: Duration,
    /// The last step found no work: another device has to act first.
    pub(crate) is_waiting: bool,
    /// The progress of a launch of `nvme io`.
    pub(crate) queue: QueueProgress,
}

/// Executes commands, with two buffers of a step each.
pub(crate) struct Executor {
    pub(crate) memory: GpuMemory,
    pub(crate) first: Vec<u8>,
    pub(crate) second: Vec<u8>,
    /// The end of the channel's slice.
    slice_end: Option<Instant>,
}

impl Executor {
    pub(crate) fn new(memory: GpuMemory) -> Self {
        Self {
            memory,
            first: vec![0; STEP],
            second: vec![0; STEP],
            slice_end: None,
        }
    }

    /// Begins a slice that ends at this time.
    pub(crate) fn begin_slice(&mut self, end: Instant) {
        self.slice_end = Some(end);
    }

    /// Returns `true` if the slice is over. A step of several requests ends then, since a peer may
    /// answer each of them late.
    pub(crate) fn slice_is_over(&self) -> bool {
        self.slice_end.is_some_and(|end| Instant::now() >= end)
    }
}

/// One step of an operation: bytes of its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Its offset in each operand.
    pub(crate) start: u64,
    /// Its length in each operand.
    pub(crate) len: usize,
    /// It is the last step.
    pub(crate) is_last: bool,
}

impl Step {
    /// Returns the next step of operands of `length` bytes, for which `GpuMemory::check` has
    /// succeeded.
    pub(crate) fn next(progress: &Progress, length: u64) -> Self {
        let left = length.saturating_sub(progress.done);
        let len = usize::try_from(left).map_or(STEP, |left| left.min(STEP));
        Self {
            start: progress.done,
            len,
            is_last: len as u64 == left,
        }
    }

    /// Returns as much of a buffer as the step needs.
    pub(crate) fn of(self, buffer: &mut [u8]) -> &mut [u8] {
        let len = self.len.min(buffer.len());
        buffer.split_at_mut(len).0
    }

    /// Records that the step is complete. Returns the operation's result if it was the last one.
    pub(crate) fn finish(self, progress: &mut Progress) -> Option<u64> {
        progress.done = self.start + self.len as u64;
        self.is_last.then_some(progress.result)
    }
}

/// Reads the step's part of an operand. An empty one makes no request.
pub(crate) fn fetch(
    memory: &GpuMemory,
    operand: GpuAddress,
    step: Step,
    data: &mut [u8],
) -> Result<(), Fault> {
    if data.is_empty() {
        return Ok(());
    }
    memory.read(Purpose::Payload, operand.after(step.start), data)
}

/// Writes the step's part of an operand. An empty one makes no request.
pub(crate) fn store(
    memory: &GpuMemory,
    operand: GpuAddress,
    step: Step,
    data: &[u8],
) -> Result<(), Fault> {
    if data.is_empty() {
        return Ok(());
    }
    memory.write(Purpose::Payload, operand.after(step.start), data)
}
