//! The kernel's decision on a pair, as far as the machine is known.
//!
//! Facts that the machine does not tell are tried both ways. If they make no difference, the
//! verdict is certain; otherwise it names them.

use std::collections::BTreeSet;
use std::fmt;

use peerbar_rule::{
    AcsControl, Ascent, Decision, DeviceId, Hop, Platform, Reason, Redirect, Release, Way, decide,
};

use crate::address::Address;
use crate::machine::{Acs, Iommu, Kind, Machine};
use crate::names::{OTHER_CPU, ZEN_CPU};
use crate::tree::{Tree, host_bridge_not_shown, is_host_bridge_known, root_bus_name};

/// The kernel's verdict on a pair.
#[derive(Clone, Debug)]
pub(crate) struct KernelVerdict {
    /// The outcome if none of the unknown facts holds.
    pub(crate) first: Outcome,
    /// The other possible outcomes.
    pub(crate) others: Vec<Outcome>,
    /// The tree of their decisions.
    pub(crate) tree: Tree,
}

/// One outcome, and when it holds.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Facts that must be true for it.
    pub(crate) assumptions: Vec<Assumption>,
    /// The rule's decision.
    pub(crate) decision: Decision,
    /// The way of the memory.
    pub(crate) way: Way,
}

/// A fact that the machine does not tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Assumption {
    /// ACS redirects at one of these functions: ports, or those of a device with several.
    Redirected(Vec<Address>),
    /// The processor is an AMD Zen or later.
    Trusted,
    /// The kernel's list has the host bridges of these root buses.
    Listed(Vec<String>),
    /// The kernel is older than the release whose list was the first with a host bridge.
    OlderThan(Release),
}

impl fmt::Display for Assumption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redirected(ports) if ports.len() > MOST_NAMED => {
                write!(
                    f,
                    "ACS redirects at one of {} functions on the path",
                    ports.len()
                )
            }
            Self::Redirected(ports) => {
                let ports: Vec<String> = ports.iter().map(Address::to_string).collect();
                write!(f, "ACS redirects at {}", ports.join(" or "))
            }
            Self::OlderThan(release) => write!(f, "the kernel is older than Linux {release:#}"),
            Self::Trusted => f.write_str("the processor is an AMD Zen or later"),
            Self::Listed(buses) => write!(
                f,
                "the kernel's list has the host bridge of {}",
                buses.join(" and ")
            ),
        }
    }
}

/// The most functions that a condition names; the path shows all of them.
const MOST_NAMED: usize = 3;
/// A host bridge on every release's list.
const LISTED: DeviceId = DeviceId {
    vendor: 0x8086,
    device: 0x09a2,
};

/// Decides how `client` may reach the memory of `provider`. Returns `None` if the machine shows
/// neither a bridge above both nor the bridges up to their root buses.
pub(crate) fn verdict(
    machine: &Machine,
    client: Address,
    provider: Address,
) -> Option<KernelVerdict> {
    let tree = Tree::of(machine, [client, provider]);
    let unknown = unknown(machine, &tree, client, provider);
    let decide_if = |assumptions: &[Assumption]| {
        decide_if(machine, tree.clone(), assumptions, client, provider)
    };
    let decision = decide_if(&[])?;
    let first = Outcome {
        assumptions: Vec::new(),
        way: way(machine, &decision),
        decision,
    };
    let mut others: Vec<Outcome> = Vec::new();
    // Every combination of the unknown facts, those with fewer of them first.
    let mut worlds: Vec<u32> = (1..1 << unknown.len()).collect();
    worlds.sort_by_key(|world| world.count_ones());
    for world in worlds {
        let is_assumed = |at: usize| world >> at & 1 != 0;
        let assumptions = (0..).zip(&unknown).filter(|(at, _)| is_assumed(*at));
        let assumptions: Vec<Assumption> = assumptions.map(|(_, fact)| fact.clone()).collect();
        let decision = decide_if(&assumptions)?;
        let way = way(machine, &decision);
        // Fewer facts that lead to the same way say it all.
        let says_it = |known: &&Outcome| {
            let mut facts = known.assumptions.iter();
            known.way == way && facts.all(|fact| assumptions.contains(fact))
        };
        if !others.iter().chain([&first]).any(|known| says_it(&known)) {
            others.push(Outcome {
                assumptions,
                decision,
                way,
            });
        }
    }
    Some(KernelVerdict {
        first,
        others,
        tree,
    })
}

