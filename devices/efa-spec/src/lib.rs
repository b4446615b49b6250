//! The interface between a driver and an Elastic Fabric Adapter (EFA): registers, admin commands,
//! events, work requests and completions as typed structs.
//!
//! There is no public specification of the device. The numbers and layouts are those of Linux'
//! driver (`drivers/infiniband/hw/efa`, whose headers are dual-licensed) and of rdma-core's
//! provider (`providers/efa`); each item cites the header that defines it.
//!
//! Values that live in registers or in one word are bitfields over an integer. Structs that live in
//! memory have the exact size and byte order of the headers and alignment 1, so `zerocopy` reads
//! and writes them at any address. Any bits can be read: a field that the guest has set is checked
//! where it is used. A value that is too wide for its field is a mistake of the caller, and fails a
//! debug assertion.
//!
//! The crate contains no I/O and no adapter.

#![forbid(unsafe_code)]

pub mod admin;
pub mod completion;
pub mod registers;
pub mod work;
