//! The renderings of one topology agree: QEMU's arguments and the tree for the kernel's rule, for
//! every scenario that comes with the project.

#![allow(clippy::unwrap_used, reason = "a test panics if it fails")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use peerbar_lab::accel::Accel;
use peerbar_lab::pci_tree::pci_tree;
use peerbar_lab::qemu::{Boot, Sockets, arguments};
use peerbar_lab::scenario::{GuestGroup, Scenario};
use peerbar_lab::topology::Topology;
use peerbar_rule::{Parent, PciTree, PortType};
use serde_json::Value;

/// A `-device` of QEMU's.
#[derive(Debug)]
struct QemuDevice {
    driver: String,
    properties: BTreeMap<String, String>,
}

impl QemuDevice {
    /// Reads both forms, JSON and `driver,key=value`.
    fn parse(text: &str) -> Self {
        let mut properties: BTreeMap<String, String> = if text.starts_with('{') {
            let value: BTreeMap<String, Value> = serde_json::from_str(text).unwrap();
            let plain = |value: Value| match value {
                Value::String(text) => text,
                other => other.to_string(),
            };
            value.into_iter().map(|(k, v)| (k, plain(v))).collect()
        } else {
            let (driver, rest) = text.split_once(',').unwrap_or((text, ""));
            let pairs = rest.split(',').filter_map(|pair| pair.split_once('='));
            [("driver", driver)]
                .into_iter()
                .chain(pairs)
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect()
        };
        Self {
            driver: properties.remove("driver").unwrap(),
            properties,
        }
    }

    fn property(&self, name: &str) -> Option<&str> {
        self.properties.get(name).map(String::as_str)
    }
}

/// Returns the devices of a scenario's topology, in the order in which QEMU plugs them in. Those
/// without a bus get one from QEMU.
fn qemu_devices(scenario: &Scenario) -> Vec<QemuDevice> {
    let boot = Boot {
        accel: Accel::Tcg {
            threads: false,
            tsc_khz: None,
        },
        append: "",
        gdb: None,
        machine: &scenario.machine,
        firmware: scenario.machine.firmware,
        kernel: Path::new("/k"),
        initramfs: Path::new("/i"),
        qemu_arguments: &[],
        sandbox: true,
    };
    let sockets = Sockets::in_folder(Path::new("/s"));
    let words = arguments(&boot, &Topology::of(scenario), &sockets, &[]);
    let values = words.iter().zip(words.iter().skip(1));
    let devices = values.filter(|(option, _)| *option == "-device");
    devices
        .map(|(_, value)| QemuDevice::parse(value.to_str().unwrap()))
        .filter(|device| device.property("bus").is_some())
        .collect()
}

/// Returns the kind that a function of QEMU's `driver` has.
fn kind(driver: &str) -> Option<PortType> {
    match driver {
        "pcie-root-port" => Some(PortType::RootPort),
        "x3130-upstream" => Some(PortType::UpstreamPort),
        "xio3130-downstream" => Some(PortType::DownstreamPort),
        "vfio-user-pci" | "nvme" => Some(PortType::Endpoint),
        _ => None,
    }
}

fn parent_name(tree: &PciTree, name: &str) -> String {
    match tree.parent(tree.find(name).unwrap()).unwrap() {
        Parent::HostBridge(id) => tree.host_bridge(id).unwrap().name.clone(),
        Parent::Bridge(id) => tree.function(id).unwrap().name.clone(),
    }
}

/// Compares bridge by bridge, port by port, device by device.
fn assert_renderings_agree(scenario: &Scenario) {
    let name = &scenario.name;
    let tree = pci_tree(scenario);
    let devices = qemu_devices(scenario);
    let (bridges, functions): (Vec<_>, Vec<_>) = devices
        .iter()
        .partition(|device| device.driver == "pxb-pcie");
    let bridge_names: Vec<_> = bridges.iter().map(|d| d.property("id").unwrap()).collect();
    assert_eq!(bridge_names, scenario.host_bridges, "{name}");
    let roots: Vec<&str> = ["pcie.0"].into_iter().chain(bridge_names).collect();

    let in_tree: Vec<(&str, PortType, String)> = tree
        .functions()
        .map(|(_, function)| {
            let parent = parent_name(&tree, &function.name);
            (function.name.as_str(), function.kind, parent)
        })
        .collect();
    let in_qemu: Vec<(&str, PortType, String)> = functions
        .iter()
        .map(|device| {
            let (id, bus) = (device.property("id"), device.property("bus"));
            (
                id.unwrap(),
                kind(&device.driver).unwrap(),
                bus.unwrap().to_owned(),
            )
        })
        .collect();
    assert_eq!(in_tree, in_qemu, "{name}");

    let mut slots = Vec::new();
    let mut taken = Vec::new();
    for device in &functions {
        let bus = device.property("bus").unwrap();
        match kind(&device.driver).unwrap() {
            PortType::RootPort => assert!(roots.contains(&bus), "{name}: {device:?}"),
            PortType::DownstreamPort => assert!(scenario.switches.iter().any(|s| s.name == bus)),
            _ => {
                assert!(!taken.contains(&bus), "{name}: two devices in {bus}");
                taken.push(bus);
            }
        }
        if let Some(slot) = device.property("slot") {
            assert_eq!(device.property("chassis"), Some(slot), "{name}");
            slots.push(slot.parse::<usize>().unwrap());
        }
    }
    let ports = scenario.switches.len() + scenario.devices().count();
    assert_eq!(slots, (1..=ports).collect::<Vec<_>>(), "{name}");
}

#[test]
fn shipped_scenarios_render_one_topology() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            match GuestGroup::load(&path).unwrap() {
                Some(group) => {
                    let guests = group.guests.iter();
                    guests.for_each(|guest| assert_renderings_agree(&guest.scenario));
                }
                None => assert_renderings_agree(&Scenario::load(&path).unwrap()),
            }
            seen += 1;
        }
    }
    assert!(seen > 10, "{seen} scenarios");
}

#[test]
fn host_bridges_and_several_switches_render_one_topology() {
    let disk = |name: &str, below: &str| {
        format!(
            "[[nvme]]\nname = \"{name}\"\nbelow = \"{below}\"\nnamespaces = [{{ ram = \"1M\" }}]\n"
        )
    };
    let text = "name = \"x\"\n[[host-bridge]]\nname = \"b0\"\n[[host-bridge]]\nname = \"b1\"\n\
        [[switch]]\nname = \"s0\"\nbelow = \"b1\"\n[[switch]]\nname = \"s1\"\n"
        .to_owned()
        + &disk("d0", "s0")
        + &disk("d1", "s1")
        + &disk("d2", "s0")
        + &disk("d3", "b0")
        + "[[gpu]]\nname = \"g0\"\nvram = \"16M\"\n[[check]]\nkind = \"controller-reset\"\ndevice = \"d0\"\n";
    let scenario = Scenario::parse(Path::new("x.toml"), text).unwrap();
    assert_renderings_agree(&scenario);
    let tree = pci_tree(&scenario);
    let parents =
        ["d0", "s0", "root.s0", "root.d3", "root.g0"].map(|name| parent_name(&tree, name));
    assert_eq!(parents, ["s0.d0", "root.s0", "b1", "b0", "pcie.0"]);
}
