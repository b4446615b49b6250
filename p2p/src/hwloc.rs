//! Reads the XML of hwloc, versions 1 to 3, which `lstopo FILE.xml` writes.
//!
//! It shows host bridges and all bridges above a device, without ACS. It leaves out functions that
//! hwloc holds unimportant, among them the ones by which the kernel knows most host bridges.

use peerbar_rule::DeviceId;

use crate::address::{Address, bus_range};
use crate::log;
use crate::machine::{Function, Machine};
use crate::names;
use crate::shape::Shown;
use crate::xml::{Document, Element};

/// The surroundings of an element.
#[derive(Clone, Copy, Default)]
struct Around {
    numa_node: Option<u16>,
    /// The innermost PCI function.
    function: Option<Address>,
    /// The innermost bridge.
    bridge: Bridge,
}

#[derive(Clone, Copy, Default)]
enum Bridge {
    /// No bridge.
    #[default]
    Nowhere,
    /// A host bridge, and its root bus.
    Host(Option<u8>),
    /// A PCI bridge, and the bus below it.
    Pci(Address, Option<u8>),
}

/// Names and values of the host's properties.
#[derive(Default)]
struct Host<'a>(Vec<(&'a str, &'a str)>);

/// Reads the elements of a document whose root is `topology`.
pub(crate) fn read(document: &Document, machine: &mut Machine) {
    machine.is_selection = true;
    let mut host = Host::default();
    let mut around: Vec<Around> = Vec::with_capacity(document.elements.len());
    for element in &document.elements {
        let above = element.parent.and_then(|parent| around.get(parent));
        let above = above.copied().unwrap_or_default();
        if element.name == "info" {
            info(machine, &mut host, element, above);
        }
        around.push(object(machine, element, above).unwrap_or(above));
    }
    machine.infer_port_types();
    machine.describe_by_id();
    host.finish(machine);
}

/// Reads an object and returns the surroundings of the elements in it, if they differ.
fn object(machine: &mut Machine, element: &Element, above: Around) -> Option<Around> {
    match element.get("type")? {
        "Bridge" if element.get("bridge_type")?.starts_with("0-") => Some(Around {
            bridge: Bridge::Host(buses(element).map(|(first, _)| first)),
            ..above
        }),
        "Bridge" | "PCIDev" => pci(machine, element, above),
        "OSDev" => {
            let function = machine.functions.get_mut(&above.function?)?;
            function.names.extend(device_name(element.get("name")?));
            None
        }
        _ => {
            let numa_node = element.get("nodeset").map_or(above.numa_node, only_node);
            Some(Around { numa_node, ..above })
        }
    }
}

/// Adds a bridge or device.
fn pci(machine: &mut Machine, element: &Element, above: Around) -> Option<Around> {
    let address: Address = element.get("pci_busid")?.parse().ok()?;
    let (class, id) = class_and_id(element.get("pci_type").unwrap_or_default());
    let buses = buses(element);
    let function = Function {
        id,
        class,
        buses,
        numa_node: above.numa_node,
        ..Function::default()
    };
    let is_on = |bus: Option<u8>| bus.is_none_or(|bus| bus == address.bus);
    let shown = match above.bridge {
        Bridge::Nowhere => Shown::Nowhere,
        Bridge::Host(bus) if is_on(bus) => Shown::OnRootBus,
        Bridge::Host(_) => Shown::BelowAPort(None),
        Bridge::Pci(bridge, bus) if is_on(bus) => Shown::Below(bridge),
        Bridge::Pci(bridge, _) => Shown::BelowAPort(Some(bridge)),
    };
    machine.attach(address, function, shown);
    let bridge = match element.get("type") {
        Some("Bridge") => Bridge::Pci(address, buses.map(|(first, _)| first)),
        _ => above.bridge,
    };
    Some(Around {
        function: Some(address),
        bridge,
        ..above
    })
}

/// Reads `0000:[2b-3b]`.
fn buses(element: &Element) -> Option<(u8, u8)> {
    let (_, range) = element.get("bridge_pci")?.split_once(":[")?;
    bus_range(range.strip_suffix(']')?)
}

/// Reads `0302 [10de:1db8] [10de:131d] a1`.
fn class_and_id(text: &str) -> (Option<u16>, Option<DeviceId>) {
    let number = |text| u16::from_str_radix(text, 16).ok();
    let mut words = text.split(' ');
    let class = words.next().and_then(number);
    let id = words
        .next()
        .and_then(|word| word.trim_matches(['[', ']']).parse().ok());
    (class, id)
}

/// Returns the node of a set such as `0x00000001` or `0x00000003,0x0` if it is the only one. The
/// words of a set have 32 bits, the highest first; an empty word is zero.
fn only_node(set: &str) -> Option<u16> {
    let mut nodes = (0_u16..).step_by(32).zip(set.rsplit(','));
    let mut only = None;
    nodes.try_for_each(|(first, word)| {
        let digits = word.trim_start_matches("0x");
        let word = match digits {
            "" => 0,
            digits => u32::from_str_radix(digits, 16).ok()?,
        };
        let node = u16::try_from(word.trailing_zeros()).ok()?;
        match (word.count_ones(), only) {
            (0, _) => Some(()),
            (1, None) => {
                only = first.checked_add(node);
                Some(())
            }
            _ => None,
        }
    })?;
    only
}

