//! Commands that are under way: the kernel does something for them, and the worker goes on meanwhile.

use peerbar_file_ring::MOST;

use super::{Source, Worker};

impl Worker {
    /// How many more commands of a queue may be under way. Each queue has its share, so that one whose commands take long
    /// holds up no other.
    pub(super) fn share(&self, index: usize) -> usize {
        let Some(files) = &self.io.data.files else {
            return usize::MAX;
        };
        let under_way = self.sources.get(index).map_or(0, |source| source.under_way);
        let share = MOST / self.sources.len().max(1);
        share.saturating_sub(under_way).min(files.room())
    }

    /// A command of a queue is under way. Its completion has a place from now on.
    pub(super) fn set_under_way(&mut self, index: usize) {
        let Some(source) = self.sources.get_mut(index) else {
            return;
        };
        source.under_way += 1;
        if let Some((_, queue)) = self.outbox.queue(source.completion) {
            queue.promise();
        }
    }

    /// Completes the commands that have come to their end; whether there were any.
    pub(super) fn complete_ended(&mut self) -> bool {
        let mut any = false;
        while let Some(ended) = self.io.take_ended() {
            any = true;
            let mut sources = self.sources.iter_mut().enumerate();
            let source = sources.find(|(_, source)| source.id == ended.queue);
            let Some((index, source)) = source else {
                continue;
            };
            source.under_way -= 1;
            if let Some((_, queue)) = self.outbox.queue(source.completion) {
                queue.redeem();
            }
            if !self.mailbox.quiet() {
                self.complete(index, &ended.entry, ended.status);
            }
        }
        for place in (0..self.outbox.ids().count()).filter(|_| any) {
            let queue = self.outbox.queue(place);
            let more = queue.is_some_and(|(_, queue)| queue.has_promised());
            self.write(place);
            self.interrupt(place, more);
        }
        any
    }

    /// Tells who waits for commands to come to their end, if they have, or if nobody cares any more.
    pub(super) fn tell_of_ends(&mut self, busy: bool) {
        if self.removals.is_empty() && self.finish.is_none() {
            return;
        }
        let quiet = self.mailbox.quiet();
        let sources = &mut self.sources;
        self.removals.retain(|(id, done)| {
            let goes_on = |source: &Source| source.id == *id && source.under_way > 0;
            let waits = !quiet && sources.iter().any(goes_on);
            if !waits {
                sources.retain(|source| source.id != *id);
                // It fails if the engine does not wait any more.
                let _ = done.send(());
            }
            waits
        });
        let all_over = quiet || sources.iter().all(|source| source.under_way == 0);
        let over = all_over && !busy || self.mailbox.urgent();
        if let Some(done) = self.finish.take_if(|_| over) {
            self.outbox.send_all();
            let _ = done.send(());
        }
    }
}
