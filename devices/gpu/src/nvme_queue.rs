//! The queues that the kernel `nvme io` drives: what a launch says of them, what is kept of them, and where their entries are.

use std::time::Duration;

use peerbar_nvme_spec::command::SubmissionEntry;
use peerbar_nvme_spec::command::nvm::BlockRange;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::gpu_memory::GpuAddress;
use crate::word::Word;

/// Bytes of a submission queue entry, of a completion queue entry, of a request and of the queue's state.
pub(crate) const SUBMISSION_BYTES: u64 = 64;
pub(crate) const COMPLETION_BYTES: u64 = 16;
pub(crate) const REQUEST_BYTES: u64 = 32;
pub(crate) const STATE_BYTES: u64 = 32;
/// How many entries a queue may have (NVMe Base 2.0, 3.3.3.1).
const ENTRIES: std::ops::RangeInclusive<u32> = 2..=1 << 16;
/// The most commands that are submitted, and completions that are taken, in a step.
pub(crate) const BATCH: u32 = 32;
/// Where in a request its outcome is.
const OUTCOME: u64 = 28;

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
    pub(crate) is_begun: bool,
    /// The last step has submitted commands and has not looked for completions.
    pub(crate) only_submitted: bool,
    /// Commands submitted, completions taken and doorbells written since the queues were made.
    pub(crate) submitted: u64,
    pub(crate) completed: u64,
    pub(crate) doorbells: u64,
    /// Completions of this launch whose entries the controller has not got back.
    pub(crate) kept: u64,
    /// Requests of this launch that are submitted, and that are complete.
    pub(crate) sent: u16,
    pub(crate) done: u16,
    /// The first request that has failed, and its status.
    pub(crate) failed: Option<(u16, u16)>,
    /// When the last completion was taken, in the time of the launch.
    pub(crate) last_completion: Duration,
}

/// What is kept of the queues between launches. All zeros is a pair that was just made.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct NvmeIoState {
    pub(crate) submitted: U64,
    pub(crate) completed: U64,
    pub(crate) doorbells: U64,
    pub(crate) flags: U32,
    /// The first request that is not complete, if the launch has failed.
    pub(crate) index: U32,
}

/// What a program asks for.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct NvmeIoRequest {
    pub(crate) slba: U64,
    pub(crate) prp1: U64,
    pub(crate) prp2: U64,
    /// Logical blocks, 0's based.
    pub(crate) blocks: U16,
    pub(crate) opcode: u8,
    pub(crate) reserved: u8,
    pub(crate) outcome: U32,
}

const _: () = assert!(size_of::<NvmeIoState>() as u64 == STATE_BYTES);
const _: () = assert!(size_of::<NvmeIoRequest>() as u64 == REQUEST_BYTES);

impl NvmeIo {
    /// Whether such queues can be, apart from what memory there is.
    pub(crate) fn is_possible(&self) -> bool {
        let is_aligned = |address: GpuAddress, to| address.raw() % to == 0;
        let in_vram = |address| matches!(address, GpuAddress::Vram(_));
        let is_register = |word: &Word| !in_vram(word.address());
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
    pub(crate) fn least_together(&self) -> u64 {
        (self.most_in_progress() / 2).clamp(1, BATCH.into())
    }

    /// How many commands may be submitted, so that each finds an entry of both queues.
    pub(crate) fn free_entries(&self, queue: &QueueProgress) -> u64 {
        let in_progress = queue.in_progress();
        let completions = u64::from(self.completion_entries) - 1;
        let most = self.most_in_progress();
        most.min(completions.saturating_sub(queue.kept))
            .saturating_sub(in_progress)
    }

    /// How many commands may be in progress. A queue with all but one of its entries in use is full (NVMe Base 2.0, 3.3.1.2).
    pub(crate) fn most_in_progress(&self) -> u64 {
        let fitting = self.submission_entries.min(self.completion_entries) - 1;
        let wanted = Some(self.depth).filter(|depth| *depth != 0);
        wanted.map_or(fitting.into(), |depth| depth.min(fitting.into()))
    }

    /// Where request `index` is.
    pub(crate) fn request(&self, index: u16) -> GpuAddress {
        self.requests.after(u64::from(index) * REQUEST_BYTES)
    }

    /// Where the outcome of request `index` is.
    pub(crate) fn outcome(&self, index: u16) -> GpuAddress {
        self.request(index).after(OUTCOME)
    }

    /// Where the entry of the submission with this number is.
    pub(crate) fn submission_entry(&self, number: u64) -> GpuAddress {
        let index = number % u64::from(self.submission_entries);
        self.submission.after(index * SUBMISSION_BYTES)
    }

    /// Where the entry of the completion with this number is, and the phase tag that it will have.
    pub(crate) fn completion_entry(&self, number: u64) -> (GpuAddress, bool) {
        let entries = u64::from(self.completion_entries);
        let address = self.completion.after(number % entries * COMPLETION_BYTES);
        (address, (number / entries) % 2 == 0)
    }
}

impl QueueProgress {
    pub(crate) fn in_progress(&self) -> u64 {
        u64::from(self.sent).saturating_sub(self.done.into())
    }

    /// Takes the outcome of a request over.
    pub(crate) fn complete(&mut self, index: u16, status: u16) {
        self.done = self.done.saturating_add(1);
        let is_first = self.failed.is_none_or(|(first, _)| index < first);
        if status != 0 && is_first {
            self.failed = Some((index, status));
        }
    }

    /// The result of a launch that is over: the index of the first request that has failed, in bits 47 to 32 its status; or
    /// how many there were.
    pub(crate) fn result(&self, count: u16) -> u64 {
        self.failed.map_or(count.into(), |(index, status)| {
            u64::from(status) << 32 | u64::from(index)
        })
    }

    pub(crate) fn state(&self, flags: u32, index: u16) -> NvmeIoState {
        NvmeIoState {
            submitted: self.submitted.into(),
            completed: self.completed.into(),
            doorbells: self.doorbells.into(),
            flags: flags.into(),
            index: u32::from(index).into(),
        }
    }
}

impl NvmeIoRequest {
    /// The command that asks the controller for it.
    pub(crate) fn command(&self, cid: u16, nsid: u32) -> SubmissionEntry {
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
