//! Reads the output of `lspci`, with any of `-v`, `-vv`, `-vvv`, `-nn`, `-n`, `-D`, `-x`, `-xxx`
//! and `-xxxx`, as people paste it: indented, quoted, cut, several outputs one after the other, or
//! as a list of IOMMU groups.
//!
//! A function that is shown more than once has the facts of all its entries.

use std::mem;

use peerbar_rule::{AcsControl, DeviceId, PortType};

use crate::address::Address;
use crate::config_space;
use crate::machine::{Acs, Bar, Function};
use crate::names;
use crate::output::Output;

/// Returns the outputs in `text`. An output lists functions in the order of their addresses.
pub(crate) fn outputs(text: &str) -> Vec<Output> {
    let mut entries = Entries::default();
    for (number, line) in text.lines().enumerate() {
        entries.take(number, line);
    }
    entries.end_entry(true);
    entries.end_output();
    entries.outputs
}

/// The position in a text.
#[derive(Default)]
struct Entries {
    outputs: Vec<Output>,
    output: Output,
    /// The entry that is read.
    entry: Option<Entry>,
    /// The IOMMU group under whose heading the entry is.
    iommu_group: Option<u32>,
    /// A command that selects lines was shown, and no other `lspci` since then.
    is_filtered: bool,
}

/// A function's entry.
struct Entry {
    address: Address,
    function: Function,
    /// The lines before the capabilities that every entry of `lspci -vv`, or of `lspci -v`, has.
    registers: Registers,
    /// A line with a capability was shown.
    has_capabilities: bool,
    /// The PCIe capability was shown.
    has_express: bool,
    /// An extended capability was shown.
    has_extended: bool,
    /// The capability list has ACS, although its registers may not be shown.
    has_acs: bool,
    /// The lines are those of a capability about virtual functions, whose BARs are not this
    /// function's.
    is_about_virtual_functions: bool,
    /// The beginning of an ACS Control line that a mail program has wrapped.
    acs_control: Option<String>,
    /// The driver, which follows the capabilities, was shown.
    has_driver: bool,
    /// Somebody has left out a part of it.
    is_cut: bool,
    /// The device's registers read as ones.
    is_silent: bool,
    /// An empty line has followed.
    is_followed_by_empty: bool,
    /// The number of the next BAR, which `lspci -v` does not show.
    next_bar: u8,
    /// The configuration space, as far as it is dumped.
    dump: Vec<u8>,
}

/// The lines of an entry about its COMMAND and STATUS registers.
#[derive(Default)]
struct Registers {
    control: bool,
    status: bool,
    flags: bool,
}

/// Characters that mail programs, trackers and terminals put before a line.
const DECORATION: [char; 4] = [' ', '\t', '>', '|'];

/// Commands that select lines.
const FILTERS: [&str; 6] = ["grep", "egrep", "fgrep", "rg", "awk", "sed"];

/// Beginnings of words for what somebody has left out.
const OMISSIONS: [&str; 8] = [
    "...", "\u{2026}", "snip", "omit", "trunc", "skip", "remov", "shorten",
];

impl Entries {
    fn take(&mut self, number: usize, line: &str) {
        let line = line.trim_start_matches(DECORATION).trim_end();
        if line.is_empty() {
            self.iommu_group = None;
            if let Some(entry) = &mut self.entry {
                entry.is_followed_by_empty = true;
            }
            return;
        }
        let line = self.without_iommu_group(line);
        if let Some(header) = header(line) {
            self.begin(number, &header);
        } else if begins_with_an_address(line) {
            self.end_entry(false);
        } else if line.starts_with("```") || is_command(line) {
            self.iommu_group = None;
            self.end_entry(true);
        } else if is_filter(line) {
            self.end_entry(false);
        } else if let Some(entry) = &mut self.entry {
            if entry.is_followed_by_empty {
                self.end_entry(false);
            } else {
                entry.take(line);
            }
        }
        if is_command(line) || is_filter(line) {
            self.is_filtered = is_filter(line);
        }
    }

