//! The engine: the thread that serves the registers and the admin queue.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use peerbar_dma::{BusMastering, Origin};
use peerbar_fault::{Action, Kind};
use peerbar_nvme_spec::command::SubmissionEntry;
use peerbar_nvme_spec::completion::Status;
use peerbar_nvme_spec::registers::{Cc, Doorbell};
use peerbar_pci::Iova;
use zerocopy::little_endian::{U16, U32};

use crate::admin::Admin;
use crate::admin::reply::{Late, Reply};
use crate::data::DataPath;
use crate::directory::Directory;
use crate::injected::HeldBack;
use crate::io_queue::completion::{COMPLETION_BYTES, CompletionQueue};
use crate::io_queue::interrupt::{Coalescing, QueueInterrupts};
use crate::io_queue::permit::Permit;
use crate::io_queue::request::WorkerRequest;
use crate::io_queue::ring::Ring;
use crate::io_queue::submission::{Batch, SUBMISSION_BYTES, SubmissionQueue};
use crate::notifier::{ENGINE, Notifier, Task};
use crate::registers::{EngineRequest, QUEUE_PAIRS, Registers, Setup};
use crate::storage::Storage;
use crate::worker_pool::WorkerPool;

/// The most admin commands that are executed before the registers are read again.
const BURST: usize = 16;

/// The admin queues.
pub(crate) struct AdminPair {
    submission: SubmissionQueue,
    pub(crate) completion: CompletionQueue,
    interrupts: QueueInterrupts,
}

/// The controller without its I/O commands, which the workers execute.
pub(crate) struct Engine {
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) storage: Arc<Storage>,
    pub(crate) coalescing: Arc<Coalescing>,
    pub(crate) workers: WorkerPool,
    pub(crate) directory: Directory,
    /// The admin queues, from the time the controller is enabled until it fails.
    pub(crate) pair: Option<AdminPair>,
    pub(crate) data: DataPath,
    pub(crate) admin: Admin,
    /// Admin commands that have not begun.
    pub(crate) held: HeldBack<(SubmissionEntry, Permit)>,
    /// The engine has acted on an enable.
    pub(crate) enabled: bool,
    /// The state of bus mastering when the present turn began.
    pub(crate) bus: BusMastering,
}

impl Engine {
    /// Works until the daemon ends, then brings everything to stable storage.
    pub(crate) fn run(mut self) {
        let mut busy = false;
        loop {
            let due = self.held.due().filter(|_| self.bus.is_on());
            let task = self.notifier.next(self.enabled, busy, due);
            match self.take_up(task) {
                ControlFlow::Continue(is_busy) => busy = is_busy,
                ControlFlow::Break(()) => break,
            }
        }
        self.forget_held();
        self.workers.shut_down();
        self.storage.settle_power_loss();
        // A failure is only logged: the host expects no answer any more.
        let _ = self.storage.flush_all();
        self.persist();
    }

    /// Works with the workers, on this thread, until no task and no command is left.
    #[cfg(feature = "stepped")]
    pub(crate) fn work(&mut self) {
        loop {
            let task = self.notifier.next(self.enabled, true, None);
            let is_last = task == Task::Queues;
            let ControlFlow::Continue(is_busy) = self.take_up(task) else {
                return;
            };
            self.workers.work();
            // A worker may have found work for the engine.
            let is_notified = self.notifier.events(ENGINE).take_notification();
            if is_last && !is_busy && !is_notified {
                return;
            }
        }
    }

    /// Executes a task, then gives the admin queue a turn. Returns `true` if work is left. Breaks
    /// if the daemon ends.
    fn take_up(&mut self, task: Task) -> ControlFlow<(), bool> {
        match task {
            Task::Stop => return ControlFlow::Break(()),
            Task::Registers(EngineRequest::Disable) => self.disable(),
            Task::Registers(EngineRequest::Enable(setup)) => self.enable(setup),
            Task::Registers(EngineRequest::Shutdown) => self.shut_down(),
            Task::Queues => {}
        }
        ControlFlow::Continue(self.enabled && self.turn())
    }

    /// Controller reset, or a reset of the function. DMA has been refused since the reset.
    fn disable(&mut self) {
        // The admin doorbells first: a worker that polls them starts from 0 again, too.
        self.close(0);
        self.workers.request_all(|| WorkerRequest::Forget);
        self.storage.settle_power_loss();
        (1..QUEUE_PAIRS).for_each(|id| self.close(id));
        self.directory.clear();
        self.forget_held();
        self.pair = None;
        self.admin.reset();
        self.apply_features();
        self.enabled = false;
        self.notifier.update_pin();
        self.notifier.report(|registers| {
            registers.disabled();
            self.data.requester().resume();
        });
    }

    /// Drops the admin commands that are held back.
    fn forget_held(&mut self) {
        self.held.take_all().for_each(|(_, permit)| permit.expire());
    }

