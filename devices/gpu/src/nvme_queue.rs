//! The queues of the kernel `nvme io`: the parameters of a launch, the state that is kept, and the
//! locations of the entries.

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
/// Valid numbers of entries of a queue (NVMe Base 2.0, 3.3.3.1).
const ENTRIES: std::ops::RangeInclusive<u32> = 2..=1 << 16;
/// The most commands that are submitted, and completions that are taken, in a step.
pub(crate) const BATCH: u32 = 32;
/// Offset of the outcome in a request.
const OUTCOME: u64 = 28;

/// A launch of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NvmeIo {
    /// Start of the queues.
    pub(crate) submission: GpuAddress,
    pub(crate) completion: GpuAddress,
    /// The registers of tail and head.
    pub(crate) doorbells: [Word; 2],
    /// Address of the state of the queues, which is kept between launches.
    pub(crate) state: GpuAddress,
    /// Start and number of the requests.
    pub(crate) requests: GpuAddress,
    pub(crate) count: u16,
    pub(crate) submission_entries: u32,
    pub(crate) completion_entries: u32,
    /// The most commands in progress, 0 for as many as the queues hold.
    pub(crate) depth: u64,
    pub(crate) nsid: u32,
    /// Time limit until the next completion, if it is shorter than that of a command.
    pub(crate) limit: Option<Duration>,
}

/// The progress of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueProgress {
    pub(crate) is_begun: bool,
    /// The last step has submitted commands and has not looked for completions.
    pub(crate) only_submitted: bool,
    /// Commands submitted, completions taken and doorbells written since the queues were made.
    pub(crate) submitted: u64,
    pub(crate) completed: u64,
    pub(crate) doorbells: u64,
    /// Completions of this launch whose entries the controller has not yet got back.
    pub(crate) kept: u64,
    /// Requests of this launch that are submitted, and that are complete.
    pub(crate) sent: u16,
    pub(crate) done: u16,
    /// The first request that has failed, and its status.
    pub(crate) failed: Option<(u16, u16)>,
    /// The time of the last completion, since the start of the launch.
    pub(crate) last_completion: Duration,
}

/// The state of the queues that is kept between launches. Zeros are a pair that was just made.
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

/// A request of a program.
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
    /// Returns `true` if such queues are valid, apart from the size of the memory.
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

    /// Returns the least number of commands that are submitted together, unless fewer are left:
    /// half of those that may be in progress, since a doorbell may cost a message.
    pub(crate) fn least_together(&self) -> u64 {
        (self.most_in_progress() / 2).clamp(1, BATCH.into())
    }

    /// Returns the number of commands that may be submitted, so that each finds an entry in both
    /// queues.
    pub(crate) fn free_entries(&self, queue: &QueueProgress) -> u64 {
        let in_progress = queue.in_progress();
        let completions = u64::from(self.completion_entries) - 1;
        let most = self.most_in_progress();
        most.min(completions.saturating_sub(queue.kept))
            .saturating_sub(in_progress)
    }

    /// Returns the number of commands that may be in progress. A queue with all entries except one
    /// in use is full (NVMe Base 2.0, 3.3.1.2).
    pub(crate) fn most_in_progress(&self) -> u64 {
        let fitting = self.submission_entries.min(self.completion_entries) - 1;
        let wanted = Some(self.depth).filter(|depth| *depth != 0);
        wanted.map_or(fitting.into(), |depth| depth.min(fitting.into()))
    }

    /// Returns the address of request `index`.
    pub(crate) fn request(&self, index: u16) -> GpuAddress {
        self.requests.after(u64::from(index) * REQUEST_BYTES)
    }

    /// Returns the address of the outcome of request `index`.
    pub(crate) fn outcome(&self, index: u16) -> GpuAddress {
        self.request(index).after(OUTCOME)
    }

    /// Returns the address of the submission entry with this number.
    pub(crate) fn submission_entry(&self, number: u64) -> GpuAddress {
        let index = number % u64::from(self.submission_entries);
        self.submission.after(index * SUBMISSION_BYTES)
    }

    /// Returns the address of the completion entry with this number, and its phase tag.
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

    /// Records the outcome of a request.
    pub(crate) fn complete(&mut self, index: u16, status: u16) {
        self.done = self.done.saturating_add(1);
        let is_first = self.failed.is_none_or(|(first, _)| index < first);
        if status != 0 && is_first {
            self.failed = Some((index, status));
        }
    }

    /// Returns the result of a launch that is over: the index of the first failed request, with its
    /// status in bits 47 to 32, or the number of requests.
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
    /// Returns the command for the controller.
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
