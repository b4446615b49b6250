//! All that is known about one pair.

use std::collections::BTreeMap;

use peerbar_report::{Check, Completer, Measure, Route};
use peerbar_rule::{Decision, Hop, MapType, Reason, Way};
use peerbar_switch::LinkMode;
use serde::Serialize;

use super::advice::{self, Advice};
use super::case::Case;
use super::pairs::Pair;
use peerbar_lab::kernel_iommu::acs_options;
use peerbar_lab::pci_tree::UNKNOWN;
use peerbar_lab::results::{CheckResult, CheckStatus};
use peerbar_lab::scenario::DeviceSpec;

/// The reason why a client's DMA reaches a provider's memory, or why it does not.
#[derive(Debug, Serialize)]
pub(crate) struct Explanation {
    /// The device with the memory.
    pub provider: String,
    /// The device with the DMA.
    pub client: String,
    /// Decision by the kernel's rule.
    pub rule: Ruling,
    /// Decision of the kernel, or `None` without a run.
    pub kernel: Option<KernelDecision>,
    /// Verdict on the pair of the real machine whose twin the scenario is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineDecision>,
    /// Records of the devices from the run's checks of this pair.
    pub checks: Vec<Seen>,
    /// Other facts that matter for this pair.
    pub notes: Vec<String>,
    /// Changes that lead to another outcome.
    pub changes: Vec<Advice>,
}

/// A decision with the names of its hops.
#[derive(Debug, Serialize)]
pub(crate) struct Ruling {
    /// The verdict.
    pub verdict: MapType,
    /// The reason, in one sentence.
    pub why: String,
    /// As [`Decision::refusal`].
    #[serde(skip)]
    pub refusal: Option<String>,
    /// Release of Linux to which the rule belongs.
    pub release: String,
    /// The kernel's measure of how far they are from each other.
    pub distance: usize,
    /// The way of a request, from the client to the provider.
    pub path: Vec<PathHop>,
}

/// A hop of the path.
#[derive(Debug, Serialize)]
pub(crate) struct PathHop {
    /// Its name.
    pub name: String,
    /// Its address in the guest, if that is not the name.
    pub address: Option<String>,
    /// Its kind.
    pub kind: String,
    /// Vendor and device ID, if it has any.
    pub id: Option<String>,
    /// Effect of its ACS capability on requests to peers, if it has one.
    pub acs: Option<String>,
    /// Set if it decides.
    pub decides: bool,
}

/// The decision of the guest's kernel about the pair.
#[derive(Debug, Serialize)]
pub(crate) struct KernelDecision {
    /// The map type that it chose, or `None` if it was never asked, or was not observable.
    pub map_type: Option<u32>,
    /// The meaning of `map_type`, or `None` if it is unknown.
    #[serde(skip)]
    pub chosen: Option<MapType>,
    /// Set if that agrees with the rule.
    pub agrees: Option<bool>,
    /// The reason why its decisions were not observed, if so.
    pub unwatched: Option<String>,
    /// Its messages.
    pub messages: Vec<String>,
}

/// The verdict on a pair of the real machine.
#[derive(Debug, Serialize)]
pub(crate) struct MachineDecision {
    /// The verdict.
    pub verdict: Way,
    /// The verdict depends on facts that the source lacks.
    pub is_conditional: bool,
    /// Set if the rule's verdict on the scenario is the same.
    pub agrees: bool,
    /// The source that the machine was read from.
    pub of: String,
}

