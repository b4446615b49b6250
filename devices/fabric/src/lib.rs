//! The fabric between network adapters, each known by a GID.
//!
//! The daemon `peerbar-fabric` ([`serve`]) joins the adapters of one or several guests. Each
//! attaches through a socket ([`Attachment`], then [`Link`]) with a unique name and address, and
//! sends datagrams and requests to others ([`LinkSender`], [`PacketHandler`]). The fabric does not
//! interpret their contents.
//!
//! # Guarantees
//! - **A request is executed at most once**, and its requester gets the response, or an error. The
//!   fabric may lose, delay, reorder and duplicate packets ([`Impairment`]); the links send
//!   requests again, and remember those of their peers.
//! - **Every wait ends.** A request to an adapter that does not exist, or has left, ends at once or
//!   when it is next sent again, at most half a second later. A request to an adapter that gives no
//!   sign of life ends after [`PEER_TIME_OUT`], any other after [`REQUEST_TIME_OUT`].
//! - **No adapter is taken for another.** Each attachment has an incarnation that only the fabric
//!   can make, and a request reaches the incarnation that its requester knows. Once the fabric has
//!   told an adapter that another one has left, it delivers none of that one's packets to it.
//! - **No adapter stalls or disconnects another.** The fabric does not wait for adapters. It holds
//!   a limited number of packets of each, and of each pair; further packets are dropped and sent
//!   again.
//! - **Which packets are impaired follows from the seed**, the pair and the number of the packet
//!   between the two. The record ([`Record`]) has the fate of each impaired packet.
//! - **Most packets need no third process.** Two adapters that no rule selects have a direct
//!   connection, a socket that the fabric makes and can end: it ends before a rule that selects the
//!   two takes effect, and soon after one of them has left. The fabric still carries the first
//!   packets of the two, those for which the socket has no space, and all packets that are sent
//!   again.
//!
//! # Limits
//! - Requests are not ordered: one that is sent again may be executed after later ones.
//! - Descriptors do not travel between adapters that a rule selects
//!   ([`RequestError::NoDescriptors`]): shared memory would bypass the rule. A new rule is noticed
//!   within a second or so.
//! - A request that ended without a response may have been executed, or may yet be while a packet
//!   of it is still delayed.
//!
//! # The messages
//! Messages are packets of a `SOCK_SEQPACKET` socket, one message each, in postcard's format;
//! [`PROTOCOL`] is the version number. Descriptors come with the request to which they belong.
//!
//! | from | message | answered by |
//! | --- | --- | --- |
//! | adapter | Hello: protocol, name, GID | Welcome: incarnation; or Refused |
//! | adapter | Resolve: a GID | Peer: the incarnation that has it, or none |
//! | adapter | Connect: a GID | Direct, to both: the other's GID and incarnation, an end of a socket for Packets; or nothing |
//! | adapter, passed on | Packet for an incarnation: datagram, request, working, response or settled | Peer, if that incarnation is not there |
//!
//! An adapter that violates the protocol is cut off.

#![forbid(unsafe_code)]

mod attachment;
mod codec;
mod config;
mod connection;
mod control;
mod fabric;
mod gid;
mod impairment;
mod impairments;
mod limits;
mod link;
mod link_statistics;
mod message;
#[cfg(test)]
mod model;
mod record;
mod request;
mod server;
mod transport;

pub use attachment::{AttachError, Attachment};
pub use codec::WireError;
pub use config::Config;
pub use gid::Gid;
pub use impairment::{Effects, Impairment, Share, UnknownImpairment};
pub use limits::{
    MAX_ADAPTERS, MAX_DATA, MAX_DESCRIPTORS, MAX_PACKET, MAX_REQUESTS, PEER_TIME_OUT, PROTOCOL,
    REQUEST_TIME_OUT,
};
pub use link::{Link, LinkSender, PacketHandler, Reply};
pub use link_statistics::LinkStatistics;
pub use message::{Body, Incarnation, Message, Refusal};
pub use peerbar_host::socket_file::BindError;
pub use peerbar_host::socket_file::packets::Packet;
pub use record::Record;
pub use request::{RequestError, SendError};
pub use server::{ServeError, serve};