    /// Splits off `IOMMU Group 15: ` or `IOMMU Group 15 `, and remembers the group.
    fn without_iommu_group<'a>(&mut self, line: &'a str) -> &'a str {
        const HEADING: &str = "iommu group ";
        let split = line.split_at_checked(HEADING.len());
        let Some((_, rest)) = split.filter(|(start, _)| start.eq_ignore_ascii_case(HEADING)) else {
            return line;
        };
        let end = rest.find(|c: char| !c.is_ascii_digit());
        let (group, rest) = rest.split_at(end.unwrap_or(rest.len()));
        if group.is_empty() {
            return line;
        }
        self.end_entry(true);
        self.iommu_group = group.parse().ok();
        rest.trim_start_matches([':', ' ', '\t', '-'])
    }

    fn begin(&mut self, number: usize, header: &Header<'_>) {
        self.end_entry(true);
        let last = self.output.functions.last_key_value();
        if last.is_none_or(|(last, _)| *last >= header.address) {
            self.end_output();
            self.output.line = number;
        }
        if let Some(bridge) = header.bridge {
            let bridge = self.output.functions.entry(bridge).or_default();
            bridge
                .buses
                .get_or_insert((header.address.bus, header.address.bus));
        }
        let mut entry = Entry::new(header.address);
        describe(&mut entry.function, header.text);
        entry.function.iommu_group = self.iommu_group;
        self.entry = Some(entry);
    }

    /// Ends an entry. It is whole if its driver was shown, or an empty line before something that
    /// may follow an entry, which is what `is_before_output` says.
    fn end_entry(&mut self, is_before_output: bool) {
        let Some(mut entry) = self.entry.take() else {
            return;
        };
        let has_end = entry.has_driver || entry.is_followed_by_empty && is_before_output;
        if has_end && !self.is_filtered && entry.shows_that_it_lacks_acs() {
            entry.function.acs = Acs::Absent;
        }
        if entry.is_silent {
            self.output.gaps.push(format!(
                "the registers of {}, which did not answer: it fell off the bus, or sleeps",
                entry.address
            ));
        } else {
            entry.read_dump();
        }
        self.output.functions.insert(entry.address, entry.function);
    }

    fn end_output(&mut self) {
        let output = mem::take(&mut self.output);
        if !output.functions.is_empty() {
            self.outputs.push(output);
        }
    }
}

impl Entry {
    fn new(address: Address) -> Self {
        Self {
            address,
            function: Function::default(),
            registers: Registers::default(),
            has_capabilities: false,
            has_express: false,
            has_extended: false,
            has_acs: false,
            is_about_virtual_functions: false,
            acs_control: None,
            has_driver: false,
            is_cut: false,
            is_silent: false,
            is_followed_by_empty: false,
            next_bar: 0,
            dump: Vec::new(),
        }
    }

    fn take(&mut self, line: &str) {
        if let Some(beginning) = self.acs_control.take() {
            self.acs_control(&format!("{beginning} {line}"));
        } else if let Some(bytes) = dumped(line, self.dump.len()) {
            self.dump.extend(bytes);
        } else if let Some(capability) = line.strip_prefix("Capabilities: [") {
            self.capability(capability);
        } else if let Some(bits) = line.strip_prefix("ACSCtl:") {
            self.has_acs = true;
            self.acs_control(bits);
        } else if line.starts_with("!!! Unknown header type") {
            self.is_silent = true;
        } else if is_omission(line) {
            self.is_cut = true;
        } else {
            self.has_driver |= line.starts_with("Kernel ");
            self.detail(line);
        }
    }

    /// Returns `true` if the entry, which has an end, shows by itself that nobody selected some of
    /// its lines, and that the function has no ACS.
    ///
    /// An unprivileged `lspci`, or one without access to the extended configuration space, shows no
    /// extended capability. A function without the PCIe capability has none.
    fn shows_that_it_lacks_acs(&self) -> bool {
        let Registers {
            control,
            status,
            flags,
        } = self.registers;
        let is_unfiltered = flags || control && status;
        let reaches_acs = self.has_extended || self.has_capabilities && !self.has_express;
        is_unfiltered && reaches_acs && !self.has_acs && !self.is_cut
    }

