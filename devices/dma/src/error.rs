//! Why a DMA failed.

use peerbar_dma_log::Origin;
use thiserror::Error;

use crate::peers::PeerError;
use crate::upstream::UpstreamError;

/// A DMA that failed. Part of it may have been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("DMA at {address:#x}+{len:#x} for {origin}")]
pub struct DmaError {
    /// The queue and command that it was made for.
    pub origin: Origin,
    /// First address of the segment that failed.
    pub address: u64,
    /// Its length.
    pub len: usize,
    /// Why it failed.
    #[source]
    pub cause: DmaFault,
}

/// Why a DMA failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DmaFault {
    /// Bus mastering is off, or the function is being reset.
    #[error("the function may not issue requests")]
    NotMaster,
    /// The address is a register of the function itself.
    #[error("the function's own registers")]
    OwnRegisters,
    /// The address lies in a page of the function's own window that is over nothing.
    #[error("unmapped page of the function's own window")]
    NoPage,
    /// The range wraps around the end of the address space.
    #[error("the range wraps around")]
    Wraps,
    /// The register that is to be written does not start at a multiple of its size.
    #[error("the register is not aligned")]
    Unaligned,
    /// The client, asked to do it, did not.
    #[error("request to the client failed: {0}")]
    Upstream(UpstreamError),
    /// The address lies in a peer's window, and the request did not get there.
    #[error("request to a peer failed: {0}")]
    Peer(PeerError),
    /// The links on the way took too long: many transfers share them, or a peer keeps its own busy.
    #[error("the links on the way took too long")]
    LinkBusy,
    /// The mapping does not permit it: a write where only reads may go. The client's answer does not count, since
    /// it may drop such a write silently.
    #[error("the mapping does not permit it")]
    Forbidden,
    /// A fault was injected.
    #[error("a fault was injected")]
    Injected,
    /// The memory behind a mapping or window is smaller than it, or was taken away by the process that lent it.
    #[error("no memory behind it")]
    NoMemory,
}
