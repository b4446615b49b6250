//! The engine: one thread that takes commands from the queues, carries them out and posts their completions.

use std::sync::Arc;

use peerbar_dma::{Origin, Purpose, Tag};
use peerbar_nvme_spec::command::SubmissionEntry;
use peerbar_nvme_spec::completion::{CompletionEntry, Status};
use peerbar_nvme_spec::registers::{Cc, Doorbell};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromZeros, IntoBytes};

use crate::admin::Admin;
use crate::data::DataPath;
use crate::mailbox::{Mailbox, Task};
use crate::namespace::Namespace;
use crate::prp::PAGE;
use crate::queues::{COMPLETION_BYTES, CompletionQueue, Queues, SUBMISSION_BYTES, SubmissionQueue};
use crate::registers::{Registers, Request, Setup};

/// How many commands one queue may have done before the next queue's turn.
const BURST: usize = 16;

/// What a command comes to, if not to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// It is complete, with this in dword 0 of its completion.
    Now(u32),
    /// It completes later, by itself (Asynchronous Event Request).
    Later,
}

impl Reply {
    /// Complete, with nothing to say.
    pub(crate) const DONE: Self = Self::Now(0);
}

/// A completion that is not the answer to the command in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Late {
    pub(crate) cid: u16,
    pub(crate) dw0: u32,
    pub(crate) status: Status,
}

/// The queues' side of the controller.
pub(crate) struct Engine {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) namespaces: Vec<Namespace>,
    pub(crate) queues: Queues,
    pub(crate) data: DataPath,
    pub(crate) admin: Admin,
    /// Whether an enable has been taken up.
    pub(crate) enabled: bool,
}

impl Engine {
    /// Works until the daemon ends, then brings everything to stable storage.
    pub(crate) fn run(mut self) {
        let mut busy = false;
        loop {
            match self.mailbox.next(self.enabled, busy) {
                Task::Stop => break self.flush_all(),
                Task::Registers(Request::Disable) => self.disable(),
                Task::Registers(Request::Enable(setup)) => self.enable(setup),
                Task::Registers(Request::Shutdown) => self.shut_down(),
                Task::Queues => {}
            }
            busy = self.enabled && self.turn();
        }
    }

    /// Controller reset, or a reset of the function, of which every DMA has been refused since.
    fn disable(&mut self) {
        for id in 0..u16::try_from(self.queues.submission.len()).unwrap_or(u16::MAX) {
            self.mailbox.set_live(Doorbell::SubmissionTail(id), false);
            self.mailbox.set_live(Doorbell::CompletionHead(id), false);
        }
        self.queues.clear();
        self.admin.reset();
        self.enabled = false;
        self.mailbox.set_pin(|_| false);
        self.mailbox.report(|registers| {
            registers.disabled();
            self.data.requester().resume();
        });
    }

    /// CC.EN from 0 to 1 (NVMe Base 2.0, 3.5.1): makes the admin queues, or fails for good.
    fn enable(&mut self, setup: Setup) {
        let Setup { cc, aqa, asq, acq } = setup;
        let known_set = cc.css() == Cc::CSS_NVM;
        let entries = (u32::from(aqa.asqs()) + 1, u32::from(aqa.acqs()) + 1);
        let possible = known_set
            && cc.mps() == 0
            && cc.ams() == Cc::AMS_ROUND_ROBIN
            && entries.0 > 1
            && entries.1 > 1;
        let inside =
            fits(asq, entries.0, SUBMISSION_BYTES) && fits(acq, entries.1, COMPLETION_BYTES);
        if !possible || !inside {
            log::debug!("the controller cannot be enabled with {setup:x?}");
            return self.fatal();
        }
        let mut completion = CompletionQueue::new(acq, entries.1, Some(0));
        completion.users = 1;
        if let (Some(sq), Some(cq)) = (
            self.queues.submission.first_mut(),
            self.queues.completion.first_mut(),
        ) {
            *sq = Some(SubmissionQueue::new(asq, entries.0, 0));
            *cq = Some(completion);
        }
        self.mailbox.set_live(Doorbell::SubmissionTail(0), true);
        self.mailbox.set_live(Doorbell::CompletionHead(0), true);
        self.enabled = true;
        // What was rung while there were no queues is nobody's event.
        self.mailbox.take_stray();
        self.mailbox.report(Registers::ready);
    }

    /// CC.SHN (NVMe Base 2.0, 3.6): commands that came before are done, and everything is on stable storage.
    fn shut_down(&mut self) {
        while self.enabled && self.turn() {
            if self.mailbox.urgent() {
                // The registers have changed. They ask again, if they still want it.
                return;
            }
        }
        self.flush_all();
        self.mailbox.report(Registers::shut_down);
    }

    /// CSTS.CFS: the controller takes no more commands until it is disabled.
    fn fatal(&mut self) {
        self.queues.clear();
        self.mailbox.report(Registers::fatal);
    }

    fn flush_all(&self) {
        for namespace in &self.namespaces {
            if let Err(error) = namespace.backend().flush() {
                namespace.complain("flushed", &error);
            }
        }
    }

    /// Gives every queue a turn; whether any has commands left that can be taken.
    fn turn(&mut self) -> bool {
        let mut busy = false;
        self.take_doorbells();
        for id in 0..u16::try_from(self.queues.submission.len()).unwrap_or(u16::MAX) {
            if self.mailbox.urgent() {
                return true;
            }
            busy |= self.serve(id);
        }
        self.report_events();
        self.update_pin();
        busy
    }

