//! Reads the kernel's log of a boot: which functions it found, where, with which BARs, and the
//! IOMMU groups that it made (Linux drivers/pci/probe.c, drivers/pci/setup-res.c,
//! drivers/acpi/pci_root.c, drivers/iommu/iommu.c).

use std::collections::{BTreeMap, BTreeSet};

use peerbar_rule::{DeviceId, PortType};

use crate::address::{Address, bus_range};
use crate::machine::{Bar, Function, Place};
use crate::output::Output;

/// Returns what the lines of boot logs in `text` show, all of them as one output.
pub(crate) fn output(text: &str) -> Output {
    let mut log = Log::default();
    for line in text.lines() {
        log.take(line);
    }
    log.finish()
}

#[derive(Default)]
struct Log {
    functions: BTreeMap<Address, Function>,
    root_buses: BTreeSet<(u32, u8)>,
    numa_nodes: BTreeMap<(u32, u8), u16>,
}

impl Log {
    fn take(&mut self, line: &str) {
        if let Some((_, text)) = line.split_once("pci_bus ") {
            self.bus(text);
        } else if let Some((_, text)) = line.split_once("PCI Root Bridge [") {
            self.root_buses.extend(root_bridge(text));
        } else if let Some((address, text)) = of_device(line) {
            self.device(address, text);
        }
    }

    /// Reads `0000:80: root bus resource …` or `0000:80: on NUMA node 1`.
    fn bus(&mut self, text: &str) {
        let Some((bus, text)) = text.split_once(": ") else {
            return;
        };
        let Some(bus) = domain_and_bus(bus) else {
            return;
        };
        if text.starts_with("root bus resource") {
            self.root_buses.insert(bus);
        } else if let Some(node) = text.strip_prefix("on NUMA node ") {
            self.numa_nodes
                .extend(node.trim_end().parse().ok().map(|node| (bus, node)));
        }
    }

    fn device(&mut self, address: Address, text: &str) {
        let Some(fact) = fact(text) else {
            return;
        };
        let function = self.functions.entry(address).or_default();
        match fact {
            Fact::Found {
                id,
                class,
                port_type,
            } => {
                function.id = Some(id);
                function.class = Some(class);
                function.port_type = port_type.or(function.port_type);
            }
            Fact::Bridge(buses) => function.buses = Some(buses),
            Fact::Group(group) => function.iommu_group = Some(group),
            Fact::Bar(bar) => {
                function.bars.retain(|known| known.index != bar.index);
                function.bars.push(bar);
            }
        }
    }

    fn finish(mut self) -> Output {
        for (address, function) in &mut self.functions {
            let bus = (address.domain, address.bus);
            if self.root_buses.contains(&bus) {
                function.place = Place::RootBus;
            }
            function.numa_node = self.numa_nodes.get(&bus).copied();
        }
        Output {
            functions: self.functions,
            ..Output::default()
        }
    }
}

/// A line's statement about a function.
enum Fact {
    Found {
        id: DeviceId,
        class: u16,
        port_type: Option<PortType>,
    },
    Bridge((u8, u8)),
    Bar(Bar),
    Group(u32),
}

/// Splits `[ 0.5] pci 0000:3b:00.0: TEXT`. Old kernels put the address of a device that joins a
/// group into the text: `iommu: Adding device 0000:3b:00.0 to group 4`.
fn of_device(line: &str) -> Option<(Address, &str)> {
    if let Some((_, rest)) = line.split_once("Adding device ") {
        let (address, text) = rest.split_once(' ')?;
        return Some((address.parse().ok()?, text));
    }
    line.match_indices(": ").find_map(|(at, separator)| {
        let (before, after) = line.split_at_checked(at)?;
        let address = before.rsplit(' ').next()?;
        // Without a domain it is the header of lspci.
        let address = (address.len() > "3b:00.0".len()).then(|| address.parse().ok());
        Some((address.flatten()?, after.strip_prefix(separator)?.trim()))
    })
}

fn fact(text: &str) -> Option<Fact> {
    if let Some(buses) = text.strip_prefix("PCI bridge to [bus ") {
        let buses = buses.split_once(']')?.0;
        return Some(Fact::Bridge(bus_range(buses)?));
    }
    let group = text
        .strip_prefix("Adding to iommu group ")
        .or_else(|| text.strip_prefix("to group "));
    if let Some(group) = group {
        return Some(Fact::Group(group.parse().ok()?));
    }
    if text.starts_with('[') {
        return found(text);
    }
    let region = text
        .strip_prefix("reg 0x")
        .and_then(|text| {
            let (offset, range) = text.split_once(": ")?;
            let offset = u8::from_str_radix(offset, 16).ok()?.checked_sub(0x10)?;
            Some((offset / 4, range))
        })
        .or_else(|| {
            let (number, range) = text.strip_prefix("BAR ")?.split_once([' ', ':'])?;
            Some((number.parse().ok()?, range))
        });
    region.and_then(|(index, range)| bar(index, range).map(Fact::Bar))
}

/// Reads `[10de:2684] type 00 class 0x030000 PCIe Endpoint`. Kernels before 6.10 do not print the
/// type in words.
fn found(text: &str) -> Option<Fact> {
    let (id, rest) = text.strip_prefix('[')?.split_once("] type ")?;
    let (_, class) = rest.split_once("class 0x")?;
    let (class, kind) = class.split_once(' ').unwrap_or((class, ""));
    let class = u32::from_str_radix(class, 16).ok()? >> 8;
    Some(Fact::Found {
        id: id.parse().ok()?,
        class: u16::try_from(class).ok()?,
        port_type: port_type(kind),
    })
}

