//! The engine: the thread that does what the registers and the admin queue ask for.

use std::sync::Arc;

use peerbar_dma::{Origin, Purpose, Tag};
use peerbar_nvme_spec::command::SubmissionEntry;
use peerbar_nvme_spec::completion::{CompletionEntry, Status};
use peerbar_nvme_spec::registers::{Cc, Doorbell};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromZeros, IntoBytes};

use crate::admin::Admin;
use crate::coalescing::Coalescing;
use crate::controller::QUEUE_PAIRS;
use crate::crew::Crew;
use crate::data::DataPath;
use crate::directory::Directory;
use crate::mailbox::{ENGINE, Mailbox, Task};
use crate::prp::PAGE;
use crate::queues::{COMPLETION_BYTES, CompletionQueue, SUBMISSION_BYTES, SubmissionQueue};
use crate::registers::{Registers, Request, Setup};
use crate::storage::Storage;
use crate::worker::Order;

/// How many admin commands are done before the registers are looked at again.
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

/// The admin queues.
pub(crate) struct AdminPair {
    submission: SubmissionQueue,
    pub(crate) completion: CompletionQueue,
}

/// The controller but for its I/O commands, which the workers carry out.
pub(crate) struct Engine {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) storage: Arc<Storage>,
    pub(crate) coalescing: Arc<Coalescing>,
    pub(crate) crew: Crew,
    pub(crate) directory: Directory,
    /// The admin queues, once an enable has been taken up and until the controller fails.
    pub(crate) pair: Option<AdminPair>,
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
                Task::Stop => break,
                Task::Registers(Request::Disable) => self.disable(),
                Task::Registers(Request::Enable(setup)) => self.enable(setup),
                Task::Registers(Request::Shutdown) => self.shut_down(),
                Task::Queues => {}
            }
            busy = self.enabled && self.turn();
        }
        self.crew.dismiss(&self.mailbox);
        self.storage.flush_all();
    }

    /// Controller reset, or a reset of the function, of which every DMA has been refused since.
    fn disable(&mut self) {
        // The admin doorbells go first: who looks whether they change starts anew from 0, too.
        self.close(0);
        self.crew.tell_all(&self.mailbox, || Order::Forget);
        (1..QUEUE_PAIRS).for_each(|id| self.close(id));
        self.directory.clear();
        self.pair = None;
        self.admin.reset();
        self.apply_features();
        self.enabled = false;
        self.mailbox.update_pin();
        self.mailbox.report(|registers| {
            registers.disabled();
            self.data.requester().resume();
        });
    }

    /// Nobody has the queues of this number any more.
    fn close(&self, id: u16) {
        let doorbells = &self.mailbox.doorbells;
        doorbells.set_owner(Doorbell::SubmissionTail(id), None);
        doorbells.set_owner(Doorbell::CompletionHead(id), None);
        self.mailbox.pending.close(id);
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
        self.pair = Some(AdminPair {
            submission: SubmissionQueue::new(asq, entries.0, 0),
            completion: CompletionQueue::new(acq, entries.1, Some(0)),
        });
        self.mailbox.pending.open(0, entries.1, Some(0));
        let doorbells = &self.mailbox.doorbells;
        doorbells.set_owner(Doorbell::SubmissionTail(0), Some(ENGINE));
        doorbells.set_owner(Doorbell::CompletionHead(0), Some(ENGINE));
        self.enabled = true;
        // What was rung while there were no queues is nobody's event.
        self.mailbox.take_doorbell_errors();
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
        self.crew.tell_all(&self.mailbox, || Order::Finish);
        if self.mailbox.urgent() {
            return;
        }
        self.storage.flush_all();
        self.mailbox.report(Registers::shut_down);
    }

    /// CSTS.CFS: the controller takes no more commands until it is disabled.
    fn fatal(&mut self) {
        self.pair = None;
        self.mailbox.report(Registers::fatal);
    }

    /// Gives the admin queue a turn; whether it has commands left that can be taken.
    fn turn(&mut self) -> bool {
        self.take_doorbells();
        let busy = self.serve();
        self.report_events();
        self.mailbox.update_pin();
        busy
    }

    fn take_doorbells(&mut self) {
        let (stray, mut bad) = self.mailbox.take_doorbell_errors();
        if let Some(pair) = &mut self.pair {
            let value = |doorbell| self.mailbox.doorbells.value(doorbell);
            let tail = value(Doorbell::SubmissionTail(0));
            bad |= pair.submission.set_tail(tail).is_err();
            let head = value(Doorbell::CompletionHead(0));
            bad |= pair.completion.set_head(head).is_err();
            self.mailbox
                .pending
                .moved(0, pair.completion.head(), pair.completion.posted_tail());
        }
        self.admin.doorbell_errors(stray, bad);
    }

    /// Carries out a burst of admin commands; whether more can be taken at once.
    fn serve(&mut self) -> bool {
        for _ in 0..BURST {
            if self.mailbox.urgent() || self.mailbox.quiet() {
                break;
            }
            let Some(address) = self.next_command() else {
                return false;
            };
            let mut entry = SubmissionEntry::new_zeroed();
            let tag = Tag::new(Purpose::Command, Origin::Queue(0));
            let requester = self.data.requester();
            let fetched = requester.read(tag, address, entry.as_mut_bytes());
            if fetched.is_err() {
                log::debug!("queue 0: a command cannot be fetched");
                self.fatal();
                return false;
            }
            if let Some(pair) = &mut self.pair {
                pair.submission.advance(1);
            }
            let (dw0, status) = match self.execute(&entry) {
                Ok(Reply::Later) => continue,
                Ok(Reply::Now(dw0)) => (dw0, Status::SUCCESS),
                Err(status) => (0, self.storage.failed(0, &entry, status)),
            };
            self.complete(entry.cid.get(), dw0, status);
        }
        !self.mailbox.quiet() && self.next_command().is_some()
    }

    /// Where the next command is, if there is one and room for its completion.
    fn next_command(&self) -> Option<u64> {
        let pair = self.pair.as_ref()?;
        let (address, _) = pair.submission.next(1)?;
        (pair.completion.room() > 0).then_some(address)
    }

    fn execute(&mut self, entry: &SubmissionEntry) -> Result<Reply, Status> {
        if entry.flags.fuse() != 0 {
            return Err(Status::INVALID_FIELD.with_dnr(true));
        }
        self.data
            .begin(Origin::command(0, entry.cid.get()), entry.opcode);
        let outcome = self.admin_command(entry);
        self.data.session.release();
        outcome
    }

    /// Posts a completion to the admin queue, which has room for it, and interrupts.
    fn complete(&mut self, cid: u16, dw0: u32, status: Status) {
        let Some(AdminPair {
            submission,
            completion,
        }) = &mut self.pair
        else {
            return;
        };
        let mut entry = CompletionEntry::new_zeroed();
        entry.dw0 = U32::new(dw0);
        entry.sqhd = U16::new(submission.head());
        entry.cid = U16::new(cid);
        completion.stage(entry, status);
        let origin = Origin::command(0, cid);
        let tag = Tag::new(Purpose::Completion, origin);
        let requester = self.data.requester();
        requester.end(origin, status.into_bits());
        let staged = completion.staged();
        if staged.is_some_and(|(address, bytes)| requester.write(tag, address, bytes).is_err()) {
            log::debug!("queue 0: a completion cannot be posted");
            return self.fatal();
        }
        completion.posted();
        self.mailbox
            .pending
            .moved(0, completion.head(), completion.posted_tail());
        if let Some(vector) = completion.vector {
            self.mailbox.raise(vector);
        }
    }

    /// Completes the commands that waited for an event.
    fn report_events(&mut self) {
        while !self.mailbox.quiet()
            && self
                .pair
                .as_ref()
                .is_some_and(|pair| pair.completion.room() > 0)
        {
            let Some(late) = self.admin.next_late() else {
                return;
            };
            self.complete_late(late);
        }
    }

    /// Posts a completion to the admin queue, which has room for it.
    pub(crate) fn complete_late(&mut self, Late { cid, dw0, status }: Late) {
        self.complete(cid, dw0, status);
    }
}

/// Whether a queue lies in the address space, from a page boundary on.
pub(crate) fn fits(base: u64, entries: u32, entry_bytes: u64) -> bool {
    base.is_multiple_of(PAGE) && base.checked_add(u64::from(entries) * entry_bytes).is_some()
}
