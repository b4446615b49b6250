//! The known facts of a machine: its PCI functions, processor, kernel and IOMMU.
//!
//! Everything except a function's address may be unknown, because a text may not show it. `None`
//! means that the source does not tell; where a fact can be absent, its type says so.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use peerbar_rule::{AcsControl, Cpu, DeviceId, PortType, Release, Vendor};
use serde::{Deserialize, Serialize};

use crate::address::Address;

/// A machine, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Its PCI functions.
    pub functions: BTreeMap<Address, Function>,
    /// Processor, kernel and IOMMU.
    pub host: Host,
    /// The source lists every function. If not, a function that is missing is unknown, not absent.
    pub is_complete: bool,
    /// The source leaves out functions that it holds unimportant, such as host bridges: the first
    /// function that it shows on a root bus may not be the first.
    pub is_selection: bool,
    /// The source's own statements about pairs, such as the kernel's log lines.
    pub statements: Vec<Statement>,
    /// The contradictions in the source.
    pub conflicts: Vec<Conflict>,
    /// The facts that the source lacks, as sentences.
    pub gaps: Vec<String>,
}

/// A contradiction in a source, most of them about the function at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Conflict {
    /// Two outputs show different ACS control registers. The last one counts.
    Acs(Address),
    /// Two outputs show different devices, or different buses below a bridge. The later output does
    /// not count.
    Device(Address),
    /// A file shows the function at two places. The first one counts.
    Place(Address),
    /// A table shows distances of the device that cannot all be true. It has no place then.
    Distance(Address),
    /// The port redirects, although the command line keeps the kernel from switching that on. The
    /// port's register counts.
    Parameter(Address),
    /// There are IOMMU groups, although the command line switches the IOMMU off.
    Iommu,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acs(at) => write!(
                f,
                "the ACS of {at} differs between two outputs; the last one counts"
            ),
            Self::Device(at) => write!(
                f,
                "a later output has another device or bus number at {at}, so it does not count"
            ),
            Self::Place(at) => write!(f, "the file shows {at} at two places; the first one counts"),
            Self::Distance(at) => write!(
                f,
                "the distances of {at} contradict those of other devices, so they do not count"
            ),
            Self::Parameter(at) => write!(
                f,
                "the command line has pci=disable_acs_redir for {at}, which redirects: one of the two is of another boot, \
                 somebody has changed ACS since, or the kernel ignores the parameter; ACS counts"
            ),
            Self::Iommu => f.write_str(
                "the command line switches the IOMMU off, and there are IOMMU groups: one of the two is of another boot, \
                 or the parameter is another vendor's",
            ),
        }
    }
}

/// Processor, kernel and IOMMU of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// The processor, as CPUID describes it.
    pub cpu: Option<Cpu>,
    /// The processor's name.
    pub cpu_name: Option<String>,
    /// The processor may be any of AMD's Zen families: a host bridge shows it, CPUID was not seen.
    pub is_zen_by_host_bridge: bool,
    /// The kernel's release, `uname -r`.
    pub release: Option<String>,
    /// The parameters of the kernel's command line that concern PCI and the IOMMU.
    pub command_line: Option<String>,
    /// The default mode of the IOMMU.
    pub iommu: Option<Iommu>,
    /// The kernel's `CONFIG_PCI_P2PDMA`.
    pub has_p2pdma: Option<bool>,
    /// The hypervisor in which this machine is a guest, if it shows one.
    pub hypervisor: Option<String>,
}

impl Host {
    /// Returns the processor in words: its name, or the kind on which the rule depends.
    pub fn processor(&self) -> Option<String> {
        let kind = |cpu: Cpu| match cpu.vendor {
            _ if cpu.is_trusted() => "AMD Zen or later".to_owned(),
            Vendor::Intel => "Intel processor".to_owned(),
            Vendor::Amd | Vendor::Other => cpu.to_string(),
        };
        self.cpu_name.clone().or_else(|| self.cpu.map(kind))
    }
}

/// The IOMMU's treatment of a device's DMA (Linux,
/// Documentation/ABI/testing/sysfs-kernel-iommu_groups).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Iommu {
    /// No IOMMU, or one that is off.
    Off,
    /// It passes addresses on as they are: `identity`.
    PassThrough,
    /// It translates: `DMA`, `DMA-FQ`.
    Translates,
}

