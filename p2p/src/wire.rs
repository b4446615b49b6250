//! The way of a TLP between two devices, independently of Linux (PCIe Base 6.0, 6.12.3): vendors'
//! stacks, such as NVIDIA's peer memory or NCCL, check less than Linux does.
//!
//! A request turns down at the lowest switch that is above both devices. Only there can ACS send it
//! up instead: at the port of that switch through which it comes in. Ports below pass it upwards in
//! any case. A completion, which answers a read, goes the other way and comes in through the port
//! towards the provider.

use peerbar_rule::{AcsControl, PortType};
use serde::Serialize;

use crate::address::Address;
use crate::machine::{Acs, Kind, Machine};
use crate::tree::root_bus_name;

/// The way of the requests of a client to a provider's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wire {
    /// The highest point of the way.
    pub summit: Summit,
    /// The port that sends requests up although their way leads down below a common bridge.
    pub redirected_at: Vec<Address>,
    /// The port that sends the completions of reads up.
    pub completions_redirected_at: Vec<Address>,
    /// ACS, where it sends requests up, lets requests with translated addresses go directly: those
    /// of a device with ATS (PCIe Base 6.0, 7.7.11.3, ACS Direct Translated P2P Enable).
    pub is_direct_if_translated: bool,
    /// Ports at which ACS may keep requests or completions from going directly: it is unknown, or
    /// controls the egress by a vector that the source does not show.
    pub unknown_at: Vec<Address>,
    /// The NUMA nodes of both are known, or do not matter.
    pub is_distance_known: bool,
    /// The distance in the words of `nvidia-smi topo`.
    pub distance: Distance,
}

/// The highest point of a way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Summit {
    /// The device itself: the memory is the client's own, or belongs to another of its functions.
    Device,
    /// This bridge is above both.
    Bridge(Address),
    /// The root complex, within one host bridge.
    RootComplex(String),
    /// Two host bridges of one NUMA node, or of nodes that are unknown.
    HostBridges(String, String),
    /// Host bridges of two NUMA nodes.
    NumaNodes(u16, u16),
}

/// The distance between two devices in the words of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Distance {
    /// The device itself.
    X,
    /// At most one PCIe switch: also two functions of a device.
    Pix,
    /// Several switches, no host bridge.
    Pxb,
    /// A host bridge.
    Phb,
    /// Host bridges within a NUMA node.
    Node,
    /// The interconnect between NUMA nodes.
    Sys,
}

impl Distance {
    /// Returns the word that `nvidia-smi` prints.
    pub fn word(self) -> &'static str {
        match self {
            Self::X => "X",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
        }
    }
}

/// Returns the way of the requests of `client` to memory of `provider`, or `None` if the machine
/// does not show the bridges above one of them.
pub(crate) fn wire(machine: &Machine, client: Address, provider: Address) -> Option<Wire> {
    let ((up, down), summit) = ways(machine, client, provider)?;
    // The functions of a device route between each other, too.
    let turns = match summit {
        Summit::Bridge(_) => [up.last().copied(), down.last().copied()],
        Summit::Device if client != provider => [Some(client), Some(provider)],
        _ => [None, None],
    };
    let redirecting = |port: Option<Address>, bits: &[AcsControl]| -> Vec<Address> {
        let redirects = |port: &Address| has_any(machine, *port, bits);
        port.into_iter().filter(redirects).collect()
    };
    let [from_client, from_provider] = turns;
    let redirected_at = redirecting(from_client, &[AcsControl::REQUEST_REDIRECT]);
    let passes_translated =
        |port: &Address| has_any(machine, *port, &[AcsControl::DIRECT_TRANSLATED]);
    let is_port = |port: &Address| {
        let function = machine.function(*port);
        function.is_some_and(|function| function.kind() == Kind::Bridge)
    };
    let is_unknown = |port: &Address| {
        is_port(port) && acs(machine, *port) == Acs::Unknown
            || has_any(machine, *port, &[AcsControl::EGRESS_CONTROL])
    };
    let nodes = [client, provider].map(|end| numa_node(machine, end));
    Some(Wire {
        distance: distance(&summit, up.len().max(down.len())),
        is_direct_if_translated: redirected_at.iter().any(passes_translated),
        redirected_at,
        completions_redirected_at: redirecting(from_provider, &[AcsControl::COMPLETION_REDIRECT]),
        unknown_at: turns.into_iter().flatten().filter(is_unknown).collect(),
        is_distance_known: !matches!(summit, Summit::HostBridges(..))
            || nodes.iter().all(Option::is_some),
        summit,
    })
}

