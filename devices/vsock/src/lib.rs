//! A virtio socket device (virtio 1.2, 5.10) outside QEMU: the guest's vsock on one side, a Unix
//! socket on the other.
//!
//! A program of the host connects to the Unix socket, writes `CONNECT PORT` and a newline, and
//! reads `OK` and a number once a program of the guest has accepted at that vsock port; then the
//! socket is the connection. Firecracker and vhost-device-vsock have the same convention. The
//! host's kernel needs no module, so a CID means nothing outside its own guest.
//!
//! - `server`: one QEMU after another, each by its own events
//! - `requests`: the messages of vhost-user, which the crate `vhost` receives
//! - `ring`: one queue
//! - `device`: the packets in the queues
//! - `multiplexer`: all connections, in turn
//! - `connection`: one connection, with the credit of both directions
//!
//! Neither side can make the other wait, or the device grow: data beyond the guest's credit ends
//! its connection, and connections, greetings and refusals have limits. Nor can QEMU, or another
//! front-end: the device never waits for an eventfd of a front-end, and leaves a front-end that
//! takes its memory away. Not supported: connections that the guest requests, which are refused,
//! seqpacket sockets, and transport events.

#![forbid(unsafe_code)]

mod connection;
mod device;
mod handshake;
mod header;
mod multiplexer;
mod requests;
mod ring;
mod server;

pub use server::{Listening, ServeError, serve};
