//! The topology: the single description of a scenario's PCI functions.
//!
//! It is rendered as QEMU's arguments ([`crate::qemu`]), as the servers' arguments
//! ([`crate::server_arguments`]) and as the tree for the kernel's rule ([`Topology::pci_tree`]).

use std::collections::BTreeMap;

use peerbar_switch::LinkMode;

use crate::guest_access::GuestAccess;
use crate::kernel_iommu::{KernelIommu, acs_options};
use crate::scenario::{AttachPoint, DeviceSpec, RdmaNetwork, Scenario, Share, first_buses};

/// The machine's own host bridge, by QEMU's name of its bus.
pub const ROOT_BUS: &str = "pcie.0";

/// Size of the BAR with an adapter's doorbells and low-latency queues.
const NIC_BAR_BYTES: u64 = 64 << 20;

/// Size that a device with a server of another project is expected to need at most for its BARs.
const FOREIGN_BAR_BYTES: u64 = 8 << 30;

/// The host bridges and PCI functions of a scenario, without those that QEMU adds by itself.
#[derive(Clone, Debug)]
pub struct Topology<'a> {
    /// The machine's own host bridge first.
    pub host_bridges: Vec<HostBridge<'a>>,
    /// Each below one that comes before it, or below a host bridge.
    pub functions: Vec<Function<'a>>,
    /// RAM of the machine in bytes.
    pub memory: u64,
    /// The fabric that joins the adapters.
    pub fabric: Option<&'a RdmaNetwork>,
    /// The host's access to the guest. It takes a vsock device and a 9p export.
    pub access: Option<&'a GuestAccess>,
    /// Folders of the host that the guest mounts; each takes a 9p export.
    pub shares: &'a [Share],
    /// Set if the guest's kernel makes all ports with Access Control Services redirect.
    acs_redirects: bool,
}

/// A host bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostBridge<'a> {
    /// Identifier in QEMU, name in the rule's tree.
    pub id: &'a str,
    /// Number of its root bus.
    pub bus_number: usize,
}

/// A PCI function.
#[derive(Clone, Debug)]
pub struct Function<'a> {
    /// Identifier in QEMU, name in the rule's tree.
    pub id: String,
    /// Identifier of the host bridge or port that it is plugged into.
    pub bus: String,
    /// Its kind.
    pub kind: FunctionKind<'a>,
}

/// The kind of a function.
#[derive(Clone, Copy, Debug)]
pub enum FunctionKind<'a> {
    /// A root port; its slot's number is used by no other port.
    RootPort(u32),
    /// A switch's port towards the root: the switch as a whole.
    UpstreamPort,
    /// A switch's port towards a device; its slot's number is used by no other port.
    DownstreamPort(u32),
    /// Such a port with Access Control Services.
    AcsPort(u32),
    /// A device of the scenario.
    Device(DeviceSpec<'a>),
}

/// Returns the identifier in QEMU of the port of a switch above the device `below`.
pub(crate) fn port_id(switch: &str, below: &str) -> String {
    format!("{switch}.{below}")
}

impl<'a> Topology<'a> {
    /// Returns the topology of `scenario`. Each switch and each device has a separate port.
    pub fn of(scenario: &'a Scenario) -> Self {
        let bridges = &scenario.host_bridges;
        let further = bridges.iter().zip(first_buses(bridges.len()));
        let further = further.map(|(id, bus_number)| HostBridge { id, bus_number });
        let own = HostBridge {
            id: ROOT_BUS,
            bus_number: 0,
        };
        let mut topology = Self {
            host_bridges: [own].into_iter().chain(further).collect(),
            functions: Vec::new(),
            memory: scenario.machine.memory,
            fabric: scenario.fabric.as_ref(),
            access: scenario.access.as_ref(),
            shares: &scenario.shares,
            acs_redirects: KernelIommu::of(&scenario.machine).enables_acs
                && acs_options(&scenario.machine).is_empty(),
        };
        let slots: BTreeMap<&str, u32> = scenario.slots().collect();
        for switch in &scenario.switches {
            let slot = slots.get(switch.name.as_str()).copied();
            let bus = topology.add_port(scenario, &switch.name, &switch.attach, slot);
            topology.add(switch.name.clone(), bus, FunctionKind::UpstreamPort);
        }
        for device in scenario.devices() {
            let slot = slots.get(device.name()).copied();
            let bus = topology.add_port(scenario, device.name(), device.attach(), slot);
            topology.add(device.name().to_owned(), bus, FunctionKind::Device(device));
        }
        topology
    }

