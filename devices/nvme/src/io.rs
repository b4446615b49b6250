//! Execution of I/O commands: at once, by the kernel, or later, when other commands have ended.
//!
//! The functions that each command passes through are always inlined into the loop over a batch:
//! `benches/commands.rs` measures it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use peerbar_dma::Origin;
use peerbar_fault::{Action, Kind};
use peerbar_file_ring::{FileRing, MOST};
use peerbar_nvme_spec::command::nvm::BlockRange;
use peerbar_nvme_spec::command::{NvmOpcode, SubmissionEntry};
use peerbar_nvme_spec::completion::Status;

use crate::data::DataPath;
use crate::ended::{Ended, Posting};
use crate::injected::{HeldBack, HeldBackItem};
use crate::io_queue::permit::{Generation, Permit};
use crate::job::{InProgress, Job, Work};
use crate::late_data::{LateData, Slots};
use crate::namespace::{DirectAccess, Extent};
use crate::storage::Storage;

mod commands;
mod reordered;
pub(crate) mod status;
#[cfg(test)]
mod tests;

/// The state that a thread needs to execute I/O commands.
pub(crate) struct Io {
    pub(crate) data: DataPath,
    storage: Arc<Storage>,
    tally: Tally,
    /// Bytes that this thread has copied since the last [`Io::settle`].
    pub(crate) copied: u64,
    /// Permits of earlier generations have expired.
    pub(crate) generation: Generation,
    /// Commands that wait until others have ended: with the same blocks, or with syncs.
    deferred: VecDeque<Job>,
    /// Spare lists, so that commands need not allocate.
    lists: Vec<Vec<Extent>>,
    held: HeldBack<HeldBackItem>,
    late_slots: Slots,
    /// The late data of the command in progress.
    late: Option<Box<LateData>>,
}

/// Statistics that are not yet in the health log.
#[derive(Default)]
struct Tally {
    reads: u64,
    bytes_read: u64,
    writes: u64,
    bytes_written: u64,
}

impl Io {
    pub(crate) fn new(data: DataPath, storage: Arc<Storage>) -> Self {
        Self {
            data,
            storage,
            tally: Tally::default(),
            copied: 0,
            generation: Generation::default(),
            deferred: VecDeque::new(),
            lists: Vec::new(),
            held: HeldBack::default(),
            late_slots: Slots::default(),
            late: None,
        }
    }

    /// Prefetches the first blocks of a command that is expected soon, if they are in memory. The
    /// command is not checked yet.
    pub(crate) fn expect(&self, entry: Option<&SubmissionEntry>) {
        let moves_data = |entry: &&SubmissionEntry| {
            [NvmOpcode::Read as u8, NvmOpcode::Write as u8].contains(&entry.opcode)
        };
        let Some(entry) = entry.filter(moves_data) else {
            return;
        };
        let namespace = self.storage.find(entry.nsid.get()).ok();
        let direct = namespace.map(|namespace| (namespace, namespace.backend().direct()));
        if let Some((namespace, DirectAccess::Memory(memory))) = direct {
            let range = BlockRange::from(entry);
            if let Ok(extent) = namespace.extent(range.slba.get(), range.blocks().into()) {
                memory.prefetch(extent.offset, extent.len);
            }
        }
    }

    /// Returns the number of further commands that the kernel can take from a queue with
    /// `outstanding` ones, if they need the kernel. Each of `queues` queues has its share, so that
    /// slow commands of one do not hold up another.
    pub(crate) fn free_operations(&self, queues: usize, outstanding: usize) -> usize {
        let Some(files) = &self.data.files else {
            return usize::MAX;
        };
        let share = MOST / queues.max(1);
        let free = files.free_entries().saturating_sub(self.deferred.len());
        share.saturating_sub(outstanding).min(free)
    }

    /// Executes a command of I/O queue `queue`. Returns its end, or `None` if it is deferred or the
    /// kernel works on it; then [`Io::take_ended`] returns its end later.
    pub(crate) fn execute(
        &mut self,
        queue: u16,
        entry: &SubmissionEntry,
        permit: Permit,
    ) -> Option<Ended> {
        let injected = self.data.injected(Kind::Command, queue, entry);
        let origin = Origin::command(queue, entry.cid.get());
        self.data.begin(origin, entry);
        let mut command = InProgress::new(queue, entry, permit);
        let progress = match injected {
            Some(Action::FailCommand(status)) => Err(status),
            Some(Action::Delay(by)) => {
                let job = command.job(Work::Start);
                self.held.add(by, HeldBackItem::Command(job));
                return None;
            }
            Some(Action::LosePower { pattern, .. }) => {
                self.storage.lose_power(pattern);
                return command.permit.map(|permit| Ended {
                    queue,
                    cid: entry.cid,
                    permit,
                    status: Status::ABORT_REQUESTED,
                    posting: Posting::Never,
                    late: None,
                });
            }
            _ => self.start(&mut command),
        };
        self.end(command, progress)
    }