/// Returns the name of an operating system's device if it says which one a function is: an NVMe
/// controller's name without that of the namespace, and those of adapters and displays.
fn device_name(name: &str) -> Option<String> {
    const KINDS: [&str; 4] = ["sd", "sr", "dma", "dax"];
    const LIBRARIES: [&str; 5] = ["cuda", "opencl", "nvml", "rsmi", "ze"];
    if let Some(rest) = name.strip_prefix("nvme") {
        let number = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        return Some(format!("nvme{number}"));
    }
    let mut others = KINDS.iter().chain(&LIBRARIES);
    let is_other = others.any(|prefix| name.starts_with(prefix));
    (!is_other && names::is_plain(name)).then(|| name.to_owned())
}

/// Reads a property of a function, or of the host.
fn info<'a>(machine: &mut Machine, host: &mut Host<'a>, element: &'a Element, above: Around) {
    let Some((name, value)) = element.get("name").zip(element.get("value")) else {
        return;
    };
    let function = above
        .function
        .and_then(|function| machine.functions.get_mut(&function));
    match (name, function) {
        ("PCIVendor" | "PCIDevice", Some(function)) => {
            let words = [function.description.as_str(), value].join(" ");
            words.trim().clone_into(&mut function.description);
        }
        (_, None) => host.0.push((name, value)),
        _ => {}
    }
}

impl Host<'_> {
    /// Returns the value of a property, of the first processor if each has one.
    fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| *value)
    }

    /// Takes processor, kernel and hypervisor.
    fn finish(&self, machine: &mut Machine) {
        const PROCESSOR: [(&str, &str); 3] = [
            ("CPUVendor", "vendor_id"),
            ("CPUFamilyNumber", "cpu family"),
            ("CPUModel", "model name"),
        ];
        let line = |(name, key): &(&str, &str)| Some(format!("{key}: {}\n", self.get(name)?));
        log::read(
            &PROCESSOR.iter().filter_map(line).collect::<String>(),
            machine,
        );
        let is_x86 = |arch: &str| arch.starts_with("x86") || arch.ends_with("86");
        if self.get("Architecture").is_some_and(|arch| !is_x86(arch)) {
            machine.host.cpu = Some(names::OTHER_CPU);
        }
        if self.get("OSName").is_none_or(|name| name == "Linux") {
            machine.host.release = self.get("OSRelease").map(str::to_owned);
        }
        machine.host.hypervisor = self
            .get("DMISysVendor")
            .and_then(names::hypervisor_by_firmware);
    }
}

#[cfg(test)]
mod tests {
    use peerbar_rule::Vendor;

    use super::*;
    use crate::machine::{Kind, Place};
    use crate::wire::Distance;
    use peerbar_rule::Way;

    const TEXT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" nodeset="0x00000003">
    <info name="OSName" value="Linux"/>
    <info name="OSRelease" value="6.12.9-amd64"/>
    <info name="Architecture" value="x86_64"/>
    <object type="Package" os_index="0" nodeset="0x00000001">
      <info name="CPUVendor" value="GenuineIntel"/>
      <info name="CPUFamilyNumber" value="6"/>
      <info name="CPUModel" value="Intel(R) Xeon(R) Gold"/>
      <object type="NUMANode" os_index="0" nodeset="0x00000001"/>
      <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[16-1f]">
        <object type="Bridge" bridge_type="1-1" depth="1" bridge_pci="0000:[17-1f]" pci_busid="0000:16:02.0" pci_type="0604 [8086:347a] [8086:0000] 04" pci_link_speed="15.75">
          <object type="Bridge" bridge_type="1-1" depth="2" bridge_pci="0000:[18-1f]" pci_busid="0000:17:00.0" pci_type="0604 [1000:c010] [1000:0000] b0">
            <object type="Bridge" bridge_type="1-1" depth="3" bridge_pci="0000:[19-19]" pci_busid="0000:18:00.0" pci_type="0604 [1000:c010] [1000:0000] b0">
              <object type="PCIDev" pci_busid="0000:19:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="63.0">
                <info name="PCIVendor" value="NVIDIA Corporation"/>
                <info name="PCIDevice" value="GH100 [H100 SXM5 80GB]"/>
                <object type="OSDev" name="cuda0" osdev_type="5"><info name="Backend" value="CUDA"/></object>
                <object type="OSDev" name="card0" osdev_type="1"/>
                <object type="OSDev" name="renderD128" osdev_type="1"/>
              </object>
            </object>
            <object type="Bridge" bridge_type="1-1" depth="3" bridge_pci="0000:[1a-1a]" pci_busid="0000:18:01.0" pci_type="0604 [1000:c010] [1000:0000] b0">
              <object type="PCIDev" pci_busid="0000:1a:00.0" pci_type="0108 [144d:a80a] [144d:a801] 00">
                <object type="OSDev" name="nvme0n1" osdev_type="0"><info name="SerialNumber" value="S4"/></object>
              </object>
            </object>
          </object>
        </object>
      </object>
    </object>
    <object type="Socket" os_index="1" nodeset="0x00000002">
      <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[40-45]">
        <object type="Bridge" bridge_type="1-1" depth="1" bridge_pci="0000:[41-41]" pci_busid="0000:40:00.0" pci_type="0604 [8086:2030] [8086:0000] 04">
          <object type="PCIDev" pci_busid="0000:41:00.0" pci_type="0207 [15b3:1021] [15b3:0051] 00">
            <object type="OSDev" name="ib0" osdev_type="2"><info name="Address" value="20:00"/></object>
            <object type="OSDev" name="mlx5_0" osdev_type="3"/>
          </object>
        </object>
        <object type="PCIDev" pci_busid="0000:45:00.0" pci_type="0207 [15b3:1021] [15b3:0051] 00"/>
      </object>
    </object>
  </object>
</topology>"#;

