//! The flight recorder of a device: what it has seen of mappings and done by DMA, in a file that outlives the device.
//!
//! A [`Recorder`] belongs to the device. It writes records of 64 bytes into a ring in a mapped file: no lock, no
//! allocation and no system call for a DMA or a command, so that it may be on while performance is measured. The
//! current mappings and windows are also kept in a table, so that they are known after their records were overwritten. A
//! [`FlightFile`] can be read at any time, while the device runs or after it was killed: each record has a sequence
//! number and a check sum, so one that was being written is recognised and left out.
//!
//! [`History`] follows the records: the mappings over time, their users, and what was around the address of a DMA that failed.
//! [`Sanitizer`] looks for what should not be.
//!
//! The layout of the file is described in `layout.rs` and `encode.rs`; a change of it is a new version.
//!
//! Not here: the display (`peerbar iommu`), and what a device does (the crate is independent of devices).
#![forbid(unsafe_code)]

mod encode;
mod event;
mod file;
mod history;
mod layout;
mod live_table;
mod mapped_file;
mod recorder;
mod sanitizer;

pub use event::{
    Backing, Dma, DmaOutcome, DoorbellEvent, Event, FileSpan, IgnoredWrite, Injection, Mapping,
    PeerWindowEvent, Record, RegisterWrite, WindowEvent, WindowId, WindowKind,
};
pub use file::{Flight, FlightFile, Tail};
pub use history::{Command, Fault, History, MappingLife, Moment, Surroundings, Teardown, Unmapped};
pub use layout::{FlightError, Header, Level};
pub use mapped_file::{MappedFile, MappedFileError, create_mapped};
pub use peerbar_dma_log::{Completer, Direction, Origin, Purpose, Route};
pub use recorder::{Recorder, monotonic_ns};
pub use sanitizer::{Finding, FindingKind, Sanitizer, SharedPages, shared};
