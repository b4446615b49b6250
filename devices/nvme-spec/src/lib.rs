//! NVMe 2.0 registers, commands, completions and logs as typed structs. Each cites its section.
//!
//! "NVMe Base 2.0" is the NVM Express Base Specification, "NVM Command Set 1.0" and "NVMe over PCIe
//! 1.0" are its companion specifications. Names are the specifications' own abbreviations.
//!
//! Values that live in registers or in one dword are bitfields over an integer. Structs that live
//! in memory have the exact size and byte order of the specification and alignment 1, so `zerocopy`
//! reads and writes them at any address. They do not implement `Default`: zero bytes are a valid
//! pattern (`zerocopy::FromZeros`), but seldom a meaningful one.
//!
//! Any bits can be read: a field that the guest has set is checked where it is used. A value that
//! is too wide for its field is the caller's mistake, and fails a debug assertion.
//!
//! The crate contains no I/O and no controller. It omits parts that no peerbar device implements:
//! metadata and protection information beyond their bits, keyed and transport SGL descriptors, NVMe
//! over Fabrics, the zoned and key-value command sets, namespace management, reservations,
//! telemetry.

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
pub mod sgl;
