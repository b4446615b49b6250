//! Decides how Linux lets one PCI function reach the memory of another, and why.
//!
//! The kernel decides this once for each pair of a provider, which owns the memory, and a client,
//! which issues the DMA (Linux drivers/pci/p2pdma.c, `calc_map_type_and_dist`). Here the same
//! decision is a pure function of two arguments: a [`PciTree`] of host bridges, ports and
//! endpoints, and a [`Platform`]: processor, IOMMU and kernel release. The result, a [`Decision`],
//! has the verdict, the path of a request hop by hop, and the hop that decided.
//!
//! # Releases
//!
//! The decision is that of Linux 6.2 to 7.3. [`Release::caveat`] warns of other kernels. These
//! releases walk the tree, read ACS, trust processors and find a host bridge's device alike. They
//! differ in this:
//!
//! | since | change | here |
//! | --- | --- | --- |
//! | 6.11 | `pci=config_acs=`, with errors until 6.15 | [`Release::has_config_acs`], [`Release::may_keep_acs_redir`] |
//! | 6.16 | numbers of map types | [`MapType::number`] |
//! | 6.17 | error of a refused transfer of an NVMe disk | [`Release::refusal_of_nvme`] |
//! | 7.1, 7.1.3, 7.2, 7.3 | host bridges | [`DeviceId::listed_since`] |
//!
//! Sources read: Debian's 6.1.192, 6.12.95, 6.12.117, 7.2.6, 7.2.12, 7.2.13, 7.3-rc7 and 7.3.4.
//! Releases without a source here lie between two whose functions are equal, and the changes above
//! are dated by the pull requests of 6.11, 6.15, 6.16, 6.17, 7.1 and 7.2. The numbers are also
//! those in the type information of 6.1, 6.6, 6.14, 6.18 and 6.19.
//!
//! ```
//! use peerbar_rule::{Cpu, DeviceId, Function, MapType, PciTree, Platform, PortType, Release};
//! use peerbar_rule::{Vendor, decide};
//!
//! let mut tree = PciTree::default();
//! let root = tree.add_host_bridge("pcie.0", Some(DeviceId { vendor: 0x8086, device: 0x29c0 }));
//! let mut below_a_port = |name: &str| {
//!     let id = |device| DeviceId { vendor: 0x1b36, device };
//!     let port = tree.add(root, Function::new("port", PortType::RootPort, id(0x000c)));
//!     tree.add(port, Function::new(name, PortType::Endpoint, id(0x0010)))
//! };
//! let (disk, gpu) = (below_a_port("disk"), below_a_port("gpu"));
//! let mut platform = Platform {
//!     cpu: Cpu { vendor: Vendor::Intel, family: 6 },
//!     translates: false,
//!     kernel: Release::NEWEST,
//! };
//! assert_eq!(decide(&tree, &platform, gpu, disk).unwrap().verdict, MapType::NotSupported);
//! platform.cpu = Cpu { vendor: Vendor::Amd, family: 0x17 };
//! let decision = decide(&tree, &platform, gpu, disk).unwrap();
//! assert_eq!(decision.verdict, MapType::ThroughHostBridgePhysical);
//! ```

#![forbid(unsafe_code)]

mod acs;
mod decision;
mod host_bridges;
mod pci_tree;
mod platform;
mod walk;
mod way;
mod words;

pub use acs::AcsControl;
pub use decision::{Ascent, Decision, Hop, MapType, Permit, Reason, Redirect, decide};
pub use pci_tree::{
    DeviceId, Function, FunctionId, HostBridge, HostBridgeId, InvalidDeviceId, Parent, PciTree,
    PortType,
};
pub use platform::{Cpu, Platform, Release, Vendor};
pub use way::Way;
