//! Creating and deleting I/O queues (NVMe Base 2.0, 5.4 to 5.7).

use peerbar_dma::WindowId;
use peerbar_nvme_spec::command::SubmissionEntry;
use peerbar_nvme_spec::command::admin::{
    CreateCompletionQueue, CreateSubmissionQueue, DeleteQueue,
};
use peerbar_nvme_spec::completion::Status;
use peerbar_nvme_spec::registers::Doorbell;
use peerbar_pci::{Iova, Range};

use super::reply::Reply;
use crate::cmb::CMB_BAR;
use crate::directory::CompletionOwner;
use crate::engine::Engine;
use crate::io_queue::completion::{COMPLETION_BYTES, CompletionQueue};
use crate::io_queue::request::WorkerRequest;
use crate::io_queue::ring::Ring;
use crate::io_queue::submission::{SUBMISSION_BYTES, SubmissionQueue};
use crate::pmr::PMR_BAR;
use crate::registers::{MAX_ENTRIES, QUEUE_PAIRS, Registers};

/// CC.IOSQES and CC.IOCQES as powers of two: the only supported entry sizes. The host may set them
/// after it has enabled the controller (NVMe Base 2.0, 3.1.3.5).
const SUBMISSION_SIZE: u8 = 6;
const COMPLETION_SIZE: u8 = 4;

impl Engine {
    pub(super) fn create_completion_queue(
        &mut self,
        entry: &SubmissionEntry,
    ) -> Result<Reply, Status> {
        let command = CreateCompletionQueue::from(entry);
        let (id, entries) = (command.qid.get(), command.entries());
        let [_, granted] = self.admin.features.granted_queues();
        check_id(id, granted, self.directory.completion(id))?;
        let size_is_set = self.notifier.read(Registers::configuration).iocqes() == COMPLETION_SIZE;
        check_entries(entries, size_is_set)?;
        if command.iv.get() >= QUEUE_PAIRS {
            return Err(Status::INVALID_INTERRUPT_VECTOR.with_dnr(true));
        }
        let ring = Ring {
            base: Iova(entry.prp1.get()),
            entries,
        };
        self.check_memory(ring, COMPLETION_BYTES, command.flags.pc())?;
        let vector = command.flags.ien().then_some(command.iv.get());
        let owner = self.directory.owner(id);
        if let Some(slot) = self.directory.completion(id) {
            *slot = Some(CompletionOwner { owner, users: 0 });
        }
        self.notifier.intx.open(id, entries, vector);
        let doorbells = &self.notifier.doorbells;
        doorbells.set_owner(Doorbell::CompletionHead(id), Some(owner));
        let queue = CompletionQueue::new(id, vector, ring, doorbells.clone());
        self.workers
            .request(owner, WorkerRequest::AddCompletion(queue));
        Ok(Reply::DONE)
    }

    pub(super) fn create_submission_queue(
        &mut self,
        entry: &SubmissionEntry,
    ) -> Result<Reply, Status> {
        let command = CreateSubmissionQueue::from(entry);
        let (id, cqid) = (command.qid.get(), command.cqid.get());
        let entries = command.entries();
        let [granted, granted_completion] = self.admin.features.granted_queues();
        check_id(id, granted, self.directory.submission(id))?;
        let size_is_set = self.notifier.read(Registers::configuration).iosqes() == SUBMISSION_SIZE;
        check_entries(entries, size_is_set)?;
        let ring = Ring {
            base: Iova(entry.prp1.get()),
            entries,
        };
        self.check_memory(ring, SUBMISSION_BYTES, command.flags.pc())?;
        if cqid == 0 || cqid > granted_completion {
            return Err(Status::INVALID_QUEUE_ID.with_dnr(true));
        }
        let completion = self.directory.existing(cqid);
        let completion = completion.ok_or(Status::INVALID_COMPLETION_QUEUE.with_dnr(true))?;
        completion.users += 1;
        let owner = completion.owner;
        if let Some(slot) = self.directory.submission(id) {
            *slot = Some(cqid);
        }
        let doorbells = &self.notifier.doorbells;
        doorbells.set_owner(Doorbell::SubmissionTail(id), Some(owner));
        let queue = SubmissionQueue::new(id, ring, doorbells.clone());
        self.workers
            .request(owner, WorkerRequest::AddSubmission(cqid, queue));
        Ok(Reply::DONE)
    }

