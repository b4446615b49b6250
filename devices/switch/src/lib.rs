//! The PCIe switch: which endpoint below it answers at which bus address.
//!
//! QEMU emulates the ports of a switch but routes nothing inside it, so the devices do that themselves and a switch only
//! keeps them in agreement. The daemon `peerbar-switch` ([`serve`]) stands for one switch. Each endpoint below it attaches by a
//! socket ([`Attachment`], then [`Link`]) and announces the windows of its BARs whenever the guest has changed them; the
//! switch passes them on to all others ([`PeerHandler`]), with descriptors of the memory behind them. A transfer to a
//! peer's memory then does not involve the switch; one to a peer's registers is a message.
//!
//! # What holds
//! - **A window that has been given up is not used any more.** Its owner ends its lease, which each copy is checked against, and
//!   [`Link::announce`] then waits until every other endpoint has acknowledged the change, which it does when no transfer by the
//!   old windows is in progress. It waits for [`CLOSING_TIME_OUT`] at most, and not for endpoints that have not acknowledged
//!   another change for that time already.
//! - **A window that has been passed on is used by the next request of all that are attached.** The switch counts changes in memory that
//!   endpoints can read only ([`peerbar_dma::ChangeCount`]), and says up to which count an endpoint knows them all. An endpoint that
//!   begins a request compares the two, and waits until it knows of what has changed before. So an announcement that closes no window
//!   is answered at once, unless endpoints have still to acknowledge the one before.
//! - **No hang.** The switch never waits for one endpoint. An announcement, and a request that has to know of a change, wait for threads
//!   that wait for copies and transfers in progress only, for [`CLOSING_TIME_OUT`] at most, and a second for many changes in a row. So
//!   two endpoints that announce to each other at once do not deadlock. An endpoint leaves a switch that does not answer
//!   for 4 s, or does not send for that time what has changed.
//! - **No window covers RAM.** A window outside of the machine's PCI holes ([`BusRange`]) is passed on to no endpoint, so that none
//!   intercepts DMA to RAM by an announcement. With an IOMMU that translates, a window in a hole still wins over a
//!   mapping of the same address, as in a hardware switch.
//! - **No window is where its port forwards nothing**, if the switch has a [`BridgeSocket`]: a window is passed on once its port forwards it.
//!   The bridges are the virtual machine's, so the switch asks by that socket what they forward ([`BridgeWindows`]): when a window lies
//!   elsewhere, as far as it knows, and every second. Until the answer comes it goes by the last one.
//! - **First claim wins.** Of several windows over one address, the one that was announced first and has not moved since
//!   answers. The switch numbers the claims, each endpoint applies them.
//! - **A peer that vanishes fails its partners' transfers.** Its windows stay claimed, with no owner, until an
//!   endpoint of the same name attaches, another endpoint claims the addresses, or all have left. An endpoint that loses its
//!   switch, or is cut off, loses all its peers. It attaches again as soon as it can, and its transfers to peers fail until
//!   the switch has sent it all of them again. Its name may still be taken for a moment: the newcomer is answered once the
//!   former one's end is read, or refused after a second.
//!
//! # What does not hold
//! - A copy that was in progress when its window was closed, in an endpoint that was stopped in the middle of it or late already, and a
//!   transfer of the kernel's that takes longer than [`CLOSING_TIME_OUT`], end later. They fail then, but what they wrote is in the
//!   memory. No other copy begins: the owner ends the lease of a window when it closes it, and each copy is checked against the lease
//!   before and after, without the switch.
//! - Without a bridge socket, a guest that puts a BAR outside its bridge's window still has it routed, and an endpoint may claim any address in
//!   a hole that no other has claimed. With one, a bridge that the guest sets anew is known within a second and the time of an answer. A
//!   request before that goes where the bridge forwarded before: to the root, if the window is new.
//! - The switch passes on the timing of links; the endpoints keep to it. No AER, no multicast.
//! - An endpoint that has lost its switch is sent no window that is opened meanwhile: its requests there go to the root, or to memory that
//!   is mapped at the same address, until it is attached again and knows all.
//!
//! # The messages
//! Packets of a `SOCK_SEQPACKET` socket, one message each, in postcard's format; [`PROTOCOL`] numbers the whole. Descriptors of
//! memory come with the message of its windows, one for each in order.
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
//! An endpoint that violates the protocol is cut off; no other endpoint notices.
//!
//! # What an endpoint may take
//! An endpoint has one unacknowledged Peer at a time; those that wait are the newest of each peer, not a history. So what others do
//! never fills its queue, and one that does not acknowledge stays attached. Of its own it has 64 requests to peers, which are dropped
//! when they expire. It is cut off only for answers that it has asked for and does not read. Without descriptors or memory the switch
//! accepts no connection and tries again a tenth of a second later.

#![forbid(unsafe_code)]

mod attachment;
mod bridge_socket;
mod bridge_windows;
mod bus_range;
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
pub use bus_range::{BusRange, NoBusRange};
pub use config::Config;
pub use last_line::LastLine;
pub use limits::{
    CLOSING_TIME_OUT, ENDPOINT_TIME_OUT, MAX_DATA, MAX_DESCRIPTORS, MAX_PACKET, MAX_PORTS,
    MAX_WINDOWS, PROTOCOL,
};
pub use link::{Link, LinkLost, PeerHandler, PeerRequests, Unsupported};
pub use link_mode::{LinkMode, UnknownLinkMode};
pub use message::{LinkTiming, Message, PortId, Refusal, RequestError, RequestResult};
pub use packet::WireError;
pub use peerbar_socket_file::BindError;
pub use peerbar_socket_file::packets::Packet;
pub use server::{ServeError, serve};
pub use switch_address::AttachError;
pub use window::{BarBacking, BarWindow, Descriptor};
