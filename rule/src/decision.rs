//! The decision for one pair.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::acs::AcsControl;
use crate::host_bridges;
use crate::pci_tree::{DeviceId, FunctionId, HostBridgeId, PciTree};
use crate::platform::{Cpu, Platform, Release};
use crate::walk::{Climb, climb, meeting, redirects};

/// The way in which a client may reach a provider's memory, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The kernel's map type.
    pub verdict: MapType,
    /// The kernel's measure of distance: hops from both sides up to their meeting point. If there
    /// are several providers, the kernel takes the nearest.
    pub distance: usize,
    /// The path of a request from client to provider, both included.
    pub path: Vec<Hop>,
    /// The deciding reason.
    pub reason: Reason,
}

/// The kernel's map type, `enum pci_p2pdma_map_type`, and its meaning for the address that the
/// client is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MapType {
    /// `PCI_P2PDMA_MAP_BUS_ADDR`: the address on the bus, which a switch routes without the IOMMU.
    BusAddress,
    /// `PCI_P2PDMA_MAP_THRU_HOST_BRIDGE` behind an IOMMU that translates: an IOVA.
    ThroughHostBridgeIova,
    /// `PCI_P2PDMA_MAP_THRU_HOST_BRIDGE` without translation: the physical address.
    ThroughHostBridgePhysical,
    /// `PCI_P2PDMA_MAP_NOT_SUPPORTED`: the mapping is refused.
    NotSupported,
}

/// One hop of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hop {
    /// A function: the client, a port, the provider.
    Function(FunctionId),
    /// A host bridge.
    HostBridge(HostBridgeId),
}

/// The deciding reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The memory is the client's own.
    OwnMemory,
    /// Both are below this bridge, and no port on the path redirects.
    CommonBridge(FunctionId),
    /// Requests must go through the root complex.
    RootComplex {
        /// The reason why the request must go up.
        ascent: Ascent,
        /// The reason why the root complex may, or may not, forward it.
        permit: Permit,
    },
}

/// The reason why requests must go up to the root complex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ascent {
    /// No bridge is above both.
    NoCommonBridge,
    /// These functions redirect peer-to-peer requests; at least one.
    Redirected(Vec<Redirect>),
}

/// A function that redirects, and its bits that redirect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The function.
    pub at: FunctionId,
    /// Its ACS bits that redirect.
    pub bits: AcsControl,
}

/// The reason why peer-to-peer requests may, or may not, go through the root complex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// Yes: Linux trusts every root complex of this processor.
    Cpu(Cpu),
    /// Yes: the host bridges of both are on the list. This is the client's.
    Listed(HostBridgeId),
    /// No: this host bridge is not on the list under this ID, or `None` if the kernel finds no ID
    /// for it.
    NotListed(HostBridgeId, Option<DeviceId>),
    /// No: this host bridge is on the list only for peers that are both below it.
    OnlyWithin(HostBridgeId, DeviceId),
}

/// Decides how `client` may reach the memory of `provider`. Returns `None` if one of them is not in
/// `tree`.
pub fn decide(
    tree: &PciTree,
    platform: &Platform,
    provider: FunctionId,
    client: FunctionId,
) -> Option<Decision> {
    let (provider, client) = (climb(tree, provider)?, climb(tree, client)?);
    let ascent = match meeting(&provider, &client) {
        None => Ascent::NoCommonBridge,
        Some(meeting) => {
            let redirects = redirects(tree, &provider, &client, meeting);
            if redirects.is_empty() {
                return Some(straight(&provider, &client, meeting));
            }
            Ascent::Redirected(redirects)
        }
    };
    Some(through_the_root(tree, platform, &provider, &client, ascent))
}

/// Returns the decision for a path from the client up to the meeting point and down to the
/// provider.
fn straight(provider: &Climb, client: &Climb, (up, down): (usize, usize)) -> Decision {
    let below_meeting = provider.functions.iter().take(up).rev();
    let path = client.functions.iter().take(down.saturating_add(1));
    let reason = match (up, down, client.functions.get(down)) {
        (1.., _, Some(bridge)) | (_, 1.., Some(bridge)) => Reason::CommonBridge(*bridge),
        _ => Reason::OwnMemory,
    };
    Decision {
        verdict: MapType::BusAddress,
        distance: up.saturating_add(down),
        path: path
            .chain(below_meeting)
            .copied()
            .map(Hop::Function)
            .collect(),
        reason,
    }
}

