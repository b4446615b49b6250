//! Limits the total time that changes wait for transfers: a token bucket of time.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// One part in this many of the passing time is refilled.
const REFILL: u32 = 100;

/// Time that may be spent waiting. A hundredth of the passing time is refilled, so that no transfer
/// can delay the waiting thread for more than a hundredth of its time.
#[derive(Debug)]
pub(crate) struct WaitBudget {
    whole: Duration,
    spent: Mutex<Spent>,
}

#[derive(Debug)]
struct Spent {
    time: Duration,
    at: Instant,
}

impl WaitBudget {
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

    /// Returns the time left.
    pub(crate) fn left(&self, now: Instant) -> Duration {
        self.whole.saturating_sub(self.refilled(now).time)
    }

    /// Spends a wait that ends now.
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

    const WHOLE: Duration = Duration::from_millis(250);

    #[test]
    fn spent_time_comes_back_with_a_hundredth_of_what_passes() {
        let budget = WaitBudget::new(WHOLE);
        let start = Instant::now();
        let ms = Duration::from_millis;
        budget.spend(start, ms(250));
        assert_eq!(budget.left(start), Duration::ZERO);
        budget.spend(start, ms(50));
        assert_eq!(budget.left(start + ms(5_000)), Duration::ZERO);
        assert_eq!(budget.left(start + ms(6_000)), ms(10));
        // An earlier time refills nothing, and is not counted twice.
        assert_eq!(budget.left(start), ms(10));
        assert_eq!(budget.left(start + ms(7_000)), ms(20));
        assert_eq!(budget.left(start + ms(90_000)), WHOLE);
    }
}
