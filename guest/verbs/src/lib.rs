//! RDMA verbs by the guest's own libibverbs, for adapters with Scalable Reliable Datagrams (SRD),
//! such as EFA.
//!
//! ```no_run
//! use std::rc::Rc;
//! use std::time::Duration;
//!
//! use peerbar_gds::Mapping;
//! use peerbar_verbs::{AccessFlags, AddressHandle, Context, Operation, Peer, ProtectionDomain, QueuePair, Region};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = Context::open("efa_0")?;
//! let domain = ProtectionDomain::new(&context)?;
//! let memory = || Mapping::private(4096).map(Rc::new);
//! let source = Region::of_memory(&domain, memory()?, AccessFlags::LOCAL_WRITE)?;
//! let target = Region::of_memory(&domain, memory()?, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
//!
//! let (left, right) = (QueuePair::ready(&domain, 16, 0)?, QueuePair::ready(&domain, 16, 0)?);
//! let peer = Peer::of(AddressHandle::new(&domain, context.gid()?)?, &right);
//! left.post(1, Operation::Write(target.remote(0)), source.local(0, 4096), &peer)?;
//! left.wait(Duration::from_secs(5))?.succeeded()?;
//! # Ok(())
//! # }
//! ```
//!
//! The library is loaded when it is first needed, so that a host that builds a program of this
//! crate needs no rdma-core. Its structures are laid out in `layout`, as `infiniband/verbs.h` and
//! `infiniband/efadv.h` of rdma-core have them.
//!
//! Completion counters, and completion queues in a program's buffer, are requested from the kernel
//! itself, since Debian's libibverbs has no functions for them.
//!
//! Not supported: connected and unreliable queue pairs, completion channels, shared receive queues,
//! memory windows.

#![deny(unsafe_code)]

mod access_flags;
mod address_handle;
mod completion;
mod completion_buffer;
mod completion_counter;
mod context;
mod error;
mod layout;
mod library;
mod protection_domain;
mod queue_pair;
mod region;
mod uverbs;

pub use access_flags::AccessFlags;
pub use address_handle::AddressHandle;
pub use completion::Completion;
pub use completion_buffer::{CompletionBuffer, CompletionMemory, Entry};
pub use completion_counter::{Change, CompletionCounter, Word, counted};
pub use context::{Context, Gid};
pub use error::{Error, Result};
pub use peerbar_rdma_end::Status;
pub use protection_domain::ProtectionDomain;
pub use queue_pair::{Local, Operation, Peer, QueuePair, Remote};
pub use region::Region;