    fn take_doorbells(&mut self) {
        let mut bad = false;
        for (id, queue) in (0..).zip(&mut self.queues.submission) {
            if let (Some(queue), Some(tail)) =
                (queue, self.mailbox.rung(Doorbell::SubmissionTail(id)))
            {
                bad |= queue.set_tail(tail).is_err();
            }
        }
        bad |= take_heads(&mut self.queues, &self.mailbox);
        self.admin.doorbell_errors(self.mailbox.take_stray(), bad);
    }

    /// Carries out a burst of one queue's commands; whether more can be taken at once.
    fn serve(&mut self, id: u16) -> bool {
        let mut vector = None;
        for _ in 0..BURST {
            if self.mailbox.urgent() {
                break;
            }
            let Some((address, completion)) = self.next_command(id) else {
                break;
            };
            let mut entry = SubmissionEntry::new_zeroed();
            let tag = Tag::new(Purpose::Command, Origin::Queue(id));
            let fetched = self
                .data
                .requester()
                .read(tag, address, entry.as_mut_bytes());
            if fetched.is_err() {
                log::debug!("queue {id}: a command cannot be fetched");
                self.fatal();
                return false;
            }
            if let Some(Some(queue)) = self.queues.submission(id) {
                queue.advance();
            }
            let (dw0, status) = match self.execute(id, &entry) {
                Ok(Reply::Later) => continue,
                Ok(Reply::Now(dw0)) => (dw0, Status::SUCCESS),
                Err(status) => (0, self.admin.failed(id, &entry, status)),
            };
            vector = self
                .complete(id, completion, entry.cid.get(), dw0, status)
                .or(vector);
        }
        if let Some(vector) = vector {
            self.raise(vector);
        }
        self.next_command(id).is_some()
    }

    /// Where the next command of a queue is and which completion queue it answers to, if there is one and room for its
    /// completion.
    fn next_command(&mut self, id: u16) -> Option<(u64, u16)> {
        let queue = self.queues.submission(id)?.as_ref()?;
        let (address, completion) = (queue.next()?, queue.completion);
        let room = !self.queues.completion(completion)?.as_ref()?.is_full();
        room.then_some((address, completion))
    }

    fn execute(&mut self, id: u16, entry: &SubmissionEntry) -> Result<Reply, Status> {
        if entry.flags.fuse() != 0 {
            return Err(Status::INVALID_FIELD.with_dnr(true));
        }
        self.data.begin(Origin::command(id, entry.cid.get()));
        if id == 0 {
            self.admin_command(entry)
        } else {
            self.io_command(entry)
        }
    }

    /// Posts a completion; tells the vector to raise for it.
    fn complete(
        &mut self,
        sqid: u16,
        cqid: u16,
        cid: u16,
        dw0: u32,
        status: Status,
    ) -> Option<u16> {
        let sqhd = self
            .queues
            .submission(sqid)?
            .as_ref()
            .map_or(0, SubmissionQueue::head);
        let queue = self.queues.completion(cqid)?.as_mut()?;
        let mut entry = CompletionEntry::new_zeroed();
        entry.dw0 = U32::new(dw0);
        entry.sqhd = U16::new(sqhd);
        entry.sqid = U16::new(sqid);
        entry.cid = U16::new(cid);
        let (address, entry) = queue.push(entry, status);
        let vector = queue.vector;
        let tag = Tag::new(Purpose::Completion, Origin::command(sqid, cid));
        let posted = self.data.requester().write(tag, address, entry.as_bytes());
        if posted.is_err() {
            log::debug!("queue {cqid}: a completion cannot be posted");
            self.fatal();
            return None;
        }
        vector
    }

    /// Completes the commands that waited for an event.
    fn report_events(&mut self) {
        while self
            .queues
            .completion(0)
            .is_some_and(|queue| queue.as_ref().is_some_and(|queue| !queue.is_full()))
        {
            let Some(late) = self.admin.next_late() else {
                return;
            };
            self.complete_late(late);
        }
    }

    /// Posts a completion to the admin queue, which has room for it.
    pub(crate) fn complete_late(&mut self, Late { cid, dw0, status }: Late) {
        if let Some(vector) = self.complete(0, 0, cid, dw0, status) {
            self.raise(vector);
        }
    }

    fn raise(&mut self, vector: u16) {
        if self.mailbox.sends_messages() {
            self.mailbox.send_message(vector);
        } else {
            self.update_pin();
        }
    }

    /// Sets the level of the INTx pin by what the guest has left to take at this very moment.
    fn update_pin(&mut self) {
        let Self {
            mailbox,
            queues,
            admin,
            ..
        } = self;
        let on_pin = !mailbox.sends_messages();
        mailbox.set_pin(|mask| {
            on_pin && {
                admin.doorbell_errors(false, take_heads(queues, mailbox));
                queues.pin(mask)
            }
        });
    }
}

/// Takes over the values of the head doorbells; whether one cannot be.
fn take_heads(queues: &mut Queues, mailbox: &Mailbox) -> bool {
    let mut bad = false;
    for (id, queue) in (0..).zip(&mut queues.completion) {
        if let (Some(queue), Some(head)) = (queue, mailbox.rung(Doorbell::CompletionHead(id))) {
            bad |= queue.set_head(head).is_err();
        }
    }
    bad
}

/// Whether a queue lies in the address space, from a page boundary on.
pub(crate) fn fits(base: u64, entries: u32, entry_bytes: u64) -> bool {
    base.is_multiple_of(PAGE) && base.checked_add(u64::from(entries) * entry_bytes).is_some()
}
