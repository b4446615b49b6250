//! The outcome of each packet. It follows from the seed, the pair of adapters, and the number of
//! the packet between the two. So pairs do not influence each other.
//!
//! Adapters that no rule selects may have a direct connection, which carries their packets past the
//! fabric. It ends before a rule that affects the two takes effect.

mod direct;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use peerbar_dma::Latency;
use thiserror::Error;

use crate::gid::Gid;
use crate::impairment::{ALL, Effects, Impairment};
use direct::{Pair, PairConnections};

/// The longest wait of a packet for bandwidth.
const LONGEST_QUEUE: Duration = Duration::from_secs(1);
/// The least delay of a packet that is overtaken; it may be up to five times as long.
const OVERTAKEN: Duration = Duration::from_millis(1);
/// The most rules.
const MOST_RULES: usize = 256;

/// Too many rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("exceeds the limit of {MOST_RULES} rules: `clear` them first")]
pub(crate) struct TooMany;

/// The reason why a packet does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    Partition,
    Loss,
    /// The packet would wait too long for bandwidth.
    Bandwidth,
}

/// The outcome of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PacketOutcome {
    /// Its number among the packets of its pair, counted from 1.
    pub(crate) number: u64,
    /// The time from now at which each copy of it arrives.
    pub(crate) copies: Result<Vec<Duration>, Lost>,
    /// Later packets may overtake it.
    pub(crate) is_overtaken: bool,
}

impl PacketOutcome {
    /// Returns `true` if it arrives once, without delay.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.copies.as_deref(), Ok([delay]) if delay.is_zero())
    }
}

/// The rules, and the state of each pair.
#[derive(Debug)]
pub(crate) struct Impairments {
    seed: u64,
    rules: Vec<Impairment>,
    /// The names of the attached adapters.
    names: BTreeMap<Gid, String>,
    pairs: BTreeMap<Pair, Passed>,
    direct: PairConnections,
}

#[derive(Clone, Debug)]
struct Passed {
    draws: fastrand::Rng,
    number: u64,
    /// The time at which the earlier packets have passed.
    through: Option<Instant>,
}

impl Impairments {
    pub(crate) fn new(seed: u64, rules: Vec<Impairment>) -> Self {
        Self {
            seed,
            rules,
            names: BTreeMap::new(),
            pairs: BTreeMap::new(),
            direct: PairConnections::default(),
        }
    }

    /// Adds a rule, which takes precedence over all others.
    pub(crate) fn add(&mut self, rule: Impairment) -> Result<(), TooMany> {
        if self.rules.len() >= MOST_RULES {
            return Err(TooMany);
        }
        self.rules.push(rule);
        let rules = &self.rules;
        self.direct.end_between(|names| affects(rules, names));
        Ok(())
    }

    /// Removes all rules. Returns their number.
    pub(crate) fn clear(&mut self) -> usize {
        std::mem::take(&mut self.rules).len()
    }

    /// Returns the rules.
    pub(crate) fn rules(&self) -> &[Impairment] {
        &self.rules
    }

    /// Returns `true` if a rule affects packets between adapters of these names, in either
    /// direction.
    pub(crate) fn affects(&self, one: &str, other: &str) -> bool {
        affects(&self.rules, (one, other))
    }

    /// Returns the number of direct connections.
    pub(crate) fn direct_connections(&self) -> usize {
        self.direct.count()
    }

    /// Makes a direct connection for two adapters with these names, in place of an earlier one.
    /// Returns an end for each, or `None` if a rule selects them, or if they got a connection just
    /// now.
    pub(crate) fn connect(
        &mut self,
        pair: Pair,
        names: (&str, &str),
        now: Instant,
    ) -> Option<[OwnedFd; 2]> {
        let is_free = !self.affects(names.0, names.1);
        is_free.then(|| self.direct.open(pair, names, now))?
    }

    /// Adds an adapter that has attached.
    pub(crate) fn meet(&mut self, gid: Gid, name: String) {
        self.names.insert(gid, name);
    }

    /// Returns the names in a rule that no attached adapter has.
    pub(crate) fn unknown<'a>(&'a self, rule: &'a Impairment) -> impl Iterator<Item = &'a str> {
        let is_known = |name: &str| self.names.values().any(|known| known == name);
        rule.names().filter(move |name| !is_known(name))
    }

