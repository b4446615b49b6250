//! The impairments of the packets between two adapters, and their notation:
//! `nic0->nic1 loss=1% delay=2ms`.

use std::fmt::{self, Display};
use std::str::FromStr;

use peerbar_dma::{Bandwidth, Latency};
use thiserror::Error;

use crate::codec::is_name;

/// Parts of a percent that a share can have.
const PARTS: u32 = 10_000;

/// The [`Share`] of all packets.
pub(crate) const ALL: u32 = 100 * PARTS;
/// The word for no effect.
const NONE: &str = "none";

/// A share of packets, in millionths: `1%`, `0.05%`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(pub(crate) u32);

/// The effects on packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// No packet arrives.
    pub partition: bool,
    /// Share of packets that are lost.
    pub loss: Share,
    /// Share of packets that arrive twice.
    pub duplicate: Share,
    /// Share of packets that arrive some milliseconds later than others, so that later ones
    /// overtake them.
    pub reorder: Share,
    /// Time from one adapter to the other.
    pub delay: Latency,
    /// The largest additional time, chosen for each packet.
    pub jitter: Latency,
    /// The bandwidth; a packet that would wait for it longer than a second is lost.
    pub bandwidth: Option<Bandwidth>,
}

/// An adapter that a rule selects.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Selector {
    Any,
    Name(String),
}

/// A rule: the effects on packets from one adapter to another, or in both directions. If several
/// rules select the same packets, the last one applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impairment {
    from: Selector,
    to: Selector,
    is_mutual: bool,
    /// The effects on the packets.
    pub effects: Effects,
}

impl Impairment {
    /// Returns `true` if the rule selects packets from the adapter `from` to the adapter `to`.
    pub(crate) fn is_about(&self, from: &str, to: &str) -> bool {
        let matches = |one: &str, other: &str| self.from.is(one) && self.to.is(other);
        matches(from, to) || (self.is_mutual && matches(to, from))
    }

    /// Returns the names of adapters in it, each once.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let to = Some(&self.to).filter(|to| **to != self.from);
        let selectors = [Some(&self.from), to].into_iter().flatten();
        selectors.filter_map(|selector| match selector {
            Selector::Any => None,
            Selector::Name(name) => Some(name.as_str()),
        })
    }
}

impl Selector {
    fn is(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Name(own) => own == name,
        }
    }
}

/// The text is not a rule. The message continues after the text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UnknownImpairment {
    /// The text does not begin with two adapters.
    #[error(
        "must begin with a pair of adapters: FROM->TO or ONE<->OTHER, each a name or * for any"
    )]
    Pair,
    /// No effect follows.
    #[error(
        "must have an effect: partition, loss=P%, duplicate=P%, reorder=P%, delay=TIME, jitter=TIME, bandwidth=RATE, or none"
    )]
    Empty,
    /// A word is not an effect.
    #[error(
        "has the unknown effect {0:?}: expected partition, loss=P%, duplicate=P%, reorder=P% (P from 0 to 100), delay=TIME up to \
         100ms, jitter=TIME, bandwidth=RATE from 1MiB/s on, or none"
    )]
    Effect(String),
    /// An effect is given twice.
    #[error(
        "has {0:?} and another word for the same effect: write each effect once, and none alone"
    )]
    Twice(String),
}

impl FromStr for Impairment {
    type Err = UnknownImpairment;

    fn from_str(text: &str) -> Result<Self, UnknownImpairment> {
        let mut words = text.split_ascii_whitespace();
        let pair = words.next().ok_or(UnknownImpairment::Pair)?;
        let both = pair.split_once("<->").map(|pair| (pair, true));
        let (pair, is_mutual) = both
            .or_else(|| Some((pair.split_once("->")?, false)))
            .ok_or(UnknownImpairment::Pair)?;
        let selector = |word: &str| match word {
            "*" => Ok(Selector::Any),
            name if is_name(name) => Ok(Selector::Name(name.to_owned())),
            _ => Err(UnknownImpairment::Pair),
        };
        let (from, to) = (selector(pair.0)?, selector(pair.1)?);
        let mut words = words.peekable();
        words.peek().ok_or(UnknownImpairment::Empty)?;
        let mut effects = Effects::default();
        let mut seen = Vec::new();
        for word in words {
            let unknown = || UnknownImpairment::Effect(word.to_owned());
            effects.set(word).ok_or_else(unknown)?;
            let effect = word.split('=').next().unwrap_or(word);
            let is_beside_none = !seen.is_empty() && (effect == NONE || seen.contains(&NONE));
            if is_beside_none || seen.contains(&effect) {
                return Err(UnknownImpairment::Twice(word.to_owned()));
            }
            seen.push(effect);
        }
        Ok(Self {
            from,
            to,
            is_mutual,
            effects,
        })
    }
}

