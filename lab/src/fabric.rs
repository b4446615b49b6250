//! A scenario's fabric, as the guest's kernel will find it: what [`peerbar_rule`] needs to know before anything runs.

use peerbar_rule::{
    AcsControl, DeviceId, Function, FunctionId, HostBridgeId, Kind, PciTree, Platform, Release,
};

use crate::cpu;
use crate::iommu::Iommu;
use crate::scenario::{Device, Machine, Place, Scenario, Switch};

/// What QEMU's parts say that they are.
const Q35: DeviceId = id(0x8086, 0x29c0);
const ROOT_PORT: DeviceId = id(0x1b36, 0x000c);
const UPSTREAM_PORT: DeviceId = id(0x104c, 0x8232);
const DOWNSTREAM_PORT: DeviceId = id(0x104c, 0x8233);
/// What our devices say.
const NVME: DeviceId = id(0x1b36, 0x0010);
const GPU: DeviceId = id(0x1af4, 0x10f0);

/// ACS capability of QEMU's root port (QEMU, hw/pci/pcie.c, `pcie_acs_init`); its switch ports have none.
const ROOT_PORT_ACS: u16 = 0x5f;

const fn id(vendor: u16, device: u16) -> DeviceId {
    DeviceId { vendor, device }
}

/// The fabric of `scenario`. Devices and bridges have the scenario's names, ports those of QEMU's command line.
pub fn fabric(scenario: &Scenario) -> PciTree {
    let mut fabric = PciTree::default();
    let mut roots = vec![(None, fabric.add_host_bridge("pcie.0", Some(Q35)))];
    for name in &scenario.host_bridges {
        // The first and only kind of device on the bus of such a bridge is a root port.
        let bridge = fabric.add_host_bridge(name, Some(ROOT_PORT));
        roots.push((Some(name.as_str()), bridge));
    }
    let iommu = scenario.machine.iommu;
    for Switch { name, place } in &scenario.switches {
        let port = port(&mut fabric, &roots, place, name, iommu);
        let upstream = Function::new(name, Kind::UpstreamPort, UPSTREAM_PORT);
        port.map(|port| fabric.add(port, upstream));
    }
    for device in scenario.devices() {
        let id = match device {
            Device::Nvme(_) => NVME,
            Device::Gpu(..) => GPU,
        };
        let port = port(&mut fabric, &roots, device.place(), device.name(), iommu);
        let endpoint = Function::new(device.name(), Kind::Endpoint, id);
        port.map(|port| fabric.add(port, endpoint));
    }
    fabric
}

/// Adds the port above what is called `name`; nothing if its place is not there, which no scenario that makes sense has.
fn port(
    fabric: &mut PciTree,
    roots: &[(Option<&str>, HostBridgeId)],
    place: &Place,
    name: &str,
    iommu: Iommu,
) -> Option<FunctionId> {
    let root = match place {
        Place::Switch(switch) => {
            let port = Function::new(
                format!("{switch}.{name}"),
                Kind::DownstreamPort,
                DOWNSTREAM_PORT,
            );
            return Some(fabric.add(fabric.find(switch)?, port));
        }
        Place::HostBridge(bridge) => Some(bridge.as_str()),
        Place::Root => None,
    };
    let (_, bridge) = roots.iter().find(|(name, _)| *name == root)?;
    Some(fabric.add(*bridge, root_port(name, iommu)))
}

/// The kernel switches ACS on where it can as soon as there is an IOMMU, also one that lets everything pass.
fn root_port(of: &str, iommu: Iommu) -> Function {
    let control = match iommu {
        Iommu::None => AcsControl::default(),
        _ => AcsControl::with_an_iommu(ROOT_PORT_ACS),
    };
    Function::new(format!("root.{of}"), Kind::RootPort, ROOT_PORT).with_acs(control)
}

/// The platform of `machine` under a kernel of `kernel`; nothing if the CPU model's name does not tell its family. The
/// kernel parameters of the scenario are not looked at.
pub fn platform(machine: &Machine, kernel: Release) -> Option<Platform> {
    Some(Platform {
        cpu: cpu::of_model(&machine.cpu)?,
        translates: machine.iommu.translates(),
        kernel,
    })
}

#[cfg(test)]
mod tests {
    use peerbar_rule::{Verdict, decide};

    use super::*;

    fn verdict(scenario: &Scenario, provider: &str, client: &str) -> Verdict {
        let fabric = fabric(scenario);
        let platform = platform(&scenario.machine, Release::NEWEST).unwrap();
        let find = |name| fabric.find(name).unwrap();
        decide(&fabric, &platform, find(provider), find(client))
            .unwrap()
            .verdict
    }

    #[test]
    fn below_the_demo_s_switch_it_is_the_bus_address_whatever_the_iommu() {
        let mut demo = Scenario::demo().unwrap();
        for iommu in [Iommu::None, Iommu::Intel, Iommu::Amd] {
            demo.machine.iommu = iommu;
            assert_eq!(verdict(&demo, "gpu0", "disk0"), Verdict::BusAddress);
            assert_eq!(verdict(&demo, "disk0", "disk0"), Verdict::BusAddress);
        }
    }

    #[test]
    fn outside_a_switch_the_processor_and_the_iommu_count() {
        let mut demo = Scenario::demo().unwrap();
        demo.nvmes[0].place = Place::Root;
        let physical = Verdict::ThroughHostBridgePhysical;
        assert_eq!(verdict(&demo, "gpu0", "disk0"), physical);
        demo.machine.iommu = Iommu::IntelPassthrough;
        assert_eq!(verdict(&demo, "gpu0", "disk0"), physical);
        demo.machine.iommu = Iommu::Intel;
        assert_eq!(
            verdict(&demo, "gpu0", "disk0"),
            Verdict::ThroughHostBridgeIova
        );
        demo.machine.cpu = "Haswell".to_owned();
        assert_eq!(verdict(&demo, "disk0", "gpu0"), Verdict::NotSupported);
    }

    #[test]
    fn a_further_host_bridge_is_another_root() {
        let mut demo = Scenario::demo().unwrap();
        demo.host_bridges.push("bridge0".to_owned());
        demo.switches[0].place = Place::HostBridge("bridge0".to_owned());
        demo.nvmes[0].place = Place::Root;
        assert_eq!(verdict(&demo, "gpu0", "disk1"), Verdict::BusAddress);
        let physical = Verdict::ThroughHostBridgePhysical;
        assert_eq!(verdict(&demo, "gpu0", "disk0"), physical);
        let fabric = fabric(&demo);
        let platform = platform(&demo.machine, Release::NEWEST).unwrap();
        let find = |name| fabric.find(name).unwrap();
        let decision = decide(&fabric, &platform, find("gpu0"), find("disk0")).unwrap();
        let way: Vec<&str> = decision.path.iter().map(|hop| fabric.name(*hop)).collect();
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
    fn an_iommu_switches_acs_on_at_root_ports() {
        let mut demo = Scenario::demo().unwrap();
        let redirecting = |demo: &Scenario, name: &str| {
            let fabric = fabric(demo);
            let port = fabric.find(name).unwrap();
            fabric.function(port).unwrap().redirecting()
        };
        assert!(redirecting(&demo, "root.switch0").is_empty());
        demo.machine.iommu = Iommu::IntelPassthrough;
        assert_eq!(redirecting(&demo, "root.switch0"), AcsControl(0x0c));
        assert!(redirecting(&demo, "switch0.gpu0").is_empty());
    }
}