    /// Adds the port above `below`, and returns its identifier. A dot keeps it apart from all names
    /// of a scenario.
    fn add_port(
        &mut self,
        scenario: &Scenario,
        below: &str,
        attach: &AttachPoint,
        slot: Option<u32>,
    ) -> String {
        let slot = slot.unwrap_or_default();
        let (id, bus, kind) = match attach {
            AttachPoint::Switch(switch) => (
                port_id(switch, below),
                switch.as_str(),
                match scenario.has_acs(switch, below) {
                    true => FunctionKind::AcsPort(slot),
                    false => FunctionKind::DownstreamPort(slot),
                },
            ),
            AttachPoint::HostBridge(bridge) => (
                format!("root.{below}"),
                bridge.as_str(),
                FunctionKind::RootPort(slot),
            ),
            AttachPoint::Root => (
                format!("root.{below}"),
                ROOT_BUS,
                FunctionKind::RootPort(slot),
            ),
        };
        self.add(id.clone(), bus.to_owned(), kind);
        id
    }

    fn add(&mut self, id: String, bus: String, kind: FunctionKind<'a>) {
        self.functions.push(Function { id, bus, kind });
    }

    /// Identifiers of the switches.
    pub fn switches(&self) -> impl Iterator<Item = &str> {
        let is_switch =
            |function: &&Function<'_>| matches!(function.kind, FunctionKind::UpstreamPort);
        self.functions
            .iter()
            .filter(is_switch)
            .map(|function| function.id.as_str())
    }

    /// Returns the devices in the order of [`Scenario::devices`].
    pub fn devices(&self) -> impl Iterator<Item = DeviceSpec<'a>> {
        self.functions
            .iter()
            .filter_map(|function| match function.kind {
                FunctionKind::Device(device) => Some(device),
                _ => None,
            })
    }

    /// Returns the devices below `switch`.
    pub fn below(&self, switch: &str) -> impl Iterator<Item = DeviceSpec<'a>> {
        self.devices()
            .filter(move |device| device.attach().switch() == Some(switch))
    }

    /// Returns how the switch port of `device` handles its requests to peers: by its `link`, or as
    /// the guest's kernel sets the port's Access Control Services.
    pub fn link(&self, device: DeviceSpec<'_>) -> LinkMode {
        let is_port = |function: &Function<'_>| {
            let switch = device.attach().switch();
            switch.is_some_and(|switch| function.id == port_id(switch, device.name()))
        };
        let port = self.functions.iter().find(|function| is_port(function));
        let has_acs = port.is_some_and(|port| matches!(port.kind, FunctionKind::AcsPort(_)));
        match device.link() {
            LinkMode::Route if has_acs && self.acs_redirects => LinkMode::Redirect,
            link => link,
        }
    }

    /// Size of the prefetchable BARs of all devices in bytes.
    pub fn bar_bytes(&self) -> u64 {
        let bytes = self.devices().map(|device| match device {
            DeviceSpec::Nvme(nvme) => {
                let pmr = nvme.pmr.as_ref().map_or(0, |pmr| pmr.bytes);
                let cmb = nvme.config.cmb.unwrap_or_default();
                cmb.0.saturating_add(pmr)
            }
            DeviceSpec::Gpu(gpu, _) => gpu.config.aperture().0,
            DeviceSpec::Nic(..) => NIC_BAR_BYTES,
            // Its server is asked only once it runs.
            DeviceSpec::Foreign(_) => FOREIGN_BAR_BYTES,
        });
        bytes.fold(0, u64::saturating_add)
    }
}
