//! The data of a DMA.

use peerbar_dma_log::Direction;

/// A DMA's data: where the bytes come from or go to.
#[derive(Debug)]
pub enum Buffer<'a> {
    /// Where the bytes go that are read. Undefined if the DMA fails.
    Read(&'a mut [u8]),
    /// The bytes that are written.
    Write(&'a [u8]),
}

impl<'a> Buffer<'a> {
    /// How many bytes are left.
    pub fn len(&self) -> usize {
        match self {
            Self::Read(data) => data.len(),
            Self::Write(data) => data.len(),
        }
    }

    /// Whether no bytes are left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Which way they go.
    pub(crate) fn direction(&self) -> Direction {
        match self {
            Self::Read(_) => Direction::Read,
            Self::Write(_) => Direction::Write,
        }
    }

    /// Which way they go, and how many they are.
    pub(crate) fn extent(&self) -> (Direction, usize) {
        (self.direction(), self.len())
    }

    /// The same bytes for a while.
    pub fn reborrow(&mut self) -> Buffer<'_> {
        match self {
            Self::Read(data) => Buffer::Read(data),
            Self::Write(data) => Buffer::Write(data),
        }
    }

    /// Takes off the first `len` bytes, or all if there are fewer.
    pub fn take(&mut self, len: usize) -> Buffer<'a> {
        let len = len.min(self.len());
        match self {
            Self::Read(data) => {
                let (head, tail) = std::mem::take(data).split_at_mut(len);
                *data = tail;
                Buffer::Read(head)
            }
            Self::Write(data) => {
                let (head, tail) = data.split_at(len);
                *data = tail;
                Buffer::Write(head)
            }
        }
    }
}
