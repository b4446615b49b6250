//! The kernel `nvme io`: the GPU itself is the driver of a pair of NVMe I/O queues. It writes submission entries and doorbells,
//! and polls the completion queue; nobody else touches the queues.
//!
//! The order is that of NVMe's drivers: an entry is visible before the doorbell that announces it, the phase tag of a
//! completion is read before the rest of it, and an entry of the completion queue is read before the doorbell that gives it back
//! (NVMe Base 2.0, 3.3.1 and 3.3.3.2).

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use peerbar_dma::Purpose;
use peerbar_fault::{Action, Kind};
use peerbar_nvme_spec::command::SubmissionEntry;
use peerbar_nvme_spec::command::nvm::BlockRange;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::executor::{Executor, Progress};
use crate::faults::{Fault, FaultCode};
use crate::gpu_memory::GpuAddress;
use crate::synchronization::{Word, check_time};

/// Bytes of a submission queue entry, of a completion queue entry, of a request and of the queue's state.
const SUBMISSION_BYTES: u64 = 64;
const COMPLETION_BYTES: u64 = 16;
const REQUEST_BYTES: u64 = 32;
const STATE_BYTES: u64 = 32;
/// How many entries a queue may have (NVMe Base 2.0, 3.3.3.1).
const ENTRIES: std::ops::RangeInclusive<u32> = 2..=1 << 16;
/// The most commands that are submitted, and completions that are taken, in a step.
const BATCH: u32 = 32;
/// Where in a completion SQHD, SQID, CID and status are.
const COMPLETION_TAIL: u64 = 8;
/// Where in a request its outcome is.
const OUTCOME: u64 = 28;
/// An outcome: the request is submitted, or complete; in the low half the status.
const SUBMITTED: u32 = 1 << 16;
const COMPLETE: u32 = 1 << 17;
/// Of the queue's state: a launch uses it, or one that did not end well has used it.
const IN_USE: u32 = 1;

/// A launch of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NvmeIo {
    /// Where the queues start.
    pub(crate) submission: GpuAddress,
    pub(crate) completion: GpuAddress,
    /// The registers of tail and head.
    pub(crate) doorbells: [Word; 2],
    /// Where the state of the queues is kept between launches.
    pub(crate) state: GpuAddress,
    /// Where the requests start, and how many there are.
    pub(crate) requests: GpuAddress,
    pub(crate) count: u16,
    pub(crate) submission_entries: u32,
    pub(crate) completion_entries: u32,
    /// The most commands in progress, 0 for as many as the queues take.
    pub(crate) depth: u64,
    pub(crate) nsid: u32,
    /// How long it may take until the next completion, if that is less than a command may take.
    pub(crate) limit: Option<Duration>,
}

/// How far a launch is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueProgress {
    is_begun: bool,
    /// Commands submitted, completions taken and doorbells written since the queues were made.
    submitted: u64,
    completed: u64,
    doorbells: u64,
    /// Completions of this launch whose entries the controller has not got back.
    kept: u64,
    /// Requests of this launch that are submitted, and that are complete.
    sent: u16,
    done: u16,
    /// The first request that has failed, and its status.
    failed: Option<(u16, u16)>,
    /// When the last completion was taken, in the time of the launch.
    last_completion: Duration,
}

/// What is kept of the queues between launches. All zeros is a pair that was just made.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct State {
    submitted: U64,
    completed: U64,
    doorbells: U64,
    flags: U32,
    /// The first request that is not complete, if the launch has failed.
    index: U32,
}

/// What a program asks for.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Request {
    slba: U64,
    prp1: U64,
    prp2: U64,
    /// Logical blocks, 0's based.
    blocks: U16,
    opcode: u8,
    reserved: u8,
    outcome: U32,
}

const _: () = assert!(size_of::<State>() as u64 == STATE_BYTES);
const _: () = assert!(size_of::<Request>() as u64 == REQUEST_BYTES);

/// A completion: which command, and how it ended.
struct Completion {
    cid: u16,
    status: u16,
}