/// Returns the way that a decision leads to: a kernel without the option refuses everything.
fn way(machine: &Machine, decision: &Decision) -> Way {
    match machine.host.has_p2pdma {
        Some(false) => Way::NotSupported,
        _ => decision.verdict.into(),
    }
}

/// Returns the decision on `tree` if `assumptions` hold, and none of the other unknown facts does.
fn decide_if(
    machine: &Machine,
    mut tree: Tree,
    assumptions: &[Assumption],
    client: Address,
    provider: Address,
) -> Option<Decision> {
    let mut kernel = machine.release();
    let mut cpu = machine.host.cpu.unwrap_or(OTHER_CPU);
    for assumption in assumptions {
        match assumption {
            Assumption::Redirected(ports) => {
                for id in ports
                    .iter()
                    .filter_map(|port| tree.id(*port))
                    .collect::<Vec<_>>()
                {
                    tree.tree.set_acs(id, AcsControl::REQUEST_REDIRECT);
                }
            }
            Assumption::Trusted => cpu = ZEN_CPU,
            Assumption::Listed(buses) => tree.list_host_bridges(buses, LISTED),
            Assumption::OlderThan(_) => kernel = Release::OLDEST,
        }
    }
    let iommu = machine
        .function(client)
        .and_then(|function| function.iommu)
        .or(machine.host.iommu);
    let platform = Platform {
        cpu,
        translates: iommu == Some(Iommu::Translates),
        kernel,
    };
    decide(&tree.tree, &platform, tree.id(provider)?, tree.id(client)?)
}

/// Returns the facts that the machine does not tell and on which the pair's decision may depend.
fn unknown(machine: &Machine, tree: &Tree, client: Address, provider: Address) -> Vec<Assumption> {
    let mut unknown = Vec::new();
    let ports = unknown_ports(machine, client, provider);
    if !ports.is_empty() {
        unknown.push(Assumption::Redirected(ports));
    }
    if machine.host.cpu.is_none() {
        unknown.push(Assumption::Trusted);
    }
    let buses = [client, provider]
        .into_iter()
        .filter_map(|address| machine.root_bus(address));
    let buses = buses.filter(|bus| !is_host_bridge_known(machine, *bus));
    let mut buses: BTreeSet<String> = buses.map(root_bus_name).collect();
    buses.extend(host_bridge_not_shown(machine, [client, provider]));
    if !buses.is_empty() {
        unknown.push(Assumption::Listed(buses.into_iter().collect()));
    }
    if machine.host.release.is_none() {
        let later = tree.listed_since().filter(|since| *since > Release::OLDEST);
        unknown.extend(later.map(Assumption::OlderThan));
    }
    unknown
}

/// Returns the functions on both ways up to their common bridge, that bridge included, whose ACS is
/// unknown.
pub(crate) fn unknown_ports(machine: &Machine, client: Address, provider: Address) -> Vec<Address> {
    let way = |address: Address| {
        let mut way = machine.bridges_above(address).0;
        way.insert(0, address);
        way
    };
    let (of_client, of_provider) = (way(client), way(provider));
    let Some(common) = of_client.iter().find(|bridge| of_provider.contains(bridge)) else {
        return Vec::new();
    };
    let up_to_common = |way: &[Address]| -> Vec<Address> {
        let below = way.iter().position(|bridge| bridge == common);
        way.get(..=below.unwrap_or_default())
            .unwrap_or_default()
            .to_vec()
    };
    let mut ports = up_to_common(&of_client);
    ports.extend(up_to_common(&of_provider));
    ports.sort();
    ports.dedup();
    ports.retain(|address| may_have_acs(machine, *address));
    ports
}

