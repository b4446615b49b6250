//! The two ends of a probe, and the moves between them.

/// Size of a transfer in bytes: many pages, but less than controllers take in one command.
pub(super) const LENGTH: u64 = 64 << 10;
pub(super) const BYTES: usize = 64 << 10;

/// The direction of the data.
#[derive(Clone, Copy, Debug)]
pub(super) enum Direction {
    /// From the near end to the far end: the client writes to the provider's memory.
    There,
    /// From the far end to the near end: the client reads from the provider's memory.
    Back,
}

/// A client that can move data between its own storage and the other end.
pub(super) trait Pair {
    /// Puts `bytes` at the start of `direction`, without peer-to-peer DMA, and something else where
    /// they pass.
    fn load(&mut self, direction: Direction, bytes: &[u8]) -> anyhow::Result<()>;
    /// Moves the bytes.
    fn carry(&mut self, direction: Direction) -> anyhow::Result<()>;
    /// Returns the data at the end of `direction`.
    fn arrived(&mut self, direction: Direction) -> anyhow::Result<Vec<u8>>;
}