    /// Forgets an adapter that has left: the state of its pairs begins again.
    pub(crate) fn forget(&mut self, gid: Gid) {
        self.names.remove(&gid);
        self.direct.end_of(gid);
        self.pairs
            .retain(|(from, to), _| ![from, to].contains(&&gid));
    }

    /// Returns the outcome of the next packet of a pair, whose adapters have these names.
    pub(crate) fn next_outcome(
        &mut self,
        pair: Pair,
        names: (&str, &str),
        bytes: usize,
        now: Instant,
    ) -> PacketOutcome {
        let effects = effects(&self.rules, names);
        let seed = self.seed;
        let passed = self.pairs.entry(pair).or_insert_with(|| Passed {
            draws: fastrand::Rng::with_seed(mixed(seed, pair)),
            number: 0,
            through: None,
        });
        passed.next_outcome(&effects, bytes, now)
    }
}

/// Returns `true` if one of the rules affects packets between adapters of these names, in either
/// direction.
fn affects(rules: &[Impairment], (one, other): (&str, &str)) -> bool {
    let has_effect = |names| effects(rules, names) != Effects::default();
    has_effect((one, other)) || has_effect((other, one))
}

/// Returns the effects on packets from the adapter `from` to the adapter `to`.
fn effects(rules: &[Impairment], (from, to): (&str, &str)) -> Effects {
    let mut rules = rules.iter().rev();
    let rule = rules.find(|rule| rule.is_about(from, to));
    rule.map(|rule| rule.effects).unwrap_or_default()
}

impl Passed {
    /// Returns the outcome of the next packet. Each packet takes the same number of draws, so a
    /// rule does not change the outcome of later packets.
    fn next_outcome(&mut self, effects: &Effects, bytes: usize, now: Instant) -> PacketOutcome {
        self.number += 1;
        let [loss, reorder, duplicate, jitter, late] = [(); 5].map(|()| self.draws.u32(..ALL));
        let is_overtaken = reorder < effects.reorder.0;
        let copies = if effects.partition {
            Err(Lost::Partition)
        } else if loss < effects.loss.0 {
            Err(Lost::Loss)
        } else {
            self.queue(effects, bytes, now).map(|queue| {
                let overtaken = OVERTAKEN + share(OVERTAKEN * 4, late);
                let more = if is_overtaken {
                    overtaken
                } else {
                    Duration::ZERO
                };
                let delay =
                    queue + time(effects.delay) + share(time(effects.jitter), jitter) + more;
                let again = (duplicate < effects.duplicate.0).then_some(delay + OVERTAKEN);
                std::iter::once(delay).chain(again).collect()
            })
        };
        PacketOutcome {
            number: self.number,
            copies,
            is_overtaken,
        }
    }

    /// Returns the time that the packet waits for bandwidth and takes to pass.
    fn queue(&mut self, effects: &Effects, bytes: usize, now: Instant) -> Result<Duration, Lost> {
        let Some(bandwidth) = effects.bandwidth else {
            return Ok(Duration::ZERO);
        };
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let nanoseconds = bytes.saturating_mul(1_000_000_000) / bandwidth.bytes_per_second();
        let begin = self.through.map_or(now, |through| through.max(now));
        let through = begin + Duration::from_nanos(nanoseconds);
        let wait = through.saturating_duration_since(now);
        if wait > LONGEST_QUEUE {
            return Err(Lost::Bandwidth);
        }
        self.through = Some(through);
        Ok(wait)
    }
}

fn time(latency: Latency) -> Duration {
    Duration::from_nanos(latency.nanoseconds())
}

/// Returns `millionths` of a time.
fn share(time: Duration, millionths: u32) -> Duration {
    time.saturating_mul(millionths) / ALL
}