    fn machine() -> Machine {
        Machine::read(TEXT).unwrap()
    }

    fn function<'a>(machine: &'a Machine, address: &str) -> &'a Function {
        machine.function(address.parse().unwrap()).unwrap()
    }

    #[test]
    fn objects_become_functions() {
        let machine = machine();
        let gpu = function(&machine, "19:00.0");
        assert_eq!((gpu.kind(), gpu.numa_node), (Kind::Gpu, Some(0)));
        assert_eq!(gpu.description, "NVIDIA Corporation GH100 [H100 SXM5 80GB]");
        assert_eq!(gpu.names, ["card0", "renderD128"]);
        assert_eq!(machine.find("nvme0"), Ok("1a:00.0".parse().unwrap()));
        assert_eq!(machine.find("mlx5_0"), Ok("41:00.0".parse().unwrap()));
        assert_eq!(function(&machine, "41:00.0").numa_node, Some(1));
        let port = function(&machine, "16:02.0");
        assert_eq!(
            (port.place, port.buses),
            (Place::RootBus, Some((0x17, 0x1f)))
        );
        let types: Vec<_> = ["16:02.0", "17:00.0", "18:01.0"]
            .iter()
            .map(|at| function(&machine, at).port_type.unwrap().to_string())
            .collect();
        assert_eq!(
            types,
            [
                "root port",
                "switch, upstream port",
                "switch, downstream port"
            ]
        );
        let host = &machine.host;
        assert_eq!(host.release.as_deref(), Some("6.12.9-amd64"));
        assert_eq!(host.cpu_name.as_deref(), Some("Intel(R) Xeon(R) Gold"));
        assert_eq!(host.cpu.map(|cpu| cpu.vendor), Some(Vendor::Intel));
    }

    #[test]
    fn verdicts_depend_on_acs_and_on_host_bridges_that_are_left_out() {
        let machine = machine();
        let find = |name| machine.find(name).unwrap();
        let pair = machine.pair(find("nvme0"), find("gpu0"));
        let kernel = pair.kernel.unwrap();
        assert_eq!(kernel.way, Way::BusAddress);
        assert!(kernel.conditions[0].when[0].contains("0000:18:01.0"));
        assert_eq!(pair.wire.unwrap().distance, Distance::Pix);

        let pair = machine.pair(find("mlx5_0"), find("gpu0"));
        let kernel = pair.kernel.unwrap();
        assert_eq!(kernel.way, Way::NotSupported);
        assert_eq!(
            kernel.conditions[0].when,
            ["the kernel's list has the host bridge of pci0000:16"],
            "that of 0000:40 has a listed root port at device 0"
        );
        assert_eq!(pair.wire.unwrap().distance, Distance::Sys);
    }

    #[test]
    fn device_on_another_bus_is_below_a_port_that_is_not_shown() {
        let machine = machine();
        let adapter = "45:00.0".parse::<Address>().unwrap();
        assert_eq!(
            machine.bridges_above(adapter),
            (vec![adapter.port_above()], true)
        );
        let text = TEXT.replace("type=\"Bridge\" bridge_type=\"0-1\"", "type=\"Group\"");
        let machine = Machine::read(&text).unwrap();
        assert_eq!(
            machine.function(adapter).unwrap().place,
            Place::Unknown,
            "without any bridge"
        );
    }

    #[test]
    fn only_a_single_node_counts() {
        let sets = [
            ("0x00000001", Some(0)),
            ("0x00000004,0x0", Some(34)),
            ("0x00000100,,0x0", Some(72)),
            ("0x00000003", None),
            ("0x00000001,0x00000001", None),
            ("0x0", None),
            ("", None),
            ("all", None),
        ];
        for (set, node) in sets {
            assert_eq!(only_node(set), node, "{set}");
        }
    }

    #[test]
    fn machine_without_devices_is_refused() {
        let text = "<topology version=\"2.0\"><object type=\"Machine\"/></topology>";
        let error = Machine::read(text).unwrap_err().to_string();
        assert!(
            error.starts_with("hwloc's file shows no PCI device: `lstopo"),
            "{error}"
        );
    }
}
