//! What a driver and an Elastic Fabric Adapter (EFA) exchange: registers, admin commands, events, work requests and
//! completions as typed structs.
//!
//! There is no public specification of the device. The numbers and layouts are those of Linux' driver
//! (`drivers/infiniband/hw/efa`, whose headers are dual-licensed) and of rdma-core's provider (`providers/efa`); each
//! item cites the header that has it.
//!
//! Values that live in registers or in one word are bitfields over an integer. Structs that live in memory have the
//! exact size and byte order of the headers and alignment 1, so `zerocopy` reads and writes them at any address. Any bits
//! can be read: a field that the guest has set is checked where it is used. A value too wide for the field that it is set
//! to is a mistake of the caller, and fails a debug assertion.
//!
//! There is no I/O and no adapter in here.

#![forbid(unsafe_code)]

pub mod admin;
pub mod completion;
pub mod registers;
pub mod work;
