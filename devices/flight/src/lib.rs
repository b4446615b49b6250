//! The flight recorder of a device: a record of its mappings and its DMA, in a file that outlives
//! the device.
//!
//! A [`Recorder`] belongs to the device. It writes records of 64 bytes into a ring in a mapped
//! file. It needs no lock, allocation or system call for a DMA or a command, so that it may be on
//! while performance is measured. A table also keeps the current mappings and windows, so that they
//! are known after their records were overwritten. A [`FlightFile`] can be read at any time, while
//! the device runs or after it was killed: each record has a sequence number and a checksum, so
//! that an incomplete record is recognised and left out.
//!
//! [`History`] follows the records: the mappings over time, their users, and the mappings around
//! the address of a DMA that failed. [`Sanitizer`] looks for errors of devices and drivers.
//!
//! The layout of the file is described in `layout.rs` and `encode.rs`; each change of it needs a
//! new version.
//!
//! Not here: the display (`peerbar iommu`), and the behaviour of devices (the crate is independent
//! of them).
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
    Operation, PeerWindowEvent, Record, RegisterWrite, WindowEvent, WindowId, WindowKind,
};
pub use file::{Flight, FlightFile, Tail};
pub use history::{Command, Fault, History, MappingLife, Moment, Surroundings, Teardown, Unmapped};
pub use layout::{FlightError, Header, Level};
pub use mapped_file::{MappedFile, MappedFileError, create_mapped};
pub use peerbar_dma_log::{Completer, Direction, Origin, Purpose, Route};
pub use recorder::{Recorder, monotonic_ns};
pub use sanitizer::{Finding, FindingKind, Sanitizer, SharedPages, shared};
