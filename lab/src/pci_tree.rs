//! A topology as [`peerbar_rule`] needs it: the tree that the guest's kernel will find, known
//! before anything runs.

use std::collections::BTreeMap;

use peerbar_rule::{AcsControl, DeviceId, Parent, PciTree, Platform, PortType, Release};

use crate::cpu;
use crate::kernel_iommu::KernelIommu;
use crate::scenario::{DeviceSpec, Machine, Scenario};
use crate::topology::{Function, FunctionKind, ROOT_BUS, Topology};

/// IDs of QEMU's parts.
const Q35: DeviceId = id(0x8086, 0x29c0);
const ROOT_PORT: DeviceId = id(0x1b36, 0x000c);
const UPSTREAM_PORT: DeviceId = id(0x104c, 0x8232);
const DOWNSTREAM_PORT: DeviceId = id(0x104c, 0x8233);
/// IDs of our devices.
const NVME: DeviceId = id(0x1b36, 0x0010);
const GPU: DeviceId = id(0x1af4, 0x10f0);
const NIC: DeviceId = id(0x1d0f, 0xefa3);

/// The ID of a device that only its server knows. The rule does not depend on an endpoint's ID.
pub const UNKNOWN: DeviceId = id(0xffff, 0xffff);

/// ACS capability of QEMU's root port (QEMU, hw/pci/pcie.c, `pcie_acs_init`); its switch ports have
/// none.
const ROOT_PORT_ACS: u16 = 0x5f;

const fn id(vendor: u16, device: u16) -> DeviceId {
    DeviceId { vendor, device }
}

impl Topology<'_> {
    /// Returns the tree that the guest's kernel will find, with ACS as it sets it for `iommu`.
    /// Devices and bridges have the scenario's names, ports those of QEMU's command line.
    pub fn pci_tree(&self, iommu: KernelIommu) -> PciTree {
        let mut tree = PciTree::default();
        let mut parents: BTreeMap<&str, Parent> = BTreeMap::new();
        for bridge in &self.host_bridges {
            // The kernel knows a bridge by the first device on its bus. On a further one that is a
            // root port.
            let known_by = if bridge.id == ROOT_BUS {
                Q35
            } else {
                ROOT_PORT
            };
            let id = tree.add_host_bridge(bridge.id, Some(known_by));
            parents.insert(bridge.id, id.into());
        }
        for Function { id, bus, kind } in &self.functions {
            if let Some(parent) = parents.get(bus.as_str()) {
                let added = tree.add(*parent, function(id, kind, iommu));
                parents.insert(id, added.into());
            }
        }
        tree
    }
}

fn function(id: &str, kind: &FunctionKind<'_>, iommu: KernelIommu) -> peerbar_rule::Function {
    let (kind, device) = match kind {
        FunctionKind::RootPort(_) | FunctionKind::AcsPort(_) => (PortType::RootPort, ROOT_PORT),
        FunctionKind::UpstreamPort => (PortType::UpstreamPort, UPSTREAM_PORT),
        FunctionKind::DownstreamPort(_) => (PortType::DownstreamPort, DOWNSTREAM_PORT),
        FunctionKind::Device(DeviceSpec::Nvme(_)) => (PortType::Endpoint, NVME),
        FunctionKind::Device(DeviceSpec::Gpu(..)) => (PortType::Endpoint, GPU),
        FunctionKind::Device(DeviceSpec::Nic(..)) => (PortType::Endpoint, NIC),
        FunctionKind::Device(DeviceSpec::Foreign(_)) => (PortType::Endpoint, UNKNOWN),
    };
    let function = peerbar_rule::Function::new(id, kind, device);
    if kind != PortType::RootPort {
        return function;
    }
    // The kernel enables ACS also for an IOMMU that lets everything pass.
    function.with_acs(match iommu.enables_acs {
        true => AcsControl::with_an_iommu(ROOT_PORT_ACS),
        false => AcsControl::default(),
    })
}

/// [`Topology::pci_tree`] of `scenario`.
pub fn pci_tree(scenario: &Scenario) -> PciTree {
    Topology::of(scenario).pci_tree(KernelIommu::of(&scenario.machine))
}

/// Returns the platform of `machine` under a kernel of `kernel`, or `None` if the CPU model's name
/// does not tell its family.
pub fn platform(machine: &Machine, kernel: Release) -> Option<Platform> {
    Some(Platform {
        cpu: cpu::of_model(&machine.cpu)?,
        translates: KernelIommu::of(machine).translates,
        kernel,
    })
}

#[cfg(test)]
mod tests {
    use peerbar_rule::{MapType, decide};
    use peerbar_switch::LinkMode;

    use super::*;
    use crate::iommu::Iommu;
    use crate::scenario::{AcsPorts, AttachPoint};

    fn verdict(scenario: &Scenario, provider: &str, client: &str) -> MapType {
        let tree = pci_tree(scenario);
        let platform = platform(&scenario.machine, Release::NEWEST).unwrap();
        let find = |name| tree.find(name).unwrap();
        decide(&tree, &platform, find(provider), find(client))
            .unwrap()
            .verdict
    }