/// Returns a seed for each pair (FNV-1a, 64 bits).
fn mixed(seed: u64, (from, to): Pair) -> u64 {
    let bytes = seed.to_le_bytes().into_iter().chain(from.0).chain(to.0);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Gid = Gid([1; 16]);
    const B: Gid = Gid([2; 16]);

    fn outcomes(seed: u64, rules: &[&str], pair: Pair, count: usize) -> Vec<PacketOutcome> {
        let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let mut impairments = Impairments::new(seed, rules);
        let now = Instant::now();
        let outcome = |_| impairments.next_outcome(pair, ("a", "b"), 1000, now);
        (0..count).map(outcome).collect()
    }

    fn lost(outcomes: &[PacketOutcome]) -> Vec<u64> {
        let lost = outcomes.iter().filter(|outcome| outcome.copies.is_err());
        lost.map(|outcome| outcome.number).collect()
    }

    #[test]
    fn without_a_rule_packets_arrive_at_once_and_once() {
        for outcome in outcomes(1, &["b->a partition", "c->* loss=100%"], (A, B), 50) {
            assert_eq!(outcome.copies, Ok(vec![Duration::ZERO]));
            assert!(!outcome.is_overtaken);
        }
    }

    #[test]
    fn same_seed_loses_the_same_packets() {
        let of = |seed, pair| lost(&outcomes(seed, &["*->* loss=10%"], pair, 1000));
        let first = of(7, (A, B));
        assert!((60..150).contains(&first.len()), "{first:?}");
        assert_eq!(of(7, (A, B)), first);
        assert_ne!(of(8, (A, B)), first);
        assert_ne!(of(7, (B, A)), first);
    }

    #[test]
    fn another_effect_leaves_the_lost_packets_as_they_are() {
        let loss = lost(&outcomes(7, &["*->* loss=10%"], (A, B), 500));
        let all = "*->* loss=10% reorder=50% duplicate=50% jitter=1ms delay=1ms";
        let outcomes = outcomes(7, &[all], (A, B), 500);
        assert_eq!(lost(&outcomes), loss);
        assert!(outcomes.iter().any(|outcome| outcome.is_overtaken));
        let copies = outcomes
            .iter()
            .filter_map(|outcome| outcome.copies.as_ref().ok());
        let (twice, once): (Vec<_>, Vec<_>) = copies.partition(|copies| copies.len() == 2);
        assert!(twice.len() > 100 && once.len() > 100);
    }

    #[test]
    fn last_rule_about_a_pair_holds_alone() {
        let rules = ["*->* loss=100%", "a<->b delay=2ms", "b->c partition"];
        for outcome in outcomes(1, &rules, (A, B), 20) {
            assert_eq!(outcome.copies, Ok(vec![Duration::from_millis(2)]));
        }
    }

    #[test]
    fn bandwidth_delays_by_what_is_ahead_and_loses_the_rest() {
        let outcomes = outcomes(1, &["*->* bandwidth=1MiB/s"], (A, B), 2000);
        let each = Duration::from_nanos(1_000_000_000_000 / (1 << 20));
        for (number, outcome) in (1..).zip(&outcomes).take(1000) {
            assert_eq!(outcome.copies, Ok(vec![each * number]), "{number}");
        }
        let beyond = &outcomes[1100].copies;
        assert_eq!(beyond, &Err(Lost::Bandwidth));
    }

    #[test]
    fn an_adapter_that_comes_back_begins_again() {
        let rules = vec!["*->* loss=50%".parse().unwrap()];
        let mut impairments = Impairments::new(3, rules);
        let now = Instant::now();
        let draw = |impairments: &mut Impairments| {
            let outcome = |_| impairments.next_outcome((A, B), ("a", "b"), 1, now);
            (0..64).map(outcome).collect::<Vec<_>>()
        };
        let first = draw(&mut impairments);
        assert_ne!(draw(&mut impairments), first);
        impairments.forget(B);
        assert_eq!(draw(&mut impairments), first);
    }

    #[test]
    fn rule_affects_both_directions_unless_it_changes_nothing() {
        let rules = ["*->* loss=1%", "a<->b none", "b->c partition"];
        let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let impairments = Impairments::new(1, rules);
        let pairs = [("a", "b"), ("b", "a"), ("b", "c"), ("c", "b"), ("a", "c")];
        let affected = pairs.map(|(one, other)| impairments.affects(one, other));
        assert_eq!(affected, [false, false, true, true, true]);
        assert!(!Impairments::new(1, Vec::new()).affects("a", "b"));
    }

    #[test]
    fn rules_are_limited_and_go() {
        let mut impairments = Impairments::new(1, Vec::new());
        let rule: Impairment = "*->* partition".parse().unwrap();
        for _ in 0..MOST_RULES {
            impairments.add(rule.clone()).unwrap();
        }
        assert_eq!(impairments.add(rule.clone()), Err(TooMany));
        assert_eq!((impairments.clear(), impairments.rules().len()), (256, 0));
        impairments.add(rule).unwrap();
    }
}