    /// Returns the end of a command, or `None` if it continues as a job or its completion is held
    /// back.
    #[inline(always)]
    fn end(&mut self, command: InProgress<'_>, progress: Result<(), Status>) -> Option<Ended> {
        let Job { queue, entry, .. } = command;
        self.storage.unlock(entry, command.locked);
        let late = self.late.take().filter(|_| progress.is_ok());
        let permit = command.permit?;
        let status = match progress {
            Ok(()) => Status::SUCCESS,
            Err(status) => self.storage.failed(queue, entry, status),
        };
        let mut ended = Ended {
            queue,
            cid: entry.cid,
            permit,
            status,
            posting: Posting::Once,
            late,
        };
        match self.data.injected(Kind::Completion, queue, entry) {
            Some(Action::Drop) => ended.posting = Posting::Never,
            Some(Action::LosePower { pattern, .. }) => {
                self.storage.lose_power(pattern);
                ended.posting = Posting::Never;
            }
            Some(Action::Duplicate) => ended.posting = Posting::Twice,
            Some(Action::Delay(by)) => {
                self.held.add(by, HeldBackItem::Completion(ended));
                return None;
            }
            _ => {}
        }
        Some(ended)
    }

    /// Returns the time at which a held-back command or completion is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.held.due()
    }

    /// Returns a command that has ended since it was executed. A command that the kernel ends after
    /// a reset expires.
    pub(crate) fn take_ended(&mut self) -> Option<Ended> {
        while let Some(held) = self.held.take_due() {
            let ended = match held {
                HeldBackItem::Completion(ended) => Some(ended),
                HeldBackItem::Command(job) => self.resume(job, Ok(())),
            };
            if ended.is_some() {
                return ended;
            }
        }
        while let Some((job, outcome)) = self.data.files.as_mut().and_then(FileRing::take_ended) {
            if let Some(ended) = self.resume(job, outcome) {
                return Some(ended);
            }
        }
        // Each job once: jobs that are deferred again wait for the next call.
        for _ in 0..self.deferred.len() {
            let job = self.deferred.pop_front()?;
            if let Some(ended) = self.resume(job, Ok(())) {
                return Some(ended);
            }
        }
        None
    }

    /// Continues a command after the kernel has ended its work for it, or after it was deferred.
    fn resume(&mut self, job: Job, outcome: io::Result<()>) -> Option<Ended> {
        self.storage.unlock(&job.entry, job.locked);
        let is_current = |permit: &Permit| self.generation.is_current(permit);
        let Some(permit) = job.permit.filter(is_current) else {
            if let Work::Sync { ticket, rest } = job.work {
                self.storage.end_sync(&rest, ticket, outcome.is_ok());
            }
            return None;
        };
        self.data
            .resume(Origin::command(job.queue, job.entry.cid.get()));
        let mut command = InProgress::new(job.queue, &job.entry, permit);
        let progress = self.proceed(&mut command, job.work, outcome);
        self.end(command, progress)
    }

    /// Submits the started operations to the kernel. Returns `true` if the kernel has taken them.
    pub(crate) fn submit(&mut self) -> bool {
        self.data.files.as_mut().is_none_or(FileRing::submit)
    }

    /// Returns `true` if the kernel works on a command, or if a command waits for others, whose end
    /// wakes the thread.
    pub(crate) fn is_busy(&self) -> bool {
        let files = self.data.files.as_ref();
        files.is_some_and(|files| !files.is_empty()) || !self.deferred.is_empty()
    }

    /// Forgets all commands; their permits expire. Afterwards the kernel moves and changes no data
    /// for them.
    pub(crate) fn forget(&mut self) {
        self.data.session.forget();
        if let Some(files) = &mut self.data.files {
            files.stop();
        }
        self.generation.advance();
        self.deferred.clear();
        drop(self.held.take_all());
    }

    /// Adds the statistics since the last call to the health log.
    pub(crate) fn settle(&mut self) {
        self.copied = 0;
        let tally = std::mem::take(&mut self.tally);
        let health = &self.storage.health;
        if tally.reads > 0 {
            health.read(tally.reads, tally.bytes_read);
        }
        if tally.writes > 0 {
            health.wrote(tally.writes, tally.bytes_written);
        }
    }
}

impl Drop for Io {
    /// Commands that the kernel still works on expire with their worker. Their syncs end first,
    /// because others wait for them.
    fn drop(&mut self) {
        self.generation.advance();
        self.deferred.clear();
        drop(self.held.take_all());
        if let Some(files) = &mut self.data.files {
            files.finish();
        }
        let ended = self.take_ended();
        debug_assert!(ended.is_none(), "every permit has expired");
    }
}

impl Tally {
    fn read(&mut self, bytes: u64) {
        self.reads += 1;
        self.bytes_read += bytes;
    }

    fn wrote(&mut self, bytes: u64) {
        self.writes += 1;
        self.bytes_written += bytes;
    }
}
