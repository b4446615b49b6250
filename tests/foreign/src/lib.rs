//! A PCI device that knows nothing of peerbar, for tests of devices that other people write.
//!
//! It is a copy engine with the crate `vfio_user` as its server, and without any other crate of
//! this workspace: a guest orders copies between bus addresses by [`registers`], and the device
//! executes them in memory that its client has mapped with descriptors. It is **not** able to send
//! requests to its client, because that crate is not: memory that is mapped without a descriptor is
//! out of its reach.

mod config_space;
mod device;
mod mappings;
pub mod registers;

pub use device::{CopyEngine, Options, serve};