/// Returns `true` if the function's ACS is unknown, and its kind may have it: bridges, and the
/// functions of a device with several of them (PCIe Base 6.0, 6.12.1).
pub(crate) fn may_have_acs(machine: &Machine, address: Address) -> bool {
    let Some(function) = machine
        .function(address)
        .filter(|function| function.acs == Acs::Unknown)
    else {
        return false;
    };
    let first = Address {
        function: 0,
        ..address
    };
    let last = Address {
        function: u8::MAX,
        ..address
    };
    function.kind() == Kind::Bridge || machine.functions.range(first..=last).count() > 1
}

impl KernelVerdict {
    /// Returns `true` if `way` is possible.
    pub(crate) fn may_be(&self, way: Way) -> bool {
        self.others
            .iter()
            .chain([&self.first])
            .any(|outcome| outcome.way == way)
    }

    /// Returns the functions at which the first decision found a redirection.
    pub(crate) fn redirected_at(&self) -> Vec<Address> {
        let Reason::RootComplex {
            ascent: Ascent::Redirected(redirects),
            ..
        } = &self.first.decision.reason
        else {
            return Vec::new();
        };
        let address = |redirect: &Redirect| self.tree.address(Hop::Function(redirect.at));
        redirects.iter().filter_map(address).collect()
    }

