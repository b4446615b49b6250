//! What carries out commands: its buffers, how far an operation is, and the steps that operands are worked on in.

use std::time::{Duration, Instant};

use peerbar_dma::Purpose;

use crate::faults::Fault;
use crate::gpu_memory::{GpuAddress, GpuMemory};
use crate::nvme_queue::QueueProgress;

/// The most bytes of each operand in a step.
pub(crate) const STEP: usize = 256 << 10;

/// How far an operation is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Bytes of each operand that are done; of an atomic addition, threads.
    pub(crate) done: u64,
    /// The result of these.
    pub(crate) result: u64,
    /// How long the engine has worked on it or waited for it, up to the step in progress.
    pub(crate) worked: Duration,
    /// Whether the last step found nothing to do: another device has to act first.
    pub(crate) is_waiting: bool,
    /// Of a launch of `nvme io`.
    pub(crate) queue: QueueProgress,
}

/// Carries out commands, with two buffers of a step each.
pub(crate) struct Executor {
    pub(crate) memory: GpuMemory,
    pub(crate) first: Vec<u8>,
    pub(crate) second: Vec<u8>,
    /// When the channel's slice ends.
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

    /// A slice begins, which ends then.
    pub(crate) fn begin_slice(&mut self, end: Instant) {
        self.slice_end = Some(end);
    }

    /// Whether the slice is over. A step of several requests ends then, since a peer may be late to answer each of them.
    pub(crate) fn slice_is_over(&self) -> bool {
        self.slice_end.is_some_and(|end| Instant::now() >= end)
    }
}

/// One step of an operation: bytes of its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// How far into each operand it starts.
    pub(crate) start: u64,
    /// How many bytes of each.
    pub(crate) len: usize,
    /// Whether nothing is left after it.
    pub(crate) is_last: bool,
}

impl Step {
    /// The step after what is done of operands of `length` bytes, for which `GpuMemory::check` has succeeded.
    pub(crate) fn next(progress: &Progress, length: u64) -> Self {
        let left = length.saturating_sub(progress.done);
        let len = usize::try_from(left).map_or(STEP, |left| left.min(STEP));
        Self {
            start: progress.done,
            len,
            is_last: len as u64 == left,
        }
    }

    /// As much of a buffer as the step needs.
    pub(crate) fn of(self, buffer: &mut [u8]) -> &mut [u8] {
        let len = self.len.min(buffer.len());
        buffer.split_at_mut(len).0
    }

    /// The step is done; the result of the operation if it was the last one.
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
