//! The guest's observations: the tree that its kernel found, and the decisions and messages of the
//! kernel.

use std::collections::BTreeMap;

use peerbar_p2p::Address;
use peerbar_report::{Evidence, GuestPlatform, PciFunction};
use peerbar_rule::{
    AcsControl, Cpu, DeviceId, Function, HostBridge, Parent, PciTree, Platform, PortType, Release,
    Vendor,
};

/// Evidence of one guest.
pub(crate) struct ObservedGuest {
    platform: GuestPlatform,
    functions: Vec<PciFunction>,
    evidence: Vec<Evidence>,
}

impl ObservedGuest {
    /// Makes the guest of `evidence`, or returns `None` if it died before it reported its tree.
    pub(crate) fn of(evidence: Vec<Evidence>) -> Option<Self> {
        let platform = evidence.iter().find_map(|piece| match piece {
            Evidence::Platform(platform) => Some(platform.clone()),
            _ => None,
        })?;
        let functions = evidence.iter().filter_map(|piece| match piece {
            Evidence::Function(function) => Some(function.clone()),
            _ => None,
        });
        Some(Self {
            platform,
            functions: functions.collect(),
            evidence,
        })
    }

    /// Returns the PCI functions that it found.
    pub(crate) fn functions(&self) -> &[PciFunction] {
        &self.functions
    }

    /// Gives ports the names that they have in `expected`, found from below: the same number of steps above the same device.
    pub(crate) fn name_ports(&mut self, expected: &PciTree) {
        let devices: Vec<(String, String)> = self
            .functions
            .iter()
            .filter_map(|function| Some((function.name.clone()?, function.parent.clone())))
            .collect();
        for (device, mut address) in devices {
            let mut at = expected.find(&device);
            while let Some(Parent::Bridge(port)) = at.and_then(|at| expected.parent(at)) {
                let here = self
                    .functions
                    .iter_mut()
                    .find(|function| function.address == address);
                let (Some(here), Some(port_there)) = (here, expected.function(port)) else {
                    break;
                };
                here.name = Some(port_there.name.clone());
                address.clone_from(&here.parent);
                at = Some(port);
            }
        }
    }

    /// Returns the properties of its processor and kernel for the rule, where `translates` is set
    /// for a client behind a translating IOMMU; `None` if the kernel's release is not a number.
    pub(crate) fn platform(&self, translates: bool) -> Option<Platform> {
        Some(Platform {
            cpu: Cpu {
                vendor: Vendor::from_id(&self.platform.cpu_vendor),
                family: self.platform.cpu_family,
            },
            translates,
            kernel: Release::parse(&self.platform.release)?,
        })
    }

    /// Returns the function that is called `name`, by the plan or by its address.
    pub(crate) fn function(&self, name: &str) -> Option<&PciFunction> {
        self.functions
            .iter()
            .find(|function| called(function) == name)
    }

    /// Returns `true` if an IOMMU translates the requests of the function `name` (Linux,
    /// Documentation/ABI/testing/sysfs-kernel-iommu_groups: `DMA`, `DMA-FQ` and `DMA-SQ` do,
    /// `identity` does not).
    pub(crate) fn translates(&self, name: &str) -> bool {
        let group = self
            .function(name)
            .and_then(|function| function.iommu_group.as_ref());
        group.is_some_and(|group| group.kind.starts_with("DMA"))
    }

    /// Returns its tree: devices under test by their names, all else by their addresses.
    pub(crate) fn tree(&self) -> PciTree {
        let mut tree = PciTree::default();
        let mut parents: BTreeMap<&str, Parent> = BTreeMap::new();
        for function in &self.functions {
            let (parent, id) = (function.parent.as_str(), id(function));
            let parent = *parents.entry(parent).or_insert_with(|| {
                // Functions come in the order of their addresses, so this one is the first on its root bus.
                let known_by = HostBridge::known_by(devfn(&function.address), kind(function), id);
                tree.add_host_bridge(parent, known_by).into()
            });
            let acs = function.acs.map(|acs| AcsControl(acs.control));
            let plain = Function::new(called(function), kind(function), id);
            let bridge = tree.add(parent, Function { acs, ..plain });
            parents.insert(&function.address, bridge.into());
        }
        tree
    }

