//! The PCIe switch: which endpoint below it answers at which bus address.
//!
//! QEMU emulates the ports of a switch but routes nothing inside it, so the devices do that themselves and a switch only
//! keeps them in agreement. The daemon `peerbar-switch` ([`serve`]) stands for one switch. Each endpoint below it attaches by a
//! socket ([`Attachment`], then [`Link`]) and announces the windows of its BARs whenever the guest has changed them; the
//! switch passes them on to all others ([`Neighbour`]), with descriptors of the memory behind them. A transfer to a
//! peer's memory then meets no switch at all, one to a peer's registers is a message.
//!
//! # What holds
//! - **A window that has been given up is not used any more.** [`Link::announce`] returns once every other endpoint has
//!   acknowledged the change, which it does when no transfer by the old windows is in progress. An endpoint that does not
//!   acknowledge within [`PATIENCE`] is cut off, not waited for.
//! - **No hang.** The switch never waits for one endpoint; an announcement waits for the acknowledging threads of others,
//!   which wait at most for a copy in progress. So endpoints that announce to each other at once both get on.
//! - **First claim wins.** Of several windows over one address, the one that was announced first and has not moved since
//!   answers. The switch numbers the claims, each endpoint applies them.
//! - **A peer that vanishes fails its partners' transfers.** Its windows stay claimed, with nobody behind them, until an
//!   endpoint of the same name attaches, another endpoint is put there, or all have left. When the switch itself goes, or cuts an
//!   endpoint off, that endpoint's peers are all gone to it, for good.
//!
//! # What does not
//! - The memory that an endpoint has lent to one that is cut off, or to any when the switch dies, cannot be called back: until
//!   such a peer's thread has noticed, a copy of its may still land in that memory.
//! - Bridge windows of the ports are QEMU's and are not seen here: a guest that puts a BAR outside its bridge's window
//!   still has it routed.
//! - The switch passes on what endpoints say of their links' timing; keeping to it is theirs. No AER, no multicast.
//!
//! # The messages
//! Packets of a `SOCK_SEQPACKET` socket, one message each, little-endian; [`PROTOCOL`] numbers the whole. Descriptors come with the
//! message whose windows they are the memory of, one for each in order.
//!
//! | from | message | answered by |
//! | --- | --- | --- |
//! | endpoint | Hello: protocol, name | Welcome: port, link mode, then a Peer for each peer; or Refused |
//! | endpoint | Link: how long transfers on its link take, and a descriptor of where they reserve it | nobody |
//! | endpoint | Announce: its windows, all of them | Announced, when all others have acknowledged |
//! | switch | Link: the same of a peer | nobody |
//! | switch | Peer: all windows of one peer, at an epoch | Ack: that epoch |
//! | endpoint, passed on | Read, Write: of a peer, by bus address | Reply, passed back |
//!
//! Whoever breaks the rules is cut off; what an endpoint does wrong nobody else notices.

#![forbid(unsafe_code)]

mod attachment;
mod connection;
mod decode;
mod door;
mod encode;
#[cfg(test)]
mod interleavings;
mod link;
mod link_mode;
mod message;
mod requests;
mod server;
mod socket;
mod switch;
mod wire;

pub use attachment::{AttachError, Attachment};
pub use decode::WireError;
pub use encode::Packet;
pub use link::{Lent, Link, LinkLost, Neighbour, PeerRequests, RequestError, Unsupported};
pub use link_mode::{LinkMode, UnknownLinkMode};
pub use message::{LinkTiming, Memory, Message, PortId, Refusal, Status, Window};
pub use peerbar_socket_file::BindError;
pub use server::{ServeError, serve};
pub use switch::{MAX_PORTS, PATIENCE};
pub use wire::{MAX_DATA, MAX_DESCRIPTORS, MAX_PACKET, MAX_WINDOWS, PROTOCOL};
