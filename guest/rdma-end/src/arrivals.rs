//! Tracks which messages have arrived.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Bits of the immediate data that name the slot of a message's content.
const SOURCE_BITS: u32 = 6;
/// Limit of the distance of a message to one that has not arrived: far more than can be in
/// progress.
const MOST_AHEAD: u64 = 1 << 10;

/// A message, as its immediate data names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// Its number.
    pub(crate) id: u64,
    /// The slot of the sender with its content.
    pub(crate) source: u32,
}

impl Message {
    pub(crate) fn immediate(self) -> u32 {
        let id = u32::try_from(self.id).unwrap_or(u32::MAX);
        id << SOURCE_BITS | self.source
    }

    pub(crate) fn of(immediate: u32) -> Self {
        Self {
            id: (immediate >> SOURCE_BITS).into(),
            source: immediate & ((1 << SOURCE_BITS) - 1),
        }
    }
}

/// A message that cannot have arrived.
#[derive(Debug, Error)]
pub(crate) enum ArrivalError {
    #[error("message {id} was received twice")]
    Twice { id: u64 },
    #[error("message {id} is too far ahead of the others")]
    FarAhead { id: u64 },
}

/// The messages that have arrived, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrivals {
    /// No message of this number or above has arrived.
    next: u64,
    /// Messages below that have not arrived.
    missing: BTreeSet<u64>,
    /// Number of receives that failed.
    failed: u64,
}

impl Arrivals {
    /// Records that message `id` has arrived.
    pub(crate) fn add(&mut self, id: u64) -> Result<(), ArrivalError> {
        if id >= self.next {
            let oldest = self.missing.first().copied().unwrap_or(self.next);
            if id - oldest > MOST_AHEAD {
                return Err(ArrivalError::FarAhead { id });
            }
            self.missing.extend(self.next..id);
            self.next = id + 1;
        } else if !self.missing.remove(&id) {
            return Err(ArrivalError::Twice { id });
        }
        Ok(())
    }

    /// Records that a receive has failed.
    pub(crate) fn fail(&mut self) {
        self.failed += 1;
    }

    /// Returns the number of messages that have arrived.
    pub(crate) fn count(&self) -> u64 {
        let missing = u64::try_from(self.missing.len()).unwrap_or(u64::MAX);
        self.next.saturating_sub(missing)
    }

    /// Returns the number of receives that have failed.
    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }

    /// Returns the first of `posted` messages that has not arrived without its sender's knowledge:
    /// it is not among the `failed` ones.
    pub(crate) fn first_lost(&self, posted: u64, failed: &[u64]) -> Option<u64> {
        let beyond = self.next..posted.max(self.next);
        let missing = self.missing.iter().copied().chain(beyond);
        let mut lost = missing.filter(|id| !failed.contains(id));
        lost.next()
    }

    /// Returns `true` if a message has arrived that is not one of the `posted` ones.
    pub(crate) fn has_unsent(&self, posted: u64) -> bool {
        self.next > posted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(ids: &[u64]) -> Arrivals {
        let mut arrivals = Arrivals::default();
        for &id in ids {
            arrivals.add(id).unwrap();
        }
        arrivals
    }

    #[test]
    fn immediate_data_names_number_and_source() {
        let message = Message {
            id: 1 << 20,
            source: 32,
        };
        assert_eq!(Message::of(message.immediate()), message);
    }

    #[test]
    fn message_that_arrives_again_is_refused_in_any_order() {
        let mut arrivals = arrivals(&[0, 3, 1]);
        assert_eq!(arrivals.count(), 3);
        for id in [0, 1, 3] {
            assert!(arrivals.add(id).is_err(), "{id}");
        }
        arrivals.add(2).unwrap();
        assert_eq!(arrivals.count(), 4);
        assert!(arrivals.add(5000).is_err());
    }

    #[test]
    fn acknowledged_message_that_is_not_there_is_lost() {
        let arrivals = arrivals(&[0, 1, 3]);
        assert_eq!(arrivals.first_lost(5, &[2, 4]), None);
        assert_eq!(arrivals.first_lost(5, &[2]), Some(4));
        assert_eq!(arrivals.first_lost(5, &[4]), Some(2));
        assert!(arrivals.has_unsent(3) && !arrivals.has_unsent(4));
    }
}
