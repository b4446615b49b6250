//! Reads the output of `lspci`, with any of `-v`, `-vv`, `-vvv`, `-nn`, `-n` and `-D`, as people
//! paste it: indented, quoted, cut, several outputs one after the other.
//!
//! A function that is shown more than once has the facts of all its entries.

use std::collections::BTreeSet;

use peerbar_rule::{AcsControl, DeviceId, PortType};

use crate::address::Address;
use crate::machine::{Acs, Bar, Function, Machine};
use crate::names;

/// Reads every entry of `text` into `machine`. Returns `true` if there is one.
pub(crate) fn read(text: &str, machine: &mut Machine) -> bool {
    let mut entries = Entries::default();
    for line in text.lines() {
        entries.take(machine, line);
    }
    entries.finish(machine);
    entries.has_any
}

/// The position in a text.
#[derive(Default)]
struct Entries {
    /// The function whose entry is read.
    at: Option<Address>,
    /// An entry was found.
    has_any: bool,
    /// Functions whose extended capabilities are shown.
    extended: BTreeSet<Address>,
    /// Functions whose capabilities are shown.
    detailed: BTreeSet<Address>,
}

/// Characters that mail programs, trackers and terminals put before a line.
const DECORATION: [char; 4] = [' ', '\t', '>', '|'];

impl Entries {
    fn take(&mut self, machine: &mut Machine, line: &str) {
        let line = line.trim_start_matches(DECORATION).trim_end();
        if let Some((address, rest)) = header(line) {
            self.at = Some(address);
            self.has_any = true;
            describe(machine.functions.entry(address).or_default(), rest);
            return;
        }
        let function = self
            .at
            .and_then(|at| Some((at, machine.functions.get_mut(&at)?)));
        let Some((at, function)) = function else {
            return;
        };
        if let Some(capability) = line.strip_prefix("Capabilities: [") {
            self.capability(at, function, capability);
        } else {
            detail(function, line);
        }
    }

    /// Reads the first line of a capability, such as `148 v1] Access Control Services`.
    fn capability(&mut self, at: Address, function: &mut Function, text: &str) {
        let Some((offset, name)) = text.split_once(']') else {
            return;
        };
        let offset = offset.split(' ').next().unwrap_or_default();
        let is_extended = u16::from_str_radix(offset, 16).is_ok_and(|offset| offset >= 0x100);
        let shown = if is_extended {
            &mut self.extended
        } else {
            &mut self.detailed
        };
        shown.insert(at);
        if let Some(express) = name.trim_start().strip_prefix("Express") {
            function.port_type = port_type(express).or(function.port_type);
        }
    }

    /// Draws the conclusions that need the whole text. A function without ACS lacks it only if the
    /// text shows extended capabilities: an unprivileged lspci does not see them.
    fn finish(&self, machine: &mut Machine) {
        for (address, function) in &mut machine.functions {
            let is_whole = self.extended.contains(address)
                || !self.extended.is_empty() && self.detailed.contains(address);
            if function.acs == Acs::Unknown && is_whole {
                function.acs = Acs::Absent;
            }
        }
    }
}

/// Splits the first line of an entry into address and the rest.
fn header(line: &str) -> Option<(Address, &str)> {
    let (address, rest) = line.split_once(' ')?;
    let (class, _) = rest.split_once(": ")?;
    // Logs and tables contain addresses, too; a class is a few words.
    let is_class = class.len() < 60 && class.starts_with(|c: char| c.is_ascii_alphanumeric());
    is_class.then_some((address.parse().ok()?, rest))
}

/// Reads `3D controller [0302]: NVIDIA Corporation GH100 [10de:2330] (rev a1)`, with or without the
/// numbers, or with nothing but numbers.
fn describe(function: &mut Function, text: &str) {
    let Some((class, device)) = text.split_once(": ") else {
        return;
    };
    let (class_name, class_number) = bracketed(class);
    let number = class_number
        .or(Some(class_name))
        .and_then(|text| hex(text, 4));
    function.class = number
        .or_else(|| names::class(class_name))
        .or(function.class);

    let device = device.split(" (rev ").next().unwrap_or(device);
    let device = device
        .split(" (prog-if ")
        .next()
        .unwrap_or(device)
        .trim_end();
    let (name, ids) = bracketed(device);
    let id = ids.and_then(device_id).or_else(|| device_id(name));
    function.id = id.or_else(|| names::device_id(name)).or(function.id);
    if device_id(name).is_none() {
        name.clone_into(&mut function.description);
    }
}