    /// Reads the first line of a capability, such as `148 v1] Access Control Services`.
    fn capability(&mut self, text: &str) {
        let Some((offset, name)) = text.split_once(']') else {
            return;
        };
        let offset = offset.split(' ').next().unwrap_or_default();
        self.has_capabilities = true;
        self.has_extended |= u16::from_str_radix(offset, 16).is_ok_and(|offset| offset >= 0x100);
        let name = name.trim_start();
        self.has_acs |= name.starts_with("Access Control Services");
        self.is_about_virtual_functions =
            ["Single Root I/O Virtualization", "Virtual Resizable BAR"]
                .iter()
                .any(|capability| name.starts_with(capability));
        if let Some(express) = name.strip_prefix("Express") {
            self.has_express = true;
            let kind = port_type(express);
            self.function.port_type = kind.or(self.function.port_type);
            self.function.has_slot = slot(express).or(self.function.has_slot);
        }
    }

    /// Reads the bits of ACS Control. The last that redirects is P2P Egress Control.
    fn acs_control(&mut self, text: &str) {
        if flag(text, "EgressCtrl").is_some() {
            let control = AcsControl::from_lspci(text);
            self.function.acs = control.map_or(Acs::Unknown, Acs::Control);
        } else if text.len() < 100 {
            self.acs_control = Some(text.to_owned());
        }
    }

    /// Reads the dump of the configuration space. Ones are the answer of no device.
    fn read_dump(&mut self) {
        if self.dump.iter().any(|byte| *byte != 0xff) {
            config_space::read(&self.dump, &mut self.function);
        }
    }
}

/// Returns `true` for a line with a command that prints functions.
fn is_command(line: &str) -> bool {
    line.contains("lspci ") || line.ends_with("lspci")
}

/// Returns `true` for a line with a command that selects lines.
fn is_filter(line: &str) -> bool {
    let mut words = line.split(|c: char| !c.is_alphanumeric());
    words.any(|word| FILTERS.contains(&word))
}

/// Returns `true` for a line within an entry that `lspci` cannot have written, because somebody put
/// it in the place of others.
fn is_omission(line: &str) -> bool {
    const NAMES: [&str; 3] = ["Subsystem:", "DeviceName:", "Kernel "];
    if NAMES.iter().any(|name| line.starts_with(name)) {
        return false;
    }
    // Lines of the Vital Product Data begin with `[PN] `.
    let keyword = line
        .strip_prefix('[')
        .and_then(|line| line.split_once("] "));
    let is_keyword = keyword.is_some_and(|(keyword, _)| keyword.len() == 2);
    let begins =
        line.starts_with(|c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '!');
    let has_word = || {
        let line = line.to_ascii_lowercase();
        OMISSIONS.iter().any(|word| line.contains(word))
    };
    !(begins || is_keyword || line.starts_with("[virtual] ")) || has_word()
}

/// Reads a line of a dump, `40: 0d 80 00 00 …`, if it is that at `offset`.
fn dumped(line: &str, offset: usize) -> Option<Vec<u8>> {
    let (at, bytes) = line.split_once(": ")?;
    let is_next = usize::from_str_radix(at, 16).ok()? == offset;
    let byte = |word: &str| (word.len() == 2).then(|| u8::from_str_radix(word, 16).ok());
    let bytes: Option<Vec<u8>> = bytes
        .split_ascii_whitespace()
        .map(|word| byte(word).flatten())
        .collect();
    bytes.filter(|bytes| is_next && bytes.len() <= 16)
}

/// The first line of an entry.
struct Header<'a> {
    address: Address,
    /// The bridge above it, which `lspci -PP` shows.
    bridge: Option<Address>,
    /// Class and device.
    text: &'a str,
}

