//! A worker: a thread that owns some of the I/O queues and serves them.

use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::time::Instant;

use peerbar_nvme_spec::registers::Doorbell;

use super::doorbell::ShadowBuffer;
use super::group::{BATCH, Context, QueueGroup};
use super::interrupt::QueueInterrupts;
use super::poll::{PollPolicy, Poller, Wait};
use super::request::{Done, Requests};
use super::submission::{Batch, SubmissionQueue};
use crate::doorbell_page::Owner;
use crate::io::Io;
use crate::notifier::{ENGINE, Notifier};

mod requests;
#[cfg(test)]
mod tests;

/// The worker that polls the admin doorbells, if the guest may map them.
const ADMIN_POLLER: Owner = Owner(1);

/// Owner of some I/O queues.
pub(crate) struct Worker {
    owner: Owner,
    requests: Requests,
    cx: Context,
    groups: Vec<QueueGroup>,
    shadow: Option<ShadowBuffer>,
    poller: Poller,
    /// Values of the admin doorbells that the engine was notified of, if this is the [`ADMIN_POLLER`].
    admin_seen: [u32; 2],
    /// To be confirmed when no command of this queue is outstanding, which is deleted then, or with `None` of any queue.
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
            cx: Context {
                io,
                interrupts,
                batch: Batch::new(BATCH),
            },
            groups: Vec::new(),
            shadow: None,
            poller: Poller::new(policy),
            admin_seen: [0; 2],
            unconfirmed: None,
        }
    }

    /// Works until it is requested to stop.
    pub(crate) fn run(mut self) {
        // Sleeps are shorter than what the kernel adds to them. If it refuses they are longer.
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

    /// Takes what it is notified of, and gives every queue a turn; whether there was work. Breaks if it is to stop.
    fn step(&mut self) -> ControlFlow<(), bool> {
        // Taken before anything is read: what is stored later brings a notification of its own.
        if self.notifier().events(self.owner).take_notification() {
            self.take_requests()?;
            self.take_heads();
            self.cx.interrupts.settle(false);
        }
        self.poll_admin_doorbells();
        let busy = self.complete_ended() | self.serve() | !self.cx.io.submit();
        let busy = busy | self.write_late_data();
        self.cx.interrupts.settle(!busy);
        self.confirm_end(busy);
        ControlFlow::Continue(busy)
    }

    fn notifier(&self) -> &Notifier {
        &self.cx.interrupts.notifier
    }

    /// Gives every queue a turn; whether there were commands.
    fn serve(&mut self) -> bool {
        if self.cx.is_quiet() {
            return false;
        }
        let queues = self.queues().count();
        let (mut busy, cx) = (false, &mut self.cx);
        for group in &mut self.groups {
            for queue in &mut group.submissions {
                busy |= queue.serve(&mut group.completions, cx, queues);
            }
        }
        cx.io.data.session.release();
        busy
    }

    fn queues(&self) -> impl Iterator<Item = &SubmissionQueue> {
        self.groups.iter().flat_map(|group| &group.submissions)
    }

    /// Completes the commands that the kernel has ended; whether there were any.
    fn complete_ended(&mut self) -> bool {
        let (mut any, cx) = (false, &mut self.cx);
        while let Some(ended) = cx.io.take_ended() {
            any = true;
            let mut groups = self.groups.iter_mut();
            match groups.find_map(|group| group.queue(ended.queue)) {
                Some((queue, completions)) if !cx.is_quiet() => {
                    queue.complete(completions, cx, ended);
                }
                _ => ended.permit.expire(),
            }
        }
        for group in self.groups.iter_mut().filter(|_| any) {
            let more = group.completions.has_reserved();
            cx.flush(&mut group.completions);
            cx.signal(&mut group.completions, more);
        }
        any
    }

    /// Writes the data that may follow their completions by now; whether there were any.
    fn write_late_data(&mut self) -> bool {
        let (mut any, cx) = (false, &mut self.cx);
        let groups = self.groups.iter_mut().map(|group| &mut group.completions);
        for completions in groups.filter(|completions| completions.has_late()) {
            any |= !cx.is_quiet() && cx.write_late_data(completions);
        }
        any
    }

    /// Reads all head doorbells.
    fn take_heads(&mut self) {
        let (interrupts, session) = (&mut self.cx.interrupts, &mut self.cx.io.data.session);
        for group in &mut self.groups {
            // A doorbell that is not mapped is found out when the queue is served or armed.
            let _ = group.completions.take_head(interrupts, session);
        }
        session.release();
        if interrupts.notifier.uses_pin() {
            interrupts.notifier.update_pin();
        }
    }

    /// Reads the admin doorbells, which the guest may write without a notification, however busy the worker is.
    fn poll_admin_doorbells(&mut self) {
        if self.poller.policy == PollPolicy::Always && self.owner == ADMIN_POLLER {
            let doorbells = [Doorbell::SubmissionTail(0), Doorbell::CompletionHead(0)];
            let values = doorbells.map(|doorbell| self.notifier().doorbells.value(doorbell));
            if std::mem::replace(&mut self.admin_seen, values) != values {
                self.notifier().events(ENGINE).notify();
            }
        }
    }

    /// Notes that there was work, and after a pause how many commands an interrupt-driven guest has outstanding. Without a shadow
    /// buffer that is not seen in time.
    fn note_work(&mut self) {
        let mut outstanding = 1;
        if self.poller.has_paused() && self.shadow.is_some() {
            self.take_heads();
            outstanding = self.groups.iter().map(QueueGroup::outstanding).sum();
        }
        self.poller.worked(outstanding, Instant::now);
    }

    /// Waits by the poll policy.
    fn wait(&mut self) {
        if self.poller.policy == PollPolicy::Always {
            // The guest may have written them without a notification.
            self.take_heads();
        }
        let deadlines = [self.cx.interrupts.deadline(), self.cx.io.due()];
        let deadline = deadlines.into_iter().flatten().min();
        let is_busy = || self.cx.io.is_busy();
        match self.poller.wait(is_busy, Instant::now) {
            Wait::Poll => std::hint::spin_loop(),
            Wait::Sleep(end) => {
                let end = deadline.map_or(end, |deadline| deadline.min(end));
                self.notifier().events(self.owner).wait(Some(end), || true);
            }
            Wait::Block => {
                let notifier = self.cx.interrupts.notifier.clone();
                notifier.events(self.owner).wait(deadline, || self.arm());
                self.poller.blocked(Instant::now);
            }
        }
    }

    /// Has the guest ring for its next command; whether there is none at this moment.
    fn arm(&mut self) -> bool {
        if self.cx.is_quiet() {
            // Whatever the guest rings, nothing is done until the engine requests it.
            return true;
        }
        let mut idle = self.arm_late_data();
        for queue in self
            .groups
            .iter_mut()
            .flat_map(|group| &mut group.submissions)
        {
            match queue.doorbell.arm(&mut self.cx.io.data.session) {
                Ok(is_unchanged) => idle &= is_unchanged,
                Err(_) => {
                    self.cx.fail(queue.id, "its doorbell is not mapped");
                    idle = false;
                }
            }
        }
        self.cx.io.data.session.forget();
        idle
    }

    /// Has the guest ring when it takes a completion that data are to follow; whether it has taken none of these by now.
    fn arm_late_data(&mut self) -> bool {
        let (mut idle, cx) = (true, &mut self.cx);
        let (interrupts, session) = (&mut cx.interrupts, &mut cx.io.data.session);
        let groups = self.groups.iter_mut().map(|group| &mut group.completions);
        for completions in groups.filter(|completions| completions.has_late()) {
            // A doorbell that is not mapped is found out when the submission queue is armed.
            let _ = completions.arm(interrupts, session);
            idle &= completions.due_late().is_none();
        }
        idle
    }
}
