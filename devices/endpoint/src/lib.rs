//! A PCI function served over vfio-user: the adapter between a device's logic and its bus.
//!
//! [`Endpoint`] answers what a vfio-user client asks of a PCI device: configuration space and BARs become regions, the
//! client's event descriptors become interrupts, its DMA mappings the memory map of the function's
//! [`Requester`](peerbar_dma::Requester), and its connection the way upstream. [`daemon::serve`] is the rest of a
//! daemon's `main`.
#![forbid(unsafe_code)]

pub mod daemon;
mod endpoint;
mod interrupts;

pub use endpoint::{BarMemory, Endpoint};
pub use interrupts::Vectors;
