//! The kernel `nvme io`: the GPU itself is the driver of a pair of NVMe I/O queues. It writes
//! submission entries and doorbells, and polls the completion queue; no other driver touches the
//! queues.
//!
//! The order is that of NVMe's drivers: an entry is visible before the doorbell that announces it,
//! the phase tag of a completion is read before the rest of it, and an entry of the completion
//! queue is read before the doorbell that releases it (NVMe Base 2.0, 3.3.1 and 3.3.3.2).

use std::sync::atomic::{Ordering, fence};

use peerbar_dma::Purpose;
use peerbar_fault::{Action, Kind};
use peerbar_nvme_spec::command::SubmissionEntry;
use zerocopy::{FromZeros, IntoBytes};

use crate::executor::{Executor, Progress};
use crate::faults::{Fault, FaultCode};
use crate::gpu_memory::GpuAddress;
use crate::nvme_queue::{
    BATCH, COMPLETION_BYTES, NvmeIo, NvmeIoRequest, NvmeIoState, QueueProgress, REQUEST_BYTES,
    STATE_BYTES, SUBMISSION_BYTES,
};
use crate::word::{Word, check_time};

/// Offset in a completion of SQHD, SQID, CID and status.
const COMPLETION_TAIL: u64 = 8;
/// An outcome: the request is submitted, or complete, with the status in the low half.
const SUBMITTED: u32 = 1 << 16;
const COMPLETE: u32 = 1 << 17;
/// A flag of the queue's state: a launch uses the queue, or a launch that failed has used it.
const IN_USE: u32 = 1;

/// A completion: its command, and its status.
struct Completion {
    cid: u16,
    status: u16,
}

impl Executor {
    /// Executes the next step: submits some commands, and takes the available completions.
    pub(crate) fn nvme_io(
        &self,
        io: &NvmeIo,
        progress: &mut Progress,
    ) -> Result<Option<u64>, Fault> {
        if io.count == 0 {
            return Ok(Some(0));
        }
        let queue = &mut progress.queue;
        if !queue.is_begun {
            self.begin(io, queue)?;
        }
        // A step whose slice is over has either submitted a command or looked for a completion, and the next one does the other.
        let only_looks = std::mem::take(&mut queue.only_submitted);
        let submitted = !only_looks && self.submit(io, queue)?;
        queue.only_submitted = submitted && self.slice_is_over();
        if queue.only_submitted {
            return Ok(None);
        }
        let completed = self.take_completions(io, queue)?;
        if completed {
            queue.last_completion = progress.worked;
        }
        if queue.done == io.count {
            self.keep(io, &queue.state(0, 0))?;
            return Ok(Some(queue.result(io.count)));
        }
        progress.is_waiting = !submitted && !completed && !only_looks;
        let since_last = progress.worked.saturating_sub(queue.last_completion);
        check_time(io.limit, since_last)?;
        Ok(None)
    }

    /// Records the progress of a launch that has failed. Its queues have to be made again, since
    /// commands may be in progress.
    pub(crate) fn fail_nvme_io(&self, io: &NvmeIo, progress: &Progress) {
        let queue = &progress.queue;
        if !queue.is_begun {
            return;
        }
        let is_complete = |index: &u16| {
            let outcome = self.outcome(io, *index);
            outcome.is_ok_and(|outcome| outcome & COMPLETE != 0)
        };
        // After the submitted ones, the outcomes are those of an earlier launch.
        let index = (0..queue.sent).find(|index| !is_complete(index));
        let state = queue.state(IN_USE, index.unwrap_or(queue.sent));
        if let Err(fault) = self.keep(io, &state) {
            log::debug!("the state of the queues: {fault:x?}");
        }
    }

    /// Takes over the state of the queues, which no other launch may use.
    fn begin(&self, io: &NvmeIo, queue: &mut QueueProgress) -> Result<(), Fault> {
        let requests = u64::from(io.count) * REQUEST_BYTES;
        let submissions = u64::from(io.submission_entries) * SUBMISSION_BYTES;
        let completions = u64::from(io.completion_entries) * COMPLETION_BYTES;
        self.memory.check(io.requests, requests, true)?;
        self.memory.check(io.submission, submissions, true)?;
        self.memory.check(io.completion, completions, false)?;
        self.memory.check(io.state, STATE_BYTES, true)?;
        let mut state = NvmeIoState::new_zeroed();
        let read = state.as_mut_bytes();
        self.memory.read(Purpose::Payload, io.state, read)?;
        if state.flags.get() & IN_USE != 0 {
            return Err(Fault {
                code: FaultCode::BadCommand,
                write: false,
                address: 0,
            });
        }
        queue.submitted = state.submitted.get();
        queue.completed = state.completed.get();
        queue.doorbells = state.doorbells.get();
        self.keep(io, &queue.state(IN_USE, 0))?;
        queue.is_begun = true;
        Ok(())
    }

    fn keep(&self, io: &NvmeIo, state: &NvmeIoState) -> Result<(), Fault> {
        self.memory
            .write(Purpose::Payload, io.state, state.as_bytes())
    }

