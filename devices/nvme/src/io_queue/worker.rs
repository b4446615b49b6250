//! A worker: a thread that owns some of the I/O queues and serves them.

use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::time::Instant;

use peerbar_nvme_spec::registers::Doorbell;

use super::context::Context;
use super::interrupt::{Next, QueueInterrupts};
use super::poll::{PollPolicy, Poller, Wait};
use super::queue_set::QueueSet;
use super::request::{Done, Requests};
use crate::doorbell_page::Owner;
use crate::io::Io;
use crate::notifier::ENGINE;

mod requests;
#[cfg(test)]
mod tests;

/// The worker that polls the admin doorbells for the engine, if the guest may map them.
const ADMIN_POLLER: Owner = Owner(1);

/// Owner of some I/O queues.
pub(crate) struct Worker {
    owner: Owner,
    requests: Requests,
    queues: QueueSet,
    poller: Poller,
    /// The values of the admin doorbells that the engine was notified of, if this worker polls
    /// them.
    admin_values: Option<[u32; 2]>,
    /// Pending confirmation. With a queue's number, the queue is deleted and the confirmation sent
    /// once the queue has no outstanding commands; with `None`, it is sent once no queue has any.
    unconfirmed: Option<(Option<u16>, Done)>,
}

impl Worker {
    pub(crate) fn new(
        owner: Owner,
        requests: Requests,
        policy: PollPolicy,
        io: Io,
        interrupts: QueueInterrupts,
    ) -> Self {
        Self {
            owner,
            requests,
            queues: QueueSet::new(Context::new(io, interrupts)),
            poller: Poller::new(policy),
            admin_values: (policy == PollPolicy::Always && owner == ADMIN_POLLER).then_some([0; 2]),
            unconfirmed: None,
        }
    }

    /// Works until it is requested to stop.
    pub(crate) fn run(mut self) {
        // With the default timer slack, short sleeps take much longer than requested.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        loop {
            match self.step() {
                ControlFlow::Continue(true) => self.note_work(),
                ControlFlow::Continue(false) => self.wait(),
                ControlFlow::Break(()) => return,
            }
        }
    }

    /// Works until it has nothing left to do.
    #[cfg(feature = "stepped")]
    pub(crate) fn work(&mut self) {
        while self.step() == ControlFlow::Continue(true) {}
    }

    /// Handles notifications, and gives every queue a turn. Returns `true` if there was work.
    /// Breaks if the worker must stop.
    fn step(&mut self) -> ControlFlow<(), bool> {
        // Taken before anything is read: work that is stored later brings another notification.
        let notifier = self.queues.cx.notifier();
        if notifier.events(self.owner).take_notification() {
            self.take_requests()?;
            self.queues.take_heads();
        }
        self.queues.follow_bus();
        self.poll_admin_doorbells();
        let queues = &mut self.queues;
        let busy = queues.complete_ended() | queues.serve() | !queues.cx.io.submit();
        let busy = busy | queues.write_late_data();
        queues.signal(if busy { Next::Work } else { Next::Wait });
        self.confirm_end(busy);
        ControlFlow::Continue(busy)
    }

    /// Reads the admin doorbells, which the guest may write without a notification, even while the
    /// worker is busy.
    fn poll_admin_doorbells(&mut self) {
        let (Some(seen), notifier) = (&mut self.admin_values, self.queues.cx.notifier()) else {
            return;
        };
        let doorbells = [Doorbell::SubmissionTail(0), Doorbell::CompletionHead(0)];
        let values = doorbells.map(|doorbell| notifier.doorbells.value(doorbell));
        if std::mem::replace(seen, values) != values {
            notifier.events(ENGINE).notify();
        }
    }

    /// Records that there was work, and after a pause also the number of commands that the guest
    /// has outstanding.
    fn note_work(&mut self) {
        let queues = &mut self.queues;
        let has_paused = self.poller.has_paused();
        let outstanding = has_paused.then(|| queues.outstanding()).flatten();
        self.poller.worked(outstanding.unwrap_or(1), Instant::now);
    }

    /// Waits according to the poll policy.
    fn wait(&mut self) {
        let queues = &mut self.queues;
        if self.poller.policy == PollPolicy::Always {
            // The guest may have written heads without a notification.
            queues.take_heads();
        }
        let deadline = queues.deadline();
        let is_busy = || queues.cx.io.is_busy();
        match self.poller.wait(is_busy, Instant::now) {
            Wait::Poll => std::hint::spin_loop(),
            Wait::Sleep(end) => {
                let end = deadline.map_or(end, |deadline| deadline.min(end));
                let notifier = queues.cx.notifier();
                notifier.events(self.owner).wait(Some(end), || true);
            }
            Wait::Block => {
                let notifier = queues.cx.interrupts.notifier.clone();
                notifier.events(self.owner).wait(deadline, || queues.arm());
                self.poller.blocked(Instant::now);
            }
        }
    }
}