    /// Returns the map type that the kernel chose last for DMA of `client` to memory of `provider`.
    pub(crate) fn map_type(&self, provider: &str, client: &str) -> Option<u32> {
        let (provider, client) = (self.function(provider)?, self.function(client)?);
        let decisions = self.evidence.iter().rev().filter_map(|piece| match piece {
            Evidence::Decision(decision) => Some(decision),
            _ => None,
        });
        let mut of_pair = decisions.filter(|decision| {
            decision.provider == provider.address && decision.client == client.address
        });
        of_pair.next().map(|decision| decision.map_type)
    }

    /// Returns the reason why the kernel's decisions were not observed, if so.
    pub(crate) fn unwatched(&self) -> Option<&str> {
        self.evidence.iter().find_map(|piece| match piece {
            Evidence::Unwatched(reason) => Some(reason.as_str()),
            _ => None,
        })
    }

    /// Returns the kernel's messages about the pair and about host bridges.
    pub(crate) fn messages(&self, provider: &str, client: &str) -> Vec<String> {
        let (Some(provider), Some(client)) = (self.function(provider), self.function(client))
        else {
            return Vec::new();
        };
        let of_pair = |message: &&String| {
            let of_client = message.contains(&format!("{}: ", client.address));
            let names_provider = message.contains(&format!("({})", provider.address));
            of_client && (names_provider || message.contains("disable_acs_redir="))
                || message.contains("P2PDMA whitelist")
        };
        let messages = self.evidence.iter().filter_map(|piece| match piece {
            Evidence::Message(message) => Some(message),
            _ => None,
        });
        messages.filter(of_pair).cloned().collect()
    }
}

fn called(function: &PciFunction) -> &str {
    function.name.as_deref().unwrap_or(&function.address)
}

fn id(function: &PciFunction) -> DeviceId {
    DeviceId {
        vendor: function.vendor,
        device: function.device,
    }
}

fn kind(function: &PciFunction) -> PortType {
    function
        .port_type
        .map_or(PortType::Other, PortType::from_number)
}

/// Returns the device number times 8 plus the function number of an address such as `0000:00:1f.2`;
/// 255, which is the first of no root bus, for anything else.
fn devfn(address: &str) -> u8 {
    address.parse().map_or(u8::MAX, Address::devfn)
}

#[cfg(test)]
pub(crate) mod tests {
    use peerbar_report::{AcsRegisters, IommuGroup, KernelDecision};
    use peerbar_rule::{MapType, decide};

    use super::*;

    fn function(address: &str, parent: &str, ids: (u16, u16), port_type: u8) -> PciFunction {
        PciFunction {
            address: address.to_owned(),
            name: None,
            parent: parent.to_owned(),
            vendor: ids.0,
            device: ids.1,
            class: 0,
            port_type: Some(port_type),
            acs: None,
            iommu_group: None,
            driver: None,
            p2pmem: None,
        }
    }

    fn named(name: &str, function: PciFunction) -> Evidence {
        let group = IommuGroup {
            number: 1,
            kind: "DMA-FQ".to_owned(),
        };
        Evidence::Function(PciFunction {
            name: Some(name.to_owned()),
            iommu_group: Some(group),
            ..function
        })
    }

    /// Two disks below root ports of a q35 with an IOMMU and this processor; the kernel chose `map_type`.
    pub(crate) fn root_ports(cpu_vendor: &str, cpu_family: u32, map_type: u32) -> Vec<Evidence> {
        root_ports_under("7.2.12+deb13-amd64", (cpu_vendor, cpu_family), map_type)
    }

