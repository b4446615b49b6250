//! A machine as the tree on which the rule decides.

use std::collections::BTreeMap;

use peerbar_rule::{
    DeviceId, Function as Node, FunctionId, Hop, HostBridge, HostBridgeId, Parent, PciTree,
    PortType, Release,
};

use crate::address::{Address, domain_not_shown};
use crate::machine::{Acs, Function, Machine, Place};
use crate::names;

/// The rule's tree of a machine. Functions are named by their addresses, host bridges as in sysfs.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) tree: PciTree,
    ids: BTreeMap<Address, FunctionId>,
}

/// An ID that the machine does not tell.
const NO_ID: DeviceId = DeviceId {
    vendor: 0,
    device: 0,
};

impl Tree {
    /// Makes the tree of these functions and the bridges above them. If the source does not show
    /// their ways to a root bus, but a bridge above both, an unknown host bridge is above that;
    /// otherwise they are left out.
    pub(crate) fn of(machine: &Machine, ends: [Address; 2]) -> Self {
        let mut tree = Self {
            tree: PciTree::default(),
            ids: BTreeMap::new(),
        };
        let mut bridges: BTreeMap<String, HostBridgeId> = BTreeMap::new();
        let has_tree = ends.iter().all(|end| machine.bridges_above(*end).1)
            || host_bridge_not_shown(machine, ends).is_some();
        for address in ends.into_iter().filter(|_| has_tree) {
            tree.add(machine, &mut bridges, address);
        }
        tree
    }

    /// Adds a function and all bridges above it, the highest first.
    fn add(
        &mut self,
        machine: &Machine,
        bridges: &mut BTreeMap<String, HostBridgeId>,
        address: Address,
    ) {
        let (above, _) = machine.bridges_above(address);
        for address in above.into_iter().rev().chain([address]) {
            let Some(function) = machine
                .function(address)
                .filter(|_| !self.ids.contains_key(&address))
            else {
                continue;
            };
            let parent: Parent = match function.place {
                Place::Below(bridge) => match self.ids.get(&bridge) {
                    Some(bridge) => (*bridge).into(),
                    None => return,
                },
                _ => {
                    let bus = machine.root_bus(address);
                    let name = bus.map_or_else(|| name_not_shown(address), root_bus_name);
                    let id = bus.and_then(|bus| known_by(machine, bus));
                    let add = || self.tree.add_host_bridge(name.clone(), id);
                    (*bridges.entry(name.clone()).or_insert_with(add)).into()
                }
            };
            let id = self.tree.add(parent, node(address, function));
            self.ids.insert(address, id);
        }
    }

    /// Returns the function at `address`.
    pub(crate) fn id(&self, address: Address) -> Option<FunctionId> {
        self.ids.get(&address).copied()
    }

    /// Makes the kernel know the host bridges of these root buses by `id`.
    pub(crate) fn list_host_bridges(&mut self, buses: &[String], id: DeviceId) {
        for bus in buses {
            self.tree.set_known_by(bus, Some(id));
        }
    }

    /// Returns the first release whose list has the host bridges of this tree, if any has.
    pub(crate) fn listed_since(&self) -> Option<Release> {
        let ids = self
            .tree
            .host_bridges()
            .filter_map(|bridge| bridge.known_by);
        ids.filter_map(DeviceId::listed_since).max()
    }

    /// Returns the address of a hop that is a function.
    pub(crate) fn address(&self, hop: Hop) -> Option<Address> {
        self.tree.name(hop).parse().ok()
    }
}

/// Returns the name of the host bridge above both functions if the source shows a bridge above
/// both, but not their ways to a root bus.
pub(crate) fn host_bridge_not_shown(machine: &Machine, ends: [Address; 2]) -> Option<String> {
    let [(above, is_whole), (above_other, _)] = ends.map(|end| machine.bridges_above(end));
    let top = above.last().filter(|top| above_other.contains(top))?;
    (!is_whole).then(|| name_not_shown(*top))
}

fn name_not_shown(top: Address) -> String {
    format!("the root bus above {top}")
}

/// Returns the name of a root bus in sysfs, or that of the device or the NUMA node that stands for
/// it.
pub fn root_bus_name((domain, bus): (u32, u8)) -> String {
    if let Some(device) = Address::below_root_bus((domain, bus)) {
        return format!("the root bus above {device}");
    }
    match (domain_not_shown(domain), bus) {
        (None, _) => format!("pci{domain:04x}:{bus:02x}"),
        (Some(_), u8::MAX) => "an unknown NUMA node".to_owned(),
        (Some(0), node) => format!("NUMA node {node}"),
        (Some(domain), node) => format!("NUMA node {node}, domain {domain:04x}"),
    }
}

fn node(address: Address, function: &Function) -> Node {
    let kind = function.port_type.unwrap_or(PortType::Other);
    let node = Node::new(address.to_string(), kind, function.id.unwrap_or(NO_ID));
    match function.acs {
        Acs::Control(control) => node.with_acs(control),
        Acs::Absent | Acs::Unknown => node,
    }
}

/// Returns the ID by which the kernel looks up the host bridge of `bus`, if the source shows it.
fn known_by(machine: &Machine, bus: (u32, u8)) -> Option<DeviceId> {
    let (address, first) = first_on_root_bus(machine, bus)?;
    HostBridge::known_by(
        address.devfn(),
        first.port_type.unwrap_or(PortType::Other),
        first.id?,
    )
}

/// Returns the first function on a root bus, if it is certain that the source shows it.
fn first_on_root_bus(machine: &Machine, bus: (u32, u8)) -> Option<(&Address, &Function)> {
    let first = machine.on_root_bus(bus).next()?;
    let shows_all = machine.is_complete && !machine.is_selection;
    (shows_all || first.0.devfn() == 0).then_some(first)
}

/// Returns `true` if it is known whether the kernel's list has the host bridge of `bus`: by its ID,
/// or by a name that only host bridges have that it lacks. A text that is cut may lack both, and
/// the function that is the first of the bus.
pub(crate) fn is_host_bridge_known(machine: &Machine, bus: (u32, u8)) -> bool {
    machine.is_complete
        || known_by(machine, bus).is_some()
        || host_bridge_name(machine, bus).is_some_and(names::is_unlisted)
}

/// Returns the description of the device by which the kernel looks up the host bridge of `bus`.
pub(crate) fn host_bridge_name(machine: &Machine, bus: (u32, u8)) -> Option<&str> {
    let (address, first) = first_on_root_bus(machine, bus)?;
    let is_looked_up = address.devfn() == 0 || first.port_type == Some(PortType::RootPort);
    (is_looked_up && !first.description.is_empty()).then_some(&first.description)
}