    #[test]
    fn pair_below_a_switch_gets_the_bus_address() {
        let mut demo = Scenario::demo().unwrap();
        for iommu in [Iommu::None, Iommu::Intel, Iommu::Amd] {
            demo.machine.iommu = iommu;
            assert_eq!(verdict(&demo, "gpu0", "disk0"), MapType::BusAddress);
            assert_eq!(verdict(&demo, "disk0", "disk0"), MapType::BusAddress);
        }
    }

    #[test]
    fn pair_outside_switch_depends_on_cpu_and_iommu() {
        let mut demo = Scenario::demo().unwrap();
        demo.nvmes[0].attach = AttachPoint::Root;
        demo.machine.iommu = Iommu::None;
        let physical = MapType::ThroughHostBridgePhysical;
        assert_eq!(verdict(&demo, "gpu0", "disk0"), physical);
        demo.machine.iommu = Iommu::IntelPassthrough;
        assert_eq!(verdict(&demo, "gpu0", "disk0"), physical);
        demo.machine.iommu = Iommu::Intel;
        assert_eq!(
            verdict(&demo, "gpu0", "disk0"),
            MapType::ThroughHostBridgeIova
        );
        demo.machine.cpu = "Haswell".to_owned();
        assert_eq!(verdict(&demo, "disk0", "gpu0"), MapType::NotSupported);
    }

    #[test]
    fn kernel_parameters_decide_whether_the_client_gets_an_iova() {
        let mut demo = Scenario::demo().unwrap();
        demo.nvmes[0].attach = AttachPoint::Root;
        demo.machine.iommu = Iommu::Intel;
        let redirects = |demo: &Scenario| {
            let tree = pci_tree(demo);
            let port = tree.find("root.disk0").unwrap();
            !tree.function(port).unwrap().redirecting().is_empty()
        };
        for (parameters, acs) in [("iommu=pt", true), ("intel_iommu=off", false)] {
            demo.machine.kernel_parameters = parameters.to_owned();
            let physical = MapType::ThroughHostBridgePhysical;
            assert_eq!(verdict(&demo, "gpu0", "disk0"), physical, "{parameters}");
            assert_eq!(redirects(&demo), acs, "{parameters}");
        }
    }

    #[test]
    fn a_further_host_bridge_is_another_root() {
        let mut demo = Scenario::demo().unwrap();
        demo.host_bridges.push("bridge0".to_owned());
        demo.switches[0].attach = AttachPoint::HostBridge("bridge0".to_owned());
        demo.nvmes[0].attach = AttachPoint::Root;
        assert_eq!(verdict(&demo, "gpu0", "disk1"), MapType::BusAddress);
        let physical = MapType::ThroughHostBridgePhysical;
        assert_eq!(verdict(&demo, "gpu0", "disk0"), physical);
        let tree = pci_tree(&demo);
        let platform = platform(&demo.machine, Release::NEWEST).unwrap();
        let find = |name| tree.find(name).unwrap();
        let decision = decide(&tree, &platform, find("gpu0"), find("disk0")).unwrap();
        let way: Vec<&str> = decision.path.iter().map(|hop| tree.name(*hop)).collect();
        let expected = [
            "disk0",
            "root.disk0",
            "pcie.0",
            "bridge0",
            "root.switch0",
            "switch0",
            "switch0.gpu0",
            "gpu0",
        ];
        assert_eq!(way, expected);
    }

    #[test]
    fn an_iommu_makes_switch_ports_with_acs_redirect() {
        let mut demo = Scenario::demo().unwrap();
        demo.switches[0].acs = AcsPorts::All(true);
        let outcome = |demo: &Scenario| {
            let topology = Topology::of(demo);
            let disk = topology.devices().next().unwrap();
            (verdict(demo, "gpu0", "disk0"), topology.link(disk))
        };
        demo.machine.iommu = Iommu::None;
        assert_eq!(outcome(&demo), (MapType::BusAddress, LinkMode::Route));
        demo.machine.iommu = Iommu::IntelPassthrough;
        let physical = MapType::ThroughHostBridgePhysical;
        assert_eq!(outcome(&demo), (physical, LinkMode::Redirect));
        // Which ports it applies to is not known before the boot.
        demo.machine.kernel_parameters = "pci=disable_acs_redir=0000:02:00.0".to_owned();
        assert_eq!(outcome(&demo).1, LinkMode::Route);
    }

    #[test]
    fn an_iommu_switches_acs_on_at_root_ports() {
        let mut demo = Scenario::demo().unwrap();
        let redirecting = |demo: &Scenario, name: &str| {
            let tree = pci_tree(demo);
            let port = tree.find(name).unwrap();
            tree.function(port).unwrap().redirecting()
        };
        demo.machine.iommu = Iommu::None;
        assert!(redirecting(&demo, "root.switch0").is_empty());
        demo.machine.iommu = Iommu::IntelPassthrough;
        assert_eq!(redirecting(&demo, "root.switch0"), AcsControl(0x0c));
        assert!(redirecting(&demo, "switch0.gpu0").is_empty());
    }
}
