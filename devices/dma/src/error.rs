//! The reasons why a DMA fails.

use peerbar_dma_log::Origin;
use peerbar_pci::Iova;
use thiserror::Error;

use crate::peers::PeerError;
use crate::upstream::UpstreamError;

/// A DMA that failed. A part of it may have been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("DMA at {address}+{len:#x} for {origin}")]
pub struct DmaError {
    /// The queue and command on whose behalf it was made.
    pub origin: Origin,
    /// First address of the failed segment.
    pub address: Iova,
    /// Length of the segment.
    pub len: usize,
    /// The reason.
    #[source]
    pub cause: DmaFault,
}

/// The reason why a DMA failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DmaFault {
    /// Bus mastering is off, or the function is being reset.
    #[error("the function may not issue requests")]
    NotMaster,
    /// The address is a register of the function itself.
    #[error("the function's own registers")]
    OwnRegisters,
    /// The address lies in a page of the function's own window that has no memory.
    #[error("unmapped page of the function's own window")]
    NoPage,
    /// The range wraps around the end of the address space.
    #[error("the range wraps around")]
    Wraps,
    /// The register's address is not a multiple of its size.
    #[error("the register is not aligned")]
    Unaligned,
    /// The client was asked to do the DMA, and failed.
    #[error("request to the client failed: {0}")]
    Upstream(UpstreamError),
    /// The address lies in a peer's window, and the request did not reach the peer.
    #[error("request to a peer failed: {0}")]
    Peer(PeerError),
    /// The links on the way took too long: many transfers share them, or a peer keeps its own link
    /// busy.
    #[error("the links on the way took too long")]
    LinkBusy,
    /// The mapping does not permit the request, such as a write to read-only memory. The client's
    /// answer does not count, since it may drop such a write silently.
    #[error("the mapping does not permit it")]
    Forbidden,
    /// A fault was injected.
    #[error("a fault was injected")]
    Injected,
    /// The memory behind a mapping or window is smaller than the mapping, or was taken away by its
    /// lender.
    #[error("no memory behind it")]
    NoMemory,
}