/// The devices' counters for a pair during a check. A device counts its accesses to other devices'
/// memory, but not by device.
#[derive(Debug, Serialize)]
pub(crate) struct Seen {
    /// The check.
    pub check: String,
    /// Its result.
    pub verdict: CheckStatus,
    /// Set unless the client is the device of another project's server that maps memory: nobody
    /// counts its accesses to that.
    pub is_counted: bool,
    /// Payload bytes of the client with memory of a device, by route.
    pub routes: BTreeMap<Route, u64>,
    /// The sum of these bytes.
    pub direct_bytes: u64,
    /// Payload bytes with guest RAM beyond those that the check asks for, if that is known.
    pub bounced_bytes: Option<u64>,
    /// Number of pairs of the check that may share these bytes: those with the same client.
    pub pairs: usize,
    /// DMA requests of all devices that failed during the check.
    pub failures: u64,
}

impl Explanation {
    /// Explains `pair`, or returns `None` if one of both is missing.
    pub(crate) fn of(case: &Case, pair: &Pair) -> Option<Self> {
        let decision = case.decide(pair)?;
        let caveat = case.platform(&pair.client).kernel.caveat();
        Some(Self {
            provider: pair.provider.clone(),
            client: pair.client.clone(),
            kernel: KernelDecision::of(case, pair, decision.verdict),
            machine: MachineDecision::of(case, pair, decision.verdict),
            checks: seen(case, pair),
            notes: notes(case, pair, &decision)
                .into_iter()
                .chain(caveat)
                .collect(),
            changes: advice::for_pair(case, pair, &decision),
            rule: Ruling::of(case, pair, &decision),
        })
    }

    /// Returns `true` if the kernel's decision differs from the rule's.
    pub(crate) fn disagrees(&self) -> bool {
        let agrees = self.kernel.as_ref().and_then(|kernel| kernel.agrees);
        agrees == Some(false)
    }
}

fn seen(case: &Case, pair: &Pair) -> Vec<Seen> {
    let checks = case.scenario.checks.iter().zip(&case.results);
    let of_pair = checks.filter(|(check, _)| check.pairs().contains(pair));
    let seen = of_pair.map(|(check, result)| Seen {
        bounced_bytes: bounced(check, &result.measure),
        ..Seen::of(result, pair, &check.pairs())
    });
    let across = case.across.iter();
    let across = across.filter(|result| result.pairs.contains(pair));
    let across = across.map(|result| Seen::of(result, pair, &result.pairs));
    seen.chain(across).collect()
}

impl Seen {
    /// Returns the devices' counters for `pair` during the check of `result`, which has `pairs`.
    fn of(result: &CheckResult, pair: &Pair, pairs: &[Pair]) -> Self {
        let is_own = |pair: &Pair| pair.client == pair.provider;
        let completer = match is_own(pair) {
            true => Completer::OwnMemory,
            false => Completer::PeerBar,
        };
        let mut routes = BTreeMap::new();
        for flow in &result.measure.flows {
            if flow.requester == pair.client && flow.completer == completer {
                let bytes: &mut u64 = routes.entry(flow.route).or_default();
                *bytes = bytes.saturating_add(flow.bytes);
            }
        }
        let alike = pairs
            .iter()
            .filter(|other| other.client == pair.client && is_own(other) == is_own(pair));
        Self {
            check: result.name.clone(),
            verdict: result.verdict,
            is_counted: !result.measure.mapped_not_counted.contains(&pair.client),
            direct_bytes: routes.values().sum(),
            routes,
            bounced_bytes: None,
            pairs: alike.count(),
            failures: result.measure.failures,
        }
    }
}

/// Returns the payload with guest RAM that `check` has not asked for.
fn bounced(check: &Check, measure: &Measure) -> Option<u64> {
    let wanted = check.guest_ram_bytes(measure.bytes)?;
    Some(measure.ram_bytes.saturating_sub(wanted))
}

/// Returns the differences between a twin and its machine that name both devices of the pair, in the list
/// at their end.
fn unlike_the_machine(case: &Case, pair: &Pair) -> Vec<String> {
    let twin = case.scenario.twin.iter();
    let concerns = |text: &&String| {
        let list = text.rsplit_once(": ").map_or("", |(_, names)| names);
        let names: Vec<&str> = list.trim_end_matches('.').split(", ").collect();
        [&pair.provider, &pair.client]
            .iter()
            .all(|name| names.contains(&name.as_str()))
    };
    let differences = twin.flat_map(|twin| &twin.differences).filter(concerns);
    differences
        .map(|text| format!("unlike the machine: {text}"))
        .collect()
}

