//! The vendor specific log page in which a controller of peerbar counts its DMA by route.
//!
//! The page itself is the same for every device of peerbar; `peerbar-dma-log` describes, writes and reads it. A host
//! reads all of it, [`MAX_SIZE`] bytes, by one command: the counters change between two.

pub use peerbar_dma_log::*;

/// LID of the page, the first that NVMe leaves to vendors (NVMe Base 2.0, 5.16.1).
pub const LID: u8 = 0xc0;

/// Its number for what has become of the translations that the controller asked for ([`AtsCounts`]).
pub const ATS_LID: u8 = 0xc1;
