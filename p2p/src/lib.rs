//! Which PCI devices of a machine can reach each other by peer-to-peer DMA, why not, and what to
//! change.
//!
//! A [`Machine`] is read from sysfs ([`Machine::here`]) or from a text that somebody pasted
//! ([`Machine::read`]): `lspci -vvv`, the kernel's log, a topology file of NCCL, RCCL or hwloc, a
//! dump of `rdma_topo`, a file that [`Machine`] was saved to.
//! [`Machine::pair`] gives two verdicts for DMA of one device to the memory of another: what Linux
//! decides ([`peerbar_rule`]), and where the TLPs go on the wire. Facts that the source does not
//! show make a verdict conditional.
//!
//! ```
//! use peerbar_p2p::{Machine, Way};
//!
//! let machine = Machine::read("\
//! 00:00.0 Host bridge [0600]: Intel Corporation Device [8086:09a2]
//! 00:01.0 PCI bridge [0604]: Intel Corporation Device [8086:347a]
//!     Bus: primary=00, secondary=01, subordinate=01, sec-latency=0
//! 00:02.0 PCI bridge [0604]: Intel Corporation Device [8086:347b]
//!     Bus: primary=00, secondary=02, subordinate=02, sec-latency=0
//! 01:00.0 Non-Volatile memory controller [0108]: Samsung [144d:a80a]
//! 02:00.0 3D controller [0302]: NVIDIA Corporation [10de:2330]
//! ").unwrap();
//! let pair = machine.pair(machine.find("nvme0").unwrap(), machine.find("gpu0").unwrap());
//! let kernel = pair.kernel.unwrap();
//! assert_eq!(kernel.way, Way::ThroughHostBridge);
//! assert_eq!(pair.wire.unwrap().distance.word(), "PHB");
//! ```

#![forbid(unsafe_code)]

mod address;
mod boot_log;
mod changes;
pub mod cli;
mod config_space;
mod conflicts;
mod decode;
mod gaps;
mod html;
mod hwloc;
mod kernel;
mod labels;
mod lines;
mod log;
mod lspci;
mod lspci_tree;
mod machine;
mod matrix;
mod names;
mod nccl;
mod output;
mod pair;
mod paste;
mod pci_ids;
mod rdma_topo;
mod read;
#[cfg(test)]
mod samples;
mod shape;
mod size;
mod sysfs;
mod text;
mod topo;
mod tree;
mod warnings;
mod wire;
mod xml;

pub use address::{Address, InvalidAddress};
pub use changes::Change;
pub use labels::{Labels, NoSuchDevice};
pub use lines::{block, wrap};
pub use machine::{
    Acs, Bar, Conflict, Function, Host, Iommu, Kind, Link, Machine, Place, Statement,
};
pub use matrix::{Cell, Device, Matrix};
pub use pair::{Condition, Kernel, Pair, PathHop};
pub use peerbar_rule::Way;
pub use read::ReadError;
pub use text::ranges;
pub use tree::root_bus_name;
pub use wire::{Distance, Summit, Wire};
