//! The page in which a device of peerbar reports its DMA, how much went which way, and the words it is told in.
//!
//! Device and guest share this crate: `peerbar-dma` records in its words, the agent in the guest reads its page. How the
//! page is got is each device's own: by a log page command from the NVMe controller, in a BAR from the GPU.
#![forbid(unsafe_code)]

mod ats;
mod origin;
mod page;
mod words;

pub use ats::AtsCounts;
pub use origin::Origin;
pub use page::{DmaLogError, Entry, MAX_ENTRIES, MAX_SIZE, SIGNATURE, VERSION, encode, parse};
pub use words::{Completer, Direction, Purpose, Route};