/// Returns `true` if the function's ACS control register is known to have any of `bits`.
fn has_any(machine: &Machine, address: Address, bits: &[AcsControl]) -> bool {
    match acs(machine, address) {
        Acs::Control(control) => bits.iter().any(|bit| control.has_any(*bit)),
        Acs::Unknown | Acs::Absent => false,
    }
}

fn acs(machine: &Machine, address: Address) -> Acs {
    machine
        .function(address)
        .map_or(Acs::Unknown, |function| function.acs)
}

/// Ports above the client, and ports above the provider, both below the highest point.
type Ways = (Vec<Address>, Vec<Address>);

/// Returns the ports below the highest point, and that point.
fn ways(machine: &Machine, client: Address, provider: Address) -> Option<(Ways, Summit)> {
    let (from_client, is_whole) = machine.bridges_above(client);
    let (from_provider, is_whole_too) = machine.bridges_above(provider);
    if machine.is_one_device(client, provider) {
        return Some((Ways::default(), Summit::Device));
    }
    let common = from_client
        .iter()
        .find(|bridge| from_provider.contains(bridge));
    if let Some(common) = common {
        let below = |way: &[Address]| {
            way.iter()
                .copied()
                .take_while(|bridge| bridge != common)
                .collect()
        };
        return Some((
            (below(&from_client), below(&from_provider)),
            Summit::Bridge(*common),
        ));
    }
    if !(is_whole && is_whole_too) {
        return None;
    }
    let summit = root_summit(machine, client, provider)?;
    Some(((from_client, from_provider), summit))
}

fn root_summit(machine: &Machine, client: Address, provider: Address) -> Option<Summit> {
    let (of_client, of_provider) = (machine.root_bus(client)?, machine.root_bus(provider)?);
    Some(
        match (numa_node(machine, client), numa_node(machine, provider)) {
            _ if of_client == of_provider => Summit::RootComplex(root_bus_name(of_client)),
            (Some(a), Some(b)) if a != b => Summit::NumaNodes(a, b),
            _ => Summit::HostBridges(root_bus_name(of_client), root_bus_name(of_provider)),
        },
    )
}

/// Returns the NUMA node of a function, or of its root bus.
pub(crate) fn numa_node(machine: &Machine, address: Address) -> Option<u16> {
    let own = machine.function(address)?.numa_node;
    own.or_else(|| {
        machine
            .on_root_bus(machine.root_bus(address)?)
            .find_map(|(_, function)| function.numa_node)
    })
}

/// Returns the distance, if the longer way below the highest point passes `ports`.
fn distance(summit: &Summit, ports: usize) -> Distance {
    match summit {
        Summit::Device => Distance::Pix,
        Summit::Bridge(_) if ports <= 1 => Distance::Pix,
        Summit::Bridge(_) => Distance::Pxb,
        Summit::RootComplex(_) => Distance::Phb,
        Summit::HostBridges(..) => Distance::Node,
        Summit::NumaNodes(..) => Distance::Sys,
    }
}

impl Wire {
    /// Returns `true` if requests stay below a common bridge, as far as that is known.
    pub fn is_direct(&self) -> bool {
        matches!(self.summit, Summit::Device | Summit::Bridge(_)) && self.redirected_at.is_empty()
    }