/// Returns notes about influences outside of the kernel's decision: the devices, their links, and
/// parameters of the kernel.
fn notes(case: &Case, pair: &Pair, decision: &Decision) -> Vec<String> {
    let mut notes = Vec::new();
    notes.extend(unknown_acs(case, decision));
    notes.extend(unrouted(case, pair, decision));
    notes.extend(unlike_the_machine(case, pair));
    let named = |name: &str| case.scenario.devices().find(|device| device.name() == name);
    match named(&pair.provider) {
        Some(DeviceSpec::Gpu(gpu, _)) if gpu.config.is_window() => notes.push(format!(
            "the aperture of {} is a window (`mode = \"window\"`): it is not p2pmem, and disks cannot be pointed at it",
            gpu.name
        )),
        Some(DeviceSpec::Nvme(nvme)) if nvme.config.cmb.is_none() => notes.push(format!(
            "{0} has no memory for others: give [[nvme]] {0} a `cmb`",
            nvme.name
        )),
        Some(DeviceSpec::Nic(nic, _)) => notes.push(format!(
            "{} has no memory for others: an adapter only uses that of others",
            nic.name
        )),
        Some(DeviceSpec::Foreign(device)) => notes.push(format!(
            "{} is a [[device]]: its driver in the guest decides if it has memory for others",
            device.name
        )),
        _ => {}
    }
    let client = named(&pair.client);
    let fate = client.and_then(|client| match client.link() {
        LinkMode::Route => None,
        LinkMode::Redirect => Some("sends its requests to peers up to the root all the same"),
        LinkMode::UnsupportedRequest => Some("refuses its requests to peers all the same"),
        LinkMode::Drop => Some("loses its requests to peers all the same"),
    });
    if let (Some(client), Some(fate)) = (client, fate) {
        let (name, link) = (client.name(), client.link());
        notes.push(format!("`link = \"{link}\"` at {name}: the switch {fate}"));
    }
    notes
}

/// Returns a note if the kernel gives a bus address for a request that QEMU does not route in the
/// switch.
fn unrouted(case: &Case, pair: &Pair, decision: &Decision) -> Option<String> {
    let by_qemu = case.served_by_qemu(pair);
    let is_routed = by_qemu.is_empty() || matches!(decision.reason, Reason::OwnMemory);
    if is_routed || decision.verdict != MapType::BusAddress {
        return None;
    }
    let outcome = match case.platform(&pair.client).translates {
        false => "",
        true if by_qemu.contains(&pair.client.as_str()) => {
            ", where the IOMMU refuses it: QEMU reports success with wrong data"
        }
        true => ", where the IOMMU refuses it",
    };
    Some(format!(
        "`model = \"qemu\"` at {}: QEMU routes nothing in a switch, a request to the peer goes up to the root{outcome}",
        by_qemu.join(" and ")
    ))
}

/// Returns a note if parameters of the kernel set ACS at ports of the path, which only a run can
/// show.
fn unknown_acs(case: &Case, decision: &Decision) -> Option<String> {
    let options = acs_options(&case.scenario.machine);
    let has_acs = |hop: &Hop| match hop {
        Hop::Function(id) => case
            .tree
            .function(*id)
            .is_some_and(|port| port.acs.is_some()),
        Hop::HostBridge(_) => false,
    };
    let is_open = case.guest.is_none() && !options.is_empty() && decision.path.iter().any(has_acs);
    is_open.then(|| {
        format!(
            "`kernel-parameters` has {}, which is not applied to the ports here: explain a run for their ACS",
            options.join(" and ")
        )
    })
}

