//! The vendor specific log page in which a peerbar controller counts its DMA by route.
//!
//! The page itself is the same for every peerbar device; `peerbar-dma-log` describes, writes and
//! reads it. A host reads all of it, [`MAX_SIZE`] bytes, with one command, because the counters
//! change between two commands.

pub use peerbar_dma_log::*;

/// LID of the page, the first vendor specific one (NVMe Base 2.0, 5.16.1).
pub const LID: u8 = 0xc0;

/// LID of the page with the outcomes of the controller's translation requests ([`AtsCounts`]).
pub const ATS_LID: u8 = 0xc1;