/// Reads the first line of an entry.
fn header(line: &str) -> Option<Header<'_>> {
    // The kernel parameter `pci=earlydump`.
    if let Some(line) = line.strip_suffix(" config space:") {
        return Some(Header {
            address: line.rsplit(' ').next()?.parse().ok()?,
            bridge: None,
            text: "",
        });
    }
    let (address, text) = line.split_once([' ', '\t'])?;
    let text = text.trim_start();
    let (class, _) = text.split_once(": ")?;
    // Logs and tables contain addresses, too. A class is a number, or a few words that begin with a
    // capital letter or a digit.
    let is_number = hex(class, 4).is_some();
    let is_name = class.starts_with(|c: char| c.is_ascii_uppercase() || c.is_ascii_digit());
    let (address, bridge) = path(address)?;
    (class.len() < 60 && (is_number || is_name)).then_some(Header {
        address,
        bridge,
        text,
    })
}

/// Reads an address, or the path to it, such as `0000:00:1c.3/08:00.0/09:01.0`. Returns it and the
/// bridge above it.
fn path(text: &str) -> Option<(Address, Option<Address>)> {
    let mut parts = text.split('/');
    let mut address: Address = parts.next()?.parse().ok()?;
    let mut bridge = None;
    for part in parts {
        bridge = Some(address);
        address = format!("{:04x}:{part}", address.domain).parse().ok()?;
    }
    Some((address, bridge))
}

/// Returns `true` for a line that tells of another function than the entry, in another format.
fn begins_with_an_address(line: &str) -> bool {
    let word = line.split([' ', '\t', '/']).next();
    word.is_some_and(|word| word.parse::<Address>().is_ok())
}

/// Reads `3D controller [0302]: NVIDIA Corporation GH100 [10de:2330] (rev a1)`, with or without the
/// numbers, or with nothing but numbers.
fn describe(function: &mut Function, text: &str) {
    let Some((class, device)) = text.split_once(": ") else {
        return;
    };
    let class = class.strip_prefix("Class ").unwrap_or(class);
    let (class_name, class_number) = bracketed(class);
    let number = class_number
        .or(Some(class_name))
        .and_then(|text| hex(text, 4));
    function.class = number
        .or_else(|| names::class(class_name))
        .or(function.class);

    describe_device(function, device);
}

