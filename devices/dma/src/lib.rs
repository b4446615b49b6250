//! One DMA request of a PCI function: its route, the copy, and the record.
//!
//! A [`Requester`] holds the state that routes depend on: bus mastering, the function's own memory
//! windows and the guest memory map. Each request is split into segments where the route changes,
//! and each segment is executed and counted by its own route:
//!
//! 1. bus mastering off, or the function halted: refused;
//! 2. memory of the function's own CMB or BAR: local, by its page table if it has one;
//! 3. registers of the function's own BAR: refused;
//! 4. inside the window of a peer below the same switch: straight to the peer's memory, or by a
//!    message to the peer whose registers are there ([`Peers`]), though the configuration of the
//!    port above the function may forbid it ([`PeerRouting`]);
//! 5. with a cached ATS translation: guest RAM or a peer, as translated;
//! 6. a mapping that does not allow the request: presented to the client with a few bytes, so that
//!    the guest's own IOMMU driver sees and logs a fault. The request fails regardless of the
//!    client's answer, since the client swallows writes to read-only memory;
//! 7. a mapping whose memory the client has lent: straight into guest RAM;
//! 8. a mapping without memory, or no mapping at all: the client is asked, for the same reason.
//!
//! [`Requester::write_register`] writes a register in a peer's window by one access of 4 or 8
//! bytes, on any of these routes.
//!
//! A request carries a [`Tag`]: its purpose, and the queue and command on whose behalf it is made.
//!
//! The guest controls the memory that a transfer meets and changes it at any moment. A lent memory
//! file is mapped once, sealed or not. A copy fails if the owner takes its pages away in the
//! middle. All access is volatile. A change of the map, of bus mastering or of a window waits for
//! the copies in progress and is seen by every later one: once an unmap has returned, no copy
//! touches the memory any more.
//!
//! A transfer that the kernel executes, between a file and this memory, pins its addresses
//! ([`Session::pin`]): a change that takes one of them away waits for the end of that transfer
//! alone, with no lock held.
//!
//! A write that the switch loses ([`PeerRouting::Drop`]) is counted as done, by the route
//! `refused`, without a completer: it succeeds for the requester, and the record shows that it
//! reached no memory.
//!
//! Transfers take no time beyond the copy unless a link says so ([`LinkSpeed`]): then a request
//! ends when its bytes have had their time on the requester's link and on that of the peer whose
//! memory they reach. Each link is shared with all other transfers. The data moves at once; the
//! requester waits, with no lock held.
//!
//! With a flight recorder ([`Ledger::record_in`]) each change of the routes' state is recorded
//! under the lock that protects the change. Each segment of a DMA is recorded, too: a segment in
//! guest RAM or own memory under the same lock, or while the memory is pinned, and an unmap is
//! recorded only after such pins have ended. The order in the record is therefore the order in
//! which they happened.
//!
//! # Address translation services
//! If the guest turns ATS on, a request that would go up asks for a translation first and keeps it
//! in a bounded cache; with it, the request reaches guest RAM, or a peer past a port that redirects
//! untranslated requests. An unmap removes the translations before it returns. Where there is no
//! translation the request goes up untranslated, so that the guest's IOMMU driver logs it. Not
//! modelled: page requests (PRI), process address spaces (PASID), a cache that is shared with other
//! functions, invalidations that time out. A translated address is trusted, as on hardware whose
//! root complex does not check it.
#![deny(unsafe_code)]

mod atc;
mod buffer;
mod client;
mod clock;
mod counters;
mod direct;
mod error;
mod hints;
mod lease;
mod leases;
mod ledger;
mod lent_file;
mod lent_memory;
mod lent_region;
mod link;
mod link_speed;
mod link_state;
mod map;
mod map_access;
mod mapped_memory;
mod memory;
mod memory_error;
mod memory_pool;
mod own_memory;
mod pages;
mod peer_changes;
mod peers;
mod pinned;
mod pins;
mod private_memory;
mod reader_lock;
mod recording;
mod register_value;
mod requester;
mod route;
#[cfg(test)]
mod route_model;
mod segment_result;
mod session;
pub mod switch_limits;
mod tag;
mod upstream;
mod wait_budget;

pub use buffer::Buffer;
pub use counters::{Count, CounterFile, Counters};
pub use error::{DmaError, DmaFault};
pub use lease::{Lease, PeerLeases};
pub use leases::Leases;
pub use ledger::Ledger;
pub use lent_memory::MOST_SHARED_FILES;
pub use lent_region::{LentGuestMemory, LentRegion};
pub use link::Link;
pub use link_speed::{Bandwidth, Latency, LinkSpeed, UnknownBandwidth, UnknownLatency};
pub use map::MapError;
pub use map_access::MapAccess;
pub use mapped_memory::MappedMemory;
pub use memory::{MemoryFile, Span};
pub use memory_error::MemoryError;
pub use memory_pool::MemoryPool;
pub use pages::{PageError, PageTable};
pub use peer_changes::ChangeCount;
pub use peerbar_dma_log::{AtsCounts, Completer, Direction, DmaKind, Origin, Purpose, Route};
pub use peerbar_flight::{DoorbellEvent, Operation, RegisterWrite, WindowId};
pub use peers::{PeerError, PeerId, PeerMemory, PeerRouting, PeerWindow, Peers};
pub use pinned::{CopyError, Pinned};
pub use private_memory::PrivateMemory;
pub use register_value::RegisterValue;
pub use requester::drain::Drain;
pub use requester::{BusMastering, Requester};
pub use route::{OwnWindow, OwnWindowMemory};
pub use session::Session;
pub use tag::Tag;
pub use upstream::{Upstream, UpstreamError, UpstreamRequest};
