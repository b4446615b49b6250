//! Interrupts that a fault delays: a thread raises each when it is due.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How many interrupts are delayed at most. Further ones are not.
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
    /// By the time, then in the order of their coming: when it is due, its number and its vector.
    waiting: BTreeSet<(Instant, u64, u16)>,
    count: u64,
    stop: bool,
}

impl Delayed {
    /// Has `raise` called with a vector after the time `by`; whether it will be.
    pub(crate) fn add(
        &self,
        vector: u16,
        by: Duration,
        raise: impl Fn(u16) + Send + 'static,
    ) -> bool {
        if !self.runs(raise) {
            return false;
        }
        let mut state = self.queue.state.lock();
        if state.waiting.len() >= MOST {
            return false;
        }
        let number = state.count;
        state.count = number.wrapping_add(1);
        state.waiting.insert((Instant::now() + by, number, vector));
        self.queue.changed.notify_one();
        true
    }

    /// Forgets all that are not due yet.
    pub(crate) fn clear(&self) {
        self.queue.state.lock().waiting.clear();
    }

    /// How many are not due yet.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.queue.state.lock().waiting.len()
    }

    /// Whether the thread runs, which is started if it has not been.
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
            let now = Instant::now();
            match state.waiting.first().copied() {
                Some((due, ..)) if due > now => {
                    self.changed.wait_until(&mut state, due);
                }
                Some(first @ (.., vector)) => {
                    state.waiting.remove(&first);
                    // Its raising takes locks of others.
                    parking_lot::MutexGuard::unlocked(&mut state, || raise(vector));
                }
                None => self.changed.wait(&mut state),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn delayed_interrupts_come_when_due_in_their_order() {
        let delayed = Delayed::default();
        let (sender, raised) = channel();
        let add = |vector, ms| {
            let sender = sender.clone();
            let raise = move |vector| sender.send((vector, Instant::now())).unwrap();
            assert!(delayed.add(vector, Duration::from_millis(ms), raise));
        };
        let start = Instant::now();
        add(1, 100);
        add(2, 50);
        add(3, 50);
        let (vectors, times): (Vec<_>, Vec<_>) = raised.iter().take(3).unzip();
        assert_eq!(vectors, [2, 3, 1]);
        assert!(times[0] - start >= Duration::from_millis(50));
        assert!(times[2] - start >= Duration::from_millis(100));
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
