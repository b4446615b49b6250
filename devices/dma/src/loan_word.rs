//! The word of a loan, by which its lender and its reader agree whether the memory is read.
//!
//! The reader takes the word from open to copying before it reads, and to done afterwards. The lender ends a loan by taking the word from
//! open to over: no copy begins any more. Where it finds a copy in progress it waits for its end. Each loan has a generation of its word, so
//! a reader that comes late changes nothing. [`models`] tries it in every order of events.

use std::sync::atomic::{AtomicU32, Ordering};

/// Bits of the state; the generation is above.
const STATE_BITS: u32 = 3;
/// The last generation.
pub(crate) const LAST_GENERATION: u32 = u32::MAX >> STATE_BITS;

/// What has become of a loan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum LoanState {
    /// No copy has begun, and one may.
    Open = 1,
    /// It is being copied.
    Copying = 2,
    /// All of it has been copied.
    Done = 3,
    /// No copy is in progress, none begins, and none has succeeded.
    Over = 4,
}

/// An atomic word.
pub(crate) trait Word {
    fn load(&self) -> u32;
    /// Replaces `was` by `will`; whether it was there.
    fn exchange(&self, was: u32, will: u32) -> bool;
}

/// One source for the words of this program and those of the model, so that the model tries these orderings.
macro_rules! impl_word {
    ($atomic:ty) => {
        impl Word for $atomic {
            fn load(&self) -> u32 {
                Self::load(self, Ordering::Acquire)
            }

            fn exchange(&self, was: u32, will: u32) -> bool {
                let (acquires, fails) = (Ordering::AcqRel, Ordering::Acquire);
                self.compare_exchange(was, will, acquires, fails).is_ok()
            }
        }
    };
}

impl_word!(AtomicU32);

#[cfg(all(test, feature = "loom"))]
mod models;

/// The value of a word in this state. `None` if there is no such generation.
pub(crate) fn value(generation: u32, state: LoanState) -> Option<u32> {
    let is_one = (1..=LAST_GENERATION).contains(&generation);
    is_one.then_some(generation << STATE_BITS | state as u32)
}

/// Whether the word has this state. Whatever else the other side writes is none.
pub(crate) fn is(word: &impl Word, generation: u32, state: LoanState) -> bool {
    value(generation, state) == Some(word.load())
}

/// Takes the word from one state to another; whether it was in the first.
pub(crate) fn advance(word: &impl Word, generation: u32, from: LoanState, to: LoanState) -> bool {
    let (from, to) = (value(generation, from), value(generation, to));
    from.zip(to)
        .is_some_and(|(from, to)| word.exchange(from, to))
}

/// Has no copy begin any more. One may be in progress.
pub(crate) fn cancel(word: &impl Word, generation: u32) {
    advance(word, generation, LoanState::Open, LoanState::Over);
}

/// Makes a copy that is in progress invalid, whenever it ends; whether there was one.
pub(crate) fn abandon(word: &impl Word, generation: u32) -> bool {
    advance(word, generation, LoanState::Copying, LoanState::Over)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_of_another_generation_is_left_alone() {
        let word = AtomicU32::new(value(7, LoanState::Open).unwrap());
        for generation in [0, 6, 8, LAST_GENERATION, LAST_GENERATION + 8, u32::MAX] {
            assert!(!advance(
                &word,
                generation,
                LoanState::Open,
                LoanState::Copying
            ));
        }
        assert!(is(&word, 7, LoanState::Open));
        assert!(advance(&word, 7, LoanState::Open, LoanState::Copying));
        assert!(!advance(&word, 7, LoanState::Open, LoanState::Over));
        assert!(advance(&word, 7, LoanState::Copying, LoanState::Done));
        assert_eq!(value(0, LoanState::Open), None);
    }
}
