//! Changes that lead to another outcome. Each change is tried on the rule before it is printed.

use peerbar_rule::{AcsControl, Ascent, Decision, Hop, MapType, PciTree, Platform, Reason, Way};
use serde::Serialize;

use super::case::{Case, decide_in};
use super::pairs::Pair;
use peerbar_lab::cpu;
use peerbar_lab::pci_tree::pci_tree;
use peerbar_lab::scenario::{AcsPorts, AttachPoint, DeviceSpec, Scenario, Switch};

/// A model whose root complexes Linux trusts.
const TRUSTED_CPU: &str = "EPYC";
/// Name of the switch that is added to a scenario without one.
const NEW_SWITCH: &str = "switch0";

/// A change, and the verdict with it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Advice {
    /// The text to write, and its place.
    pub change: String,
    /// The rule's verdict after the change.
    pub verdict: MapType,
}

/// Returns the changes of `case` that give `pair` more than `now`, the smallest first. None leads
/// to a bus address for a device of QEMU's, whose requests no switch routes.
pub(crate) fn for_pair(case: &Case, pair: &Pair, now: &Decision) -> Vec<Advice> {
    let here = case.platform(&pair.client);
    let is_routed = case.served_by_qemu(pair).is_empty();
    let elsewhere = |(scenario, change): (Scenario, String)| (pci_tree(&scenario), here, change);
    let trials = [
        without_redirection(case, now).map(|(tree, change)| (tree, here, change)),
        other_cpu(case, here),
        one_switch(&case.scenario, pair).map(elsewhere),
    ];
    let tried = trials
        .into_iter()
        .flatten()
        .filter_map(|(tree, platform, change)| {
            let verdict = decide_in(&tree, &platform, pair)?.verdict;
            let is_usable = is_routed || verdict != MapType::BusAddress;
            (is_usable && Way::from(verdict) > Way::from(now.verdict))
                .then_some(Advice { change, verdict })
        });
    tried.collect()
}

/// Returns the guest's PCI tree without redirection at its ports, and the kernel parameter for
/// that. In a scenario ports have no addresses to name them by.
fn without_redirection(case: &Case, now: &Decision) -> Option<(PciTree, String)> {
    let guest = case.guest.as_ref()?;
    let Reason::RootComplex {
        ascent: Ascent::Redirected(redirects),
        ..
    } = &now.reason
    else {
        return None;
    };
    let mut tree = case.tree.clone();
    let mut addresses = Vec::new();
    for redirect in redirects {
        let name = case.tree.name(Hop::Function(redirect.at));
        addresses.push(guest.function(name)?.address.clone());
        tree.set_acs(redirect.at, AcsControl::default());
    }
    let list = addresses.join(";");
    let change = format!("in [machine]: kernel-parameters = \"pci=disable_acs_redir={list}\"");
    Some((tree, change))
}

fn other_cpu(case: &Case, platform: Platform) -> Option<(PciTree, Platform, String)> {
    let cpu = cpu::of_model(TRUSTED_CPU)?;
    let change = format!("in [machine]: cpu = \"{TRUSTED_CPU}\"");
    Some((case.tree.clone(), Platform { cpu, ..platform }, change))
}

/// Puts both below one switch: the one that one of them is below, or the first, or a new one.
/// Returns `None` if both are there.
fn one_switch(scenario: &Scenario, pair: &Pair) -> Option<(Scenario, String)> {
    let of_pair = |device: &DeviceSpec<'_>| pair.has(device.name());
    let attach_points = scenario.devices().filter(of_pair).map(DeviceSpec::attach);
    let above = attach_points.filter_map(AttachPoint::switch).next();
    let first = scenario.switches.first().map(|switch| switch.name.as_str());
    let known = above.or(first);
    let name = known.unwrap_or(NEW_SWITCH);
    let below = AttachPoint::Switch(name.to_owned());

    let moved = scenario
        .devices()
        .filter(|device| of_pair(device) && *device.attach() != below)
        .map(|device| format!("[[{}]] {}", device.kind(), device.name()));
    let moved: Vec<String> = moved.collect();
    if moved.is_empty() {
        return None;
    }
    let mut change = format!("in {}: below = \"{name}\"", moved.join(" and "));
    let mut scenario = scenario.clone();
    if known.is_none() {
        change = format!("[[switch]] name = \"{name}\", {change}");
        scenario.switches.push(Switch {
            name: name.to_owned(),
            attach: AttachPoint::Root,
            acs: AcsPorts::default(),
        });
    }
    move_pair(&mut scenario, pair, &below);
    Some((scenario, change))
}

