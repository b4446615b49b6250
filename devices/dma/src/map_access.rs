//! The transfers that a mapping allows.

use peerbar_dma_log::Direction;

/// The transfers that a mapping allows (vfio-user, DMA_MAP, flags).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapAccess {
    /// `true` if the function may read.
    pub readable: bool,
    /// `true` if the function may write.
    pub writable: bool,
}

impl MapAccess {
    /// Reads only.
    pub const READ_ONLY: Self = Self {
        readable: true,
        writable: false,
    };
    /// Reads and writes.
    pub const READ_WRITE: Self = Self {
        readable: true,
        writable: true,
    };

    pub(crate) fn allows(self, direction: Direction) -> bool {
        match direction {
            Direction::Read => self.readable,
            Direction::Write => self.writable,
        }
    }
}
