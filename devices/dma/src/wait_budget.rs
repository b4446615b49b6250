//! How long a lender waits for its readers in all: a token bucket of time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long a lender waits for all of its readers in a row, and for one of them.
const OF_ALL: Duration = Duration::from_secs(1);
pub(crate) const OF_ONE: Duration = Duration::from_millis(250);
/// One part in this many of the time that passes is given back.
const REFILL: u32 = 100;

/// The time for which changes of one lender's memory may still wait for its readers.
///
/// It has one second in all and 250 ms for each reader, and gets back a hundredth of the time that passes. So readers that begin copies and
/// end them late delay the lender by a hundredth of its time, however many they are and whatever they do.
#[derive(Clone, Debug)]
pub struct WaitBudget(Arc<Lender>);

#[derive(Debug)]
struct Lender {
    bucket: Bucket,
    is_reported: AtomicBool,
}

impl Default for WaitBudget {
    fn default() -> Self {
        Self::of(OF_ALL)
    }
}

impl WaitBudget {
    pub(crate) fn of(whole: Duration) -> Self {
        Self(Arc::new(Lender {
            bucket: Bucket::new(whole),
            is_reported: AtomicBool::new(false),
        }))
    }

    /// Whether there is enough of it for one more reader. While there is not, nothing should be lent.
    pub fn is_enough(&self) -> bool {
        self.0.bucket.left(Instant::now()) >= OF_ONE
    }

    pub(crate) fn bucket(&self) -> &Bucket {
        &self.0.bucket
    }

    /// Whether this is the first reader that has left a copy unfinished.
    pub(crate) fn is_first_report(&self) -> bool {
        !self.0.is_reported.swap(true, Ordering::Relaxed)
    }
}

/// Time to wait, some of which is spent.
#[derive(Debug)]
pub(crate) struct Bucket {
    whole: Duration,
    spent: Mutex<Spent>,
}

#[derive(Debug)]
struct Spent {
    time: Duration,
    at: Instant,
}

impl Bucket {
    pub(crate) fn new(whole: Duration) -> Self {
        let spent = Spent {
            time: Duration::ZERO,
            at: Instant::now(),
        };
        Self {
            whole,
            spent: Mutex::new(spent),
        }
    }

    /// What is left of it.
    pub(crate) fn left(&self, now: Instant) -> Duration {
        self.whole.saturating_sub(self.refilled(now).time)
    }

    /// Spends some of it, which ends now.
    pub(crate) fn spend(&self, now: Instant, time: Duration) {
        let mut spent = self.refilled(now);
        spent.time = spent.time.saturating_add(time);
    }

    fn refilled(&self, now: Instant) -> parking_lot::MutexGuard<'_, Spent> {
        let mut spent = self.spent.lock();
        let passed = now.saturating_duration_since(spent.at);
        spent.time = spent.time.saturating_sub(passed / REFILL);
        spent.at = spent.at.max(now);
        spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spent_time_comes_back_with_a_hundredth_of_what_passes() {
        let bucket = Bucket::new(OF_ONE);
        let start = Instant::now();
        let ms = Duration::from_millis;
        bucket.spend(start, ms(250));
        assert_eq!(bucket.left(start), Duration::ZERO);
        bucket.spend(start, ms(50));
        assert_eq!(bucket.left(start + ms(5_000)), Duration::ZERO);
        assert_eq!(bucket.left(start + ms(6_000)), ms(10));
        // A moment of before gives nothing back, and is not counted twice.
        assert_eq!(bucket.left(start), ms(10));
        assert_eq!(bucket.left(start + ms(7_000)), ms(20));
        assert_eq!(bucket.left(start + ms(90_000)), OF_ONE);
    }

    #[test]
    fn lender_without_time_for_one_reader_has_not_enough() {
        assert!(WaitBudget::default().is_enough());
        let budget = WaitBudget::default();
        budget.bucket().spend(Instant::now(), 100 * OF_ALL);
        assert!(!budget.is_enough() && !budget.clone().is_enough());
    }
}
