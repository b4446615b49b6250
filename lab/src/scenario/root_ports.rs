//! Root ports: a host bridge's bus has numbers for 32 devices, and some are not root ports.

use std::ops::Range;

use super::attach::AttachPoint;
use super::contents::Scenario;
use super::error::Problem;
use crate::iommu::Iommu;

/// The devices that a bus has numbers for (PCIe Base 6.0, 2.2.6.2).
const DEVICES: usize = 32;
/// Of QEMU's q35 machine: the host bridge, device 0, and the ISA bridge, device 31.
const OF_MACHINE: usize = 2;
/// The virtio-serial device of the report.
const OF_REPORT: usize = 1;

/// Checks that each host bridge has room for the root ports below it; a mistake is at `at`.
///
/// The devices for the host's access to the guest and for the modules of a kernel are not known
/// yet, and are not counted.
pub(super) fn fit(scenario: &Scenario, at: &Range<usize>) -> Result<(), Problem> {
    let own = (AttachPoint::Root, DEVICES.saturating_sub(taken(scenario)));
    let further = scenario.host_bridges.iter().cloned();
    let further = further.map(|bridge| (AttachPoint::HostBridge(bridge), DEVICES));
    for (point, most) in [own].into_iter().chain(further) {
        let needed = needed(scenario, &point);
        if needed > most {
            return Err(too_many(at.clone(), &point, needed, most));
        }
    }
    Ok(())
}

/// Returns the number of root ports: one for each switch and each device directly below `point`.
fn needed(scenario: &Scenario, point: &AttachPoint) -> usize {
    let switches = scenario.switches.iter().map(|switch| &switch.attach);
    let devices = scenario.devices().map(|device| device.attach());
    let attached = switches.chain(devices);
    attached.filter(|attach| *attach == point).count()
}

/// Returns the number of device numbers on the machine's root bus that no root port can have: see
/// [`crate::qemu::arguments`].
fn taken(scenario: &Scenario) -> usize {
    let iommu = match scenario.machine.iommu {
        Iommu::Amd | Iommu::Virtio => 1,
        // It is no PCI device.
        Iommu::None | Iommu::Intel | Iommu::IntelPassthrough => 0,
    };
    let tools = scenario.tools;
    let files = tools && !scenario.guest_files().is_empty();
    let packages = tools && !scenario.packages.is_empty();
    let gpu = scenario.machine.virtio_gpu;
    let network = scenario.machine.network;
    let optional = [tools, files, packages, gpu, network].into_iter();
    let optional = optional.filter(|taken| *taken).count();
    let shares = scenario.shares.len();
    OF_MACHINE + OF_REPORT + iommu + optional + shares + scenario.host_bridges.len()
}

fn too_many(at: Range<usize>, point: &AttachPoint, needed: usize, most: usize) -> Problem {
    let whose = match point {
        AttachPoint::HostBridge(name) => format!("`{name}`"),
        AttachPoint::Root | AttachPoint::Switch(_) => "the machine's host bridge".to_owned(),
    };
    let message = format!(
        "{needed} switches and devices are right below {whose}, which has room for {most} root ports: put some below a switch"
    );
    Problem::new(at, message)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Returns the reason why a scenario with this many disks below `below` is rejected, with `top`
    /// before them.
    fn refused(top: &str, below: &str, disks: usize) -> Option<String> {
        let disk = |number| {
            format!("[[nvme]]\nname = \"d{number}\"\n{below}namespaces = [{{ ram = \"1M\" }}]\n")
        };
        let disks: String = (0..disks).map(disk).collect();
        let check = "[[check]]\nkind = \"controller-reset\"\ndevice = \"d0\"\n";
        let text = format!("name = \"x\"\n{top}{disks}{check}");
        let parsed = Scenario::parse(Path::new("x.toml"), text);
        parsed.err().map(|error| error.to_string())
    }

    #[test]
    fn root_ports_beyond_the_free_device_numbers_are_refused() {
        let cases = [
            ("", 29),
            ("machine.iommu = \"intel\"\n", 29),
            ("machine.iommu = \"amd\"\n", 28),
            ("machine.iommu = \"virtio\"\n", 28),
            ("machine.virtio-gpu = true\n", 28),
            // It brings the tools root.
            ("machine.network = true\n", 27),
            ("[[share]]\npath = \".\"\nat = \"/mnt/x\"\n", 27),
            ("tools = true\n", 28),
            ("packages = [\"jq\"]\n", 27),
            ("[[switch]]\nname = \"s0\"\n", 28),
            ("[[host-bridge]]\nname = \"b0\"\n", 28),
        ];
        for (top, most) in cases {
            assert_eq!(refused(top, "", most), None, "{top}");
            let error = refused(top, "", most + 1).unwrap();
            let expected = format!(
                "which has room for {} root ports: put some below a switch",
                {
                    let switches = usize::from(top.contains("switch"));
                    most + switches
                }
            );
            assert!(error.starts_with("x.toml:1: "), "{error}");
            assert!(error.ends_with(&expected), "{top}{error}");
        }
    }

    #[test]
    fn further_host_bridge_has_room_for_32() {
        let top = "[[host-bridge]]\nname = \"b0\"\n";
        let below = "below = \"b0\"\n";
        assert_eq!(refused(top, below, 32), None);
        let expected = "x.toml:1: 33 switches and devices are right below `b0`, which has room for 32 root ports: put some below a switch";
        assert_eq!(refused(top, below, 33).unwrap(), expected);
    }
}
