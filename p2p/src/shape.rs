//! Machines of sources that show the shape of a PCI tree without some of its ports.

use peerbar_rule::PortType;

use crate::address::Address;
use crate::machine::{Function, Machine, Place};

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
    /// Adds a function at the place at which the source shows it, and the port above it if the source
    /// does not show that.
    ///
    /// Files that people have edited may show an address at two places. The first counts, so that
    /// no bridge is ever below itself; the other becomes a gap.
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
        self.gaps.push(format!(
            "one of the two places at which the file shows {address}: the first one counts"
        ));
    }

    /// Gives bridges whose type is unknown the type that their position allows: a port on a root bus
    /// is a root port, below it upstream and downstream ports alternate.
    pub(crate) fn infer_port_types(&mut self) {
        let is_untyped =
            |function: &Function| function.class == Some(0x0604) && function.port_type.is_none();
        let bridges = self
            .functions
            .iter()
            .filter(|(_, function)| is_untyped(function));
        let bridges: Vec<Address> = bridges.map(|(address, _)| *address).collect();
        for address in bridges {
            let kind = match self.bridges_above(address).0.len() {
                0 => PortType::RootPort,
                odd if odd % 2 == 1 => PortType::UpstreamPort,
                _ => PortType::DownstreamPort,
            };
            if let Some(function) = self.functions.get_mut(&address) {
                function.port_type = Some(kind);
            }
        }
    }
}
