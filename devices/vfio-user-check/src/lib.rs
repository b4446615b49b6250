//! The conformance test of vfio-user servers, for `peerbar vfio-user check`, and its client.
//!
//! - [`tests()`]: the tests, each with the requirement that it checks ([`Source`]): one of the
//!   specification (QEMU, docs/interop/vfio-user.rst), or one of QEMU's client.
//! - [`Checker`]: runs tests against a server, which it can start.
//! - [`RawClient`]: a client that sends any bytes, encoded by the specification's numbers
//!   ([`wire`]). It shares no code with the servers.
//!
//! A test changes nothing in the device that it does not change back, except by a reset, and leaves
//! no mapping and no interrupt. Only [`Options::bars`] has it read from BARs, and only
//! [`Options::reset`] has it reset the device. It never writes to BARs.

#![forbid(unsafe_code)]

mod checker;
mod device;
mod outcome;
mod raw_client;
mod server;
mod session;
mod suite;
mod test;
pub mod wire;

pub use checker::{Checker, Options};
pub use outcome::Verdict;
pub use raw_client::{Lost, RawClient};
pub use server::StartError;
pub use suite::tests;
pub use test::{Source, Test};
