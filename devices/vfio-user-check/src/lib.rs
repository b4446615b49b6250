//! The conformance test of vfio-user servers, for `peerbar vfio-user check`, and its client.
//!
//! - [`wire`]: messages as bytes, encoded by the specification's numbers.
//! - [`RawClient`]: a client that sends any bytes.

#![forbid(unsafe_code)]

mod raw_client;
pub mod wire;

pub use raw_client::{Lost, RawClient};
