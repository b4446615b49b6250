//! A worker's completion queues, and what the guest is told of them: the way of a completion but for the memory that it is
//! written to. `tests/models` tries it in every order of events.

use std::sync::Arc;
use std::time::Instant;

use crate::mailbox::Mailbox;
use crate::messages::{Messages, Posted};
use crate::queues::CompletionQueue;

/// Completion queues by place, from 0 on, and the messages that their guest is owed.
pub(crate) struct Outbox {
    mailbox: Arc<Mailbox>,
    queues: Vec<(u16, CompletionQueue)>,
    messages: Messages,
}

impl Outbox {
    /// An outbox without queues.
    pub(crate) fn new(mailbox: Arc<Mailbox>, messages: Messages) -> Self {
        Self {
            mailbox,
            queues: Vec::new(),
            messages,
        }
    }

    /// A queue of this number comes, behind the others.
    pub(crate) fn add(&mut self, id: u16, queue: CompletionQueue) {
        self.queues.push((id, queue));
    }

    /// A queue goes; those behind it move up.
    pub(crate) fn remove(&mut self, id: u16) {
        self.send_all();
        self.queues.retain(|(other, _)| *other != id);
    }

    /// All queues go, and nobody is owed anything.
    pub(crate) fn forget(&mut self) {
        self.queues.clear();
        self.messages.forget();
    }

    /// The queues' numbers, by place.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u16> {
        self.queues.iter().map(|(id, _)| *id)
    }

    /// The queue at a place, and its number.
    pub(crate) fn queue(&mut self, place: usize) -> Option<(u16, &mut CompletionQueue)> {
        let queue = self.queues.get_mut(place);
        queue.map(|(id, queue)| (*id, queue))
    }

    /// How many completions there is room for.
    pub(crate) fn room(&self, place: usize) -> usize {
        let queue = self.queues.get(place);
        queue.map_or(0, |(_, queue)| queue.room())
    }

    /// Takes over the value of a queue's head doorbell.
    pub(crate) fn take_head(&mut self, place: usize, value: u32) {
        let Some((id, queue)) = self.queues.get_mut(place) else {
            return;
        };
        let before = queue.head();
        if queue.set_head(value).is_err() {
            self.mailbox.tell_bad_value();
        }
        let (head, tail) = (queue.head(), queue.posted_tail());
        self.mailbox.pending.moved(*id, head, tail);
        if let Some(vector) = queue.vector.filter(|_| head != before) {
            let left = !self.messages.owes(vector) || self.has_left(vector);
            self.messages.taken(vector, left);
        }
    }

    /// Whether the guest has completions left to take from any queue of a vector.
    fn has_left(&self, vector: u16) -> bool {
        let queues = self.queues.iter().map(|(_, queue)| queue);
        let mut queues = queues.filter(|queue| queue.vector == Some(vector));
        queues.any(|queue| queue.left() > 0)
    }

    /// How many completions the guest has left to take, of all queues.
    pub(crate) fn left(&self) -> usize {
        let left = self.queues.iter().map(|(_, queue)| queue.left());
        usize::try_from(left.sum::<u32>()).unwrap_or(usize::MAX)
    }

    /// What was staged for a queue is in its memory. It is to be [`posted`](Outbox::posted) before anything is waited for.
    pub(crate) fn written(&mut self, place: usize) {
        if let Some((id, queue)) = self.queues.get_mut(place) {
            queue.posted();
            let pending = &self.mailbox.pending;
            pending.moved(*id, queue.head(), queue.posted_tail());
        }
    }

    /// What there is to interrupt for since the last time, if anything, and if the queue interrupts. `more`: further
    /// completions of it follow in the next round.
    pub(crate) fn posted(&mut self, place: usize, more: bool) -> Option<Posted> {
        let (_, queue) = self.queues.get_mut(place)?;
        let (entries, failed) = queue.take_news();
        let vector = queue.vector.filter(|_| entries > 0)?;
        Some(Posted {
            vector,
            entries,
            failed,
            more,
        })
    }

    /// Whether it matters if the guest has taken completions meanwhile: look at their queue's head first.
    pub(crate) fn waits_for_head(&self, posted: &Posted) -> bool {
        posted.more && self.messages.is_unanswered(posted.vector)
    }

    /// Interrupts for what has been posted, or owes it.
    pub(crate) fn interrupt(&mut self, posted: Posted) {
        let at_once = !self.mailbox.sends_messages() || self.messages.posted(posted, Instant::now);
        if at_once {
            self.mailbox.raise(posted.vector);
        }
    }

    /// Sends the messages that are due after a round. `idle`: nothing was found to do.
    pub(crate) fn settle(&mut self, idle: bool) {
        let send = |vector| self.mailbox.raise(vector);
        self.messages.settle(idle, Instant::now, send);
    }

    /// Sends every message that is owed.
    pub(crate) fn send_all(&mut self) {
        self.messages.send_all(|vector| self.mailbox.raise(vector));
    }

    /// When the next message is due, if one waits for its time.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.messages.until()
    }
}