fn move_pair(scenario: &mut Scenario, pair: &Pair, to: &AttachPoint) {
    let nvmes = scenario.nvmes.iter_mut();
    let nvmes = nvmes.map(|nvme| (&nvme.name, &mut nvme.attach));
    let gpus = scenario.gpus.iter_mut();
    let gpus = gpus.map(|gpu| (&gpu.name, &mut gpu.attach));
    let nics = scenario.nics.iter_mut();
    let nics = nics.map(|nic| (&nic.name, &mut nic.attach));
    let foreign = scenario.foreign.iter_mut();
    let foreign = foreign.map(|device| (&device.name, &mut device.attach));
    let devices = nvmes.chain(gpus).chain(nics).chain(foreign);
    for (_, attach) in devices.filter(|(name, _)| pair.has(name)) {
        *attach = to.clone();
    }
}

#[cfg(test)]
mod tests {
    use peerbar_report::Evidence;

    use super::super::observed_guest::tests::root_ports;
    use super::super::recorded::Recorded;
    use super::*;
    use peerbar_lab::exit::RunOutcome;
    use peerbar_lab::scenario::Model;
    use peerbar_lab::verdict;

    fn advice(scenario: &Scenario, now: MapType) -> Vec<(String, MapType)> {
        let pair = Pair {
            provider: "gpu0".to_owned(),
            client: "disk0".to_owned(),
        };
        let case = Case::of_scenario(scenario.clone()).unwrap();
        let decision = case.decide(&pair).unwrap();
        assert_eq!(decision.verdict, now);
        let changes = for_pair(&case, &pair, &decision).into_iter();
        changes
            .map(|advice| (advice.change, advice.verdict))
            .collect()
    }

    #[test]
    fn refusal_advice_names_processor_or_switch() {
        let mut scenario = Scenario::demo().unwrap();
        scenario.machine.cpu = "Haswell".to_owned();
        scenario.nvmes[0].attach = AttachPoint::Root;
        let changes = advice(&scenario, MapType::NotSupported);
        let expected = [
            (
                "in [machine]: cpu = \"EPYC\"",
                MapType::ThroughHostBridgePhysical,
            ),
            (
                "in [[nvme]] disk0: below = \"switch0\"",
                MapType::BusAddress,
            ),
        ];
        assert_eq!(
            changes,
            expected.map(|(change, verdict)| (change.to_owned(), verdict))
        );
    }

    #[test]
    fn no_switch_is_advised_for_qemus_controller() {
        let mut scenario = Scenario::demo().unwrap();
        scenario.nvmes[0].model = Model::Qemu;
        scenario.nvmes[0].attach = AttachPoint::Root;
        assert_eq!(advice(&scenario, MapType::ThroughHostBridgePhysical), []);
        scenario.machine.cpu = "Haswell".to_owned();
        let changes = advice(&scenario, MapType::NotSupported);
        let expected = "in [machine]: cpu = \"EPYC\"".to_owned();
        assert_eq!(changes, [(expected, MapType::ThroughHostBridgePhysical)]);
    }

    #[test]
    fn where_there_is_no_switch_it_is_a_new_one() {
        let mut scenario = Scenario::demo().unwrap();
        scenario.switches.clear();
        scenario
            .nvmes
            .iter_mut()
            .for_each(|nvme| nvme.attach = AttachPoint::Root);
        scenario.gpus[0].attach = AttachPoint::Root;
        let changes = advice(&scenario, MapType::ThroughHostBridgePhysical);
        let expected = "[[switch]] name = \"switch0\", in [[nvme]] disk0 and [[gpu]] gpu0: below = \"switch0\"";
        assert_eq!(changes, [(expected.to_owned(), MapType::BusAddress)]);
    }

    #[test]
    fn redirecting_port_is_advised_by_its_address() {
        let mut evidence = root_ports("AuthenticAMD", 23, 4);
        for piece in &mut evidence {
            match piece {
                Evidence::Function(function) if function.name.as_deref() == Some("b") => {
                    function.parent = "0000:00:02.0".to_owned();
                }
                _ => {}
            }
        }
        let mut scenario = Scenario::demo().unwrap();
        scenario.nvmes[0].name = "a".to_owned();
        scenario.nvmes[1].name = "b".to_owned();
        let run = Recorded {
            verdict: verdict::RunVerdict {
                outcome: RunOutcome::Failed,
                reason: String::new(),
            },
            scenario,
            release: "7.2.12".to_owned(),
            evidence,
            results: Vec::new(),
            across: Vec::new(),
        };
        let case = Case::of_run(run).unwrap();
        let pair = Pair::of("a", "b");
        let decision = case.decide(&pair).unwrap();
        assert_eq!(decision.verdict, MapType::ThroughHostBridgeIova);
        let expected = Advice {
            change: "in [machine]: kernel-parameters = \"pci=disable_acs_redir=0000:00:02.0\""
                .to_owned(),
            verdict: MapType::BusAddress,
        };
        assert_eq!(for_pair(&case, &pair, &decision).first(), Some(&expected));
    }

    #[test]
    fn nothing_is_better_than_the_bus_address() {
        assert_eq!(advice(&Scenario::demo().unwrap(), MapType::BusAddress), []);
    }
}