    /// Returns the way as a sentence without a full stop.
    pub fn sentence(&self, machine: &Machine) -> String {
        let list = |ports: &[Address]| {
            ports
                .iter()
                .map(Address::to_string)
                .collect::<Vec<_>>()
                .join(" or ")
        };
        let mut text = match &self.summit {
            Summit::Device if self.redirected_at.is_empty() => "stays in the device".to_owned(),
            Summit::Bridge(bridge) if self.redirected_at.is_empty() && bridge.is_named() => {
                format!("stays below {bridge}")
            }
            Summit::Bridge(bridge) if self.redirected_at.is_empty() => {
                let is_port = machine
                    .function(*bridge)
                    .is_some_and(|bridge| bridge.port_type == Some(PortType::UpstreamPort));
                let kind = if is_port { "switch" } else { "bridge" };
                format!("stays below the {kind} at {bridge}")
            }
            Summit::Bridge(_) | Summit::Device => format!(
                "ACS redirects it to the root complex at {}",
                list(&self.redirected_at)
            ),
            Summit::RootComplex(bus) => format!("crosses the root complex at {bus}"),
            Summit::HostBridges(from, to) if self.is_distance_known => {
                format!("crosses from host bridge {from} to {to}")
            }
            Summit::HostBridges(from, to) => {
                format!("crosses from host bridge {from} to {to}, whose NUMA nodes are not shown")
            }
            Summit::NumaNodes(from, to) => format!("crosses from NUMA node {from} to {to}"),
        };
        if self.is_direct_if_translated {
            text.push_str("; requests that the device has translated by ATS stay below");
        }
        if !self.completions_redirected_at.is_empty() && self.redirected_at.is_empty() {
            text.push_str(&format!(
                "; the completions of reads are redirected at {}",
                list(&self.completions_redirected_at)
            ));
        }
        if !self.unknown_at.is_empty() && self.redirected_at.is_empty() {
            text.push_str(&format!(
                ", unless ACS prevents it at {}",
                list(&self.unknown_at)
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Function, Place};
    use crate::samples::{DIRECT, REDIRECTS, at, machine, two_sockets};

    fn of(text: &str, client: &str, provider: &str) -> (Wire, String) {
        let machine = machine(text);
        let wire = wire(&machine, at(client), at(provider)).unwrap();
        let sentence = wire.sentence(&machine);
        (wire, sentence)
    }

    #[test]
    fn request_stays_below_a_switch_that_does_not_redirect() {
        let (wire, sentence) = of(&two_sockets(DIRECT), "1b:00.0", "1a:00.0");
        assert_eq!((wire.distance, wire.is_direct()), (Distance::Pix, true));
        assert_eq!(sentence, "stays below the switch at 0000:18:00.0");
    }

    #[test]
    fn request_is_redirected_at_the_client_s_port_only() {
        let (wire, sentence) = of(&two_sockets(REDIRECTS), "1b:00.0", "1a:00.0");
        assert_eq!(wire.redirected_at, [at("19:09.0")]);
        assert_eq!(wire.completions_redirected_at, [at("19:08.0")]);
        assert!(!wire.is_direct());
        assert_eq!(
            sentence,
            "ACS redirects it to the root complex at 0000:19:09.0"
        );
    }

    #[test]
    fn egress_control_may_block_and_does_not_redirect() {
        let text =
            two_sockets(DIRECT).replace("EgressCtrl- DirectTrans-\n", "EgressCtrl+ DirectTrans-\n");
        let (wire, sentence) = of(&text, "1b:00.0", "1a:00.0");
        assert_eq!(wire.redirected_at, []);
        assert!(
            sentence.ends_with(", unless ACS prevents it at 0000:19:09.0 or 0000:19:08.0"),
            "{sentence}"
        );
    }

    #[test]
    fn functions_of_a_device_are_redirected_by_their_own_acs() {
        let mut machine = machine(&two_sockets(DIRECT));
        let second = Function {
            acs: Acs::Control(AcsControl::REQUEST_REDIRECT),
            ..machine.function(at("1b:00.0")).cloned().unwrap()
        };
        machine.functions.insert(at("1b:00.1"), second);
        let wire = wire(&machine, at("1b:00.1"), at("1b:00.0")).unwrap();
        assert_eq!(
            (wire.distance, wire.redirected_at),
            (Distance::Pix, vec![at("1b:00.1")])
        );
    }

    #[test]
    fn functions_below_one_port_are_one_device() {
        let mut machine = machine(&two_sockets(DIRECT));
        let second = machine.function(at("1b:00.0")).cloned().unwrap();
        // Virtual functions have any device number, and go on on the next bus.
        for (address, place) in [
            ("1b:01.0", "19:09.0"),
            ("1e:00.1", "19:09.0"),
            ("1a:01.0", "18:00.0"),
        ] {
            let place = Place::Below(at(place));
            machine.functions.insert(
                at(address),
                Function {
                    place,
                    ..second.clone()
                },
            );
        }
        let summit = |client| wire(&machine, at(client), at("1b:00.0")).unwrap().summit;
        assert_eq!(summit("1b:01.0"), Summit::Device);
        assert_eq!(summit("1e:00.1"), Summit::Device);
        assert_eq!(summit("1a:01.0"), Summit::Bridge(at("18:00.0")));
    }

    #[test]
    fn distance_without_numa_nodes_is_not_certain() {
        let text = two_sockets(DIRECT).replace("NUMA node", "Node");
        let (wire, sentence) = of(&text, "86:00.0", "1a:00.0");
        assert_eq!(
            (wire.distance, wire.is_distance_known),
            (Distance::Node, false)
        );
        assert!(
            sentence.ends_with("whose NUMA nodes are not shown"),
            "{sentence}"
        );
    }

    #[test]
    fn completions_alone_can_be_redirected() {
        let (wire, sentence) = of(&two_sockets("ReqRedir- CmpltRedir+"), "1b:00.0", "1a:00.0");
        assert!(wire.is_direct());
        assert_eq!(
            sentence,
            "stays below the switch at 0000:18:00.0; the completions of reads are redirected at 0000:19:08.0"
        );
    }

    #[test]
    fn distances_have_the_words_of_nvidia_smi() {
        let text = two_sockets(DIRECT);
        let distance = |client, provider| of(&text, client, provider).0.distance.word();
        assert_eq!(distance("1b:00.0", "1a:00.0"), "PIX");
        assert_eq!(distance("1c:00.0", "1a:00.0"), "PHB");
        assert_eq!(distance("86:00.0", "1a:00.0"), "SYS");
        assert_eq!(
            of(&text, "86:00.0", "1a:00.0").1,
            "crosses from NUMA node 1 to 0"
        );
        let one_node = text.replace("NUMA node: 1", "NUMA node: 0");
        assert_eq!(
            of(&one_node, "86:00.0", "1a:00.0").0.distance,
            Distance::Node
        );
        let second_switch = text.replace("1b:00.0 Non", "1b:00.0 PCI bridge [0604]: PLX [10b5:8747]\n\tBus: primary=1b, secondary=1d, subordinate=1d\n1d:00.0 Non");
        assert_eq!(
            of(&second_switch, "1d:00.0", "1a:00.0").0.distance,
            Distance::Pxb
        );
    }

    const CLIENT: &str = "03:00.0";
    const PROVIDER: &str = "06:00.0";

    /// A client below a switch at 01:00.0, and a provider below a second switch at 04:00.0 that is
    /// below the first, with the ACS registers of some ports.
    fn nested_switches(acs: &[(&str, u16)]) -> Machine {
        let places = [
            ("00:01.0", None),
            ("01:00.0", Some("00:01.0")),
            ("02:00.0", Some("01:00.0")),
            (CLIENT, Some("02:00.0")),
            ("02:01.0", Some("01:00.0")),
            ("04:00.0", Some("02:01.0")),
            ("05:00.0", Some("04:00.0")),
            (PROVIDER, Some("05:00.0")),
        ];
        let function = |(address, above): (&str, Option<&str>)| {
            let control = acs.iter().find(|(port, _)| *port == address);
            let function = Function {
                place: above.map_or(Place::RootBus, |above| Place::Below(at(above))),
                acs: control.map_or(Acs::Absent, |(_, bits)| Acs::Control(AcsControl(*bits))),
                ..Function::default()
            };
            (at(address), function)
        };
        Machine {
            functions: places.into_iter().map(function).collect(),
            ..Machine::default()
        }
    }

    fn wire_with(acs: &[(&str, u16)]) -> Wire {
        wire(&nested_switches(acs), at(CLIENT), at(PROVIDER)).unwrap()
    }

    #[test]
    fn acs_redirects_at_the_switch_in_which_a_request_turns() {
        let all = wire_with(&[("02:00.0", 0x1d), ("02:01.0", 0x1d), ("05:00.0", 0x1d)]);
        assert_eq!(all.redirected_at, [at("02:00.0")]);
        assert_eq!(all.completions_redirected_at, [at("02:01.0")]);
        assert!(!all.is_direct() && !all.is_direct_if_translated);

        let below = wire_with(&[("02:01.0", 0x15), ("05:00.0", 0x1d)]);
        assert!(below.is_direct());
        assert_eq!(below.completions_redirected_at, []);
        assert_eq!(below.distance, Distance::Pxb);
    }

    #[test]
    fn direct_translated_requests_are_not_redirected() {
        let wire = wire_with(&[("02:00.0", 0x5d)]);
        assert!(wire.is_direct_if_translated);
        assert_eq!(wire_with(&[("02:00.0", 0x40)]).redirected_at, []);
    }
}