/// Returns the decision for a path from the client up to its host bridge, over to the provider's,
/// and down.
fn through_the_root(
    tree: &PciTree,
    platform: &Platform,
    provider: &Climb,
    client: &Climb,
    ascent: Ascent,
) -> Decision {
    let distance = match meeting(provider, client) {
        Some((up, down)) => up.saturating_add(down),
        // The kernel counts the step beyond the last bridge, too.
        None => provider
            .functions
            .len()
            .saturating_add(client.functions.len()),
    };
    let permit = permit(tree, platform, provider.host_bridge, client.host_bridge);
    let verdict = match permit {
        Permit::NotListed(..) | Permit::OnlyWithin(..) => MapType::NotSupported,
        _ if platform.translates => MapType::ThroughHostBridgeIova,
        _ => MapType::ThroughHostBridgePhysical,
    };
    let mut path: Vec<Hop> = client
        .functions
        .iter()
        .copied()
        .map(Hop::Function)
        .collect();
    path.push(Hop::HostBridge(client.host_bridge));
    if provider.host_bridge != client.host_bridge {
        path.push(Hop::HostBridge(provider.host_bridge));
    }
    path.extend(provider.functions.iter().rev().copied().map(Hop::Function));
    Decision {
        verdict,
        distance,
        path,
        reason: Reason::RootComplex { ascent, permit },
    }
}

/// Checks the processor, then the provider's host bridge, then the client's, as the kernel does.
fn permit(
    tree: &PciTree,
    platform: &Platform,
    provider: HostBridgeId,
    client: HostBridgeId,
) -> Permit {
    if platform.cpu.is_trusted() {
        return Permit::Cpu(platform.cpu);
    }
    let within = provider == client;
    let refused = [provider, client].into_iter().find_map(|bridge| {
        let known_by = tree.host_bridge(bridge)?.known_by;
        let Some(id) = known_by else {
            return Some(Permit::NotListed(bridge, None));
        };
        match host_bridges::find(id, platform.kernel) {
            None => Some(Permit::NotListed(bridge, Some(id))),
            Some(entry) if entry.same_only && !within => Some(Permit::OnlyWithin(bridge, id)),
            Some(_) => None,
        }
    });
    refused.unwrap_or(Permit::Listed(client))
}

impl Decision {
    /// Returns the hop that decided: the common bridge; the first port that redirects; the host
    /// bridge that is, or is not, trusted; or the function that owns the memory.
    pub fn decisive(&self) -> Option<Hop> {
        match &self.reason {
            Reason::OwnMemory => self.path.first().copied(),
            Reason::CommonBridge(bridge) => Some(Hop::Function(*bridge)),
            Reason::RootComplex { ascent, permit } => match (permit, ascent) {
                (Permit::NotListed(bridge, _) | Permit::OnlyWithin(bridge, _), _) => {
                    Some(Hop::HostBridge(*bridge))
                }
                (_, Ascent::Redirected(redirects)) => {
                    redirects.first().map(|redirect| Hop::Function(redirect.at))
                }
                (Permit::Listed(bridge), _) => Some(Hop::HostBridge(*bridge)),
                (Permit::Cpu(_), _) => {
                    let host_bridge = |hop: &&Hop| matches!(hop, Hop::HostBridge(_));
                    self.path.iter().find(host_bridge).copied()
                }
            },
        }
    }
}

impl MapType {
    /// Returns `true` if the kernel permits the transfer.
    pub fn is_supported(self) -> bool {
        self != Self::NotSupported
    }

    /// Returns the number of the map type in `kernel`.
    pub fn number(self, kernel: Release) -> u32 {
        let [not_supported, bus_address, through_host_bridge] = numbers(kernel);
        match self {
            Self::NotSupported => not_supported,
            Self::BusAddress => bus_address,
            Self::ThroughHostBridgeIova | Self::ThroughHostBridgePhysical => through_host_bridge,
        }
    }

    /// Returns the map type that has this number in the kernel of `platform`, or `None` for a
    /// number that is not of a decision.
    pub fn from_number(number: u32, platform: &Platform) -> Option<Self> {
        let [not_supported, bus_address, through_host_bridge] = numbers(platform.kernel);
        match number {
            n if n == not_supported => Some(Self::NotSupported),
            n if n == bus_address => Some(Self::BusAddress),
            n if n != through_host_bridge => None,
            _ if platform.translates => Some(Self::ThroughHostBridgeIova),
            _ => Some(Self::ThroughHostBridgePhysical),
        }
    }
}

/// Returns the numbers of not supported, bus address, and through host bridge in `kernel`. 6.16 put
/// `PCI_P2PDMA_MAP_NONE` before them (Linux include/linux/pci-p2pdma.h, earlier
/// include/linux/dma-map-ops.h, `enum pci_p2pdma_map_type`).
fn numbers(kernel: Release) -> [u32; 3] {
    const WITH_NONE: Release = Release::new(6, 16);
    match kernel >= WITH_NONE {
        true => [2, 3, 4],
        false => [1, 2, 3],
    }
}

impl fmt::Display for MapType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BusAddress => "bus address",
            Self::ThroughHostBridgeIova => "through host bridge (IOVA)",
            Self::ThroughHostBridgePhysical => "through host bridge (physical address)",
            Self::NotSupported => "not supported",
        })
    }
}
