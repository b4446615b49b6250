//! Matches commands with the doorbells that announce them and the interrupts that report them, by
//! the order of a device's records: commands begin in the order of their announcement, and an
//! interrupt reports all that have ended since the last one of its vector.

use std::collections::{HashMap, VecDeque};

use peerbar_flight::DoorbellEvent;

/// Follows the doorbells and interrupts of a device. Doorbells and commands are named by any numbers of the caller's.
#[derive(Default)]
pub(super) struct Signals {
    announced: HashMap<u16, Announced>,
    /// The vector that interrupts for the completions of each queue's commands.
    vectors: HashMap<u16, u16>,
    /// By vector, the commands that have ended since its last interrupt.
    unreported: HashMap<u16, Vec<usize>>,
}

/// The commands of a queue that have not begun, in order, as doorbells and the number of commands
/// of each. The doorbell of some may be missing in the record.
#[derive(Default)]
struct Announced(VecDeque<(Option<usize>, u32)>);

impl Announced {
    fn count(&self) -> u32 {
        let counts = self.0.iter().map(|(_, count)| *count);
        counts.fold(0, u32::saturating_add)
    }

    /// Returns the doorbell of the next command, which is taken out.
    fn take(&mut self) -> Option<usize> {
        let (doorbell, count) = self.0.front_mut()?;
        let doorbell = *doorbell;
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.0.pop_front();
        }
        doorbell
    }

    /// Adjusts the number of commands to `count`. Surplus ones in front were dropped, and missing
    /// ones there are unknown.
    fn correct(&mut self, count: u32) {
        let mut surplus = self.count().saturating_sub(count);
        while let Some((_, first)) = self.0.front_mut().filter(|_| surplus > 0) {
            let dropped = surplus.min(*first);
            surplus -= dropped;
            *first -= dropped;
            if *first == 0 {
                self.0.pop_front();
            }
        }
        let missing = count.saturating_sub(self.count());
        if missing > 0 {
            self.0.push_front((None, missing));
        }
    }
}

impl Signals {
    /// A doorbell announces commands.
    pub(super) fn rung(&mut self, event: &DoorbellEvent, doorbell: usize) {
        let announced = self.announced.entry(event.queue).or_default();
        announced.correct(event.waiting.saturating_sub(event.added));
        if event.added > 0 {
            announced.0.push_back((Some(doorbell), event.added));
        }
        match event.vector {
            Some(vector) => self.vectors.insert(event.queue, vector),
            None => self.vectors.remove(&event.queue),
        };
    }

    /// Begins the next command of a queue, and returns the doorbell that announced it.
    pub(super) fn begun(&mut self, queue: u16) -> Option<usize> {
        self.announced.get_mut(&queue)?.take()
    }

    /// A command of a queue has ended.
    pub(super) fn ended(&mut self, queue: u16, command: usize) {
        if let Some(vector) = self.vectors.get(&queue) {
            self.unreported.entry(*vector).or_default().push(command);
        }
    }

    /// Returns the commands that an interrupt reports.
    pub(super) fn interrupted(&mut self, vector: u16) -> Vec<usize> {
        self.unreported.remove(&vector).unwrap_or_default()
    }

    /// A reset ends all queues.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doorbell(queue: u16, added: u32, waiting: u32, vector: Option<u16>) -> DoorbellEvent {
        DoorbellEvent {
            queue,
            tail: 0,
            added,
            waiting,
            vector,
        }
    }

    fn begun(signals: &mut Signals, queue: u16, count: usize) -> Vec<Option<usize>> {
        (0..count).map(|_| signals.begun(queue)).collect()
    }

    #[test]
    fn commands_begin_in_the_order_of_their_doorbells() {
        let mut signals = Signals::default();
        signals.rung(&doorbell(1, 3, 3, None), 10);
        signals.rung(&doorbell(2, 1, 1, None), 11);
        assert_eq!(begun(&mut signals, 1, 2), [Some(10), Some(10)]);
        signals.rung(&doorbell(1, 2, 3, None), 12);
        let rest = begun(&mut signals, 1, 4);
        assert_eq!(rest, [Some(10), Some(12), Some(12), None]);
        assert_eq!(begun(&mut signals, 2, 1), [Some(11)]);
    }

    #[test]
    fn doorbells_correct_what_is_not_in_the_record() {
        let mut signals = Signals::default();
        // Two commands were announced before the record begins.
        signals.rung(&doorbell(1, 1, 3, None), 20);
        assert_eq!(begun(&mut signals, 1, 3), [None, None, Some(20)]);
        // One of these three was dropped without a begin.
        signals.rung(&doorbell(1, 3, 3, None), 21);
        assert_eq!(begun(&mut signals, 1, 2), [Some(21), Some(21)]);
        signals.rung(&doorbell(1, 1, 1, None), 22);
        assert_eq!(begun(&mut signals, 1, 2), [Some(22), None]);
    }

    #[test]
    fn interrupt_reports_what_has_ended_since_the_last_one() {
        let mut signals = Signals::default();
        for (queue, vector) in [(1, Some(4)), (2, Some(4)), (3, Some(5)), (4, None)] {
            signals.rung(&doorbell(queue, 1, 1, vector), 0);
        }
        for queue in 1..=5 {
            signals.ended(queue, queue.into());
        }
        assert_eq!(signals.interrupted(4), [1, 2]);
        assert!(signals.interrupted(4).is_empty());
        signals.reset();
        assert!(signals.interrupted(5).is_empty());
    }

    #[test]
    fn impossible_counts_of_a_damaged_record_take_no_memory() {
        let mut signals = Signals::default();
        for doorbell_number in 0..100 {
            let waiting = u32::MAX - doorbell_number;
            signals.rung(&doorbell(1, u32::MAX, waiting, None), 1);
        }
        assert!(signals.announced[&1].0.len() <= 2);
    }
}
