//! The places of the devices: host bridges and switches.
//!
//! A scenario has one level of switches. Linux decides by two facts only: a bridge that is above both
//! devices, and ports up to it that redirect. So two devices get one switch if no port between them
//! and a common bridge redirects, apart from the ports right above the two.

use std::collections::{BTreeMap, BTreeSet};

use peerbar_p2p::{Acs, Address, Kind, Machine, ranges, root_bus_name};

use super::devices::Device;
use super::text;

/// The shape of a twin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Names of the host bridges after the first, which is the machine's own.
    pub(super) host_bridges: Vec<String>,
    pub(super) switches: Vec<Switch>,
    /// The devices, each with the name of the switch or host bridge above it.
    pub(super) devices: Vec<(Device, Option<String>)>,
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Switch {
    pub(super) name: String,
    /// The bridge of the machine that it stands for.
    pub(super) at: Address,
    pub(super) below: Option<String>,
    /// The devices below it.
    pub(super) devices: Vec<String>,
    /// Those whose ports redirect.
    pub(super) redirected: Vec<String>,
}

impl Shape {
    /// Returns the shape with `devices`, whose ways to a root bus are known.
    pub(super) fn of(machine: &Machine, devices: Vec<Device>) -> Self {
        let buses = devices
            .iter()
            .filter_map(|device| machine.root_bus(device.address));
        let buses: BTreeSet<(u32, u8)> = buses.collect();
        let names: BTreeMap<(u32, u8), String> = buses
            .iter()
            .skip(1)
            .map(|bus| (*bus, bridge_name(*bus)))
            .collect();
        let host_bridge = |address| names.get(&machine.root_bus(address)?).cloned();
        let mut switches: BTreeMap<Address, Switch> = BTreeMap::new();
        let mut placed = Vec::new();
        for device in devices {
            let Some((at, redirects)) = switch_above(machine, device.address) else {
                let below = host_bridge(device.address);
                placed.push((device, below));
                continue;
            };
            let switch = switches.entry(at).or_insert_with(|| Switch {
                name: switch_name(at),
                at,
                below: host_bridge(at),
                devices: Vec::new(),
                redirected: Vec::new(),
            });
            switch.devices.push(device.name.clone());
            if redirects {
                switch.redirected.push(device.name.clone());
            }
            placed.push((device, Some(switch.name.clone())));
        }
        Self {
            host_bridges: names.into_values().collect(),
            switches: switches.into_values().collect(),
            devices: placed,
        }
    }

    /// Returns `true` if ports of a switch redirect.
    pub(super) fn redirects(&self) -> bool {
        let mut switches = self.switches.iter();
        switches.any(|switch| !switch.redirected.is_empty())
    }

    /// Returns the machine's properties that the shape lacks, as sentences.
    pub(super) fn differences(&self, machine: &Machine) -> Vec<String> {
        let devices = || self.devices.iter().map(|(device, _)| device);
        let names = |is_meant: &dyn Fn(&Device) -> bool| {
            let meant = devices().filter(|device| is_meant(device));
            let names: Vec<&str> = meant.map(|device| device.name.as_str()).collect();
            (!names.is_empty()).then(|| ranges(&names).join(", "))
        };
        let kind = |device: &Device| {
            machine
                .function(device.address)
                .map(|function| function.kind())
        };
        let on_root_bus = names(&|device| machine.bridges_above(device.address).0.is_empty());
        let nested = names(&|device| machine.bridges_above(device.address).0.len() > 3);
        let split = names(&|device| {
            let (above, _) = machine.bridges_above(device.address);
            let inner = above
                .get(1..above.len().saturating_sub(1))
                .unwrap_or_default();
            inner.iter().any(|bridge| redirects(machine, *bridge))
        });
        let accelerators = names(&|device| kind(device) == Some(Kind::Accelerator));
        let nodes = devices().filter_map(|device| machine.function(device.address)?.numa_node);
        let nodes: BTreeSet<u16> = nodes.collect();
        let sentences = [
            nested.map(|names| format!("Switches below switches are one switch here, or have separate root ports: above {names}.")),
            split.map(|names| {
                format!(
                    "A bridge that redirects is above the ports above these devices. Here each port is a [[switch]] with its \
                     own root port, and Linux decides alike, but for another reason: {names}."
                )
            }),
            on_root_bus.map(|names| format!("Integrated into the root complex, below a root port here: {names}.")),
            accelerators.map(|names| format!("Accelerators, GPUs here: {names}.")),
            (nodes.len() > 1).then(|| format!("The devices are on {} NUMA nodes; the guest has one.", nodes.len())),
        ];
        sentences.into_iter().flatten().collect()
    }
}