    /// Deletes a queue once its commands in progress have completed. Commands that have not been
    /// fetched are lost.
    pub(super) fn delete_submission_queue(
        &mut self,
        entry: &SubmissionEntry,
    ) -> Result<Reply, Status> {
        let id = DeleteQueue::from(entry).qid.get();
        let bound_to = self.directory.submission(id).and_then(Option::take);
        let bound_to = bound_to.ok_or(Status::INVALID_QUEUE_ID.with_dnr(true))?;
        if let Some(completion) = self.directory.existing(bound_to) {
            completion.users = completion.users.saturating_sub(1);
        }
        let owner = self.directory.owner(bound_to);
        self.workers
            .request(owner, WorkerRequest::RemoveSubmission(id));
        let doorbells = &self.notifier.doorbells;
        doorbells.set_owner(Doorbell::SubmissionTail(id), None);
        match self.notifier.quiet() {
            // Commands may be in progress, and their memory may be in use: the controller has
            // failed, or is reset.
            true => Ok(Reply::Later),
            false => Ok(Reply::DONE),
        }
    }

    pub(super) fn delete_completion_queue(
        &mut self,
        entry: &SubmissionEntry,
    ) -> Result<Reply, Status> {
        let id = DeleteQueue::from(entry).qid.get();
        let slot = self.directory.completion(id);
        let slot = slot.ok_or(Status::INVALID_QUEUE_ID.with_dnr(true))?;
        let completion = slot.ok_or(Status::INVALID_QUEUE_ID.with_dnr(true))?;
        if completion.users > 0 {
            return Err(Status::INVALID_QUEUE_DELETION.with_dnr(true));
        }
        *slot = None;
        self.workers
            .request(completion.owner, WorkerRequest::RemoveCompletion(id));
        self.notifier.intx.close(id);
        let doorbells = &self.notifier.doorbells;
        doorbells.set_owner(Doorbell::CompletionHead(id), None);
        Ok(Reply::DONE)
    }

    /// Checks a queue's memory. A queue is contiguous (CAP.CQR) and starts at a page. It may lie in
    /// the Controller Memory Buffer only if that supports queues, and never in the Persistent
    /// Memory Region, at either of its addresses: the region is for data only (PMRCAP).
    fn check_memory(&self, ring: Ring, entry_bytes: u64, contiguous: bool) -> Result<(), Status> {
        if !contiguous {
            return Err(Status::INVALID_FIELD.with_dnr(true));
        }
        if !ring.fits(entry_bytes) {
            return Err(Status::INVALID_PRP_OFFSET.with_dnr(true));
        }
        if self.meets_cmb_without_queues(ring, entry_bytes) {
            Err(Status::INVALID_USE_OF_CMB.with_dnr(true))
        } else if self.meets_pmr(ring, entry_bytes) {
            Err(Status::INVALID_FIELD.with_dnr(true))
        } else {
            Ok(())
        }
    }

    /// Returns `true` if a queue would lie in a Controller Memory Buffer that does not support
    /// queues, at an address that commands use or in its BAR.
    fn meets_cmb_without_queues(&self, ring: Ring, entry_bytes: u64) -> bool {
        let takes_none =
            |registers: &Registers| registers.cmb().is_some_and(|cmb| !cmb.takes_queues());
        let windows = [WindowId::Cmb, WindowId::Bar(CMB_BAR)];
        self.notifier.read(takes_none) && self.lies_in(&windows, ring, entry_bytes)
    }

    /// Returns `true` if a queue would lie in the Persistent Memory Region, at an address that
    /// commands use or in its BAR.
    pub(crate) fn meets_pmr(&self, ring: Ring, entry_bytes: u64) -> bool {
        let has_pmr = self.notifier.read(|registers| registers.pmr().is_some());
        let windows = [WindowId::Pmr, WindowId::Bar(PMR_BAR)];
        has_pmr && self.lies_in(&windows, ring, entry_bytes)
    }

    fn lies_in(&self, windows: &[WindowId], ring: Ring, entry_bytes: u64) -> bool {
        let range = Range::new(ring.base, u64::from(ring.entries) * entry_bytes);
        range.is_some_and(|range| self.data.requester().meets_window(windows, range))
    }
}

/// Checks that a queue number can be used: it is not 0, within the granted numbers, and its slot is
/// free.
fn check_id<Q>(id: u16, granted: u16, slot: Option<&mut Option<Q>>) -> Result<(), Status> {
    if id == 0 || id > granted || !slot.is_some_and(|queue| queue.is_none()) {
        return Err(Status::INVALID_QUEUE_ID.with_dnr(true));
    }
    Ok(())
}

fn check_entries(entries: u32, size_is_set: bool) -> Result<(), Status> {
    if entries < 2 || entries > u32::from(MAX_ENTRIES) || !size_is_set {
        return Err(Status::INVALID_QUEUE_SIZE.with_dnr(true));
    }
    Ok(())
}
