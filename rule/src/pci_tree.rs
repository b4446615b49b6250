//! The PCI tree: host bridges, ports and endpoints.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::acs::AcsControl;

/// Host bridges, and below each of them ports and endpoints.
///
/// An id is valid in the tree that returned it, and for its clones. Nothing is ever removed.
#[derive(Clone, Debug, Default)]
pub struct PciTree {
    host_bridges: Vec<HostBridge>,
    functions: Vec<Node>,
}

#[derive(Clone, Debug)]
struct Node {
    function: Function,
    parent: Parent,
}

/// A root bus, and its connection to the processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostBridge {
    /// Its name in output.
    pub name: String,
    /// The ID that the kernel looks up in its list, see [`HostBridge::known_by`].
    pub known_by: Option<DeviceId>,
}

/// A PCI function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name in output: the scenario's name, or the address.
    pub name: String,
    /// Its PCIe device or port type.
    pub kind: PortType,
    /// Its vendor and device ID.
    pub id: DeviceId,
    /// Its ACS Control register, or `None` without an ACS capability.
    pub acs: Option<AcsControl>,
}

/// Type of a function (PCIe Base 6.0, 7.5.3.2, Device/Port Type).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortType {
    /// Root port of a root complex.
    RootPort,
    /// A switch's upstream port.
    UpstreamPort,
    /// A switch's downstream port.
    DownstreamPort,
    /// An endpoint in a slot.
    Endpoint,
    /// An endpoint on a root bus, without a port above it.
    IntegratedEndpoint,
    /// Any other type: bridges to conventional PCI, and functions without a PCIe capability.
    Other,
}

/// Vendor and device ID of a function (PCIe Base 6.0, 7.5.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeviceId {
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
}

/// A host bridge of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostBridgeId(usize);

/// A function of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionId(usize);

/// The place to which a function is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// The root bus of a host bridge.
    HostBridge(HostBridgeId),
    /// The bus below a port or bridge.
    Bridge(FunctionId),
}

impl From<HostBridgeId> for Parent {
    fn from(id: HostBridgeId) -> Self {
        Self::HostBridge(id)
    }
}

impl From<FunctionId> for Parent {
    fn from(id: FunctionId) -> Self {
        Self::Bridge(id)
    }
}

impl HostBridge {
    /// Returns the ID that the kernel looks up for a host bridge, derived from the first function
    /// on its root bus: that function's ID if it is at device 0, function 0, or is a root port.
    /// Otherwise returns `None`, and the host bridge is not on the list (Linux
    /// drivers/pci/p2pdma.c, `pci_host_bridge_dev`). `devfn` is device times 8 plus function.
    pub fn known_by(devfn: u8, kind: PortType, id: DeviceId) -> Option<DeviceId> {
        (devfn == 0 || kind == PortType::RootPort).then_some(id)
    }
}

impl Function {
    /// Makes a function without ACS.
    pub fn new(name: impl Into<String>, kind: PortType, id: DeviceId) -> Self {
        Self {
            name: name.into(),
            kind,
            id,
            acs: None,
        }
    }

    /// Sets the ACS Control register.
    pub fn with_acs(self, control: AcsControl) -> Self {
        Self {
            acs: Some(control),
            ..self
        }
    }

    /// Returns the ACS bits that keep requests from going directly to a peer.
    pub fn redirecting(&self) -> AcsControl {
        self.acs.unwrap_or_default().redirecting()
    }
}

impl PciTree {
    /// Adds a host bridge that the kernel looks up by `known_by` (see [`HostBridge::known_by`]).
    pub fn add_host_bridge(
        &mut self,
        name: impl Into<String>,
        known_by: Option<DeviceId>,
    ) -> HostBridgeId {
        let id = HostBridgeId(self.host_bridges.len());
        self.host_bridges.push(HostBridge {
            name: name.into(),
            known_by,
        });
        id
    }

    /// Attaches `function` to `parent`.
    pub fn add(&mut self, parent: impl Into<Parent>, function: Function) -> FunctionId {
        let id = FunctionId(self.functions.len());
        let parent = parent.into();
        self.functions.push(Node { function, parent });
        id
    }

    /// Returns all host bridges.
    pub fn host_bridges(&self) -> impl Iterator<Item = &HostBridge> {
        self.host_bridges.iter()
    }

    /// Makes the kernel look up the host bridges called `name` by `known_by`.
    pub fn set_known_by(&mut self, name: &str, known_by: Option<DeviceId>) {
        let of_name = |bridge: &&mut HostBridge| bridge.name == name;
        for bridge in self.host_bridges.iter_mut().filter(of_name) {
            bridge.known_by = known_by;
        }
    }

    /// Replaces the ACS Control register of the function with this id.
    pub fn set_acs(&mut self, id: FunctionId, control: AcsControl) {
        if let Some(node) = self.functions.get_mut(id.0) {
            node.function.acs = Some(control);
        }
    }