/// Returns the bridge for which a switch above the device stands, and whether the port right above
/// the device redirects. A device below a root port, or on a root bus, has none.
fn switch_above(machine: &Machine, device: Address) -> Option<(Address, bool)> {
    let (above, _) = machine.bridges_above(device);
    let (own_port, upper) = above.split_first()?;
    let (_root_port, inner) = upper.split_last()?;
    // The ways of two devices meet at the highest bridge below which nothing redirects.
    let redirecting = inner.iter().position(|bridge| redirects(machine, *bridge));
    let at = match redirecting.unwrap_or(inner.len()).checked_sub(1) {
        Some(index) => inner.get(index)?,
        None => own_port,
    };
    Some((*at, redirects(machine, *own_port)))
}

fn redirects(machine: &Machine, bridge: Address) -> bool {
    let acs = machine.function(bridge).map(|function| function.acs);
    matches!(acs, Some(Acs::Control(control)) if !control.redirecting().is_empty())
}

/// Names a host bridge as its root bus in sysfs, or as the NUMA node or the device that stands for it:
/// `pci0000-40`, `node-1`, `above-GPU0`.
fn bridge_name(bus: (u32, u8)) -> String {
    let name = root_bus_name(bus);
    let short = ["the root bus ", "NUMA "]
        .iter()
        .find_map(|start| name.strip_prefix(start));
    text::in_name(&short.unwrap_or(&name).replace(", ", "-"))
}

/// Names a switch by its bus, and by device and function unless they are 0: `switch-41`,
/// `switch-42-8`. In a source without addresses a device below it stands for it:
/// `switch-above-GPU0`, `upper-above-GPU0`.
fn switch_name(at: Address) -> String {
    let name = at.to_string();
    for (kind, short) in [("the switch", "switch"), ("the upper switch", "upper")] {
        if let Some(device) = name.strip_prefix(kind) {
            return text::in_name(&format!("{short}{device}"));
        }
    }
    let domain = match at.domain {
        0 => String::new(),
        domain => format!("{domain:x}-"),
    };
    let devfn = match at.devfn() {
        0 => String::new(),
        devfn => format!("-{devfn:x}"),
    };
    format!("switch-{domain}{:02x}{devfn}", at.bus)
}

/// Keeps `count` devices of each kind at each place, and returns the names of the others.
pub(super) fn some_of_each_kind(
    machine: &Machine,
    devices: Vec<Device>,
    count: usize,
) -> (Vec<Device>, String) {
    let mut seen: BTreeMap<_, usize> = BTreeMap::new();
    let mut is_kept = |device: &Device| {
        let bus = machine.root_bus(device.address);
        let switch = switch_above(machine, device.address);
        let alike = seen
            .entry((bus, switch, device.model, device.is_provider))
            .or_default();
        *alike += 1;
        *alike <= count
    };
    let (kept, left_out): (Vec<Device>, Vec<Device>) =
        devices.into_iter().partition(|device| is_kept(device));
    let names: Vec<&str> = left_out.iter().map(|device| device.name.as_str()).collect();
    let names = ranges(&names).join(", ");
    (kept, names)
}