/// A PCI function, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Function {
    /// The port or bridge above it.
    pub place: Place,
    /// Vendor and device ID.
    pub id: Option<DeviceId>,
    /// Base class and subclass, such as 0x0302.
    pub class: Option<u16>,
    /// Vendor and device in words.
    pub description: String,
    /// Device or port type of its PCIe capability.
    pub port_type: Option<PortType>,
    /// A port has a slot (PCIe Base 6.0, 7.5.3.2, Slot Implemented).
    pub has_slot: Option<bool>,
    /// First and last bus below a bridge.
    pub buses: Option<(u8, u8)>,
    /// Access Control Services.
    pub acs: Acs,
    /// Its memory BARs.
    pub bars: Vec<Bar>,
    /// COMMAND, Memory Space Enable. A virtual function has no such bit: its physical function
    /// enables its memory (PCIe Base 6.0, 9.3.4.1.3).
    pub decodes_memory: Option<bool>,
    /// COMMAND, Bus Master Enable.
    pub masters_bus: Option<bool>,
    /// Its link to the port above it; for a port, the link below it.
    pub link: Option<Link>,
    /// Max Payload Size in bytes.
    pub max_payload: Option<u16>,
    /// Device Control, Enable Relaxed Ordering.
    pub relaxed_ordering: Option<bool>,
    /// The number of address bits that its driver lets it use for DMA (sysfs, `dma_mask_bits`).
    pub dma_bits: Option<u32>,
    /// NUMA node.
    pub numa_node: Option<u16>,
    /// The first device below its root bus, which stands for that bus in a source without
    /// addresses.
    pub root_bus: Option<Address>,
    /// IOMMU group.
    pub iommu_group: Option<u32>,
    /// The mode of its IOMMU group.
    pub iommu: Option<Iommu>,
    /// Its driver.
    pub driver: Option<String>,
    /// Names of its devices in the kernel: `nvme0`, `renderD128`, `mlx5_0`.
    pub names: Vec<String>,
    /// It publishes memory for peer-to-peer DMA (sysfs, `p2pmem`).
    pub p2pmem: Option<bool>,
}

/// The place at which a function is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// On a root bus.
    RootBus,
    /// On the bus below this bridge.
    Below(Address),
    /// The source does not show the bridge above it.
    #[default]
    Unknown,
}

/// Access Control Services of a function (PCIe Base 6.0, 7.7.11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Acs {
    /// The source does not show the function's extended configuration space.
    #[default]
    Unknown,
    /// The function has no such capability.
    Absent,
    /// Its control register.
    Control(AcsControl),
}

/// A memory BAR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bar {
    /// Number, 0 to 5.
    pub index: u8,
    /// Address on the bus, or `None` if it has none.
    pub address: Option<u64>,
    /// Size in bytes, or `None` if the source does not tell.
    pub size: Option<u64>,
    /// It has a 64-bit address.
    pub is_64_bit: bool,
    /// It is prefetchable.
    pub is_prefetchable: bool,
    /// The largest size that Resizable BAR offers, in bytes.
    pub largest: Option<u64>,
}

/// A link's speed and width, now and at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Link {
    /// Speed in GT/s.
    pub speed: Option<f32>,
    /// Lanes.
    pub width: Option<u8>,
    /// The highest speed in GT/s.
    pub max_speed: Option<f32>,
    /// The highest number of lanes.
    pub max_width: Option<u8>,
}

/// A statement of the kernel about a pair or a host bridge.
///
/// It keeps the parts of a log line that matter and not the line, in which there may be host names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Statement {
    /// "cannot be used for peer-to-peer DMA": the map type is "not supported".
    Refused {
        /// The client.
        client: Address,
        /// The provider.
        provider: Address,
    },
    /// "ACS redirect is set between the client and provider".
    Redirected {
        /// The client.
        client: Address,
        /// The provider.
        provider: Address,
    },
    /// "Host bridge not in P2PDMA whitelist".
    NotListed {
        /// The host bridge's ID.
        id: DeviceId,
    },
    /// A fault that an IOMMU reported for a device's DMA.
    IommuFault {
        /// The device that issued the DMA.
        client: Address,
        /// The address that it accessed.
        address: Option<u64>,
    },
}

