//! The vfio-user protocol, mainly its server side, as QEMU's `vfio-user-pci` client implements it (QEMU
//! 10.1.1 and later).
//!
//! A [`Device`] is served to the one client of a stream by [`serve`], or to each client of a socket
//! file in turn by [`Listener::run`]. The device reaches the guest's memory through the descriptors
//! that come with [`Device::dma_map`], or by asking its [`Client`].
//!
//! # Supported
//! VERSION (0.0), DMA_MAP, DMA_UNMAP, DEVICE_GET_INFO, DEVICE_GET_REGION_INFO with sparse mmap
//! areas and a descriptor, DEVICE_GET_IRQ_INFO, DEVICE_SET_IRQS, with unmasking by eventfd,
//! REGION_READ, REGION_WRITE, REGION_WRITE_MULTI, DEVICE_RESET; towards the client DMA_READ and
//! DMA_WRITE, many at a time. Commands may ask for no reply.
//!
//! # Not supported
//! No migration and no DIRTY_PAGES, no DEVICE_GET_REGION_IO_FDS, no `twin_socket`, no masking of
//! interrupts by eventfd: these, like every unknown command, are answered with ENOTSUP. No
//! reconnection: a client that returns begins a new session.
//!
//! # Client side
//! [`remote`] is a client of other projects' servers.
//!
//! # Between others
//! [`relay`] passes the messages of any client and any server on, and [`decode`] puts them into
//! words, for `peerbar vfio-user trace`.
//!
//! # Deviation from the specification
//! A region with [`RegionMapping::NoArea`] is mappable, yet has no descriptor: QEMU's client posts
//! writes to a device without a mappable region, and a descriptor would invite a client that
//! ignores the list of areas to map it.
//!
//! # Robustness
//! The server neither panics nor hangs, regardless of the messages that a client sends or omits:
//! lengths and ranges are checked before use, a payload beyond a full transfer of 1 MiB is drained
//! in constant memory, unexpected descriptors are closed, a client that does not read loses its
//! session, and a request that it never answers times out. Its violations are logged at debug
//! level. The device bounds the number of mappings.

#![forbid(unsafe_code)]

mod accept;
mod access;
mod call;
mod channel;
mod chunks;
mod client;
pub mod decode;
mod device;
mod dispatch;
mod framing;
mod inbox;
mod irqs;
mod listener;
mod pending;
mod readiness;
mod region_info;
pub mod relay;
pub mod remote;
mod reply;
mod request;
mod request_error;
mod server;
mod socket;
mod stop;
#[cfg(test)]
mod test_message;
mod unanswered;
mod version;
mod wire;
mod writer;

pub use call::{Data, DmaRequest};
pub use client::Client;
pub use device::{
    CONFIG_REGION, Device, DeviceInfo, DmaMap, Irq, IrqAction, Region, RegionMapping,
};
pub use framing::{Deframer, Descriptors, FramingError, Message, Payload};
pub use listener::{ListenError, Listener};
pub use peerbar_host::eventfd::Event;
pub use peerbar_host::socket_file::BindError;
pub use peerbar_host::socket_file::descriptors::MAX_DESCRIPTORS;
pub use request_error::RequestError;
pub use server::{Options, SessionError, serve};
pub use socket::{Received, receive, send};
pub use stop::Stop;
pub use wire::Header;
