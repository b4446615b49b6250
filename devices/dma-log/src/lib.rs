//! The counters of a device's DMA: the words that they are kept in, the page in which a device reports them to its guest, and
//! the file in which it shares them, and its counts of other events, with the host ([`counter_file`]).
//!
//! Device, guest and host share this crate: `peerbar-dma` records in its words, the agent in the guest reads its page, the
//! launcher its file. Each device has its own way to the page: a log page command of the NVMe controller, a BAR of the GPU.
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
