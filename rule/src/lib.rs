//! Which way Linux lets one PCI function reach the memory of another, and why.
//!
//! The kernel decides this once for each pair of a provider, whose memory it is, and a client, whose DMA it is
//! (Linux drivers/pci/p2pdma.c, `calc_map_type_and_dist`). Here the same decision is a pure function of a description:
//! a [`Fabric`], the tree of host bridges, ports and endpoints, and a [`Platform`], the processor, the IOMMU and the
//! kernel's version. Its result, a [`Decision`], says beside the verdict which hops the way has and which of them decided.
//!
//! It holds for Linux 6.13 to 7.2, which differ in their lists of host bridges only.
//!
//! ```
//! use peerbar_rule::{Cpu, DeviceId, Fabric, Function, Kind, Platform, Release, Vendor, Verdict, decide};
//!
//! let mut fabric = Fabric::default();
//! let root = fabric.add_host_bridge("pcie.0", Some(DeviceId { vendor: 0x8086, device: 0x29c0 }));
//! let mut below_a_port = |name: &str| {
//!     let port = fabric.add(root, Function::new("port", Kind::RootPort, DeviceId { vendor: 0x1b36, device: 0x000c }));
//!     fabric.add(port, Function::new(name, Kind::Endpoint, DeviceId { vendor: 0x1b36, device: 0x0010 }))
//! };
//! let (disk, gpu) = (below_a_port("disk"), below_a_port("gpu"));
//! let mut platform = Platform {
//!     cpu: Cpu { vendor: Vendor::Intel, family: 6 },
//!     translates: false,
//!     kernel: Release::NEWEST,
//! };
//! assert_eq!(decide(&fabric, &platform, gpu, disk).unwrap().verdict, Verdict::NotSupported);
//! platform.cpu = Cpu { vendor: Vendor::Amd, family: 0x17 };
//! assert_eq!(decide(&fabric, &platform, gpu, disk).unwrap().verdict, Verdict::ThroughHostBridgePhysical);
//! ```

#![forbid(unsafe_code)]

mod acs;
mod decision;
mod fabric;
mod host_bridges;
mod platform;
mod walk;
mod words;

pub use acs::AcsControl;
pub use decision::{Ascent, Decision, Hop, Permit, Reason, Redirect, Verdict, decide};
pub use fabric::{DeviceId, Fabric, Function, FunctionId, HostBridge, HostBridgeId, Kind, Parent};
pub use platform::{Cpu, Platform, Release, Vendor};