    /// Returns the way if it is certain.
    pub(crate) fn certain(&self) -> Option<Way> {
        self.others.is_empty().then_some(self.first.way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{DIRECT, REDIRECTS, at, machine, two_sockets};

    /// Returns the outcomes of disk or adapter `client` and the GPU's memory.
    fn outcomes(machine: &Machine, client: &str) -> Vec<(Vec<String>, Way)> {
        let verdict = verdict(machine, at(client), at("1a:00.0")).unwrap();
        let all = [&verdict.first].into_iter().chain(&verdict.others);
        all.map(|outcome| {
            let facts = outcome.assumptions.iter().map(ToString::to_string);
            (facts.collect(), outcome.way)
        })
        .collect()
    }

    #[test]
    fn everything_that_is_shown_makes_a_verdict_certain() {
        let direct = machine(&two_sockets(DIRECT));
        assert_eq!(outcomes(&direct, "1b:00.0"), [(vec![], Way::BusAddress)]);
        assert_eq!(
            outcomes(&direct, "1c:00.0"),
            [(vec![], Way::ThroughHostBridge)]
        );
        assert_eq!(
            outcomes(&direct, "86:00.0"),
            [(vec![], Way::ThroughHostBridge)]
        );
        let redirected = machine(&two_sockets(REDIRECTS));
        assert_eq!(
            outcomes(&redirected, "1b:00.0"),
            [(vec![], Way::ThroughHostBridge)]
        );
    }

    #[test]
    fn hidden_acs_makes_a_verdict_conditional() {
        let hidden: String = two_sockets(DIRECT)
            .lines()
            .map(|line| {
                if line.starts_with("\tCapabilities") {
                    "\tCapabilities: <access denied>"
                } else {
                    line
                }
            })
            .filter(|line| !line.contains("ACSCtl"))
            .fold(String::new(), |text, line| text + line + "\n");
        let machine = machine(&hidden);
        // The root ports' ACS does not matter for a pair below the switch.
        let ports = "ACS redirects at 0000:18:00.0 or 0000:19:08.0 or 0000:19:09.0".to_owned();
        assert_eq!(
            outcomes(&machine, "1b:00.0"),
            [
                (vec![], Way::BusAddress),
                (vec![ports], Way::ThroughHostBridge)
            ]
        );
    }

    #[test]
    fn unknown_processor_and_host_bridge_make_a_verdict_conditional() {
        let cut = two_sockets(DIRECT)
            .replace(
                "Intel Corporation Sky Lake-E DMI3 Registers [8086:2020]",
                "Vendor",
            )
            .replace(
                "Intel Corporation Sky Lake-E PCI Express Root Port A [8086:2030]",
                "Vendor",
            )
            .replace("17:00.0", "17:02.0")
            .replace("Express (v2) Root Port", "MSI");
        let machine = machine(&cut);
        let outcomes = outcomes(&machine, "1c:00.0");
        assert_eq!(outcomes.first(), Some(&(vec![], Way::NotSupported)));
        let conditions = [
            "the processor is an AMD Zen or later",
            "the kernel's list has the host bridge of pci0000:17",
        ];
        let others: Vec<&str> = outcomes
            .iter()
            .skip(1)
            .flat_map(|(facts, _)| facts)
            .map(String::as_str)
            .collect();
        assert_eq!(others, conditions);
        assert!(
            outcomes
                .iter()
                .skip(1)
                .all(|(_, way)| *way == Way::ThroughHostBridge)
        );
    }

    #[test]
    fn unknown_release_is_a_condition_where_lists_differ() {
        let text = two_sockets(DIRECT).replace("8086:2030", "10de:2f95");
        let outcomes = outcomes(&machine(&text), "1c:00.0");
        let older = vec!["the kernel is older than Linux 7.3".to_owned()];
        assert_eq!(
            outcomes,
            [(vec![], Way::ThroughHostBridge), (older, Way::NotSupported)]
        );
    }

    #[test]
    fn kernel_without_the_option_refuses_everything() {
        let text = format!("# CONFIG_PCI_P2PDMA is not set\n{}", two_sockets(DIRECT));
        assert_eq!(
            outcomes(&machine(&text), "1b:00.0"),
            [(vec![], Way::NotSupported)]
        );
    }

    #[test]
    fn host_bridge_without_a_known_id_is_tried_both_ways() {
        const ID: &str = "Sky Lake-E PCI Express Root Port A [8086:2030]";
        let pairs = |text: &str| outcomes(&machine(text), "1c:00.0");
        let listed = "the kernel's list has the host bridge of pci0000:17".to_owned();
        let both = [
            (vec![], Way::NotSupported),
            (vec![listed], Way::ThroughHostBridge),
        ];
        let text = two_sockets(DIRECT);
        assert_eq!(pairs(&text.replace(ID, "Emerald Ports")), both);
        // Ports, which the list has, are not the first on the bus.
        let cut = text
            .replace("17:01.0", "17:03.0")
            .replace("17:00.0", "17:02.0");
        assert_eq!(pairs(&cut), both);
        let client = text.replace(ID, "8th Gen Core Processor Host Bridge/DRAM Registers");
        assert_eq!(pairs(&client), [(vec![], Way::NotSupported)]);
    }

    #[test]
    fn condition_with_many_ports_counts_them() {
        let ports = |count: u8| {
            (0..count)
                .map(|bus| Address {
                    bus,
                    ..at("00:00.0")
                })
                .collect()
        };
        let words = |count| Assumption::Redirected(ports(count)).to_string();
        assert_eq!(words(2), "ACS redirects at 0000:00:00.0 or 0000:01:00.0");
        assert_eq!(words(4), "ACS redirects at one of 4 functions on the path");
    }

    #[test]
    fn pair_below_a_bridge_that_is_shown_has_a_verdict_without_the_root_bus() {
        // The switch's port is the highest that is shown.
        let switch = |acs| {
            let text = two_sockets(acs);
            let (_, rest) = text.split_once("18:00.0").unwrap();
            machine(&format!("18:00.0{rest}"))
        };
        assert_eq!(
            outcomes(&switch(DIRECT), "1b:00.0"),
            [(vec![], Way::BusAddress)]
        );
        let listed = "the kernel's list has the host bridge of the root bus above 0000:18:00.0";
        let conditions: Vec<_> = outcomes(&switch(REDIRECTS), "1b:00.0");
        assert_eq!(conditions.first(), Some(&(vec![], Way::NotSupported)));
        assert!(
            conditions.contains(&(vec![listed.to_owned()], Way::ThroughHostBridge)),
            "{conditions:?}"
        );
        assert!(verdict(&switch(DIRECT), at("86:00.0"), at("1a:00.0")).is_none());
    }

    #[test]
    fn device_without_its_bridges_has_no_verdict() {
        let gpu = two_sockets(DIRECT)
            .split_once("1a:00.0")
            .map(|(_, text)| format!("1a:00.0{text}"))
            .unwrap();
        let machine = machine(&gpu);
        assert!(verdict(&machine, at("1b:00.0"), at("1a:00.0")).is_none());
    }
}