impl NvmeIo {
    /// Whether such queues can be, apart from what memory there is.
    pub(crate) fn is_possible(&self) -> bool {
        let is_aligned = |place: GpuAddress, to| place.address().is_multiple_of(to);
        let in_vram = |place| matches!(place, GpuAddress::Vram(_));
        let is_register = |word: &Word| !in_vram(word.place());
        is_aligned(self.submission, SUBMISSION_BYTES)
            && is_aligned(self.completion, COMPLETION_BYTES)
            && self.doorbells.iter().all(is_register)
            && in_vram(self.state)
            && is_aligned(self.state, 8)
            && in_vram(self.requests)
            && is_aligned(self.requests, 8)
            && ENTRIES.contains(&self.submission_entries)
            && ENTRIES.contains(&self.completion_entries)
    }

    /// How many commands are submitted together at least, unless fewer are left: half of those that may be in progress, since a
    /// doorbell may cost a message.
    fn least_together(&self) -> u64 {
        (self.most_in_progress() / 2).clamp(1, BATCH.into())
    }

    /// How many commands may be submitted, so that each finds an entry of both queues.
    fn free_entries(&self, queue: &QueueProgress) -> u64 {
        let in_progress = queue.in_progress();
        let completions = u64::from(self.completion_entries) - 1;
        let most = self.most_in_progress();
        most.min(completions.saturating_sub(queue.kept))
            .saturating_sub(in_progress)
    }

    /// How many commands may be in progress. A queue with all but one of its entries in use is full (NVMe Base 2.0, 3.3.1.2).
    fn most_in_progress(&self) -> u64 {
        let fitting = self.submission_entries.min(self.completion_entries) - 1;
        let wanted = Some(self.depth).filter(|depth| *depth != 0);
        wanted.map_or(fitting.into(), |depth| depth.min(fitting.into()))
    }

    /// Where request `index` is.
    fn request(&self, index: u16) -> GpuAddress {
        self.requests.after(u64::from(index) * REQUEST_BYTES)
    }

    /// Where the outcome of request `index` is.
    fn outcome(&self, index: u16) -> GpuAddress {
        self.request(index).after(OUTCOME)
    }

    /// Where the entry of the submission with this number is.
    fn submission_entry(&self, number: u64) -> GpuAddress {
        let index = number % u64::from(self.submission_entries);
        self.submission.after(index * SUBMISSION_BYTES)
    }

    /// Where the entry of the completion with this number is, and the phase tag that it will have.
    fn completion_entry(&self, number: u64) -> (GpuAddress, bool) {
        let entries = u64::from(self.completion_entries);
        let place = self.completion.after(number % entries * COMPLETION_BYTES);
        (place, (number / entries).is_multiple_of(2))
    }
}

impl QueueProgress {
    fn in_progress(&self) -> u64 {
        u64::from(self.sent).saturating_sub(self.done.into())
    }

    /// Takes the outcome of a request over.
    fn complete(&mut self, index: u16, status: u16) {
        self.done = self.done.saturating_add(1);
        let is_first = self.failed.is_none_or(|(first, _)| index < first);
        if status != 0 && is_first {
            self.failed = Some((index, status));
        }
    }

    /// The result of a launch that is over: the index of the first request that has failed, in bits 47 to 32 its status; or
    /// how many there were.
    fn result(&self, count: u16) -> u64 {
        self.failed.map_or(count.into(), |(index, status)| {
            u64::from(status) << 32 | u64::from(index)
        })
    }

    fn state(&self, flags: u32, index: u16) -> State {
        State {
            submitted: self.submitted.into(),
            completed: self.completed.into(),
            doorbells: self.doorbells.into(),
            flags: flags.into(),
            index: u32::from(index).into(),
        }
    }
}

impl Request {
    /// The command that asks the controller for it.
    fn command(&self, cid: u16, nsid: u32) -> SubmissionEntry {
        let mut entry = SubmissionEntry::new_zeroed();
        entry.opcode = self.opcode;
        entry.cid = cid.into();
        entry.nsid = nsid.into();
        entry.prp1 = self.prp1;
        entry.prp2 = self.prp2;
        let mut range = BlockRange::from(&entry);
        range.slba = self.slba;
        range.nlb = self.blocks;
        range.apply_to(&mut entry);
        entry
    }
}

