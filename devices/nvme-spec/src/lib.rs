//! NVMe 2.0 registers, commands, completions and logs as typed structs, each citing its section.
//!
//! "NVMe Base 2.0" is the NVM Express Base Specification, "NVM Command Set 1.0" and "NVMe over PCIe 1.0" are its
//! companions of the same family. Names are the specifications' own abbreviations.
//!
//! Values that live in registers or in one dword are bitfields over an integer. Structs that live in memory have
//! the exact size and byte order of the specification and alignment 1, so `zerocopy` reads and writes them at any
//! address. None of them has a `Default`: all bytes zero is a valid pattern (`zerocopy::FromZeros`), but seldom a
//! meaningful one.
//!
//! Any bits can be read: a field that the guest has set is checked where it is used. A value too wide
//! for the field that it is set to is a mistake of the caller, and fails a debug assertion.
//!
//! There is no I/O and no controller in here. Not described, because no device of ours has it: SGLs, metadata and
//! protection information beyond their bits, NVMe over Fabrics, the zoned and key-value command sets, namespace
//! management, reservations, telemetry.

#![forbid(unsafe_code)]

pub mod cmb;
pub mod command;
pub mod completion;
pub mod dma_log;
pub mod event;
pub mod feature;
pub mod identify;
pub mod log;
pub mod pmr;
pub mod registers;
