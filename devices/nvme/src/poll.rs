//! How the workers learn of new commands.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// What a worker does when there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Poll {
    /// It sleeps at once. The guest's doorbells wake it.
    Never,
    /// It goes on looking for a short time, naps for a while where work may come soon, then sleeps. The guest may keep
    /// doorbells in its own memory, where it only tells of those that must wake a sleeper (NVMe Base 2.0, 5.8).
    #[default]
    Adaptive,
    /// It goes on looking for ever, on a processor of its own. The guest may map the doorbells.
    Always,
}

/// Every way and its word on the command line.
const WORDS: [(Poll, &str); 3] = [
    (Poll::Never, "never"),
    (Poll::Adaptive, "adaptive"),
    (Poll::Always, "always"),
];

/// A word that is no way of polling. It reads on from the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("is none of {}", WORDS.map(|(_, word)| word).join(", "))]
pub struct UnknownPoll;

impl FromStr for Poll {
    type Err = UnknownPoll;

    fn from_str(text: &str) -> Result<Self, UnknownPoll> {
        let known = WORDS.into_iter().find(|(_, word)| *word == text);
        known.map(|(poll, _)| poll).ok_or(UnknownPoll)
    }
}

impl fmt::Display for Poll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = WORDS.into_iter().find(|(poll, _)| poll == self);
        f.write_str(known.map_or("", |(_, word)| word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_has_a_word() {
        for (poll, word) in WORDS {
            assert_eq!((word.parse(), poll.to_string()), (Ok(poll), word.into()));
        }
        let error = "sometimes".parse::<Poll>().unwrap_err();
        assert_eq!(error.to_string(), "is none of never, adaptive, always");
    }
}