/// Splits off the last text in brackets if it is a number, or two numbers with a colon.
fn bracketed(text: &str) -> (&str, Option<&str>) {
    let inner = text
        .strip_suffix(']')
        .and_then(|text| text.rsplit_once('['));
    let is_number = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b':')
    };
    match inner {
        Some((before, number)) if number.len() >= 4 && is_number(number) => {
            (before.trim_end(), Some(number))
        }
        _ => (text, None),
    }
}

fn device_id(text: &str) -> Option<DeviceId> {
    let (vendor, device) = text.split_once(':')?;
    Some(DeviceId {
        vendor: hex(vendor, 4)?,
        device: hex(device, 4)?,
    })
}

/// Parses a hexadecimal number of exactly `digits` digits.
fn hex(text: &str, digits: usize) -> Option<u16> {
    let is_hex = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u16::from_str_radix(text, 16).ok()).flatten()
}

/// Returns the type in the first line of a PCIe capability: ` (v2) Root Port (Slot+), MSI 00`.
fn port_type(text: &str) -> Option<PortType> {
    const TYPES: [(&str, PortType); 8] = [
        ("Root Port", PortType::RootPort),
        ("Upstream Port", PortType::UpstreamPort),
        ("Downstream Port", PortType::DownstreamPort),
        (
            "Root Complex Integrated Endpoint",
            PortType::IntegratedEndpoint,
        ),
        ("Root Complex Event Collector", PortType::Other),
        ("Legacy Endpoint", PortType::Endpoint),
        ("Endpoint", PortType::Endpoint),
        ("PCI", PortType::Other),
    ];
    let text = text.trim_start();
    let text = match text.strip_prefix('(') {
        Some(version) => version.split_once(')')?.1.trim_start(),
        None => text,
    };
    let found = TYPES.iter().find(|(name, _)| text.starts_with(name));
    found.map(|(_, kind)| *kind)
}

/// Reads any other line of an entry.
fn detail(function: &mut Function, line: &str) {
    let (key, value) = line
        .split_once(':')
        .map_or((line, ""), |(key, value)| (key, value.trim()));
    match key {
        "Control" => {
            function.decodes_memory = flag(value, "Mem");
            function.masters_bus = flag(value, "BusMaster");
        }
        "NUMA node" => function.numa_node = value.parse().ok(),
        "IOMMU group" => function.iommu_group = value.parse().ok(),
        "Kernel driver in use" => function.driver = Some(value.to_owned()),
        "Bus" => function.buses = buses(value).or(function.buses),
        "LnkCap" => {
            let link = function.link.get_or_insert_default();
            (link.max_speed, link.max_width) = (speed(value), width(value));
        }
        "LnkSta" => {
            let link = function.link.get_or_insert_default();
            (link.speed, link.width) = (speed(value), width(value));
        }
        "ACSCtl" => function.acs = AcsControl::from_lspci(value).map_or(Acs::Unknown, Acs::Control),
        _ => other_detail(function, line),
    }
}

/// Reads a line that does not begin with a key.
fn other_detail(function: &mut Function, line: &str) {
    if let Some(region) = line.strip_prefix("Region ") {
        add_bar(function, region);
    } else if let Some(text) = line.strip_prefix("Memory at ") {
        // `lspci -v` does not number regions.
        let index = function
            .bars
            .last()
            .map_or(0, |bar| bar.index.saturating_add(1));
        function.bars.extend(bar(index, text));
    } else if let Some(text) = line.strip_prefix("BAR ") {
        resizable(function, text);
    } else if let Some(payload) = line.strip_prefix("MaxPayload ") {
        function.max_payload = payload.split(' ').next().and_then(|size| size.parse().ok());
    } else if let Some(is_set) = flag(line, "RlxdOrd") {
        function.relaxed_ordering = Some(is_set);
    }
}