impl fmt::Display for Statement {
    /// Writes the statement in the kernel's words (Linux drivers/pci/p2pdma.c).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { client, provider } => write!(
                f,
                "{client}: cannot be used for peer-to-peer DMA as the client and provider ({provider}) do not share \
                 an upstream bridge or whitelisted host bridge"
            ),
            Self::Redirected { client, provider } => write!(
                f,
                "{client}: ACS redirect is set between the client and provider ({provider})"
            ),
            Self::NotListed { id } => write!(f, "Host bridge not in P2PDMA whitelist: {id}"),
            Self::IommuFault { client, address } => {
                write!(f, "IOMMU fault of {client}")?;
                address.map_or(Ok(()), |address| write!(f, " at address {address:#x}"))
            }
        }
    }
}

/// The kind of a device, by its class code and its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An NVMe controller.
    Nvme,
    /// A display or 3D controller.
    Gpu,
    /// A processing accelerator.
    Accelerator,
    /// A network or RDMA adapter.
    Nic,
    /// Any other function with memory for peers.
    Memory,
    /// A bridge or port.
    Bridge,
    /// Anything else.
    Other,
}

/// The least size, in bytes, of a BAR that makes its function a provider.
const PROVIDER_BAR: u64 = 16 << 20;

impl Function {
    /// Returns its kind.
    pub fn kind(&self) -> Kind {
        match self.class {
            Some(0x0108) => Kind::Nvme,
            Some(0x0300 | 0x0302 | 0x0380) if self.is_management_display() => Kind::Other,
            Some(0x0300 | 0x0302 | 0x0380) => Kind::Gpu,
            Some(0x1200 | 0x0b40) => Kind::Accelerator,
            Some(class) if class >> 8 == 0x02 => Kind::Nic,
            Some(class) if class >> 8 == 0x06 => Kind::Bridge,
            _ if self.provider_bar().is_some() => Kind::Memory,
            _ => Kind::Other,
        }
    }

    /// Returns its type in words, if it is known.
    pub(crate) fn kind_in_words(&self) -> Option<String> {
        let is_bridge = self.class == Some(0x0604);
        Some(match self.port_type? {
            PortType::Other if is_bridge => "bridge between PCIe and PCI".to_owned(),
            kind => kind.to_string(),
        })
    }

    /// Returns `true` for the display of a server's management controller, which no program
    /// computes on: ASPEED's and Matrox's.
    fn is_management_display(&self) -> bool {
        let by_id = self
            .id
            .is_some_and(|id| [0x1a03, 0x102b].contains(&id.vendor));
        by_id
            || ["ASPEED", "Matrox"]
                .iter()
                .any(|vendor| self.description.starts_with(vendor))
    }

    /// Returns the largest BAR that can hold memory for peers: 64-bit, prefetchable, 16 MiB or
    /// more.
    pub fn provider_bar(&self) -> Option<&Bar> {
        let holds = |bar: &&Bar| {
            bar.is_64_bit
                && bar.is_prefetchable
                && bar.size.is_some_and(|size| size >= PROVIDER_BAR)
        };
        self.bars.iter().filter(holds).max_by_key(|bar| bar.size)
    }

    /// Returns `true` if it offers memory to peers: it publishes p2pmem, has a BAR for that, or is
    /// a GPU whose BARs are unknown. A network adapter has doorbells in such a BAR, not memory.
    pub fn is_provider(&self) -> bool {
        let kind = self.kind();
        let is_gpu = matches!(kind, Kind::Gpu | Kind::Accelerator);
        self.p2pmem == Some(true)
            || self.provider_bar().is_some() && kind != Kind::Nic
            || is_gpu && self.bars.iter().all(|bar| bar.size.is_none())
    }

    /// Returns `true` if it is a provider, or a network adapter whose doorbells are in a BAR like a
    /// provider's. Peers may write to these, as a GPU does that posts work requests itself.
    pub fn is_target(&self) -> bool {
        self.is_provider() || self.provider_bar().is_some()
    }

    /// Returns `true` if a matrix lists it: every device of interest, or every function except
    /// bridges if `all` is set.
    pub(crate) fn is_listed(&self, all: bool) -> bool {
        self.is_of_interest() || all && self.kind() != Kind::Bridge
    }

