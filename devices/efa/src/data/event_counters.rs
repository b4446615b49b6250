//! Counts events of queue pairs in the words of their event counters. A word is written before the
//! completion that it counts.

use peerbar_dma::{Origin, Purpose, Tag};
use peerbar_pci::Iova;

use super::completions::CompletionWriter;
use crate::objects::{QueuePairEvent, WORD_BYTES};

impl CompletionWriter<'_> {
    /// Counts an event of a queue pair, if a counter for it is attached. If the word cannot be
    /// written, the queue pairs of the counter are put in error, as with a completion queue: they
    /// have no way to say what has ended. The same happens to queue pairs that count in it later,
    /// until a command has written the word.
    pub(super) fn count_event(&mut self, pair: u16, event: QueuePairEvent) {
        let counting = self.objects.queue_pairs.get(pair).ok();
        let Some(number) = counting.and_then(|pair| pair.counter_of(event)) else {
            return;
        };
        let Ok(counter) = self.objects.event_counters.get_mut(number) else {
            return;
        };
        if counter.has_failed {
            self.objects.queue_pairs.fail(pair);
            return;
        }
        counter.value = counter.value.wrapping_add(1);
        if self.local.transfers.keeps_entries() {
            return counter.is_kept = true;
        }
        self.write_counter(number, Origin::Queue(pair));
    }

    /// Writes the deferred words.
    pub(super) fn write_kept_counters(&mut self) {
        let counters = self.objects.event_counters.iter();
        let kept = counters.filter(|(_, counter)| counter.is_kept);
        let kept: Vec<u16> = kept.map(|(number, _)| number).collect();
        for number in kept {
            self.write_counter(number, Origin::Device);
        }
    }

    fn write_counter(&mut self, number: u16, origin: Origin) {
        let Ok(counter) = self.objects.event_counters.get_mut(number) else {
            return;
        };
        let (address, word) = (counter.parameters.address, counter.value.to_le_bytes());
        let tag = Tag::new(Purpose::Completion, origin);
        let session = &mut self.local.transfers.session;
        let written = session.write_entries(tag, Iova(address), &word, WORD_BYTES);
        counter.is_kept = written.is_err() && self.local.transfers.keeps_entries();
        if counter.is_kept {
            return;
        }
        if let Err(error) = written {
            log::debug!("event counter {number}: {error}: {}", error.cause);
            counter.has_failed = true;
            self.objects
                .queue_pairs
                .fail_those(|pair| pair.has_counter(number));
        }
    }
}
