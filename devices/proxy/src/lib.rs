//! The device of a vfio-user server that another project wrote, as an endpoint below a switch.
//!
//! [`Proxy`] is a server to QEMU and a client of the other server. Configuration space, regions with
//! their mappable areas, interrupts with QEMU's event descriptors, resets and guest RAM pass
//! through, so QEMU and the device reach each other's memory without the proxy. A mirror of
//! configuration space follows the guest's writes. By it, the endpoint knows bus mastering and the
//! windows of the BARs.
//!
//! DMA that the server asks for by messages is DMA of the endpoint: [`peerbar_dma::Requester`]
//! routes, counts, records, delays and fails it like that of our own devices.
//!
//! # Trust
//! The server is as untrusted as the guest. If it breaks the protocol, does not answer, or dies, the
//! guest loses the device, and the daemon ends with a message.
#![forbid(unsafe_code)]

mod config;
mod function;
mod lender;
mod mappings;
mod proxy;
mod router;
mod unconfirmed;
mod upstream;
mod windows;

pub use config::{Config, ProxyError};
pub use function::{ForeignFunction, bar_memory};
pub use proxy::{Proxy, mirror};
