//! Machines of sources that show the shape of a PCI tree without some of its ports.

use std::collections::{BTreeMap, BTreeSet};

use peerbar_rule::PortType;

use crate::address::Address;
use crate::machine::{Acs, Conflict, Function, Machine, Place};

/// The place at which a source shows a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Shown {
    /// The source shows nothing above it.
    #[default]
    Nowhere,
    /// On this root bus.
    OnRootBus,
    /// Below this bridge, on its bus.
    Below(Address),
    /// Below a port that the source does not show. That port is below this bridge, or on a root bus
    /// that the source does not show either.
    BelowAPort(Option<Address>),
}

impl Machine {
    /// Adds a function at the place at which the source shows it, and the port above it if the
    /// source does not show that.
    ///
    /// Files that people have edited may show an address at two places. The first counts, so that
    /// no bridge is ever below itself; the other is a conflict.
    pub(crate) fn attach(&mut self, address: Address, function: Function, shown: Shown) {
        let above = |bridge: Option<Address>| bridge.map_or(Place::RootBus, Place::Below);
        let place = match shown {
            Shown::Nowhere => Place::Unknown,
            Shown::OnRootBus => Place::RootBus,
            Shown::Below(bridge) => Place::Below(bridge),
            Shown::BelowAPort(_) => Place::Below(address.port_above()),
        };
        if let Shown::BelowAPort(bridge) = shown {
            let port = Function {
                place: above(bridge),
                class: Some(0x0604),
                numa_node: function.numa_node,
                root_bus: function.root_bus,
                ..Function::default()
            };
            let known = self.functions.entry(address.port_above()).or_insert(port);
            if known.place != above(bridge) {
                return self.contradicted(address);
            }
        }
        let known = self
            .functions
            .entry(address)
            .or_insert(Function { place, ..function });
        if known.place != place {
            self.contradicted(address);
        }
    }

    /// Describes functions that the source does not describe by their IDs.
    pub(crate) fn describe_by_id(&mut self) {
        for function in self.functions.values_mut() {
            if let Some(id) = function.id.filter(|_| function.description.is_empty()) {
                function.description = format!("Device {id}");
            }
        }
    }

    fn contradicted(&mut self, address: Address) {
        self.conflicts.push(Conflict::Place(address));
    }

    /// Gives every function below a root bus its NUMA node if some of them are known, all with the
    /// same node.
    pub(crate) fn spread_numa_nodes(&mut self) {
        let mut nodes: BTreeMap<(u32, u8), BTreeSet<u16>> = BTreeMap::new();
        for (address, function) in &self.functions {
            if let Some((bus, node)) = self.root_bus(*address).zip(function.numa_node) {
                nodes.entry(bus).or_default().insert(node);
            }
        }
        nodes.retain(|_, nodes| nodes.len() == 1);
        let node = |address: &Address| {
            let nodes = nodes.get(&self.root_bus(*address)?)?;
            Some((*address, *nodes.first()?))
        };
        let found: Vec<_> = self.functions.keys().filter_map(node).collect();
        for (address, node) in found {
            if let Some(function) = self.functions.get_mut(&address) {
                function.numa_node = Some(node);
            }
        }
    }

    /// Gives bridges whose type is unknown the type that their position allows: a port on a root
    /// bus is a root port, below it upstream and downstream ports alternate. A bridge whose
    /// capabilities were read, without that of PCIe, is a conventional one.
    pub(crate) fn infer_port_types(&mut self) {
        let is_untyped = |function: &Function| {
            function.class == Some(0x0604)
                && function.port_type.is_none()
                && function.acs != Acs::Absent
        };
        let bridges = self
            .functions
            .iter()
            .filter(|(_, function)| is_untyped(function));
        let bridges: Vec<Address> = bridges.map(|(address, _)| *address).collect();
        for address in bridges {
            let (above, is_whole) = self.bridges_above(address);
            let kind = match above.len() {
                0 => PortType::RootPort,
                odd if odd % 2 == 1 => PortType::UpstreamPort,
                _ => PortType::DownstreamPort,
            };
            if let Some(function) = self.functions.get_mut(&address).filter(|_| is_whole) {
                function.port_type = Some(kind);
            }
        }
    }
}