/// Reads `NVIDIA Corporation GH100 [10de:2330] (rev a1)`, with or without the numbers, or with
/// nothing but numbers.
pub(crate) fn describe_device(function: &mut Function, text: &str) {
    let device = text.split(" (rev ").next().unwrap_or(text);
    let device = device
        .split(" (prog-if ")
        .next()
        .unwrap_or(device)
        .trim_end();
    let (name, ids) = bracketed(device);
    let number = name.parse::<DeviceId>().ok();
    let id = ids.and_then(|ids| ids.parse().ok()).or(number);
    function.id = id.or_else(|| names::device_id(name)).or(function.id);
    if number.is_none() {
        function.description = names::published(name);
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

/// Parses a hexadecimal number of exactly `digits` digits.
fn hex(text: &str, digits: usize) -> Option<u16> {
    let is_hex = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u16::from_str_radix(text, 16).ok()).flatten()
}

/// Reads `(Slot+)` in the first line of a PCIe capability.
fn slot(text: &str) -> Option<bool> {
    let has = |flag: &str| text.contains(flag);
    (has("(Slot+)") || has("(Slot-)")).then(|| has("(Slot+)"))
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

impl Entry {
    /// Reads any other line.
    fn detail(&mut self, line: &str) {
        let function = &mut self.function;
        let (key, value) = line
            .split_once(':')
            .map_or((line, ""), |(key, value)| (key, value.trim()));
        match key {
            // Capabilities have lines of these names, too.
            "Control" if !self.has_capabilities => {
                self.registers.control = true;
                function.decodes_memory = flag(value, "Mem");
                function.masters_bus = flag(value, "BusMaster");
            }
            "Status" if !self.has_capabilities => self.registers.status = true,
            "Flags" if !self.has_capabilities => {
                self.registers.flags = true;
                flags(function, value);
            }
            "NUMA node" => function.numa_node = value.parse().ok(),
            "IOMMU group" => function.iommu_group = value.parse().ok(),
            "Kernel driver in use" => {
                function.driver = value.split(' ').next().map(str::to_owned);
            }
            "Bus" => function.buses = buses(value).or(function.buses),
            "LnkCap" => {
                let link = function.link.get_or_insert_default();
                (link.max_speed, link.max_width) = (speed(value), width(value));
            }
            "LnkSta" => {
                let link = function.link.get_or_insert_default();
                (link.speed, link.width) = (speed(value), width(value));
            }
            _ => self.other_detail(line),
        }
    }

    /// Reads a line that does not begin with a key.
    fn other_detail(&mut self, line: &str) {
        if self.is_about_virtual_functions {
            return;
        }
        let function = &mut self.function;
        let memory = line.trim_start_matches("[virtual] ");
        // The BARs of a virtual function are in its physical function's capability, as is the bit
        // that enables them.
        if line.contains("[virtual] Memory at ") {
            function.decodes_memory = None;
        }
        if let Some(region) = line.strip_prefix("Region ") {
            add_bar(function, region);
        } else if let Some(text) = memory.strip_prefix("Memory at ") {
            let bar = bar(self.next_bar, text);
            let taken = if bar.is_some_and(|bar| bar.is_64_bit) {
                2
            } else {
                1
            };
            self.next_bar = self.next_bar.saturating_add(taken);
            function.bars.extend(bar);
        } else if line.starts_with("I/O ports at ") {
            self.next_bar = self.next_bar.saturating_add(1);
        } else if let Some(text) = line.strip_prefix("BAR ") {
            resizable(function, text);
        } else if let Some(payload) = line.strip_prefix("MaxPayload ") {
            function.max_payload = payload.split(' ').next().and_then(|size| size.parse().ok());
        } else if let Some(is_set) = flag(line, "RlxdOrd") {
            function.relaxed_ordering = Some(is_set);
        }
    }
}

/// Reads the line of `lspci -v` that stands for several: `bus master, fast devsel, latency 0, IOMMU
/// group 2`. Memory decoding is not among them.
fn flags(function: &mut Function, text: &str) {
    let number = |prefix: &str| text.split(", ").find_map(|word| word.strip_prefix(prefix));
    function.masters_bus = Some(text.split(", ").any(|word| word == "bus master"));
    if let Some(group) = number("IOMMU group ") {
        function.iommu_group = group.parse().ok();
    }
    if let Some(node) = number("NUMA node ") {
        function.numa_node = node.parse().ok();
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
    use crate::machine::{Kind, Machine, Place};

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
>     Control: I/O- Mem+ BusMaster+
>     Status: Cap+ 66MHz-
>     Region 0: Memory at 3b0042000000 (64-bit, prefetchable) [size=16M]
>     Region 2: Memory at 3a0000000000 (64-bit, prefetchable) [size=128G]
>     Capabilities: [60] Express (v2) Endpoint, MSI 00
>     Capabilities: [134 v1] Physical Resizable BAR
>         BAR 2: current size: 128GB, supported: 64MB 128GB
>
";

    fn machine_of(text: &str) -> Machine {
        let mut machine = Machine::default();
        machine.add_outputs(outputs(text));
        machine.attach_by_bus_numbers();
        machine
    }

    fn machine() -> Machine {
        machine_of(TEXT)
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
        let text =
            "40:01.0 PCI bridge: Intel Corporation Device 1234\n\tCapabilities: <access denied>\n";
        let machine = machine_of(text);
        let port = machine.functions.values().next().unwrap();
        assert_eq!(port.acs, Acs::Unknown);
    }

    /// A port's entry, whose lines after the header are `details`.
    fn acs_of_port(details: &str) -> Acs {
        let text = format!("00:01.0 PCI bridge: Intel Corporation Device 1234\n{details}");
        let machine = machine_of(&text);
        machine.function("00:01.0".parse().unwrap()).unwrap().acs
    }

    const REGISTERS: &str = "\tControl: I/O+ Mem+ BusMaster+\n\tStatus: Cap+ 66MHz-\n";
    const EXPRESS: &str = "\tCapabilities: [40] Express (v2) Root Port (Slot-), MSI 00\n";
    const ERRORS: &str = "\tCapabilities: [100 v1] Advanced Error Reporting\n";

    #[test]
    fn port_lacks_acs_only_if_its_entry_shows_that_by_itself() {
        let resizable =
            "01:00.0 3D controller: NVIDIA\n\tCapabilities: [bb0 v1] Physical Resizable BAR\n\n";
        for (details, expected) in [
            (format!("{REGISTERS}{EXPRESS}{ERRORS}"), Acs::Absent),
            (
                format!("\tFlags: fast devsel\n{EXPRESS}{ERRORS}"),
                Acs::Absent,
            ),
            (
                format!("{REGISTERS}\tCapabilities: [50] Subsystem: Intel\n"),
                Acs::Absent,
            ),
            (format!("{EXPRESS}{ERRORS}"), Acs::Unknown),
            (format!("\tControl: Mem+\n{EXPRESS}{ERRORS}"), Acs::Unknown),
            (format!("{REGISTERS}{EXPRESS}"), Acs::Unknown),
        ] {
            let text = format!("{details}\tKernel driver in use: pcieport\n\n{resizable}");
            assert_eq!(acs_of_port(&text), expected, "{details}");
        }
    }

    #[test]
    fn selected_lines_show_no_lack_of_acs() {
        let entry = format!("00:01.0 PCI bridge: Intel\n{REGISTERS}{EXPRESS}{ERRORS}\n");
        let acs = |before: &str| {
            let machine = machine_of(&format!("{before}{entry}```\n"));
            machine.function("00:01.0".parse().unwrap()).unwrap().acs
        };
        assert_eq!(acs("$ sudo lspci -vvv\n"), Acs::Absent);
        for filter in [
            "$ sudo lspci -vvv | grep -E 'Control|Status'\n```\n",
            "$ egrep '^[0-9a-f]|Control|Status' saved\n",
        ] {
            assert_eq!(acs(filter), Acs::Unknown, "{filter}");
            assert_eq!(acs(&format!("{filter}$ lspci -vvv\n")), Acs::Absent);
        }
    }

    #[test]
    fn port_lacks_acs_only_if_its_entry_is_whole() {
        let acs = |end: &str| acs_of_port(&format!("{REGISTERS}{EXPRESS}{ERRORS}{end}"));
        assert_eq!(acs("\tKernel driver in use: pcieport\n"), Acs::Absent);
        assert_eq!(acs("\n"), Acs::Absent);
        assert_eq!(
            acs("\n00:02.0 PCI bridge: Intel Corporation\n"),
            Acs::Absent
        );
        assert_eq!(acs(""), Acs::Unknown, "the text ends");
        assert_eq!(
            acs("00:02.0 PCI bridge: Intel\n"),
            Acs::Unknown,
            "a line was left out"
        );
        assert_eq!(
            acs("\nThat is all I have.\n"),
            Acs::Unknown,
            "prose follows"
        );
        assert_eq!(
            acs("\t[...]\n\tKernel driver in use: pcieport\n"),
            Acs::Unknown
        );
        for omission in [
            "(output omitted)",
            "[cut]",
            "[14 lines]",
            "<...>",
            "--snip--",
            "***",
            "# ...",
            "and so on",
            "Some lines skipped",
            "Capabilities ...",
        ] {
            assert_eq!(
                acs(&format!("\t{omission}\n\tKernel driver in use: pcieport\n")),
                Acs::Unknown,
                "{omission}"
            );
        }
        let product_data = "\t\t[PN] Part number: 1\n\t!!! Unknown\n\t\t\t10BitTagComp-\n\n";
        assert_eq!(acs(product_data), Acs::Absent);
        let hidden =
            "\tCapabilities: [148 v1] Access Control Services\n\tKernel driver in use: pcieport\n";
        assert_eq!(
            acs(hidden),
            Acs::Unknown,
            "`lspci -v` does not show the bits"
        );
    }

    #[test]
    fn bits_of_acs_are_read_from_a_wrapped_line_but_not_from_a_part() {
        let bits = "\tCapabilities: [148 v1] Access Control Services\n\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+\n";
        let end = "UpstreamFwd+ EgressCtrl- DirectTrans-\n";
        assert_eq!(
            acs_of_port(&format!("{bits}{end}")),
            Acs::Control(AcsControl(0x1d))
        );
        assert_eq!(acs_of_port(bits), Acs::Unknown);
    }

    #[test]
    fn acs_of_another_command_is_not_the_last_entry_s() {
        let bits = "ACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-\n";
        for between in [
            "\n",
            "$ sudo lspci -vvv | grep ACSCtl\n",
            "00:1c.3/00.0 PCI bridge: PLX Technology, Inc.\n",
            "01:00.0 \"PCI bridge\" \"PLX\"\n",
        ] {
            assert_eq!(
                acs_of_port(&format!("{between}{bits}")),
                Acs::Unknown,
                "{between}"
            );
        }
    }

    #[test]
    fn path_of_bridges_gives_the_place() {
        let machine = machine_of(
            "0000:00:1c.3 PCI bridge [0604]: Intel Corporation [8086:7a3b]\n0000:00:1c.3/08:00.0 PCI bridge [0604]: Pericom [12d8:2404]\n0000:00:1c.3/08:00.0/09:01.0 PCI bridge [0604]: Pericom [12d8:2404]\n",
        );
        let place = |address: &str| machine.function(address.parse().unwrap()).unwrap().place;
        assert_eq!(place("09:01.0"), Place::Below("08:00.0".parse().unwrap()));
        assert_eq!(place("08:00.0"), Place::Below("00:1c.3".parse().unwrap()));
    }

    #[test]
    fn iommu_groups_are_read_from_a_list() {
        let machine = machine_of(
            "IOMMU Group 15:\n\t3b:00.0 3D controller [0302]: NVIDIA [10de:2330]\n\t3b:00.1 Audio device [0403]: NVIDIA [10de:22ba]\nIOMMU Group 16 3c:00.0 Non-Volatile memory controller [0108]: Samsung [144d:a80a]\n\n3d:00.0 Ethernet controller: Intel Corporation\n",
        );
        let groups: Vec<Option<u32>> = machine.functions.values().map(|f| f.iommu_group).collect();
        assert_eq!(groups, [Some(15), Some(15), Some(16), None]);
    }

    #[test]
    fn dump_is_decoded_as_far_as_it_goes() {
        let line = |at: usize, bytes: &str| format!("{at:02x}: {bytes}\n");
        let zeros = "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00";
        let mut dump = String::from("19:08.0 Class 0604: 10b5:8747\n");
        dump += &line(0, "b5 10 47 87 06 04 10 00 ca 00 04 06 00 00 01 00");
        dump += &line(0x10, "00 00 00 00 00 00 00 00 19 1a 1a 00 00 00 00 00");
        dump += &line(0x20, zeros);
        dump += &line(0x30, "00 00 00 00 68 00 00 00 00 00 00 00 00 00 00 00");
        dump += &line(0x40, zeros);
        dump += &line(0x50, zeros);
        dump += &line(0x60, "00 00 00 00 00 00 00 00 10 00 62 00 00 00 00 00");
        for at in (0x70..0x100).step_by(16) {
            dump += &line(at, zeros);
        }
        let conventional = dump.clone();
        dump += &line(0x100, "0d 00 01 00 00 00 1d 00 00 00 00 00 00 00 00 00");
        let port = |text: &str| machine_of(text).functions.values().next().cloned().unwrap();
        assert_eq!(port(&dump).acs, Acs::Control(AcsControl(0x1d)));
        assert_eq!(port(&dump).port_type, Some(PortType::DownstreamPort));
        assert_eq!(port(&dump).buses, Some((0x1a, 0x1a)));
        assert_eq!(port(&conventional).acs, Acs::Unknown);
        let ones = "19:08.0 Class 0604: 10b5:8747 (rev ff)\n00: ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff\n";
        assert_eq!(port(ones).id.map(|id| id.vendor), Some(0x10b5));
    }

    #[test]
    fn device_that_does_not_answer_is_named() {
        let outputs = outputs(
            "2f:00.0 SD Host controller: Genesys Logic (rev ff)\n\t!!! Unknown header type 7f\n\tKernel driver in use: sdhci-pci\n",
        );
        let gaps: Vec<&String> = outputs.iter().flat_map(|output| &output.gaps).collect();
        assert_eq!(
            gaps,
            ["the registers of 0000:2f:00.0, which did not answer: it fell off the bus, or sleeps"]
        );
    }

    #[test]
    fn regions_of_a_short_output_are_numbered() {
        let machine = machine_of(
            "01:00.0 VGA compatible controller: NVIDIA Corporation\n\tFlags: bus master, fast devsel, latency 0, IRQ 122, NUMA node 1, IOMMU group 2\n\tMemory at f6000000 (32-bit, non-prefetchable) [size=16M]\n\tMemory at e0000000 (64-bit, prefetchable) [size=256M]\n\tMemory at f0000000 (64-bit, prefetchable) [size=32M]\n\tCapabilities: [60] Power Management version 3\n\t\tFlags: PMEClk- DSI-\n",
        );
        let gpu = machine.functions.values().next().unwrap();
        let indices: Vec<u8> = gpu.bars.iter().map(|bar| bar.index).collect();
        assert_eq!(indices, [0, 1, 3]);
        assert_eq!(
            (gpu.masters_bus, gpu.numa_node, gpu.iommu_group),
            (Some(true), Some(1), Some(2))
        );
    }

    /// An adapter and a GPU, each with a capability about its virtual functions.
    const PHYSICAL_FUNCTIONS: &str = "\
08:00.0 Ethernet controller: Mellanox Technologies MT27710 Family [ConnectX-4 Lx]
\tRegion 0: Memory at 4018000000 (64-bit, prefetchable) [size=32M]
\tCapabilities: [180 v1] Single Root I/O Virtualization (SR-IOV)
\t\tIOVCtl:\tEnable- Migration- Interrupt- MSE- ARIHierarchy+
\t\tRegion 0: Memory at 000000401c000000 (64-bit, prefetchable)
\tKernel driver in use: mlx5_core

09:00.0 VGA compatible controller: Advanced Micro Devices, Inc. [AMD/ATI] Navi 31
\tRegion 2: Memory at 4000000000 (64-bit, prefetchable) [size=256M]
\tCapabilities: [420 v1] Physical Resizable BAR
\t\tBAR 2: current size: 256MB, supported: 256MB 512MB 1GB 2GB 4GB 8GB 16GB
\tCapabilities: [440 v1] Virtual Resizable BAR
\t\tBAR 2: current size: 256MB, supported: 256MB
\tKernel driver in use: amdgpu
";

    #[test]
    fn bars_of_virtual_functions_are_not_those_of_the_physical_function() {
        let machine = machine_of(PHYSICAL_FUNCTIONS);
        let bars = |address: &str| {
            let function = machine.function(address.parse().unwrap()).unwrap();
            let bars = function.bars.iter();
            bars.map(|bar| (bar.address, bar.size, bar.largest))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            bars("08:00.0"),
            [(Some(0x40_1800_0000), Some(32 << 20), None)]
        );
        assert_eq!(
            bars("09:00.0"),
            [(Some(0x40_0000_0000), Some(256 << 20), Some(16 << 30))]
        );
    }

    #[test]
    fn virtual_function_s_control_does_not_show_that_its_memory_is_off() {
        let decodes = |region: &str| {
            let text = format!(
                "60:00.1 Ethernet controller: Mellanox Technologies ConnectX Family mlx5Gen Virtual Function\n\tControl: I/O- Mem- BusMaster+\n\tRegion 0: {region} at 28804000000 (64-bit, prefetchable) [size=32M]\n"
            );
            machine_of(&text)
                .functions
                .values()
                .next()
                .unwrap()
                .decodes_memory
        };
        assert_eq!(decodes("[virtual] Memory"), None);
        assert_eq!(decodes("Memory"), Some(false));
    }

    #[test]
    fn other_texts_have_no_entries() {
        for text in [
            "",
            "-[0000:00]-+-00.0  Intel\n",
            "[ 1.0] pci 0000:00:1f.2: [8086:2922] type 00\n",
        ] {
            assert!(outputs(text).is_empty(), "{text}");
        }
    }
}