    /// Does the work of [`root_ports`] under the kernel `release`.
    pub(crate) fn root_ports_under(
        release: &str,
        (cpu_vendor, cpu_family): (&str, u32),
        map_type: u32,
    ) -> Vec<Evidence> {
        let port = |address: &str| {
            let acs = AcsRegisters {
                capability: 0x5f,
                control: 0x1d,
            };
            Evidence::Function(PciFunction {
                acs: Some(acs),
                ..function(address, "pci0000:00", (0x1b36, 0x0c), 4)
            })
        };
        let disk = |name, address: &str, parent: &str| {
            named(name, function(address, parent, (0x1b36, 0x10), 0))
        };
        let platform = GuestPlatform {
            release: release.to_owned(),
            command_line: String::new(),
            cpu_vendor: cpu_vendor.to_owned(),
            cpu_family,
            cpu_model: String::new(),
        };
        let decision = KernelDecision {
            provider: "0000:01:00.0".to_owned(),
            client: "0000:02:00.0".to_owned(),
            map_type,
        };
        let message = "nvme 0000:02:00.0: cannot be used for peer-to-peer DMA as the client and provider (0000:01:00.0) do not \
                       share";
        vec![
            Evidence::Platform(platform),
            Evidence::Function(function(
                "0000:00:00.0",
                "pci0000:00",
                (0x8086, 0x29c0),
                0xf,
            )),
            port("0000:00:02.0"),
            disk("a", "0000:01:00.0", "0000:00:02.0"),
            port("0000:00:03.0"),
            disk("b", "0000:02:00.0", "0000:00:03.0"),
            Evidence::Decision(decision),
            Evidence::Message(message.to_owned()),
        ]
    }

    fn of(cpu_vendor: &str, cpu_family: u32, map_type: u32) -> ObservedGuest {
        ObservedGuest::of(root_ports(cpu_vendor, cpu_family, map_type)).unwrap()
    }

    #[test]
    fn the_guest_s_tree_is_what_its_sysfs_shows() {
        let guest = of("GenuineIntel", 6, 2);
        let tree = guest.tree();
        let platform = guest.platform(guest.translates("b")).unwrap();
        let find = |name| tree.find(name).unwrap();
        let decision = decide(&tree, &platform, find("a"), find("b")).unwrap();
        assert_eq!(decision.verdict, MapType::NotSupported);
        let way: Vec<&str> = decision.path.iter().map(|hop| tree.name(*hop)).collect();
        assert_eq!(
            way,
            ["b", "0000:00:03.0", "pci0000:00", "0000:00:02.0", "a"]
        );
        assert!(decision.why(&tree).contains("(8086:29c0)"));
        let zen = of("AuthenticAMD", 23, 4).platform(true).unwrap();
        let decision = decide(&tree, &zen, find("a"), find("b")).unwrap();
        assert_eq!(decision.verdict, MapType::ThroughHostBridgeIova);
    }

    #[test]
    fn ports_are_named_after_those_of_the_scenario() {
        let mut expected = PciTree::default();
        let root = expected.add_host_bridge("pcie.0", None);
        let id = DeviceId {
            vendor: 0,
            device: 0,
        };
        let port = expected.add(root, Function::new("root.b", PortType::RootPort, id));
        expected.add(port, Function::new("b", PortType::Endpoint, id));
        let mut guest = of("GenuineIntel", 6, 2);
        guest.name_ports(&expected);
        assert_eq!(guest.function("root.b").unwrap().address, "0000:00:03.0");
        assert!(guest.function("0000:00:02.0").is_some());
        assert_eq!(guest.tree().find("0000:00:03.0"), None);
    }

    #[test]
    fn decisions_and_messages_belong_to_their_pair() {
        let guest = of("GenuineIntel", 6, 2);
        assert_eq!(guest.map_type("a", "b"), Some(2));
        assert_eq!(guest.map_type("b", "a"), None);
        assert_eq!(guest.messages("a", "b").len(), 1);
        assert_eq!(guest.messages("b", "a").len(), 0);
    }

    #[test]
    fn devfn_is_eight_times_device_plus_function() {
        assert_eq!(devfn("0000:00:00.0"), 0);
        assert_eq!(devfn("0000:00:1f.2"), 0xfa);
        assert_eq!(devfn("nonsense"), u8::MAX);
    }

    #[test]
    fn without_its_platform_a_guest_is_none() {
        assert!(ObservedGuest::of(vec![Evidence::Unwatched(String::new())]).is_none());
    }
}