    /// Removes the owner of the queues with this number.
    fn close(&self, id: u16) {
        let doorbells = &self.notifier.doorbells;
        doorbells.set_owner(Doorbell::SubmissionTail(id), None);
        doorbells.set_owner(Doorbell::CompletionHead(id), None);
        self.notifier.intx.close(id);
    }

    /// CC.EN from 0 to 1 (NVMe Base 2.0, 3.5.1): makes the admin queues, or fails permanently.
    fn enable(&mut self, setup: Setup) {
        let Setup { cc, aqa, asq, acq } = setup;
        let known_set = cc.css() == Cc::CSS_NVM;
        let submission = Ring {
            base: Iova(asq),
            entries: u32::from(aqa.asqs()) + 1,
        };
        let completion = Ring {
            base: Iova(acq),
            entries: u32::from(aqa.acqs()) + 1,
        };
        let possible = known_set
            && cc.mps() == 0
            && cc.ams() == Cc::AMS_ROUND_ROBIN
            && submission.entries > 1
            && completion.entries > 1;
        let inside = submission.fits(SUBMISSION_BYTES) && completion.fits(COMPLETION_BYTES);
        let in_pmr = self.meets_pmr(submission, SUBMISSION_BYTES)
            || self.meets_pmr(completion, COMPLETION_BYTES);
        if !possible || !inside || in_pmr {
            log::debug!("the controller cannot be enabled with {setup:x?}");
            return self.fatal();
        }
        let doorbells = &self.notifier.doorbells;
        self.pair = Some(AdminPair {
            submission: SubmissionQueue::new(0, submission, doorbells.clone()),
            completion: CompletionQueue::new(0, Some(0), completion, doorbells.clone()),
            interrupts: QueueInterrupts::new(self.notifier.clone(), self.coalescing.clone()),
        });
        self.notifier.intx.open(0, completion.entries, Some(0));
        doorbells.set_owner(Doorbell::SubmissionTail(0), Some(ENGINE));
        doorbells.set_owner(Doorbell::CompletionHead(0), Some(ENGINE));
        self.enabled = true;
        // Doorbells that were rung before the queues existed are not reported.
        self.notifier.take_doorbell_errors();
        self.notifier.report(Registers::ready);
    }

    /// CC.SHN (NVMe Base 2.0, 3.6): completes earlier commands, and brings all data to stable
    /// storage.
    fn shut_down(&mut self) {
        while self.enabled && self.turn() {
            if self.notifier.urgent() {
                // The registers have changed. If a shutdown is still requested, it is requested
                // again.
                return;
            }
        }
        self.workers.request_all(|| WorkerRequest::Finish);
        if self.notifier.urgent() {
            return;
        }
        // A failure is logged; the shutdown has no status.
        let _ = self.storage.flush_all();
        self.persist();
        self.notifier.report(Registers::shut_down);
    }

    /// Brings the Persistent Memory Region to stable storage.
    pub(crate) fn persist(&self) {
        let faults = self.data.requester().faults();
        self.storage.persist(faults.loses_power());
    }

    /// CSTS.CFS: the controller takes no more commands until it is disabled.
    fn fatal(&mut self) {
        self.pair = None;
        self.notifier.report(Registers::fatal);
    }

    /// Returns `true` if a request of the present turn may have been refused because bus mastering
    /// was off.
    fn has_lost_bus(&self) -> bool {
        self.bus.has_changed(self.data.requester())
    }

    /// Gives the admin queue a turn, if bus mastering is on. Returns `true` if it has commands left
    /// that can be fetched. The engine is notified when bus mastering is turned on, and then posts
    /// the pending completions.
    fn turn(&mut self) -> bool {
        if self.bus.follow(self.data.requester()) && !self.notifier.quiet() {
            self.post();
        }
        if !self.bus.is_on() {
            return false;
        }
        self.take_doorbells();
        while !self.has_lost_bus() {
            let Some((entry, permit)) = self.held.take_due() else {
                break;
            };
            self.carry_out(&entry, permit);
        }
        let busy = self.serve();
        self.check_reliability();
        self.report_events();
        self.notifier.update_pin();
        busy
    }

    fn take_doorbells(&mut self) {
        if let Some(pair) = &mut self.pair {
            // The admin doorbells are registers, which are always reachable.
            let (session, vector) = (&mut self.data.session, pair.completion.vector());
            let _ = pair.submission.take_tail(session, &self.notifier, vector);
            pair.completion.take_head(&pair.interrupts, session);
        }
        let (stray, bad) = self.notifier.take_doorbell_errors();
        self.admin.doorbell_errors(stray, bad);
    }

