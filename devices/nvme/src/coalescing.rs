//! How many completions the host wants an interrupt for, and how long one may wait for them (NVMe Base 2.0, 5.27.1.6,
//! Interrupt Coalescing, and 5.27.1.7, Interrupt Vector Configuration).
//!
//! It is a wish for messages of I/O queues. Completions of the admin queue are never held back, and neither is the INTx
//! pin: its level is what the guest has left to take, and one signal masks it until the guest has come.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use peerbar_nvme_spec::feature::InterruptCoalescing;

/// The unit of TIME.
const TICK: Duration = Duration::from_micros(100);

/// What the host wants of one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// So many completions are worth a message.
    pub(crate) entries: u32,
    /// None waits longer for others.
    pub(crate) time: Duration,
}

/// The wishes for all vectors: the engine sets them, the workers follow.
pub(crate) struct Coalescing {
    /// THR and TIME as they are set, or 0 where they do not apply, by vector.
    vectors: Vec<AtomicU32>,
}

impl Coalescing {
    /// No wish for any of `vectors` vectors.
    pub(crate) fn new(vectors: u16) -> Self {
        Self {
            vectors: (0..vectors).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// The host's wish, and by vector whether it does not apply (CD).
    pub(crate) fn set(&self, wish: InterruptCoalescing, disabled: &[bool]) {
        for (vector, disabled) in self.vectors.iter().zip(disabled) {
            let bits = if *disabled { 0 } else { wish.into_bits() };
            vector.store(bits, Ordering::Relaxed);
        }
    }

    /// The wish for a vector, if there is one: both a number and a time.
    pub(crate) fn of(&self, vector: u16) -> Option<Wish> {
        let bits = self.vectors.get(usize::from(vector))?;
        let set = InterruptCoalescing::from_bits(bits.load(Ordering::Relaxed));
        (set.thr() > 0 && set.time() > 0).then(|| Wish {
            entries: u32::from(set.thr()) + 1,
            time: TICK * u32::from(set.time()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_a_number_and_a_time_for_every_vector_that_it_is_not_disabled_for() {
        let coalescing = Coalescing::new(3);
        assert_eq!(coalescing.of(1), None, "as it came");
        let wish = InterruptCoalescing::new().with_thr(7).with_time(3);
        coalescing.set(wish, &[false, false, true]);
        let wanted = Wish {
            entries: 8,
            time: Duration::from_micros(300),
        };
        let wishes = [0, 1, 2, 3].map(|vector| coalescing.of(vector));
        assert_eq!(wishes, [Some(wanted), Some(wanted), None, None]);
        for half in [wish.with_thr(0), wish.with_time(0)] {
            coalescing.set(half, &[false; 3]);
            assert_eq!(coalescing.of(1), None, "{half:?}");
        }
    }
}
