//! A worker: a thread that owns some of the I/O queues, takes their commands, carries them out and posts their completions.

mod company;
mod gathering;
mod pace;
mod under_way;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use peerbar_dma::{Origin, Purpose, Tag};
use peerbar_nvme_spec::command::SubmissionEntry;
use peerbar_nvme_spec::completion::{CompletionEntry, Status};
use peerbar_nvme_spec::registers::Doorbell;
use zerocopy::little_endian::U16;
use zerocopy::{FromZeros, IntoBytes};

use crate::crew::{Done, Mission};
use crate::doorbells::Owner;
use crate::io::Io;
use crate::mailbox::{ENGINE, Mailbox};
use crate::messages::Messages;
use crate::outbox::Outbox;
use crate::poll::Poll;
use crate::queues::{CompletionQueue, SUBMISSION_BYTES, SubmissionQueue};
use crate::registers::Registers;
use crate::shadow::Shadow;
use pace::{Pace, Rest};

/// How many commands of one queue are fetched and carried out before the next queue's turn.
const BATCH: usize = 32;

/// For how many bytes of the commands after it a completion waits at most before the guest can see it. It does not wait for
/// more than half of its batch.
const WAIT_BYTES: u64 = 32 << 10;

/// The worker that looks after the admin doorbells, if the guest may map them.
const LOOKOUT: Owner = Owner(1);

/// What the engine has a worker do.
pub(crate) enum Order {
    /// Own a completion queue of this number.
    AddCompletion(u16, CompletionQueue),
    /// Own a submission queue of this number, whose completion queue it owns.
    AddSubmission(u16, SubmissionQueue),
    /// Forget a submission queue. Commands that have not been fetched are gone with it; those under way are completed before.
    RemoveSubmission(u16),
    /// Forget a completion queue, to which no submission queue is bound.
    RemoveCompletion(u16),
    /// Look for the doorbells of all queues there.
    Shadow(Shadow),
    /// Forget all queues and commands, and where doorbells are.
    Forget,
    /// Carry out every command there is, unless the registers ask for something else meanwhile.
    Finish,
    /// End the thread.
    Leave,
}

/// A submission queue, and the place of its completion queue in the [`Outbox`].
struct Source {
    id: u16,
    queue: SubmissionQueue,
    completion: usize,
    /// How many of its commands are under way.
    under_way: usize,
}

/// Owner of some I/O queues.
pub(crate) struct Worker {
    owner: Owner,
    inbox: Receiver<Mission>,
    mailbox: Arc<Mailbox>,
    poll: Poll,
    /// Where the doorbells are, if not in BAR0.
    shadow: Option<Shadow>,
    io: Io,
    sources: Vec<Source>,
    outbox: Outbox,
    /// Commands that have been fetched; empty but while they are carried out.
    batch: Vec<SubmissionEntry>,
    /// Values of the admin doorbells that the engine has been told of, if this is the [`LOOKOUT`].
    admin_seen: [u32; 2],
    pace: Pace,
    /// Queues that are to be forgotten when none of their commands is under way, and whom to tell.
    removals: Vec<(u16, Done)>,
    /// To be told when every command there is has been carried out.
    finish: Option<Done>,
    leaving: bool,
}

impl Worker {
    pub(crate) fn new(
        owner: Owner,
        inbox: Receiver<Mission>,
        mailbox: Arc<Mailbox>,
        poll: Poll,
        io: Io,
        messages: Messages,
    ) -> Self {
        Self {
            owner,
            inbox,
            outbox: Outbox::new(mailbox.clone(), messages),
            mailbox,
            poll,
            shadow: None,
            io,
            sources: Vec::new(),
            batch: vec![SubmissionEntry::new_zeroed(); BATCH],
            admin_seen: [0; 2],
            pace: Pace::new(poll),
            removals: Vec::new(),
            finish: None,
            leaving: false,
        }
    }