    /// Executes a burst of admin commands. Returns `true` if more can be fetched at once.
    fn serve(&mut self) -> bool {
        let mut batch = Batch::new(1);
        for _ in 0..BURST {
            if self.notifier.urgent() || self.notifier.quiet() {
                break;
            }
            let Some(pair) = &mut self.pair else {
                return false;
            };
            let requester = self.data.requester();
            let read = |tag, address, bytes: &mut [u8]| requester.read(tag, address, bytes);
            let (submission, completion) = (&mut pair.submission, &mut pair.completion);
            if submission.fetch(completion, &mut batch, 1, read).is_err() {
                log::debug!("queue 0: a command cannot be fetched");
                if !self.has_lost_bus() {
                    self.fatal();
                }
                return false;
            }
            let Some(command) = batch.take().next() else {
                return false;
            };
            self.take(command.entry, command.permit);
        }
        let has_entries = |pair: &AdminPair| pair.submission.has_entries();
        !self.notifier.quiet()
            && self.has_free_entry()
            && self.pair.as_ref().is_some_and(has_entries)
    }

    /// Executes a command that has been fetched, unless a rule injects a fault.
    fn take(&mut self, entry: &SubmissionEntry, permit: Permit) {
        let injected = self.data.injected(Kind::AdminCommand, 0, entry);
        let origin = Origin::command(0, entry.cid.get());
        self.data.begin(origin, entry);
        match injected {
            Some(Action::FailCommand(status)) => self.end(entry, permit, Err(status)),
            Some(Action::Delay(by)) => self.held.add(by, (*entry, permit)),
            Some(Action::Drop) => self.end(entry, permit, Ok(Reply::Later)),
            _ => self.carry_out(entry, permit),
        }
    }

    fn carry_out(&mut self, entry: &SubmissionEntry, permit: Permit) {
        self.data.resume(Origin::command(0, entry.cid.get()));
        let outcome = self.execute(entry);
        if outcome == Err(Status::DATA_TRANSFER_ERROR) && self.has_lost_bus() {
            // The command is tried again when bus mastering is on.
            return self.held.add(Duration::ZERO, (*entry, permit));
        }
        self.end(entry, permit, outcome);
    }

    /// Returns `true` if the admin completion queue has a free entry.
    pub(crate) fn has_free_entry(&self) -> bool {
        let pair = self.pair.as_ref();
        pair.is_some_and(|pair| pair.completion.free_entries() > 0)
    }

    /// Completes a command, unless it completes later.
    fn end(&mut self, entry: &SubmissionEntry, permit: Permit, outcome: Result<Reply, Status>) {
        let (dw0, status) = match outcome {
            Ok(Reply::Later) => {
                return match &mut self.pair {
                    Some(pair) => pair.completion.release(permit),
                    None => permit.expire(),
                };
            }
            Ok(Reply::Now(dw0)) => (dw0, Status::SUCCESS),
            Err(status) => (0, self.storage.failed(0, entry, status)),
        };
        let cid = entry.cid.get();
        self.complete(Late { cid, dw0, status }, permit);
    }

    fn execute(&mut self, entry: &SubmissionEntry) -> Result<Reply, Status> {
        // Over PCIe, admin commands use PRPs (NVMe Base 2.0, 4.1.1).
        if entry.flags.fuse() != 0 || !self.data.offers(entry.flags.psdt()) {
            return Err(Status::INVALID_FIELD.with_dnr(true));
        }
        let outcome = self.admin_command(entry);
        self.data.session.release();
        outcome
    }

    /// Posts a completion to the admin queue and interrupts.
    fn complete(&mut self, Late { cid, dw0, status }: Late, permit: Permit) {
        let Some(pair) = &mut self.pair else {
            return permit.expire();
        };
        let mut entry = pair.submission.end(U16::new(cid));
        entry.dw0 = U32::new(dw0);
        pair.completion.stage(permit, entry, status);
        let origin = Origin::command(0, cid);
        self.data
            .requester()
            .ledger()
            .end(origin, status.into_bits());
        self.post();
    }

    /// Writes the staged completions to the admin queue and interrupts.
    fn post(&mut self) {
        let Some(pair) = &mut self.pair else {
            return;
        };
        let (completion, interrupts) = (&mut pair.completion, &pair.interrupts);
        let requester = self.data.requester();
        let write = |tag, address, bytes: &[u8]| requester.write(tag, address, bytes);
        if completion.flush(interrupts, write).is_err() {
            log::debug!("queue 0: a completion cannot be posted");
            if !self.has_lost_bus() {
                self.fatal();
            }
            return;
        }
        self.data.session.release();
        completion.signal_all(interrupts);
    }

    /// Completes the commands that waited for an event, while entries are free.
    fn report_events(&mut self) {
        while !self.notifier.quiet() && self.has_free_entry() {
            let Some(late) = self.admin.next_late() else {
                return;
            };
            self.complete_late(late);
        }
    }

    /// Posts a completion that is not the answer to the command in progress, if an entry is free.
    pub(crate) fn complete_late(&mut self, late: Late) {
        let pair = self.pair.as_mut();
        if let Some(permit) = pair.and_then(|pair| pair.completion.reserve()) {
            self.complete(late, permit);
        }
    }
}