/// Returns the value of `NAME+` or `NAME-` among the words of `text`.
fn flag(text: &str, name: &str) -> Option<bool> {
    text.split([' ', ','])
        .find_map(|word| match word.strip_prefix(name)? {
            "+" => Some(true),
            "-" => Some(false),
            _ => None,
        })
}

/// Reads `primary=00, secondary=01, subordinate=05, sec-latency=0`.
fn buses(text: &str) -> Option<(u8, u8)> {
    let number = |name: &str| {
        let value = text
            .split(", ")
            .find_map(|part| part.trim().strip_prefix(name))?;
        u8::from_str_radix(value, 16).ok()
    };
    Some((number("secondary=")?, number("subordinate=")?))
}

/// Reads `Speed 16GT/s` in a list.
fn speed(text: &str) -> Option<f32> {
    let value = text
        .split(", ")
        .find_map(|part| part.trim().strip_prefix("Speed "))?;
    value.split("GT/s").next()?.parse().ok()
}

/// Reads `Width x16` in a list.
fn width(text: &str) -> Option<u8> {
    let value = text
        .split(", ")
        .find_map(|part| part.trim().strip_prefix("Width x"))?;
    value.split(' ').next()?.parse().ok()
}

/// Adds `0: Memory at 9a000000 (64-bit, prefetchable) [size=256M]`.
fn add_bar(function: &mut Function, text: &str) {
    let Some((index, text)) = text.split_once(": ") else {
        return;
    };
    let memory = text
        .trim_start_matches("[virtual] ")
        .strip_prefix("Memory at ");
    let new = index
        .parse()
        .ok()
        .zip(memory)
        .and_then(|(index, text)| bar(index, text));
    if let Some(new) = new {
        let largest = function
            .bars
            .iter()
            .find(|bar| bar.index == new.index)
            .and_then(|bar| bar.largest);
        function.bars.retain(|bar| bar.index != new.index);
        function.bars.push(Bar { largest, ..new });
    }
}

fn bar(index: u8, text: &str) -> Option<Bar> {
    let (address, rest) = text.split_once(' ')?;
    let size = rest
        .split_once("[size=")
        .and_then(|(_, size)| bytes(size.split(']').next()?));
    Some(Bar {
        index,
        address: u64::from_str_radix(address, 16).ok(),
        size,
        is_64_bit: rest.contains("64-bit"),
        is_prefetchable: rest.contains("prefetchable") && !rest.contains("non-prefetchable"),
        largest: None,
    })
}

/// Reads `0: current size: 256MB, supported: 64MB 128MB 256MB`, of Resizable BAR.
fn resizable(function: &mut Function, text: &str) {
    let Some((index, sizes)) = text.split_once(": ") else {
        return;
    };
    let Some((_, sizes)) = sizes.split_once("supported: ") else {
        return;
    };
    let largest = sizes.split(' ').filter_map(bytes).max();
    let bar = index
        .parse::<u8>()
        .ok()
        .and_then(|index| function.bars.iter_mut().find(|bar| bar.index == index));
    if let Some(bar) = bar {
        bar.largest = largest;
    }
}