    /// Submits commands, as many as queues and batch can take, with one doorbell. Returns `true` if
    /// there were any.
    fn submit(&self, io: &NvmeIo, queue: &mut QueueProgress) -> Result<bool, Fault> {
        let left = u64::from(io.count - queue.sent);
        let free = io.free_entries(queue);
        if left == 0 || free < io.least_together().min(left) {
            return Ok(false);
        }
        let count = free.min(BATCH.into()).min(left);
        let mut late = Vec::new();
        for _ in 0..count {
            let index = queue.sent;
            let mut request = NvmeIoRequest::new_zeroed();
            let read = request.as_mut_bytes();
            self.memory
                .read(Purpose::Payload, io.request(index), read)?;
            self.set_outcome(io, index, SUBMITTED)?;
            let address = io.submission_entry(queue.submitted);
            let entry = request.command(index, io.nsid);
            match self.fault_of_entry() {
                Some(Action::Delay(by)) => late.push((address, entry, by)),
                Some(Action::Drop) => {}
                _ => self.write_entry(address, &entry)?,
            }
            queue.submitted = queue.submitted.wrapping_add(1);
            queue.sent = index.saturating_add(1);
            if self.slice_is_over() {
                break;
            }
        }
        let [tail, _] = io.doorbells;
        self.ring(tail, queue.submitted, io.submission_entries, queue)?;
        if let Some(by) = late.iter().map(|(.., by)| *by).max() {
            self.memory.requester().hold_back(by);
        }
        for (address, entry, _) in late {
            self.write_entry(address, &entry)?;
        }
        Ok(true)
    }

    fn write_entry(&self, address: GpuAddress, entry: &SubmissionEntry) -> Result<(), Fault> {
        self.memory
            .write(Purpose::Command, address, entry.as_bytes())
    }

    /// Returns the action of a rule on an entry: the entry is late, so that its doorbell comes
    /// first, or it is never written.
    fn fault_of_entry(&self) -> Option<Action> {
        let requester = self.memory.requester();
        if !requester.faults().is_armed(Kind::SubmissionEntry) {
            return None;
        }
        let fired = requester.faults().submission_entry()?;
        requester.note_injected(self.memory.origin(), &fired);
        Some(fired.action)
    }

    /// Takes the available completions. Returns `true` if there were any. The controller gets half
    /// of the queue's entries back with one doorbell, and the last ones at the end of the launch.
    fn take_completions(&self, io: &NvmeIo, queue: &mut QueueProgress) -> Result<bool, Fault> {
        let mut taken = false;
        for _ in 0..BATCH {
            let Some(completion) = self.completion(io, queue.completed)? else {
                break;
            };
            queue.completed = queue.completed.wrapping_add(1);
            queue.kept = queue.kept.saturating_add(1);
            self.take(io, queue, &completion)?;
            taken = true;
            if self.slice_is_over() {
                break;
            }
        }
        let is_half = queue.kept >= u64::from(io.completion_entries / 2);
        if is_half || taken && queue.done == io.count {
            let [_, head] = io.doorbells;
            self.ring(head, queue.completed, io.completion_entries, queue)?;
            queue.kept = 0;
        }
        Ok(taken)
    }

    /// Returns the completion with this number, if it has arrived.
    fn completion(&self, io: &NvmeIo, number: u64) -> Result<Option<Completion>, Fault> {
        let (address, phase) = io.completion_entry(number);
        let mut tail = [0; 8];
        let address = address.after(COMPLETION_TAIL);
        self.memory.read(Purpose::Completion, address, &mut tail)?;
        // The data of the command came before its phase tag, and is not read before it.
        fence(Ordering::SeqCst);
        let [.., c0, c1, s0, s1] = tail;
        let status = u16::from_le_bytes([s0, s1]);
        let completion = Completion {
            cid: u16::from_le_bytes([c0, c1]),
            status: status >> 1,
        };
        Ok((status & 1 == u16::from(phase)).then_some(completion))
    }

    /// Records the end of a request.
    fn take(
        &self,
        io: &NvmeIo,
        queue: &mut QueueProgress,
        completion: &Completion,
    ) -> Result<(), Fault> {
        let Completion { cid, status } = *completion;
        if cid >= queue.sent || self.outcome(io, cid)? & SUBMITTED == 0 {
            return Err(Fault {
                code: FaultCode::BadCompletion,
                write: false,
                address: cid.into(),
            });
        }
        self.set_outcome(io, cid, COMPLETE | u32::from(status))?;
        queue.complete(cid, status);
        Ok(())
    }

    fn outcome(&self, io: &NvmeIo, index: u16) -> Result<u32, Fault> {
        let mut outcome = [0; 4];
        let address = io.outcome(index);
        self.memory.read(Purpose::Payload, address, &mut outcome)?;
        Ok(u32::from_le_bytes(outcome))
    }

    fn set_outcome(&self, io: &NvmeIo, index: u16, outcome: u32) -> Result<(), Fault> {
        let address = io.outcome(index);
        self.memory
            .write(Purpose::Payload, address, &outcome.to_le_bytes())
    }

    /// Writes a doorbell: the index after `number` entries.
    fn ring(
        &self,
        doorbell: Word,
        number: u64,
        entries: u32,
        queue: &mut QueueProgress,
    ) -> Result<(), Fault> {
        doorbell.write(&self.memory, number % u64::from(entries))?;
        queue.doorbells = queue.doorbells.wrapping_add(1);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