fn port_type(kind: &str) -> Option<PortType> {
    Some(match kind {
        "PCIe Root Port" => PortType::RootPort,
        "PCIe Switch Upstream Port" => PortType::UpstreamPort,
        "PCIe Switch Downstream Port" => PortType::DownstreamPort,
        "PCIe Endpoint" | "PCIe Legacy Endpoint" => PortType::Endpoint,
        "PCIe Root Complex Integrated Endpoint" => PortType::IntegratedEndpoint,
        "" => return None,
        _ => PortType::Other,
    })
}

/// Reads `[mem 0x3a0000000000-0x3a1fffffffff 64bit pref]`, with or without `assigned` before it.
fn bar(index: u8, text: &str) -> Option<Bar> {
    let (_, text) = text.split_once("[mem 0x")?;
    let (range, _) = text.split_once(']')?;
    let (range, flags) = range.split_once(' ').unwrap_or((range, ""));
    let (first, last) = range.split_once("-0x")?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (first, last) = (number(first)?, number(last)?);
    let is_of_header = index < 6;
    is_of_header.then_some(Bar {
        index,
        address: Some(first).filter(|first| *first != 0),
        size: last.checked_sub(first)?.checked_add(1),
        is_64_bit: flags.contains("64bit"),
        is_prefetchable: flags.contains("pref"),
        largest: None,
    })
}

/// Reads `PC01] (domain 0000 [bus 80-ff])`.
fn root_bridge(text: &str) -> Option<(u32, u8)> {
    let (domain, rest) = text.split_once("(domain ")?.1.split_once(" [bus ")?;
    let bus = bus_range(rest.split(']').next()?)?.0;
    Some((u32::from_str_radix(domain, 16).ok()?, bus))
}

/// Reads `0000:80`.
fn domain_and_bus(text: &str) -> Option<(u32, u8)> {
    let (domain, bus) = text.split_once(':')?;
    let bus = u8::from_str_radix(bus, 16).ok()?;
    Some((u32::from_str_radix(domain, 16).ok()?, bus))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Conflict, Machine};

    const LOG: &str = "\
Nov 29 10:00:00 box kernel: ACPI: PCI Root Bridge [PC01] (domain 0000 [bus 80-ff])
[    0.51] pci_bus 0000:80: root bus resource [bus 80-ff]
[    0.51] pci_bus 0000:80: on NUMA node 1
[    0.52] pci 0000:80:01.0: [8086:2030] type 01 class 0x060400 PCIe Root Port
[    0.53] pci 0000:81:00.0: [10de:2330] type 00 class 0x030200
[    0.53] pci 0000:81:00.0: reg 0x10: [mem 0xb8000000-0xb8ffffff]
[    0.53] pci 0000:81:00.0: reg 0x14: [mem 0x380000000000-0x38000fffffff 64bit pref]
[    0.53] pci 0000:81:00.0: reg 0x24: [io  0x9000-0x907f]
[    0.53] pci 0000:81:00.0: reg 0x30: [mem 0xb9000000-0xb907ffff pref]
[    0.54] pci 0000:80:01.0: PCI bridge to [bus 81-82]
[    0.55] pci 0000:81:00.0: BAR 1: assigned [mem 0x380000000000-0x381fffffffff 64bit pref]
[    0.55] pci 0000:81:00.0: BAR 1 [mem size 0x2000000000 64bit pref]: can't assign; no space
> [    0.60] pci 0000:81:00.0: Adding to iommu group 15
[    0.60] iommu: Adding device 0000:80:01.0 to group 14
";

    #[test]
    fn functions_of_a_boot_log_have_their_facts() {
        let mut machine = Machine::default();
        machine.add_earlier(output(LOG));
        machine.attach_by_bus_numbers();
        let port: Address = "80:01.0".parse().unwrap();
        let gpu = machine.function("81:00.0".parse().unwrap()).unwrap();
        assert_eq!((gpu.class, gpu.place), (Some(0x0302), Place::Below(port)));
        assert_eq!(gpu.iommu_group, Some(15));
        let bar = gpu.provider_bar().unwrap();
        assert_eq!((bar.index, bar.size), (1, Some(128 << 30)));
        assert_eq!(gpu.bars.len(), 2);
        let port = machine.function(port).unwrap();
        assert_eq!(port.port_type, Some(PortType::RootPort));
        assert_eq!(
            (port.buses, port.place),
            (Some((0x81, 0x82)), Place::RootBus)
        );
        assert_eq!((port.numa_node, port.iommu_group), (Some(1), Some(14)));
    }

    #[test]
    fn lspci_knows_better_than_the_log() {
        let mut machine = Machine::default();
        let text = "81:00.0 3D controller: NVIDIA Corporation H100\n\tIOMMU group: 3\n";
        machine.add_outputs(crate::lspci::outputs(text));
        machine.add_earlier(output(LOG));
        let gpu = machine.function("81:00.0".parse().unwrap()).unwrap();
        assert_eq!(gpu.iommu_group, Some(3));
        assert_eq!(gpu.description, "NVIDIA Corporation H100");
        assert!(gpu.provider_bar().is_some());
        let other = LOG.replace("10de:2330", "1002:740f");
        machine.add_earlier(output(&other));
        let gpu = "81:00.0".parse().unwrap();
        assert_eq!(machine.conflicts, [Conflict::Device(gpu)]);
    }
}