    /// Returns `true` if it is a disk, a GPU, an accelerator, a network adapter, or has memory for
    /// peers.
    pub fn is_of_interest(&self) -> bool {
        !matches!(self.kind(), Kind::Bridge | Kind::Other)
    }
}

impl Machine {
    /// Returns the function at `address`.
    pub fn function(&self, address: Address) -> Option<&Function> {
        self.functions.get(&address)
    }

    /// Returns the bridges above `address`, the nearest first, and whether the last of them is on a
    /// root bus.
    pub fn bridges_above(&self, address: Address) -> (Vec<Address>, bool) {
        let mut bridges = Vec::new();
        let mut at = address;
        loop {
            match self.function(at).map(|function| function.place) {
                // A loop in a made-up text must end.
                Some(Place::Below(bridge)) if !bridges.contains(&bridge) => {
                    bridges.push(bridge);
                    at = bridge;
                }
                Some(Place::RootBus) => return (bridges, true),
                _ => return (bridges, false),
            }
        }
    }

    /// Returns `true` if both are functions of one device. Only one device is below a port,
    /// whatever the device numbers of its functions (PCIe Base 6.0, 6.13, Alternative Routing-ID
    /// Interpretation), or their buses, on which virtual functions may go on (9.2.1.2).
    pub fn is_one_device(&self, a: Address, b: Address) -> bool {
        let link_above = |address: Address| match self.function(address)?.place {
            Place::Below(port) => Some(port).filter(|port| {
                let kind = self.function(*port).and_then(|port| port.port_type);
                matches!(kind, Some(PortType::RootPort | PortType::DownstreamPort))
            }),
            Place::RootBus | Place::Unknown => None,
        };
        a.is_same_device(b) || link_above(a).is_some_and(|port| Some(port) == link_above(b))
    }

    /// Returns domain and number of the root bus above `address`, if it is known. If the source
    /// does not show the bus, its NUMA node stands for it.
    pub fn root_bus(&self, address: Address) -> Option<(u32, u8)> {
        let (bridges, is_whole) = self.bridges_above(address);
        let top = bridges.last().copied().unwrap_or(address);
        is_whole.then(|| self.bus(top))
    }

    /// Returns the bus that the function at `address` is on. The bus of a port that the source does
    /// not show is unknown; a device or its NUMA node stands for it, or 255 if that is unknown,
    /// too.
    fn bus(&self, address: Address) -> (u32, u8) {
        let root_bus = self
            .function(address)
            .and_then(|function| function.root_bus);
        if let Some(first) = root_bus {
            return first.root_bus_above();
        }
        let node = || {
            let node = self.function(address)?.numa_node?;
            u8::try_from(node).ok()
        };
        let bus = if address.is_not_shown() {
            node().unwrap_or(u8::MAX)
        } else {
            address.bus
        };
        (address.domain, bus)
    }

    /// Returns the functions on a root bus, in the order of their addresses.
    pub fn on_root_bus(
        &self,
        (domain, bus): (u32, u8),
    ) -> impl Iterator<Item = (&Address, &Function)> {
        self.functions.iter().filter(move |(address, function)| {
            function.place == Place::RootBus && self.bus(**address) == (domain, bus)
        })
    }

    /// Returns the kernel's release, or the newest that the rule knows.
    pub fn release(&self) -> Release {
        let known = self.host.release.as_deref().and_then(Release::parse);
        known.unwrap_or(Release::NEWEST)
    }

    /// Fills in where functions are attached, from the bus numbers of bridges.
    pub(crate) fn attach_by_bus_numbers(&mut self) {
        let bridges = self.bridges_by_bus();
        let root_buses = self.root_buses();
        let place = |address: &Address| {
            let bus = (address.domain, address.bus);
            match bridges.get(&bus) {
                Some(bridge) => Place::Below(*bridge),
                None if root_buses.contains(&bus) => Place::RootBus,
                None => self
                    .bridge_of_virtual_functions(*address, &bridges)
                    .map_or(Place::Unknown, Place::Below),
            }
        };
        let places: Vec<Place> = self.functions.keys().map(place).collect();
        for (function, place) in self.functions.values_mut().zip(places) {
            function.place = place;
        }
    }

