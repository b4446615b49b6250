//! The pairs of a twin, with the verdicts of machine and twin.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use peerbar_lab::pci_tree::{pci_tree, platform};
use peerbar_lab::scenario::Scenario;
use peerbar_rule::{MapType, Release, Way, decide};

use super::devices::{Device, Model};
use super::{Twin, text};

/// The verdicts on DMA of a client to the memory of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TwinPair {
    pub(super) provider: String,
    pub(super) client: String,
    pub(super) client_model: Model,
    /// The machine's verdict, and whether it depends on facts that the source does not show.
    pub(super) machine: Way,
    pub(super) is_conditional: bool,
    /// The rule's verdict for the twin.
    pub(super) twin: MapType,
}

impl TwinPair {
    pub(super) fn agrees(&self) -> bool {
        self.machine == self.twin.into()
    }
}

/// Returns the pairs of `twin`'s devices, as the rule decides on them with the twin's processor. The
/// kernel's release does not matter, because no list has QEMU's host bridges.
pub(super) fn decided(twin: &Twin<'_>) -> anyhow::Result<Vec<TwinPair>> {
    let scenario = Scenario::parse_interactive(Path::new("twin.toml"), text::hardware(twin))?;
    let tree = pci_tree(&scenario);
    let platform =
        platform(&scenario.machine, Release::NEWEST).context("the twin's processor is unknown")?;
    let devices = || twin.shape.devices.iter().map(|(device, _)| device);
    let mut pairs = Vec::new();
    for provider in devices().filter(|device| device.is_provider) {
        for client in devices().filter(|device| device.address != provider.address) {
            let cell = twin.machine.cell(client.address, provider.address);
            let Some(way) = cell.way else {
                continue;
            };
            let find = |device: &Device| tree.find(&device.name);
            let decision = find(provider)
                .zip(find(client))
                .and_then(|(provider, client)| decide(&tree, &platform, provider, client));
            let decision = decision.context("the rule does not know the twin's tree")?;
            pairs.push(TwinPair {
                provider: provider.name.clone(),
                client: client.name.clone(),
                client_model: client.model,
                machine: way,
                is_conditional: cell.is_conditional,
                twin: decision.verdict,
            });
        }
    }
    Ok(pairs)
}

/// The most checks of a twin.
const MOST_CHECKS: usize = 64;

/// The pairs that have a check.
pub(super) struct Checked<'a> {
    pub(super) pairs: Vec<&'a TwinPair>,
    /// The properties that the other pairs have in common with one of them, if there are others.
    pub(super) like: Option<&'static str>,
}

/// Returns the pairs on which the guest's kernel is to decide: all, or if they are many, one for each
/// two places and models, or one for each two models and their relation.
pub(super) fn checked<'a>(twin: &'a Twin<'_>) -> Checked<'a> {
    let all: Vec<&TwinPair> = twin.pairs.iter().collect();
    if all.len() <= MOST_CHECKS {
        return Checked {
            pairs: all,
            like: None,
        };
    }
    let place = |name: &str| {
        let mut devices = twin.shape.devices.iter();
        let found = devices.find(|(device, _)| device.name == name);
        found.map(|(device, below)| (device.model, below))
    };
    let ends = |pair: &TwinPair| (place(&pair.provider), place(&pair.client));
    let by_place = one_of_each(&all, ends);
    if by_place.len() <= MOST_CHECKS {
        return Checked {
            pairs: by_place,
            like: Some("places, kinds and verdicts"),
        };
    }
    let relation = |pair: &TwinPair| {
        let (provider, client) = ends(pair);
        let [of_provider, of_client] = [provider, client].map(|end| end.map(|(model, _)| model));
        let is_same_place = provider.map(|(_, below)| below) == client.map(|(_, below)| below);
        (of_provider, of_client, is_same_place)
    };
    Checked {
        pairs: one_of_each(&all, relation),
        like: Some("kinds and verdicts, and both or neither at one place,"),
    }
}

/// Returns the first of the pairs with the same `key` and verdicts.
fn one_of_each<'a, K: Ord>(
    pairs: &[&'a TwinPair],
    key: impl Fn(&TwinPair) -> K,
) -> Vec<&'a TwinPair> {
    let mut seen = BTreeSet::new();
    let is_new = |pair: &&&TwinPair| seen.insert((key(pair), pair.machine, Way::from(pair.twin)));
    pairs.iter().filter(is_new).copied().collect()
}

/// Returns sentences on pairs whose verdicts differ, or are not certain.
pub(super) fn differences(pairs: &[TwinPair]) -> Vec<String> {
    let list = |is_meant: &dyn Fn(&TwinPair) -> bool| {
        let meant = pairs.iter().filter(|pair| is_meant(pair));
        let names: Vec<String> = meant
            .map(|pair| format!("{} to {}", pair.client, pair.provider))
            .collect();
        match names.len() {
            0 => None,
            all if all == pairs.len() => Some("all pairs".to_owned()),
            _ => Some(names.join(", ")),
        }
    };
    let different = list(&|pair| !pair.agrees())
        .map(|pairs| format!("QEMU cannot imitate the machine's verdict on {pairs}."));
    let conditional = list(&|pair| pair.is_conditional).map(|pairs| {
        format!(
            "The source lacks facts on which the machine's verdict depends. `peerbar p2p` names them; shown is the verdict if \
             none of them is true. This concerns {pairs}."
        )
    });
    [different, conditional].into_iter().flatten().collect()
}