impl Executor {
    /// Carries out the next step: submits some commands, and takes the completions that are there.
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
        let submitted = self.submit(io, queue)?;
        let completed = self.take_completions(io, queue)?;
        if completed {
            queue.last_completion = progress.worked;
        }
        if queue.done == io.count {
            self.keep(io, &queue.state(0, 0))?;
            return Ok(Some(queue.result(io.count)));
        }
        progress.is_waiting = !submitted && !completed;
        let since_last = progress.worked.saturating_sub(queue.last_completion);
        check_time(io.limit, since_last)?;
        Ok(None)
    }

    /// Keeps how far a launch is that has failed. Its queues have to be made again, since commands may be in progress.
    pub(crate) fn fail_nvme_io(&self, io: &NvmeIo, progress: &Progress) {
        let queue = &progress.queue;
        if !queue.is_begun {
            return;
        }
        let is_complete = |index: &u16| {
            let outcome = self.outcome(io, *index);
            outcome.is_ok_and(|outcome| outcome & COMPLETE != 0)
        };
        // Behind those that are submitted the outcomes are of an earlier launch.
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
        let mut state = State::new_zeroed();
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

    fn keep(&self, io: &NvmeIo, state: &State) -> Result<(), Fault> {
        self.memory
            .write(Purpose::Payload, io.state, state.as_bytes())
    }

    /// Submits commands, as many as queues and batch can take, with one doorbell; whether there were any.
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
            let mut request = Request::new_zeroed();
            let read = request.as_mut_bytes();
            self.memory
                .read(Purpose::Payload, io.request(index), read)?;
            self.set_outcome(io, index, SUBMITTED)?;
            let place = io.submission_entry(queue.submitted);
            let entry = request.command(index, io.nsid);
            match self.fault_of_entry() {
                Some(Action::Delay(by)) => late.push((place, entry, by)),
                Some(Action::Drop) => {}
                _ => self.write_entry(place, &entry)?,
            }
            queue.submitted = queue.submitted.wrapping_add(1);
            queue.sent = index.saturating_add(1);
        }
        let [tail, _] = io.doorbells;
        self.ring(tail, queue.submitted, io.submission_entries, queue)?;
        if let Some(by) = late.iter().map(|(.., by)| *by).max() {
            self.memory.requester().hold_back(by);
        }
        for (place, entry, _) in late {
            self.write_entry(place, &entry)?;
        }
        Ok(true)
    }

    fn write_entry(&self, place: GpuAddress, entry: &SubmissionEntry) -> Result<(), Fault> {
        self.memory.write(Purpose::Command, place, entry.as_bytes())
    }

    /// What a rule has happen to an entry: it is late, so that its doorbell comes first, or never written.
    fn fault_of_entry(&self) -> Option<Action> {
        let requester = self.memory.requester();
        if !requester.faults().is_armed(Kind::SubmissionEntry) {
            return None;
        }
        let fired = requester.faults().submission_entry()?;
        requester.note_injected(self.memory.origin(), &fired);
        Some(fired.action)
    }

    /// Takes the completions that are there; whether there were any. The controller gets half of the queue's entries back with
    /// one doorbell, and the last ones at the end of the launch.
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
        }
        let is_half = queue.kept >= u64::from(io.completion_entries / 2);
        if is_half || taken && queue.done == io.count {
            let [_, head] = io.doorbells;
            self.ring(head, queue.completed, io.completion_entries, queue)?;
            queue.kept = 0;
        }
        Ok(taken)
    }

    /// The completion with this number, if it is there.
    fn completion(&self, io: &NvmeIo, number: u64) -> Result<Option<Completion>, Fault> {
        let (place, phase) = io.completion_entry(number);
        let mut tail = [0; 8];
        let place = place.after(COMPLETION_TAIL);
        self.memory.read(Purpose::Completion, place, &mut tail)?;
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

    /// Notes how a request has ended.
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
        let place = io.outcome(index);
        self.memory.read(Purpose::Payload, place, &mut outcome)?;
        Ok(u32::from_le_bytes(outcome))
    }

    fn set_outcome(&self, io: &NvmeIo, index: u16, outcome: u32) -> Result<(), Fault> {
        let place = io.outcome(index);
        self.memory
            .write(Purpose::Payload, place, &outcome.to_le_bytes())
    }

    /// Writes a doorbell: the index behind `number` entries.
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