    /// Returns the bridges by the bus below each.
    fn bridges_by_bus(&self) -> BTreeMap<(u32, u8), Address> {
        let functions = self.functions.iter();
        let bridges = functions.filter_map(|(address, function)| {
            // Firmware that has not numbered a bridge's buses leaves zeros.
            let (first, _) = function.buses.filter(|(first, _)| *first > address.bus)?;
            Some(((address.domain, first), *address))
        });
        bridges.collect()
    }

    /// Returns the bridge above a bus that no bridge leads to, because only virtual functions of a
    /// device are on it (PCIe Base 6.0, 9.2.1.2): the lowest bridge in whose range it is, if there
    /// are functions on the bus below that bridge and no further bridge.
    fn bridge_of_virtual_functions(
        &self,
        address: Address,
        bridges: &BTreeMap<(u32, u8), Address>,
    ) -> Option<Address> {
        let is_before = (address.domain, 0)..(address.domain, address.bus);
        let has_it = |bridge: &&Address| {
            let buses = self.function(**bridge).and_then(|bridge| bridge.buses);
            buses.is_some_and(|(_, last)| address.bus <= last)
        };
        let ((_, first), bridge) = bridges
            .range(is_before)
            .rev()
            .find(|(_, bridge)| has_it(bridge))?;
        let start = Address {
            bus: *first,
            device: 0,
            function: 0,
            ..address
        };
        let on_bus = self
            .functions
            .range(start..)
            .take_while(|(at, _)| (at.domain, at.bus) == (address.domain, *first));
        let kinds: BTreeSet<Kind> = on_bus.map(|(_, function)| function.kind()).collect();
        let is_device = !kinds.is_empty() && !kinds.contains(&Kind::Bridge);
        is_device.then_some(*bridge)
    }

    /// Returns the buses that are root buses for certain: bus 0, those with a function that exists
    /// there only, and in a domain that the source shows wholly those with a bridge of the host
    /// bridge's vendor that are in no other bridge's range.
    fn root_buses(&self) -> BTreeSet<(u32, u8)> {
        let below = self.buses_below_bridges();
        let partial = self.partial_domains(&below);
        let is_top = |address: &Address, function: &Function| {
            let first = Address {
                bus: 0,
                device: 0,
                function: 0,
                ..*address
            };
            let first = self.function(first);
            function.kind() == Kind::Bridge
                && first.is_some_and(|first| first.has_vendor_of(function))
                && !below.contains(&(address.domain, address.bus))
        };
        let is_on_a_root_bus = |(address, function): &(&Address, &Function)| {
            address.bus == 0
                || function.place == Place::RootBus
                || function.is_on_a_root_bus()
                || !partial.contains(&address.domain) && is_top(address, function)
        };
        let on_root_buses = self.functions.iter().filter(is_on_a_root_bus);
        on_root_buses
            .map(|(address, _)| (address.domain, address.bus))
            .collect()
    }

    /// Returns the domains in which the source leaves out a port, or a port's bus numbers. `below`
    /// are the buses below bridges.
    fn partial_domains(&self, below: &BTreeSet<(u32, u8)>) -> BTreeSet<u32> {
        let is_partial = |(address, function): &(&Address, &Function)| {
            let is_unnumbered = function.class == Some(0x0604) && function.buses.is_none();
            let is_orphan = address.bus != 0
                && function.is_below_a_port()
                && !below.contains(&(address.domain, address.bus));
            is_unnumbered || is_orphan
        };
        let functions = self.functions.iter().filter(is_partial);
        functions.map(|(address, _)| address.domain).collect()
    }

    /// Returns the buses that are in the range of a bridge on another bus.
    fn buses_below_bridges(&self) -> BTreeSet<(u32, u8)> {
        let range = |(address, bridge): (&Address, &Function)| {
            let (first, last) = bridge.buses?;
            let Address { domain, bus, .. } = *address;
            let others = (first..=last).filter(move |below| *below != bus);
            Some(others.map(move |below| (domain, below)))
        };
        self.functions.iter().filter_map(range).flatten().collect()
    }
}

impl Function {
    /// Returns `true` if its kind exists on root buses only.
    fn is_on_a_root_bus(&self) -> bool {
        let kinds = [PortType::RootPort, PortType::IntegratedEndpoint];
        self.class == Some(0x0600) || self.port_type.is_some_and(|kind| kinds.contains(&kind))
    }