impl MachineDecision {
    fn of(case: &Case, pair: &Pair, rule: MapType) -> Option<Self> {
        let twin = case.scenario.twin.as_ref()?;
        let verdict = twin.verdict(&pair.provider, &pair.client)?;
        Some(Self {
            verdict,
            is_conditional: twin.is_conditional(&pair.provider, &pair.client),
            agrees: verdict == rule.into(),
            of: twin.of.clone(),
        })
    }
}

impl KernelDecision {
    fn of(case: &Case, pair: &Pair, rule: MapType) -> Option<Self> {
        let guest = case.guest.as_ref()?;
        let platform = case.platform(&pair.client);
        let map_type = guest.map_type(&pair.provider, &pair.client);
        let chosen = map_type.map(|number| MapType::from_number(number, &platform));
        Some(Self {
            map_type,
            agrees: chosen.map(|chosen| chosen == Some(rule)),
            chosen: chosen.flatten(),
            unwatched: guest.unwatched().map(str::to_owned),
            messages: guest.messages(&pair.provider, &pair.client),
        })
    }
}

impl Ruling {
    fn of(case: &Case, pair: &Pair, decision: &Decision) -> Self {
        let decisive = decision.decisive();
        let named = |hop: &Hop| PathHop::of(case, *hop, Some(*hop) == decisive);
        Self {
            verdict: decision.verdict,
            why: decision.why(&case.tree),
            refusal: decision.refusal(&case.tree),
            release: case.platform(&pair.client).kernel.to_string(),
            distance: decision.distance,
            path: decision.path.iter().map(named).collect(),
        }
    }
}

