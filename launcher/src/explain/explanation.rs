//! All that is known about one pair.

use peerbar_rule::{Decision, Hop, Verdict};
use peerbar_switch::LinkMode;
use serde::Serialize;

use super::advice::{self, Advice};
use super::case::Case;
use super::pairs::Pair;

/// Why a client's DMA reaches a provider's memory as it does, or not.
#[derive(Debug, Serialize)]
pub(crate) struct Explanation {
    /// The device with the memory.
    pub provider: String,
    /// The device with the DMA.
    pub client: String,
    /// What the kernel's rule says.
    pub rule: Ruling,
    /// What else matters for this pair.
    pub notes: Vec<String>,
    /// What to change for another outcome.
    pub changes: Vec<Advice>,
}

/// A decision with the names of its places.
#[derive(Debug, Serialize)]
pub(crate) struct Ruling {
    /// The verdict.
    pub verdict: Verdict,
    /// Why, in one sentence.
    pub why: String,
    /// Release of Linux whose rule it is.
    pub kernel: String,
    /// The kernel's measure of how far they are from each other.
    pub distance: usize,
    /// The way of a request, from the client to the provider.
    pub path: Vec<Place>,
}

/// A place on the way.
#[derive(Debug, Serialize)]
pub(crate) struct Place {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: String,
    /// Vendor and device ID, if it has any.
    pub id: Option<String>,
    /// What ACS makes it do with requests to peers, if it has ACS.
    pub acs: Option<String>,
    /// Whether it decides.
    pub decides: bool,
}

impl Explanation {
    /// Explains `pair`; nothing if one of both is not there.
    pub(crate) fn of(case: &Case, pair: &Pair) -> Option<Self> {
        let decision = case.decide(pair)?;
        Some(Self {
            provider: pair.provider.clone(),
            client: pair.client.clone(),
            notes: notes(case, pair),
            changes: advice::for_pair(case, pair, decision.verdict),
            rule: Ruling::of(case, &decision),
        })
    }
}

/// What the kernel's decision does not see: what the devices and their links make of it.
fn notes(case: &Case, pair: &Pair) -> Vec<String> {
    let mut notes = Vec::new();
    let windows = case.scenario.gpus.iter().filter(|gpu| gpu.window);
    for gpu in windows.filter(|gpu| gpu.name == pair.provider) {
        notes.push(format!(
            "the aperture of {} is a window (`mode = \"window\"`): it is no p2pmem, and no disk can be pointed at it",
            gpu.name
        ));
    }
    for device in case
        .scenario
        .devices()
        .filter(|device| pair.client == device.name())
    {
        if device.link() != LinkMode::Route {
            notes.push(format!(
                "`link = \"{0}\"` at {1}: whatever the kernel decides, the switch makes of its requests to peers: {0}",
                device.link(),
                device.name()
            ));
        }
    }
    notes
}

impl Ruling {
    fn of(case: &Case, decision: &Decision) -> Self {
        let decisive = decision.decisive();
        let place = |hop: &Hop| Place::of(case, *hop, Some(*hop) == decisive);
        Self {
            verdict: decision.verdict,
            why: decision.why(&case.fabric),
            kernel: case.platform.kernel.to_string(),
            distance: decision.distance,
            path: decision.path.iter().map(place).collect(),
        }
    }
}

impl Place {
    fn of(case: &Case, hop: Hop, decides: bool) -> Self {
        let name = case.fabric.name(hop).to_owned();
        let (kind, id, acs) = match hop {
            Hop::HostBridge(bridge) => {
                let known_by = case.fabric.host_bridge(bridge).and_then(|b| b.known_by);
                ("host bridge".to_owned(), known_by, None)
            }
            Hop::Function(function) => match case.fabric.function(function) {
                Some(function) => (function.kind.to_string(), Some(function.id), function.acs),
                None => (String::new(), None, None),
            },
        };
        let acs = acs.map(|control| match control.redirecting() {
            none if none.is_empty() => "redirects nothing".to_owned(),
            bits => bits.to_string(),
        });
        Self {
            name,
            kind,
            id: id.map(|id| id.to_string()),
            acs,
            decides,
        }
    }
}
