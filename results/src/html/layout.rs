//! Where the parts of a machine are in the picture: host bridges above root ports above switches above devices.

use std::collections::BTreeMap;

use peerbar_report::PciFunction;

/// Device/Port Type of an upstream port of a switch (PCIe Base 6.0, 7.5.3.2).
const UPSTREAM_PORT: u8 = 5;
/// Device/Port Type of a root port.
const ROOT_PORT: u8 = 4;
/// Width of a device.
pub(super) const DEVICE_WIDTH: i32 = 176;
/// Height of a device.
pub(super) const DEVICE_HEIGHT: i32 = 72;
/// Between two devices.
pub(super) const GAP: i32 = 48;
/// Between a switch's edge and its devices.
const PADDING: i32 = 12;

/// A machine's parts, from left to right.
#[derive(Debug)]
pub(super) struct MachineLayout<'a> {
    /// What is below one root port each.
    pub(super) branches: Vec<Branch<'a>>,
    /// What an IOMMU does to the devices' requests, if there is one.
    pub(super) iommu: Option<&'static str>,
    /// Right end of the last branch.
    pub(super) right: i32,
}

/// What is below one root port.
#[derive(Debug)]
pub(super) struct Branch<'a> {
    /// Name of the host bridge's root bus.
    pub(super) root_bus: &'a str,
    /// The root port.
    pub(super) port: Option<&'a PciFunction>,
    /// The switch below it, if there is one.
    pub(super) switch: Option<&'a PciFunction>,
    /// The devices below that.
    pub(super) devices: Vec<DevicePosition<'a>>,
    /// Left end.
    pub(super) left: i32,
    /// Right end.
    pub(super) right: i32,
}

/// A device and its position.
#[derive(Debug)]
pub(super) struct DevicePosition<'a> {
    /// Its name.
    pub(super) name: &'a str,
    /// What the guest found.
    pub(super) function: &'a PciFunction,
    /// Left end.
    pub(super) left: i32,
}

impl<'a> MachineLayout<'a> {
    /// The machine of `functions`, from `left` on; none if no device under test is among them.
    pub(super) fn of(functions: &'a [PciFunction], left: i32) -> Option<Self> {
        let by_address: BTreeMap<&str, &PciFunction> = functions
            .iter()
            .map(|function| (function.address.as_str(), function))
            .collect();
        let mut branches: Vec<Branch<'a>> = Vec::new();
        for function in functions {
            let Some(name) = function.name.as_deref().filter(|_| is_device(function)) else {
                continue;
            };
            let device = DevicePosition {
                name,
                function,
                left: 0,
            };
            let (root_bus, port, switch) = above(function, &by_address);
            let address = |function: Option<&PciFunction>| function.map(|f| f.address.clone());
            let known = branches.iter_mut().find(|branch| {
                let same = |one, other| address(one) == address(other);
                branch.root_bus == root_bus && same(branch.port, port) && port.is_some()
            });
            match known {
                Some(branch) => branch.devices.push(device),
                None => branches.push(Branch {
                    root_bus,
                    port,
                    switch,
                    devices: vec![device],
                    left: 0,
                    right: 0,
                }),
            }
        }
        let right = spread(&mut branches, left)?;
        Some(Self {
            branches,
            iommu: iommu(functions),
            right,
        })
    }

    /// The branch and the device called `name`.
    pub(super) fn find(&self, name: &str) -> Option<(usize, &DevicePosition<'a>)> {
        self.branches
            .iter()
            .enumerate()
            .find_map(|(index, branch)| {
                let device = branch.devices.iter().find(|device| device.name == name)?;
                Some((index, device))
            })
    }
}

/// Gives all branches their positions, and returns where the last one ends; none without any.
fn spread(branches: &mut [Branch<'_>], left: i32) -> Option<i32> {
    let mut x = left;
    for branch in &mut *branches {
        branch.left = x;
        x += PADDING;
        for device in &mut branch.devices {
            device.left = x;
            x += DEVICE_WIDTH + GAP;
        }
        x += PADDING - GAP;
        branch.right = x;
        x += GAP;
    }
    branches.last().map(|branch| branch.right)
}

fn is_device(function: &PciFunction) -> bool {
    !matches!(function.port_type, Some(ROOT_PORT..=6))
}

/// The root bus above `function`, its root port, and the switch in between.
fn above<'a>(
    function: &'a PciFunction,
    by_address: &BTreeMap<&str, &'a PciFunction>,
) -> (&'a str, Option<&'a PciFunction>, Option<&'a PciFunction>) {
    let (mut parent, mut port, mut switch) = (function.parent.as_str(), None, None);
    // A guest's evidence may be a circle: no way is longer than there are functions.
    for _ in 0..by_address.len() {
        let Some(bridge) = by_address.get(parent) else {
            break;
        };
        match bridge.port_type {
            Some(UPSTREAM_PORT) => switch = Some(*bridge),
            Some(ROOT_PORT) => port = Some(*bridge),
            _ => {}
        }
        parent = &bridge.parent;
    }
    (parent, port, switch)
}

/// What an IOMMU does, by the groups of the devices (Linux, Documentation/ABI/testing/sysfs-kernel-iommu_groups).
fn iommu(functions: &[PciFunction]) -> Option<&'static str> {
    let devices = functions.iter().filter(|function| function.name.is_some());
    let kinds = devices.filter_map(|device| Some(device.iommu_group.as_ref()?.kind.as_str()));
    kinds
        .map(|kind| match kind.starts_with("DMA") {
            true => "IOMMU translates",
            false => "IOMMU passes through",
        })
        .next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn devices_of_one_switch_are_one_branch() {
        let functions = samples::functions();
        let layout = MachineLayout::of(&functions, 100).unwrap();
        let [switch, alone] = layout.branches.as_slice() else {
            panic!("{layout:#?}")
        };
        let names: Vec<&str> = switch.devices.iter().map(|device| device.name).collect();
        assert_eq!((names, switch.left), (vec!["disk0", "gpu0"], 100));
        assert!(switch.switch.is_some() && alone.switch.is_none());
        assert!(alone.left > switch.right);
        assert_eq!(layout.right, alone.right);
        assert_eq!(layout.find("disk1").map(|(branch, _)| branch), Some(1));
        assert_eq!(layout.iommu, Some("IOMMU translates"));
    }

    #[test]
    fn tree_that_is_a_circle_ends() {
        let mut functions = samples::functions();
        for function in &mut functions {
            function.parent.clone_from(&function.address);
        }
        assert!(MachineLayout::of(&functions, 0).is_some());
        assert!(MachineLayout::of(&[], 0).is_none());
    }
}