    /// Returns the function with this id.
    pub fn function(&self, id: FunctionId) -> Option<&Function> {
        self.functions.get(id.0).map(|node| &node.function)
    }

    /// Returns the host bridge with this id.
    pub fn host_bridge(&self, id: HostBridgeId) -> Option<&HostBridge> {
        self.host_bridges.get(id.0)
    }

    /// Returns the place to which the function with this id is attached.
    pub fn parent(&self, id: FunctionId) -> Option<Parent> {
        self.functions.get(id.0).map(|node| node.parent)
    }

    /// Returns the first function with this name.
    pub fn find(&self, name: &str) -> Option<FunctionId> {
        let named = |node: &Node| node.function.name == name;
        self.functions.iter().position(named).map(FunctionId)
    }

    /// Returns all functions, in the order in which they were added.
    pub fn functions(&self) -> impl Iterator<Item = (FunctionId, &Function)> {
        let ids = (0..).map(FunctionId);
        ids.zip(self.functions.iter().map(|node| &node.function))
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:04x}", self.vendor, self.device)
    }
}

/// A text that is not an ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidDeviceId;

impl FromStr for DeviceId {
    type Err = InvalidDeviceId;

    /// Parses `10de:2330`: two hexadecimal numbers of four digits.
    fn from_str(text: &str) -> Result<Self, InvalidDeviceId> {
        let number = |text: &str| {
            let is_hex = text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            let number = is_hex.then(|| u16::from_str_radix(text, 16).ok());
            number.flatten().ok_or(InvalidDeviceId)
        };
        let (vendor, device) = text.split_once(':').ok_or(InvalidDeviceId)?;
        Ok(Self {
            vendor: number(vendor)?,
            device: number(device)?,
        })
    }
}

impl PortType {
    /// Returns the type with this number in the PCI Express Capabilities register (PCIe Base 6.0,
    /// 7.5.3.2, Device/Port Type).
    pub fn from_number(number: u8) -> Self {
        match number {
            0x0 | 0x1 => Self::Endpoint,
            0x4 => Self::RootPort,
            0x5 => Self::UpstreamPort,
            0x6 => Self::DownstreamPort,
            0x9 => Self::IntegratedEndpoint,
            _ => Self::Other,
        }
    }

    /// Returns `true` if it is a port of a root complex or a switch.
    pub fn is_port(self) -> bool {
        matches!(
            self,
            Self::RootPort | Self::UpstreamPort | Self::DownstreamPort
        )
    }
}

impl fmt::Display for PortType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RootPort => "root port",
            Self::UpstreamPort => "switch, upstream port",
            Self::DownstreamPort => "switch, downstream port",
            Self::Endpoint => "endpoint",
            Self::IntegratedEndpoint => "endpoint in the root complex",
            Self::Other => "other function",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: DeviceId = DeviceId {
        vendor: 0x1b36,
        device: 0x0c,
    };

    #[test]
    fn device_id_is_read_back() {
        let id = DeviceId {
            vendor: 0x10de,
            device: 0x2330,
        };
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in [
            "10de",
            "10de:233",
            "10de:+330",
            "10de:2330:1",
            "0x10:2330",
            "",
        ] {
            assert_eq!(text.parse::<DeviceId>(), Err(InvalidDeviceId), "{text}");
        }
    }

    #[test]
    fn port_types_have_their_numbers() {
        let numbers = (0..16).filter(|number| PortType::from_number(*number).is_port());
        assert_eq!(numbers.collect::<Vec<_>>(), [4, 5, 6]);
        assert_eq!(PortType::from_number(1), PortType::Endpoint);
        assert_eq!(PortType::from_number(9), PortType::IntegratedEndpoint);
        assert_eq!(PortType::from_number(7), PortType::Other);
    }

    #[test]
    fn functions_are_found_by_name_with_their_parents() {
        let mut tree = PciTree::default();
        let root = tree.add_host_bridge("pcie.0", Some(ID));
        let port = tree.add(root, Function::new("port", PortType::RootPort, ID));
        let disk = tree.add(port, Function::new("disk", PortType::Endpoint, ID));
        assert_eq!(tree.find("disk"), Some(disk));
        assert_eq!(tree.find("gpu"), None);
        assert_eq!(tree.parent(disk), Some(Parent::Bridge(port)));
        assert_eq!(tree.parent(port), Some(Parent::HostBridge(root)));
        let names: Vec<&str> = tree.functions().map(|(_, f)| f.name.as_str()).collect();
        assert_eq!(names, ["port", "disk"]);
    }

    #[test]
    fn a_host_bridge_is_known_by_device_zero_or_a_root_port() {
        assert_eq!(HostBridge::known_by(0, PortType::Other, ID), Some(ID));
        assert_eq!(HostBridge::known_by(8, PortType::RootPort, ID), Some(ID));
        assert_eq!(
            HostBridge::known_by(8, PortType::IntegratedEndpoint, ID),
            None
        );
        assert_eq!(ID.to_string(), "1b36:000c");
    }
}