    /// Works until told to leave.
    pub(crate) fn run(mut self) {
        // Naps are shorter than what the kernel adds to them. If it refuses they are longer.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        loop {
            // Taken first: who knocks after this makes for another round, however much of it is seen in this one.
            if self.mailbox.take_knock(self.owner) {
                self.take_orders();
                if self.leaving {
                    return;
                }
                self.take_heads();
                self.outbox.settle(false);
            }
            self.look_at_admin_doorbells();
            let busy = self.complete_ended() | self.turn() | !self.io.submit();
            self.outbox.settle(!busy);
            self.tell_of_ends(busy);
            if busy {
                let several = self.pace.asks_for_several() && self.has_several();
                self.pace.worked(several, Instant::now);
            } else {
                self.rest();
            }
        }
    }

    fn take_orders(&mut self) {
        while let Ok((order, done)) = self.inbox.try_recv() {
            match order {
                Order::AddCompletion(id, queue) => {
                    self.start(Doorbell::CompletionHead(id));
                    self.outbox.add(id, queue);
                }
                Order::AddSubmission(id, queue) => self.add_source(id, queue),
                Order::RemoveSubmission(id) => {
                    self.removals.push((id, done));
                    continue;
                }
                Order::RemoveCompletion(id) => self.remove_completion(id),
                Order::Shadow(shadow) => self.take_up(shadow),
                Order::Forget => {
                    self.admin_seen = [0; 2];
                    self.sources.clear();
                    self.outbox.forget();
                    self.shadow = None;
                    self.io.forget();
                }
                Order::Finish => {
                    self.finish = Some(done);
                    continue;
                }
                Order::Leave => {
                    self.outbox.send_all();
                    self.leaving = true;
                }
            }
            // It fails if the engine does not wait any more.
            let _ = done.send(());
        }
    }

    fn add_source(&mut self, id: u16, queue: SubmissionQueue) {
        self.start(Doorbell::SubmissionTail(id));
        if let Some(completion) = self.place(queue.completion) {
            self.sources.push(Source {
                id,
                queue,
                completion,
                under_way: 0,
            });
        }
    }

    fn remove_completion(&mut self, id: u16) {
        self.outbox.remove(id);
        for index in 0..self.sources.len() {
            let bound_to = self
                .sources
                .get(index)
                .map(|source| source.queue.completion);
            let place = bound_to.and_then(|id| self.place(id));
            if let (Some(source), Some(place)) = (self.sources.get_mut(index), place) {
                source.completion = place;
            }
        }
    }

    /// Looks for the doorbells elsewhere from now on, where they go on from the values that they have.
    fn take_up(&mut self, shadow: Shadow) {
        let heads = self.outbox.ids().map(Doorbell::CompletionHead);
        let tails = self.sources.iter();
        let tails = tails.map(|source| Doorbell::SubmissionTail(source.id));
        for doorbell in heads.chain(tails) {
            let value = self.mailbox.doorbells.value(doorbell);
            shadow.start(&mut self.io.data.session, doorbell, value);
        }
        self.io.data.session.release();
        self.shadow = Some(shadow);
    }

    /// The doorbell of a new queue.
    fn start(&mut self, doorbell: Doorbell) {
        if let Some(shadow) = self.shadow {
            shadow.start(&mut self.io.data.session, doorbell, 0);
            self.io.data.session.release();
        }
    }

    fn place(&self, completion: u16) -> Option<usize> {
        self.outbox.ids().position(|id| id == completion)
    }

    /// Nothing is left to do: goes on looking for a while, and then sleeps.
    fn rest(&mut self) {
        if self.poll == Poll::Always {
            // The guest may have written them without a word.
            self.take_heads();
        }
        let sources = &self.sources;
        let waits = || sources.iter().any(|source| source.under_way > 0);
        match self.pace.rest(waits, Instant::now) {
            Rest::Look => std::hint::spin_loop(),
            Rest::Nap(end) => {
                let due = self.outbox.until();
                let end = due.map_or(end, |due| due.min(end));
                self.mailbox.sleep(self.owner, Some(end), || true);
            }
            Rest::Sleep => {
                let due = self.outbox.until();
                let mailbox = self.mailbox.clone();
                mailbox.sleep(self.owner, due, || self.may_sleep());
                self.pace.slept(Instant::now);
            }
        }
    }

    /// Has the guest ring when it has something to do; whether there is nothing at this moment.
    fn may_sleep(&mut self) -> bool {
        if self.mailbox.quiet() {
            // Whatever is rung, nothing is done until the engine gives orders.
            return true;
        }
        let Self {
            mailbox,
            shadow,
            io,
            sources,
            ..
        } = self;
        let session = &mut io.data.session;
        let mut lost = None;
        let idle = sources.iter().all(|source| {
            let (tail, seen) = (Doorbell::SubmissionTail(source.id), source.queue.seen());
            let value = match shadow {
                None => Some(mailbox.doorbells.value(tail)),
                Some(shadow) => {
                    let told = shadow.call_at(session, tail, seen);
                    shadow.value(session, tail).filter(|_| told)
                }
            };
            if value.is_none() {
                lost = Some(source.id);
            }
            value == Some(seen)
        });
        session.forget();
        if let Some(id) = lost {
            self.lose_doorbell(id);
        }
        idle
    }

    /// A doorbell of a queue in the guest's memory cannot be reached any more.
    fn lose_doorbell(&mut self, id: u16) {
        log::debug!("queue {id}: its doorbell cannot be reached");
        self.io.data.session.release();
        self.mailbox.report(Registers::fatal);
    }

    /// The guest may have written the admin doorbells without a word. They are looked at however much else there is to do.
    fn look_at_admin_doorbells(&mut self) {
        if self.poll == Poll::Always && self.owner == LOOKOUT {
            let bells = [Doorbell::SubmissionTail(0), Doorbell::CompletionHead(0)];
            let values = bells.map(|bell| self.mailbox.doorbells.value(bell));
            if std::mem::replace(&mut self.admin_seen, values) != values {
                self.mailbox.knock(ENGINE);
            }
        }
    }

    /// The value of a doorbell, if it can be seen.
    fn value(&mut self, doorbell: Doorbell) -> Option<u32> {
        match self.shadow {
            None => Some(self.mailbox.doorbells.value(doorbell)),
            Some(shadow) => shadow.value(&mut self.io.data.session, doorbell),
        }
    }

    /// Gives every queue a turn; whether there was anything to do.
    fn turn(&mut self) -> bool {
        if self.mailbox.quiet() || !self.have_gathered() {
            return false;
        }
        let mut busy = false;
        for index in 0..self.sources.len() {
            busy |= self.serve(index);
        }
        self.io.data.session.release();
        busy
    }

    /// Takes over the values of all head doorbells, as one of them has been rung.
    fn take_heads(&mut self) {
        for place in 0..self.outbox.ids().count() {
            self.take_head(place);
        }
        self.io.data.session.release();
        if self.mailbox.uses_pin() {
            self.mailbox.update_pin();
        }
    }

    fn take_head(&mut self, place: usize) {
        let Some((id, _)) = self.outbox.queue(place) else {
            return;
        };
        let bell = Doorbell::CompletionHead(id);
        let Some(value) = self.value(bell) else {
            return;
        };
        self.outbox.take_head(place, value);
        let queue = self.outbox.queue(place);
        let passed = queue.and_then(|(_, queue)| queue.passed());
        self.leave_behind(bell, passed);
    }

    /// A doorbell has been looked at. Has the guest ring none while that goes on.
    fn leave_behind(&mut self, doorbell: Doorbell, passed: Option<u32>) {
        if let (Some(shadow), Some(passed)) = (self.shadow, passed) {
            shadow.leave_behind(&mut self.io.data.session, doorbell, passed);
        }
    }

    /// Has the guest ring when it takes further completions from a queue. What it has taken meanwhile is taken over, which
    /// ends, since it cannot take more than there is.
    fn call_at_head(&mut self, place: usize) {
        while let (Some(shadow), Some((id, queue))) = (self.shadow, self.outbox.queue(place)) {
            let seen = queue.head();
            let bell = Doorbell::CompletionHead(id);
            if !shadow.call_at(&mut self.io.data.session, bell, seen) {
                return self.lose_doorbell(id);
            }
            self.take_head(place);
            let queue = self.outbox.queue(place);
            if queue.is_none_or(|(_, queue)| queue.head() == seen) {
                return;
            }
        }
    }

    /// Carries out a batch of one queue's commands; whether there were any.
    fn serve(&mut self, index: usize) -> bool {
        let Some(source) = self.sources.get(index) else {
            return false;
        };
        let (id, place) = (source.id, source.completion);
        let next = source.queue.next_address();
        let tail = self.value(Doorbell::SubmissionTail(id));
        // It comes from the guest's processor as the doorbell does, and may be on its way at the same time.
        self.io
            .data
            .session
            .prefetch(Purpose::Command, next, SUBMISSION_BYTES);
        let (Some(tail), Some(source)) = (tail, self.sources.get_mut(index)) else {
            self.lose_doorbell(id);
            return false;
        };
        if source.queue.set_tail(tail).is_err() {
            self.mailbox.tell_bad_value();
        }
        let (passed, has_entries) = (source.queue.passed(), source.queue.has_entries());
        self.leave_behind(Doorbell::SubmissionTail(id), passed);
        if !has_entries || self.removals.iter().any(|(gone, _)| *gone == id) {
            return false;
        }
        let room = self.room(place).min(self.share(index));
        let count = self.fetch(index, room.min(BATCH));
        self.pace.served(u32::try_from(count).unwrap_or(u32::MAX));
        let batch = std::mem::take(&mut self.batch);
        self.carry_out(index, batch.get(..count).unwrap_or_default());
        self.batch = batch;
        self.write(place);
        // Only now, as that may take a while to come from the guest's processor.
        let more = self.has_more(index);
        self.interrupt(place, more);
        count > 0
    }

    /// Carries out commands of a queue. The processor fetches blocks of the next one while it copies those of the one before.
    fn carry_out(&mut self, index: usize, commands: &[SubmissionEntry]) {
        let source = self.sources.get(index);
        let Some((id, place)) = source.map(|source| (source.id, source.completion)) else {
            return;
        };
        let half = commands.len() / 2;
        let mut coming = commands.iter();
        self.io.expect(coming.next());
        for (number, entry) in (1..).zip(commands) {
            if self.mailbox.quiet() {
                break;
            }
            self.io.expect(coming.next());
            match self.io.execute(id, entry) {
                Some(status) => self.complete(index, entry, status),
                None => self.set_under_way(index),
            }
            // With half of few commands the guest goes on while the other half is carried out.
            if number == half || self.io.moved() >= WAIT_BYTES {
                self.write(place);
            }
        }
    }

    /// Whether the guest has more commands for a queue at this moment.
    fn has_more(&mut self, index: usize) -> bool {
        let known = self.sources.get(index).map(|source| {
            let queue = &source.queue;
            (source.id, queue.seen(), queue.has_entries())
        });
        known.is_some_and(|(id, seen, has_entries)| {
            let tail = Doorbell::SubmissionTail(id);
            has_entries || self.value(tail).is_some_and(|value| value != seen)
        })
    }

    /// How many completions there is room for.
    fn room(&mut self, place: usize) -> usize {
        if self.outbox.room(place) < BATCH {
            self.take_head(place);
        }
        if self.outbox.room(place) == 0 {
            self.call_at_head(place);
        }
        self.outbox.room(place)
    }

    /// Fetches up to `most` commands; how many there are.
    fn fetch(&mut self, index: usize, most: usize) -> usize {
        let source = self.sources.get_mut(index);
        let next = source.and_then(|source| Some((source.queue.next(most)?, source)));
        let Some(((address, count), source)) = next.filter(|_| !self.mailbox.quiet()) else {
            return 0;
        };
        let entries = self.batch.get_mut(..count).unwrap_or_default();
        let data = &mut self.io.data;
        let tag = Tag::new(Purpose::Command, Origin::Queue(source.id));
        if data.read(tag, address, entries.as_mut_bytes()).is_err() {
            data.session.release();
            log::debug!("queue {}: commands cannot be fetched", source.id);
            self.mailbox.report(Registers::fatal);
            return 0;
        }
        source.queue.advance(count);
        count
    }

    /// Stages the completion of a command.
    fn complete(&mut self, index: usize, command: &SubmissionEntry, status: Status) {
        let Some(source) = self.sources.get(index) else {
            return;
        };
        let place = source.completion;
        let origin = Origin::command(source.id, command.cid.get());
        self.io.data.requester().end(origin, status.into_bits());
        let mut entry = CompletionEntry::new_zeroed();
        entry.sqhd = U16::new(source.queue.head());
        entry.sqid = U16::new(source.id);
        entry.cid = command.cid;
        let queue = self.outbox.queue(place);
        if queue.is_some_and(|(_, queue)| queue.stage(entry, status)) {
            self.write(place);
        }
    }

    /// Has the guest see the completions that are staged for a queue. [`Worker::interrupt`] is to follow, before anything is
    /// waited for.
    fn write(&mut self, place: usize) {
        self.io.settle();
        let Some((id, queue)) = self.outbox.queue(place) else {
            return;
        };
        let Some((address, bytes)) = queue.staged() else {
            return;
        };
        let data = &mut self.io.data;
        let tag = Tag::new(Purpose::Completion, queue.origin());
        let posted = data.write_entries(tag, address, bytes, size_of::<CompletionEntry>());
        if posted.is_err() {
            data.session.release();
            log::debug!("queue {id}: completions cannot be posted");
            return self.mailbox.report(Registers::fatal);
        }
        self.outbox.written(place);
    }

    /// Interrupts for the completions of a queue that have been written since the last time. `more`: further ones follow in
    /// no time.
    fn interrupt(&mut self, place: usize, more: bool) {
        let posted = self.outbox.posted(place, more);
        let waits = |posted| self.outbox.waits_for_head(posted);
        if posted.as_ref().is_some_and(waits) {
            self.take_head(place);
        }
        self.io.data.session.release();
        if let Some(posted) = posted {
            self.outbox.interrupt(posted);
        }
    }
}

#[cfg(test)]
mod tests;
