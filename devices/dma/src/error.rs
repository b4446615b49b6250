//! Why a DMA failed.

use thiserror::Error;

use crate::peers::PeerError;
use crate::upstream::UpstreamError;

/// Why a DMA failed. Part of it may have been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DmaError {
    /// Bus mastering is off, or the function is being reset.
    #[error("DMA at {address:#x}+{len:#x}: the function may not issue requests")]
    NotMaster {
        /// First address of the piece that failed.
        address: u64,
        /// Its length.
        len: usize,
    },
    /// The address is a register of the function itself.
    #[error("DMA at {address:#x}+{len:#x}: the function's own registers")]
    OwnRegisters {
        /// First address of the piece that failed.
        address: u64,
        /// Its length.
        len: usize,
    },
    /// The address lies in a page of the function's own window that is over nothing.
    #[error("DMA at {address:#x}+{len:#x}: no page behind that part of the function's own window")]
    NoPage {
        /// First address of the piece that failed.
        address: u64,
        /// Its length.
        len: usize,
    },
    /// The range wraps around the end of the address space.
    #[error("DMA at {address:#x}+{len:#x} wraps around")]
    Wraps {
        /// First address.
        address: u64,
        /// Length.
        len: usize,
    },
    /// The client, asked to do it, did not.
    #[error("DMA at {address:#x}+{len:#x}, asked of the client")]
    Upstream {
        /// First address of the piece that failed.
        address: u64,
        /// Its length.
        len: usize,
        /// What the client said.
        source: UpstreamError,
    },
    /// The address lies in a peer's window, and the request did not get there.
    #[error("DMA at {address:#x}+{len:#x}, to a peer below the same switch")]
    Peer {
        /// First address of the piece that failed.
        address: u64,
        /// Its length.
        len: usize,
        /// What became of it.
        source: PeerError,
    },
    /// The memory behind a mapping or window is smaller than it.
    #[error("DMA at {address:#x}+{len:#x}: no memory behind it")]
    NoMemory {
        /// First address of the piece that failed.
        address: u64,
        /// Its length.
        len: usize,
    },
}

impl DmaError {
    /// First address of the piece that failed.
    pub fn address(&self) -> u64 {
        let (Self::NotMaster { address, .. }
        | Self::OwnRegisters { address, .. }
        | Self::NoPage { address, .. }
        | Self::Wraps { address, .. }
        | Self::Upstream { address, .. }
        | Self::Peer { address, .. }
        | Self::NoMemory { address, .. }) = self;
        *address
    }
}
