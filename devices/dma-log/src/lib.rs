//! The counters of a device's DMA: the words that describe a DMA, the page in which a device
//! reports the counters to its guest, and the file in which it shares them, with its counts of
//! other events, with the host ([`counter_file`]).
//!
//! Device, guest and host share this crate: `peerbar-dma` records DMA in its words, the agent in
//! the guest reads its page, and the launcher reads its file. Each device offers the page in its
//! own way: the NVMe controller by a log page command, the GPU in a BAR.
#![forbid(unsafe_code)]

mod ats;
pub mod counter_file;
mod events;
mod kind;
mod origin;
mod page;
mod words;

pub use ats::AtsCounts;
pub use events::DeviceEvents;
pub use kind::DmaKind;
pub use origin::Origin;
pub use page::{DmaLogError, Entry, MAX_ENTRIES, MAX_SIZE, SIGNATURE, VERSION, encode, parse};
pub use words::{Completer, Direction, Purpose, Route};