impl Effects {
    fn set(&mut self, word: &str) -> Option<()> {
        match word.split_once('=') {
            None if word == "partition" => self.partition = true,
            None if word == NONE => *self = Self::default(),
            Some(("loss", share)) => self.loss = Share::read(share)?,
            Some(("duplicate", share)) => self.duplicate = Share::read(share)?,
            Some(("reorder", share)) => self.reorder = Share::read(share)?,
            Some(("delay", time)) => self.delay = time.parse().ok()?,
            Some(("jitter", time)) => self.jitter = time.parse().ok()?,
            Some(("bandwidth", rate)) => self.bandwidth = Some(rate.parse().ok()?),
            _ => return None,
        }
        Some(())
    }
}

impl Share {
    fn read(text: &str) -> Option<Self> {
        let number = text.strip_suffix('%')?;
        let (whole, parts) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str| {
            let plain = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u32>().ok().filter(|_| plain)
        };
        let power = u32::try_from(parts.len()).ok().filter(|len| *len <= 4)?;
        let parts = digits(parts)? * (PARTS / 10_u32.pow(power));
        let share = digits(whole)?.checked_mul(PARTS)?.checked_add(parts)?;
        (share <= ALL).then_some(Self(share))
    }
}

impl Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = format!("{:04}", self.0 % PARTS);
        let parts = parts.trim_end_matches('0');
        let dot = if parts.is_empty() { "" } else { "." };
        write!(f, "{}{dot}{parts}%", self.0 / PARTS)
    }
}

impl Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl Display for Effects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return f.write_str(" none");
        }
        if self.partition {
            f.write_str(" partition")?;
        }
        for (name, share) in [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
        ] {
            if share != Share::default() {
                write!(f, " {name}={share}")?;
            }
        }
        for (name, time) in [("delay", self.delay), ("jitter", self.jitter)] {
            if time != Latency::default() {
                write!(f, " {name}={time}")?;
            }
        }
        match self.bandwidth {
            Some(rate) => write!(f, " bandwidth={rate}"),
            None => Ok(()),
        }
    }
}

impl Display for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrow = if self.is_mutual { "<->" } else { "->" };
        write!(f, "{}{arrow}{}{}", self.from, self.to, self.effects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_read_as_it_is_written() {
        for text in [
            "nic0->nic1 loss=1%",
            "*->nic1 partition",
            "a<->b loss=0.05% duplicate=100% reorder=12.5%",
            "*->* delay=2ms jitter=500us bandwidth=100MiB/s",
            "a->b none",
        ] {
            let rule: Impairment = text.parse().unwrap();
            assert_eq!(rule.to_string(), text);
        }
        let rule: Impairment = "a->b loss=00.0500%".parse().unwrap();
        assert_eq!(rule.effects.loss, Share(500));
    }

    #[test]
    fn words_about_the_same_are_refused() {
        for (words, twice) in [
            ("loss=1% loss=2%", "loss=2%"),
            ("loss=1% none", "none"),
            ("none loss=1%", "loss=1%"),
            ("partition loss=1% partition", "partition"),
        ] {
            let error = format!("a->b {words}").parse::<Impairment>().unwrap_err();
            assert_eq!(error, UnknownImpairment::Twice(twice.to_owned()), "{words}");
        }
    }

    #[test]
    fn text_that_is_no_rule_is_refused() {
        for pair in ["", "a", "a-b loss=1%", "->b loss=1%", "a->b->c loss=1%"] {
            let error = pair.parse::<Impairment>().unwrap_err();
            assert_eq!(error, UnknownImpairment::Pair, "{pair}");
        }
        let error = "a->b".parse::<Impairment>().unwrap_err();
        assert_eq!(error, UnknownImpairment::Empty);
        for word in [
            "loss",
            "loss=1",
            "loss=101%",
            "loss=1.00001%",
            "loss=-1%",
            "loss=.5%",
            "loss=1.%",
            "loss=4294967296%",
            "delay=101ms",
            "bandwidth=1KiB/s",
            "lossy",
        ] {
            let error = format!("a->b {word}").parse::<Impairment>().unwrap_err();
            assert_eq!(error, UnknownImpairment::Effect(word.to_owned()));
        }
    }

    #[test]
    fn mutual_rule_is_about_both_directions() {
        let about = |rule: &str, from, to| rule.parse::<Impairment>().unwrap().is_about(from, to);
        assert!(about("a->b partition", "a", "b"));
        assert!(!about("a->b partition", "b", "a"));
        assert!(about("a<->b partition", "b", "a"));
        assert!(!about("a<->b partition", "a", "a"));
        assert!(about("*<->b partition", "b", "c"));
        assert!(about("*->* partition", "c", "d"));
    }
}
