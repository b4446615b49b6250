//! The flight recorder of a device: what it has seen of mappings and done by DMA, in a file that outlives the device.
//!
//! A [`Recorder`] belongs to the device. It writes records of 64 bytes into a ring in a mapped file: no lock, no
//! allocation and no system call for a DMA or a command, so that it may be on while performance is measured. What is true
//! at the moment (mappings, windows) is also kept in a table, so that it is known however long ago its record was
//! overwritten. A [`FlightFile`] is read by anybody at any time, while the device runs or after it was killed: each
//! record has a sequence number and a check sum, so one that was being written is recognised and left out.
//!
//! [`History`] follows the records: what was mapped when, who used it, and what was around the address of a DMA that failed.
//! [`Sanitizer`] looks for what should not be.
//!
//! The layout of the file is described in `layout.rs` and `encode.rs`; a change of it is a new version.
//!
//! Not here: who looks at it (`peerbar iommu` does), and what a device does (the crate knows no device).
#![forbid(unsafe_code)]

mod encode;
mod event;
mod file;
mod history;
mod layout;
mod ledger;
mod recorder;
mod sanitizer;

pub use event::{
    Backing, Dma, Event, FileSpan, Mapping, Outcome, PeerWindow, Record, Window, WindowId,
    WindowMemory,
};
pub use file::{Flight, FlightFile, Tail};
pub use history::{Command, Fault, Grave, History, Life, Moment, Surroundings, Teardown};
pub use layout::{FlightError, Header, Level};
pub use peerbar_dma_log::{Completer, Direction, Origin, Purpose, Route};
pub use recorder::{RecordError, Recorder};
pub use sanitizer::{Finding, FindingKind, Sanitizer, shared};
