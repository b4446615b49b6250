//! Bytes by requester, completer and route: the counts of the devices during checks, added up.

use std::collections::BTreeSet;

use peerbar_lab::results::{CheckResult, CheckStatus};
use peerbar_lab::size::human;
use peerbar_report::{Completer, Direction, PayloadFlow, Route};

use super::picture::RefusedPair;
use crate::collection::ReportedRun;

/// Payload of one requester to one completer by one route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RoutedBytes {
    /// The device with the DMA.
    pub(super) requester: String,
    /// The route of the bytes.
    pub(super) route: Route,
    /// The owner of the memory.
    pub(super) owner: MemoryOwner,
    /// Bytes that the requester read.
    pub(super) read: u64,
    /// Bytes that it wrote.
    pub(super) written: u64,
}

/// The owner of memory, if it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MemoryOwner {
    /// The requester itself.
    Own,
    /// Guest RAM.
    GuestRam,
    /// A device.
    Device(String),
    /// Another device: a requester only counts that it is not its own memory, and the check names
    /// several devices.
    OtherDevice,
    /// Memory that QEMU found.
    Unknown,
}

impl RoutedBytes {
    /// Returns all bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.read.saturating_add(self.written)
    }

    /// Returns requester and owner of the memory, with the directions of the data between them.
    pub(super) fn ends(&self) -> String {
        let arrow = match (self.read, self.written) {
            (0, _) => "→",
            (_, 0) => "←",
            _ => "⇄",
        };
        format!("{} {arrow} {}", self.requester, self.owner.name())
    }

    /// Returns all of it in a line.
    pub(super) fn line(&self) -> String {
        let part = |word: &str, bytes: u64| match bytes {
            0 => None,
            _ => Some(format!("{word} {}", human(bytes))),
        };
        let parts: Vec<String> = [part("read", self.read), part("wrote", self.written)]
            .into_iter()
            .flatten()
            .collect();
        format!(
            "{}: {}, {}",
            self.ends(),
            self.route_word(),
            parts.join(", ")
        )
    }

    /// Returns the route in the word that devices record.
    pub(super) fn route_word(&self) -> &'static str {
        self.route.word()
    }
}

impl MemoryOwner {
    /// Returns its name for people.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Own => "own memory",
            Self::GuestRam => "guest RAM",
            Self::Device(name) => name,
            Self::OtherDevice => "another device",
            Self::Unknown => "memory behind QEMU",
        }
    }
}

/// Returns the payload that the devices moved during `checks`, by requester, route and owner, the
/// most first.
pub(super) fn routed<'a>(checks: impl IntoIterator<Item = &'a CheckResult>) -> Vec<RoutedBytes> {
    let mut all: Vec<RoutedBytes> = Vec::new();
    for check in checks {
        for flow in &check.measure.flows {
            add(&mut all, one(flow, check));
        }
    }
    all.sort_by_key(|one| (std::cmp::Reverse(one.bytes()), one.requester.clone()));
    all
}

/// Returns the devices of `checks` whose servers access mapped memory themselves, so that nobody
/// counts the bytes.
pub(super) fn mapped<'a>(checks: impl IntoIterator<Item = &'a CheckResult>) -> BTreeSet<&'a str> {
    let names = checks.into_iter();
    let names = names.flat_map(|check| &check.measure.mapped_not_counted);
    names.map(String::as_str).collect()
}

/// Returns the pairs of failed `checks` of `run` between which the kernel refuses peer-to-peer DMA.
pub(super) fn refused<'a>(
    checks: impl IntoIterator<Item = &'a CheckResult>,
    run: &'a ReportedRun,
) -> Vec<RefusedPair> {
    let mut all: Vec<RefusedPair> = Vec::new();
    let checks = checks.into_iter();
    let failed = checks.filter(|check| check.verdict == CheckStatus::Fail);
    for (_, explained) in failed.flat_map(|check| run.explanations_of(check)) {
        let (Some(pair), Some(refusal)) = (&explained.pair, &explained.refusal) else {
            continue;
        };
        let refused = RefusedPair {
            client: pair.client.clone(),
            provider: pair.provider.clone(),
            reason: refusal.reason.clone(),
        };
        if !all.contains(&refused) {
            all.push(refused);
        }
    }
    all
}

fn add(all: &mut Vec<RoutedBytes>, more: RoutedBytes) {
    let same = |one: &&mut RoutedBytes| {
        (&one.requester, one.route, &one.owner) == (&more.requester, more.route, &more.owner)
    };
    match all.iter_mut().find(same) {
        Some(one) => {
            one.read = one.read.saturating_add(more.read);
            one.written = one.written.saturating_add(more.written);
        }
        None => all.push(more),
    }
}

/// The route and the bytes come from the device's record; the check names the other device that
/// owns the memory.
fn one(flow: &PayloadFlow, check: &CheckResult) -> RoutedBytes {
    let owner = match flow.completer {
        Completer::OwnMemory => MemoryOwner::Own,
        Completer::GuestRam => MemoryOwner::GuestRam,
        Completer::PeerBar => provider(&flow.requester, check),
        Completer::None | Completer::Unknown => MemoryOwner::Unknown,
    };
    let (read, written) = match flow.direction {
        Direction::Read => (flow.bytes, 0),
        Direction::Write => (0, flow.bytes),
    };
    RoutedBytes {
        requester: flow.requester.clone(),
        route: flow.route,
        owner,
        read,
        written,
    }
}

/// Returns the only other device whose memory `requester` should access in `check`.
fn provider(requester: &str, check: &CheckResult) -> MemoryOwner {
    let pairs = check.pairs.iter();
    let mut providers: Vec<&str> = pairs
        .filter(|pair| pair.client == requester && pair.provider != requester)
        .map(|pair| pair.provider.as_str())
        .collect();
    providers.dedup();
    match providers.as_slice() {
        [only] => MemoryOwner::Device((*only).to_owned()),
        _ => MemoryOwner::OtherDevice,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn refused_pairs_are_those_of_failed_checks() {
        let mut run = samples::reported();
        let pairs = |run: &ReportedRun| refused(&run.results.checks, run);
        assert_eq!(pairs(&run), []);
        run.results.checks[1].pairs = run.results.checks[0].pairs.clone();
        let [only] = &pairs(&run)[..] else {
            panic!("{:?}", pairs(&run))
        };
        assert_eq!((&*only.client, &*only.provider), ("disk0", "gpu0"));
    }

    #[test]
    fn flows_of_all_checks_add_up_by_route_and_owner() {
        let checks = samples::run().checks;
        let twice = [&checks[0], &checks[0]];
        let found = routed(twice);
        let lines: Vec<String> = found.iter().map(RoutedBytes::line).collect();
        assert_eq!(lines, ["disk0 ⇄ gpu0: peer, read 2 MiB, wrote 2 MiB"]);
        let mut unclear = checks[0].clone();
        unclear.pairs.clear();
        assert_eq!(routed([&unclear])[0].owner, MemoryOwner::OtherDevice);
    }
}
