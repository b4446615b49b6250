//! The requests of the registers to the engine.

/// The registers that take effect with an enable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) address: u64,
    pub(crate) space: u32,
    pub(crate) entries: u32,
    /// The generation of the channel: reports of the engine about an earlier one are ignored.
    pub(crate) generation: u64,
}

/// A request of the registers to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineRequest {
    /// Forget every channel; then the device is ready.
    Reset,
    /// Forget this channel.
    Release(u8),
    /// Take commands of this channel.
    Start(u8, Setup),
}
