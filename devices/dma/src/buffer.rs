//! The data of a DMA.

use peerbar_dma_log::Direction;

/// The data of a DMA: its source or destination in this process.
#[derive(Debug)]
pub enum Buffer<'a> {
    /// Receives the bytes. Its content is undefined if the DMA fails.
    Read(&'a mut [u8]),
    /// The bytes to write.
    Write(&'a [u8]),
}

impl<'a> Buffer<'a> {
    /// Returns the number of bytes left.
    pub fn len(&self) -> usize {
        match self {
            Self::Read(data) => data.len(),
            Self::Write(data) => data.len(),
        }
    }

    /// Returns `true` if no bytes are left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the direction of the transfer.
    pub(crate) fn direction(&self) -> Direction {
        match self {
            Self::Read(_) => Direction::Read,
            Self::Write(_) => Direction::Write,
        }
    }

    /// Returns the direction of the transfer and the number of bytes.
    pub(crate) fn extent(&self) -> (Direction, usize) {
        (self.direction(), self.len())
    }

    /// Borrows the same bytes again for a shorter time.
    pub fn reborrow(&mut self) -> Buffer<'_> {
        match self {
            Self::Read(data) => Buffer::Read(data),
            Self::Write(data) => Buffer::Write(data),
        }
    }

    /// Splits off the first `len` bytes, or all of them if there are fewer.
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
