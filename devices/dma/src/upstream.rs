//! The way up: requests that the client (QEMU) carries out for the device.

use thiserror::Error;

/// Memory reached by asking the client, which walks its IOMMU.
///
/// A call blocks until the client has answered, so it is never made by the thread that answers region accesses.
pub trait Upstream: Send + Sync {
    /// Reads `data.len()` bytes at the IOVA or bus address `address`.
    fn read(&self, address: u64, data: &mut [u8]) -> Result<(), UpstreamError>;
    /// Writes `data` at the IOVA or bus address `address`.
    fn write(&self, address: u64, data: &[u8]) -> Result<(), UpstreamError>;
}

/// Why a request to the client failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UpstreamError {
    /// The client refused it: no mapping, no permission, bus mastering off.
    #[error("the client refused it (errno {0})")]
    Refused(i32),
    /// There is no client, or it left before it answered.
    #[error("no client")]
    Gone,
    /// The client did not answer in time.
    #[error("the client did not answer in time")]
    TimedOut,
}
