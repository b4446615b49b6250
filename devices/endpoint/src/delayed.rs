//! Interrupts that a fault delays: a thread raises each when it is due.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Limit of delayed interrupts. Further ones are not delayed.
const MOST: usize = 1 << 16;

/// Interrupts that are delayed, and the thread that raises them, once there has been one.
#[derive(Default)]
pub(crate) struct Delayed {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<DelayedState>,
    changed: Condvar,
}

#[derive(Default)]
struct DelayedState {
    /// The due time, number and vector of each interrupt, in the order of time, then of arrival.
    waiting: BTreeSet<(Instant, u64, u16)>,
    count: u64,
    stop: bool,
}

impl Delayed {
    /// Arranges a call of `raise` with a vector after the time `by`. Returns `true` if the call
    /// will be made.
    pub(crate) fn add(
        &self,
        vector: u16,
        by: Duration,
        raise: impl Fn(u16) + Send + 'static,
    ) -> bool {
        if !self.runs(raise) {
            return false;
        }
        let is_added = self.queue.state.lock().add(vector, Instant::now() + by);
        self.queue.changed.notify_one();
        is_added
    }

    /// Forgets all interrupts that are not due yet.
    pub(crate) fn clear(&self) {
        self.queue.state.lock().waiting.clear();
    }

    /// Returns the number of interrupts that are not due yet.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.queue.state.lock().waiting.len()
    }

    /// Starts the thread if necessary. Returns `true` if it runs.
    fn runs(&self, raise: impl Fn(u16) + Send + 'static) -> bool {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let queue = self.queue.clone();
            let builder = thread::Builder::new().name("delayed".to_owned());
            match builder.spawn(move || queue.serve(raise)) {
                Ok(started) => *thread = Some(started),
                Err(error) => log::error!("no interrupt can be delayed: {error}"),
            }
        }
        thread.is_some()
    }
}

impl Drop for Delayed {
    fn drop(&mut self) {
        self.queue.state.lock().stop = true;
        self.queue.changed.notify_one();
        let thread = self.thread.get_mut().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("the thread of delayed interrupts has panicked");
        }
    }
}

impl Queue {
    fn serve(&self, raise: impl Fn(u16)) {
        let mut state = self.state.lock();
        while !state.stop {
            if let Some(vector) = state.take_due(Instant::now()) {
                // Raising takes locks of other objects.
                parking_lot::MutexGuard::unlocked(&mut state, || raise(vector));
                continue;
            }
            match state.waiting.first().copied() {
                Some((due, ..)) => {
                    self.changed.wait_until(&mut state, due);
                }
                None => self.changed.wait(&mut state),
            }
        }
    }
}

impl DelayedState {
    /// Adds an interrupt, unless there are too many.
    fn add(&mut self, vector: u16, due: Instant) -> bool {
        if self.waiting.len() >= MOST {
            return false;
        }
        let number = self.count;
        self.count = number.wrapping_add(1);
        self.waiting.insert((due, number, vector))
    }

    /// Takes the vector of the first interrupt that is due.
    fn take_due(&mut self, now: Instant) -> Option<u16> {
        let first = self.waiting.first().filter(|(due, ..)| *due <= now);
        let (.., vector) = *first?;
        self.waiting.pop_first();
        Some(vector)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn delayed_interrupts_are_due_in_the_order_of_their_times() {
        let mut state = DelayedState::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        for (vector, ms) in [(1, 100), (2, 50), (3, 50)] {
            assert!(state.add(vector, at(ms)));
        }
        let mut due = |ms| std::iter::from_fn(|| state.take_due(at(ms))).collect::<Vec<_>>();
        assert!(due(49).is_empty());
        assert_eq!(due(50), [2, 3]);
        assert!(due(99).is_empty());
        assert_eq!(due(100), [1]);
    }

    #[test]
    fn delayed_interrupt_is_raised_when_due() {
        let delayed = Delayed::default();
        let (sender, raised) = channel();
        let by = Duration::from_millis(10);
        let start = Instant::now();
        assert!(delayed.add(7, by, move |vector| sender.send(vector).unwrap()));
        assert_eq!(raised.recv(), Ok(7));
        assert!(start.elapsed() >= by);
    }

    #[test]
    fn interrupts_that_are_cleared_do_not_come() {
        let delayed = Delayed::default();
        let (sender, raised) = channel();
        let add = |vector, ms| {
            let sender = sender.clone();
            delayed.add(vector, Duration::from_millis(ms), move |vector| {
                sender.send(vector).unwrap();
            });
        };
        // Due long after this test.
        add(1, 3_600_000);
        assert_eq!(delayed.waiting(), 1);
        delayed.clear();
        assert_eq!(delayed.waiting(), 0);
        add(2, 1);
        assert_eq!(raised.recv().unwrap(), 2);
    }
}