/// Parses `256M`, `16K`, `512`, `64GB`.
fn bytes(text: &str) -> Option<u64> {
    let text = text.trim().trim_end_matches('B');
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..)? {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Kind, Place};

    const TEXT: &str = "\
0000:40:01.0 PCI bridge [0604]: Intel Corporation Sky Lake-E PCI Express Root Port A [8086:2030] (rev 07) (prog-if 00 [Normal decode])
\tControl: I/O+ Mem+ BusMaster+ SpecCycle- MemWINV- VGASnoop- ParErr- Stepping- SERR- FastB2B- DisINTx+
\tNUMA node: 1
\tIOMMU group: 15
\tBus: primary=40, secondary=41, subordinate=44, sec-latency=0
\tCapabilities: [90] Express (v2) Root Port (Slot-), MSI 00
\t\tDevCtl:\tCorrErr- NonFatalErr- FatalErr- UnsupReq-
\t\t\tRlxdOrd- ExtTag- PhantFunc- AuxPwr- NoSnoop-
\t\t\tMaxPayload 256 bytes, MaxReadReq 128 bytes
\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM L1, Exit Latency L1 <16us
\t\tLnkSta:\tSpeed 8GT/s (downgraded), Width x8 (downgraded)
\tCapabilities: [110 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
\tKernel driver in use: pcieport

> 41:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)
>     Region 0: Memory at 3b0042000000 (64-bit, prefetchable) [size=16M]
>     Region 2: Memory at 3a0000000000 (64-bit, prefetchable) [size=128G]
>     Capabilities: [60] Express (v2) Endpoint, MSI 00
>     Capabilities: [134 v1] Physical Resizable BAR
>         BAR 2: current size: 128GB, supported: 64MB 128GB
";

    fn machine() -> Machine {
        let mut machine = Machine::default();
        assert!(read(TEXT, &mut machine));
        machine.attach_by_bus_numbers();
        machine
    }

    #[test]
    fn root_port_has_its_facts() {
        let machine = machine();
        let port = machine.function("40:01.0".parse().unwrap()).unwrap();
        assert_eq!(
            port.id,
            Some(DeviceId {
                vendor: 0x8086,
                device: 0x2030
            })
        );
        assert_eq!(
            port.description,
            "Intel Corporation Sky Lake-E PCI Express Root Port A"
        );
        assert_eq!((port.class, port.kind()), (Some(0x0604), Kind::Bridge));
        assert_eq!(port.port_type, Some(PortType::RootPort));
        assert_eq!(port.buses, Some((0x41, 0x44)));
        assert_eq!(port.acs, Acs::Control(AcsControl(0x1d)));
        assert_eq!(
            (port.masters_bus, port.decodes_memory),
            (Some(true), Some(true))
        );
        assert_eq!((port.numa_node, port.iommu_group), (Some(1), Some(15)));
        assert_eq!(
            (port.max_payload, port.relaxed_ordering),
            (Some(256), Some(false))
        );
        let link = port.link.unwrap();
        assert_eq!((link.speed, link.width), (Some(8.0), Some(8)));
        assert_eq!((link.max_speed, link.max_width), (Some(16.0), Some(16)));
        assert_eq!(port.place, Place::RootBus);
    }

    #[test]
    fn quoted_entry_without_numbers_is_read() {
        let machine = machine();
        let gpu = machine.function("41:00.0".parse().unwrap()).unwrap();
        assert_eq!(gpu.kind(), Kind::Gpu);
        assert_eq!(gpu.id, None);
        assert_eq!(gpu.description, "NVIDIA Corporation GH100 [H100 SXM5 80GB]");
        assert_eq!(gpu.acs, Acs::Absent);
        let bar = gpu.provider_bar().unwrap();
        assert_eq!(
            (bar.index, bar.size, bar.largest),
            (2, Some(128 << 30), Some(128 << 30))
        );
        assert_eq!(gpu.place, Place::Below("40:01.0".parse().unwrap()));
    }

    #[test]
    fn without_extended_capabilities_acs_is_unknown() {
        let mut machine = Machine::default();
        let text =
            "40:01.0 PCI bridge: Intel Corporation Device 1234\n\tCapabilities: <access denied>\n";
        assert!(read(text, &mut machine));
        let port = machine.functions.values().next().unwrap();
        assert_eq!(port.acs, Acs::Unknown);
    }

    #[test]
    fn other_texts_have_no_entries() {
        for text in [
            "",
            "-[0000:00]-+-00.0  Intel\n",
            "[ 1.0] pci 0000:00:1f.2: [8086:2922] type 00\n",
        ] {
            assert!(!read(text, &mut Machine::default()), "{text}");
        }
    }
}