    /// Returns `true` if its kind is always below a port.
    fn is_below_a_port(&self) -> bool {
        let kinds = [
            PortType::UpstreamPort,
            PortType::DownstreamPort,
            PortType::Endpoint,
        ];
        self.port_type.is_some_and(|kind| kinds.contains(&kind))
    }

    /// Returns `true` if both have one vendor, by their IDs or the first words of their names.
    fn has_vendor_of(&self, other: &Self) -> bool {
        match (self.id, other.id) {
            (Some(own), Some(other)) => own.vendor == other.vendor,
            _ => self.description.split(' ').next() == other.description.split(' ').next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{at, machine};

    /// Returns the place of the function at `address` in a list of headers and bus numbers.
    fn place(text: &str, address: &str) -> Place {
        machine(text).function(at(address)).unwrap().place
    }

    const HOST: &str = "00:00.0 Host bridge: Intel Corporation Device 09a2\n";

    /// An entry of a bridge with the buses `secondary` to `subordinate` below it.
    fn bridge(address: &str, vendor: &str, kind: &str, buses: [&str; 2]) -> String {
        format!(
            "{address} PCI bridge: {vendor}\n\tBus: primary={}, secondary={}, subordinate={}, sec-latency=0\n\t{kind}\n\n",
            &address[..2],
            buses[0],
            buses[1]
        )
    }

    #[test]
    fn bridge_to_pci_has_its_kind() {
        let kind = "Capabilities: [80] Express (v1) PCI-Express to PCI/PCI-X Bridge, MSI 00";
        let machine = machine(&bridge("04:00.0", "Pericom", kind, ["05", "05"]));
        let words = machine.function(at("04:00.0")).unwrap().kind_in_words();
        assert_eq!(words.as_deref(), Some("bridge between PCIe and PCI"));
    }

    #[test]
    fn port_of_a_switch_is_on_no_root_bus() {
        let kind = |kind: &str| format!("Capabilities: [68] Express (v2) {kind}, MSI 00");
        let up = bridge("18:00.0", "Intel", &kind("Upstream Port"), ["19", "1a"]);
        let untyped = bridge("18:00.0", "Intel", "", ["19", "1a"]);
        let foreign = bridge("18:00.0", "PMC-Sierra Inc.", "", ["19", "1a"]);
        let root = bridge("00:01.0", "Intel", &kind("Root Port"), ["18", "1a"]);
        assert_eq!(place(&format!("{HOST}{up}"), "18:00.0"), Place::Unknown);
        assert_eq!(
            place(&format!("{HOST}{foreign}"), "18:00.0"),
            Place::Unknown
        );
        assert_eq!(
            place(&format!("{HOST}{untyped}"), "18:00.0"),
            Place::RootBus
        );
        assert_eq!(
            place(&format!("{HOST}{root}{up}"), "18:00.0"),
            Place::Below(at("00:01.0"))
        );
        // A switch whose port is missing shows that other ports may be, too.
        let orphan = bridge("28:00.0", "PLX", &kind("Upstream Port"), ["29", "2a"]);
        assert_eq!(
            place(&format!("{HOST}{untyped}{orphan}"), "18:00.0"),
            Place::Unknown
        );
    }

    #[test]
    fn virtual_functions_are_below_the_bridge_of_their_device() {
        let outer = bridge("00:01.0", "Intel", "", ["40", "45"]);
        let inner = bridge("40:00.0", "PLX", "", ["41", "42"]);
        let device = "41:00.0 Ethernet controller: Mellanox\n";
        let virtual_function = "42:00.2 Ethernet controller: Mellanox\n";
        let beyond = "43:00.0 Ethernet controller: Mellanox\n";
        let text = format!("{HOST}{outer}{inner}{device}{virtual_function}{beyond}");
        assert_eq!(place(&text, "42:00.2"), Place::Below(at("40:00.0")));
        assert_eq!(place(&text, "43:00.0"), Place::Unknown, "a port is missing");
        let without_device = format!("{HOST}{outer}{inner}{virtual_function}");
        assert_eq!(place(&without_device, "42:00.2"), Place::Unknown);
    }
}
