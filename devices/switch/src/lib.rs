//! The PCIe switch: keeps track of the bus addresses at which the endpoints below it answer.
//!
//! QEMU emulates the ports of a switch but does not route inside it. So the devices route
//! themselves, and a switch only keeps them in agreement. The daemon `peerbar-switch` ([`serve`])
//! stands for one switch. Each endpoint below it attaches through a socket ([`Attachment`], then
//! [`Link`]) and announces the windows of its BARs whenever the guest has changed them. The switch
//! passes them on to all others ([`PeerHandler`]), with descriptors of the memory behind them. From
//! then on a transfer to a peer's memory does not involve the switch; a transfer to a peer's
//! registers is a message.
//!
//! # Guarantees
//! - **A closed window is no longer used.** Its owner ends its lease, which each copy is checked
//!   against. Then [`Link::announce`] waits until every other endpoint has acknowledged the change.
//!   An endpoint acknowledges it when it has no transfer by the old windows in progress. The wait
//!   lasts [`CLOSING_TIME_OUT`] at most, and excludes endpoints that have not acknowledged another
//!   change for that time already.
//! - **All attached endpoints use a new window from their next request on.** The switch counts
//!   changes in memory that endpoints can only read ([`peerbar_dma::ChangeCount`]), and tells each
//!   endpoint the count up to which it knows all changes. An endpoint that begins a request
//!   compares the two, and waits until it knows all earlier changes. So an announcement that closes
//!   no window is answered at once, unless endpoints have yet to acknowledge the previous one.
//! - **No hang.** The switch never waits for one endpoint. An announcement, and a request that has
//!   to know a change, wait for threads that only wait for copies and transfers in progress. They
//!   wait for [`CLOSING_TIME_OUT`] at most, and a second for many changes in a row. So two
//!   endpoints that announce to each other at once do not deadlock. An endpoint leaves a switch
//!   that for 4 s does not answer, or does not send a change.
//! - **No window covers RAM.** A window outside the machine's PCI holes ([`Config::holes`]) is not
//!   passed on, so that no endpoint can intercept DMA to RAM by an announcement. With an IOMMU that
//!   translates, a window in a hole still wins over a mapping of the same address, as in a hardware
//!   switch.
//! - **No window lies outside its port's bridge windows**, if the switch has a [`BridgeSocket`]: a
//!   window is passed on once its port forwards it. The bridges belong to the virtual machine, so
//!   the switch asks for their windows ([`BridgeWindows`]) on that socket: every second, and when a
//!   window lies outside the last known ones. Until the answer comes, it uses the last one.
//! - **First claim wins.** If several windows cover one address, the one that was announced first
//!   and has not moved since answers. The switch numbers the claims; each endpoint applies them.
//! - **A peer that vanishes fails its partners' transfers.** Its windows stay claimed, without an
//!   owner, until an endpoint of the same name attaches, another endpoint claims the addresses, or
//!   all have left. An endpoint that loses its switch, or is cut off, loses all its peers. It
//!   attaches again as soon as it can, and its transfers to peers fail until the switch has sent it
//!   all peers again. Its name may still be taken for a moment: the switch answers the new
//!   connection once it has read the end of the old one, or refuses it after a second.
//!
//! # Limits
//! - Two kinds of accesses may end after their window was closed: a copy in an endpoint that was
//!   stopped in the middle of it or was already late, and a transfer by the kernel that takes
//!   longer than [`CLOSING_TIME_OUT`]. They fail, but the data that they wrote stays in the memory.
//!   No other copy begins: the owner ends the lease of a window when it closes it, and each copy is
//!   checked against the lease before and after, without the switch.
//! - Without a bridge socket, a BAR outside its bridge's window is still routed, and an endpoint
//!   may claim any unclaimed address in a hole. With a bridge socket, a change of a bridge by the
//!   guest is known after at most a second plus the time of an answer. Until then requests follow
//!   the bridge's old windows: they go to the root, if the window is new.
//! - The switch passes on the timing of links; the endpoints keep to it. No AER, no multicast.
//! - An endpoint that has lost its switch does not learn of windows that are opened before it is
//!   attached again and knows all of them: until then its requests to them go to the root, or to
//!   memory that is mapped at the same address.
//!
//! # The messages
//! Messages are packets of a `SOCK_SEQPACKET` socket, one message each, in postcard's format;
//! [`PROTOCOL`] is the version number. Descriptors of memory come with the message of its windows,
//! one for each, in order.
//!
//! | from | message | answered by |
//! | --- | --- | --- |
//! | endpoint | Hello: protocol, name | Welcome: port, link mode, descriptor of the count of changes; then a Peer for each peer; or Refused |
//! | endpoint | Link: the timing of its link, and a descriptor of the memory that reserves it | - |
//! | endpoint | Announce: its windows, all of them, and their leases | Announced; if it closes some, when all others have acknowledged |
//! | switch | Link: the same of a peer, before its first windows | - |
//! | switch | Peer: all windows of one peer, a ticket, and the count up to which all changes are known then | Ack: that ticket |
//! | switch | Known: that count, where no Peer follows | - |
//! | endpoint, attached again | Mark | a Peer of port 0, which has no endpoint, after all others |
//! | endpoint, passed on | Read, Write: of a peer, by bus address | Reply, passed back |
//!
//! An endpoint that violates the protocol is cut off; other endpoints are not affected.
//!
//! # Resources of an endpoint
//! An endpoint has one unacknowledged Peer at a time; the waiting ones are the newest of each peer,
//! not a history. So other endpoints can never fill its queue, and an endpoint that does not
//! acknowledge stays attached. It may have 64 pending requests to peers, which are dropped when
//! they expire. It is cut off only if it does not read the answers to its own requests. Without
//! descriptors or memory the switch accepts no connection and tries again a tenth of a second
//! later.

#![forbid(unsafe_code)]

mod attachment;
mod bridge_socket;
mod bridge_windows;
mod config;
mod connection;
mod last_line;
mod limits;
mod link;
mod link_mode;
mod message;
mod packet;
mod requests;
mod server;
mod switch;
mod switch_address;
mod window;

pub use attachment::Attachment;
pub use bridge_socket::{BridgeSocket, answer_to, number_of};
pub use bridge_windows::{BridgeWindows, NoBridgeWindows};
pub use config::Config;
pub use last_line::LastLine;
pub use limits::{
    CLOSING_TIME_OUT, ENDPOINT_TIME_OUT, MAX_DATA, MAX_DESCRIPTORS, MAX_PACKET, MAX_PORTS,
    MAX_WINDOWS, PROTOCOL,
};
pub use link::{Acknowledgement, Link, LinkLost, PeerHandler, PeerRequests, Unsupported};
pub use link_mode::{LinkMode, UnknownLinkMode};
pub use message::{LinkTiming, Message, PortId, Refusal, RequestError, RequestResult};
pub use packet::WireError;
pub use peerbar_host::socket_file::BindError;
pub use peerbar_host::socket_file::packets::Packet;
pub use server::{ServeError, serve};
pub use switch_address::AttachError;
pub use window::{BarBacking, BarWindow, Descriptor};
