//! A PCI function served over vfio-user: the adapter between a device's logic and its bus.
//!
//! [`Endpoint`] answers the requests that a vfio-user client makes to a PCI device. Configuration
//! space and BARs become regions, the client's event descriptors become interrupts, its DMA
//! mappings become the memory map of the function's [`Requester`](peerbar_dma::Requester), and its
//! connection becomes the path upstream. Below a switch ([`Endpoint::attach_to_switch`]) its peers
//! reach its open BARs, and it reaches theirs. [`daemon::run`] is a daemon's `main`.
#![forbid(unsafe_code)]

mod control;
pub mod daemon;
mod decoder;
mod delayed;
mod endpoint;
mod interrupts;
mod options;
mod recording;
mod running;
mod shared_registers;
mod switch_port;

pub use endpoint::{BarMemory, ClientMemory, Endpoint, PeerPages};
pub use interrupts::Vectors;
pub use options::DeviceOptions;
pub use peerbar_host::Size;
pub use peerbar_sandbox::{Connections, FileAccess};
pub use peerbar_switch::{Acknowledgement, AttachError};
pub use running::{FaultObserver, Running, Served, StartError};
pub use shared_registers::{EngineRequests, LONGEST_STEP, SharedRegisters, Task};
pub use switch_port::{ObservedWindow, WindowObserver, limit_windows};