impl PathHop {
    fn of(case: &Case, hop: Hop, decides: bool) -> Self {
        let name = case.tree.name(hop);
        let found = case.guest.as_ref().and_then(|guest| guest.function(name));
        let address = found.map(|function| function.address.clone());
        let (kind, id, acs) = match hop {
            Hop::HostBridge(bridge) => {
                let known_by = case.tree.host_bridge(bridge).and_then(|b| b.known_by);
                ("host bridge".to_owned(), known_by, None)
            }
            Hop::Function(function) => match case.tree.function(function) {
                Some(function) => {
                    let id = Some(function.id).filter(|id| *id != UNKNOWN);
                    (function.kind.to_string(), id, function.acs)
                }
                None => (String::new(), None, None),
            },
        };
        let acs = acs.map(|control| match control.redirecting() {
            none if none.is_empty() => "redirects nothing".to_owned(),
            bits => bits.to_string(),
        });
        Self {
            name: name.to_owned(),
            address: address.filter(|address| address != name),
            kind,
            id: id.map(|id| id.to_string()),
            acs,
            decides,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peerbar_lab::iommu::Iommu;
    use peerbar_lab::scenario::{AttachPoint, Model, Scenario, Twin};
    use peerbar_report::{Direction, PayloadFlow};

    #[test]
    fn bus_address_of_qemus_controller_is_noted_as_not_routed() {
        let mut scenario = Scenario::demo().unwrap();
        scenario.nvmes[0].model = Model::Qemu;
        let note = |scenario: &Scenario, provider, client| {
            let case = Case::of_scenario(scenario.clone()).unwrap();
            let notes = Explanation::of(&case, &Pair::of(provider, client))
                .unwrap()
                .notes;
            notes.into_iter().find(|note| note.contains("model ="))
        };
        let routed = "`model = \"qemu\"` at disk0: QEMU routes nothing in a switch, a request to the peer goes up to the root";
        assert_eq!(note(&scenario, "gpu0", "disk0").unwrap(), routed);
        assert_eq!(note(&scenario, "disk0", "disk0"), None);
        assert_eq!(note(&scenario, "gpu0", "disk1"), None);
        scenario.machine.iommu = Iommu::Intel;
        let as_client = note(&scenario, "gpu0", "disk0").unwrap();
        assert!(
            as_client.ends_with("success with wrong data"),
            "{as_client}"
        );
        let as_provider = note(&scenario, "disk0", "disk1").unwrap();
        assert!(
            as_provider.ends_with("the IOMMU refuses it"),
            "{as_provider}"
        );
        scenario.nvmes[0].attach = AttachPoint::Root;
        assert_eq!(note(&scenario, "gpu0", "disk0"), None);
    }

    #[test]
    fn difference_from_the_machine_is_noted_for_the_pairs_that_it_names() {
        let mut scenario = Scenario::demo().unwrap();
        let difference = "Separate here: gpu0, disk0.";
        scenario.twin = Some(Twin {
            differences: vec![difference.to_owned()],
            ..Twin::default()
        });
        let case = Case::of_scenario(scenario).unwrap();
        let notes = |client| {
            Explanation::of(&case, &Pair::of("gpu0", client))
                .unwrap()
                .notes
        };
        assert!(notes("disk0").contains(&format!("unlike the machine: {difference}")));
        assert!(!notes("disk1").iter().any(|note| note.contains(difference)));
    }

    #[test]
    fn acs_parameters_are_noted_where_a_port_of_the_path_has_acs() {
        let mut scenario = Scenario::demo().unwrap();
        scenario.machine.kernel_parameters = "quiet pci=disable_acs_redir=0000:00:02.0".to_owned();
        let notes = |scenario: &Scenario| {
            let case = Case::of_scenario(scenario.clone()).unwrap();
            Explanation::of(&case, &Pair::of("gpu0", "disk0"))
                .unwrap()
                .notes
        };
        assert!(notes(&scenario).is_empty(), "{:?}", notes(&scenario));
        scenario.nvmes[0].attach = AttachPoint::Root;
        let [note] = &notes(&scenario)[..] else {
            panic!("{:?}", notes(&scenario));
        };
        assert!(note.contains("has pci=disable_acs_redir,"), "{note}");
    }

    #[test]
    fn bytes_of_a_good_pair_are_not_those_of_a_refused_one() {
        let flow = |requester: &str, completer| PayloadFlow {
            requester: requester.to_owned(),
            completer,
            route: Route::Upstream,
            direction: Direction::Write,
            bytes: 4096,
        };
        let result = CheckResult {
            measure: Measure {
                flows: vec![
                    flow("a", Completer::OwnMemory),
                    flow("b", Completer::PeerBar),
                ],
                ..Measure::default()
            },
            ..CheckResult::default()
        };
        let pairs = [
            Pair::of("a", "a"),
            Pair::of("a", "b"),
            Pair::of("a", "c"),
            Pair::of("c", "b"),
        ];
        let seen = pairs.each_ref().map(|pair| {
            let seen = Seen::of(&result, pair, &pairs);
            (seen.direct_bytes, seen.pairs)
        });
        assert_eq!(seen, [(4096, 1), (4096, 2), (0, 1), (4096, 2)]);
    }

    #[test]
    fn guest_ram_that_a_check_asks_for_is_not_bounced() {
        let bounced = |check: &str, payload, ram| {
            let check: Check = serde_json::from_str(check).unwrap();
            let measure = Measure {
                bytes: payload,
                ram_bytes: ram,
                ..Measure::default()
            };
            super::bounced(&check, &measure)
        };
        let half = r#"{"kind":"rdma","nic":"n","peer":"n","from":{"vram":"g"},"to":"guest-ram","sizes":[64]}"#;
        assert_eq!(bounced(half, 100, 100), Some(0));
        assert_eq!(bounced(half, 100, 150), Some(50));
        let direct = half.replace("\"guest-ram\"", r#"{"vram":"h"}"#);
        assert_eq!(bounced(&direct, 100, 100), Some(100));
        assert_eq!(bounced(r#"{"kind":"rdma-refused","nic":"n"}"#, 0, 9), None);
    }
}
