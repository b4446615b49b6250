//! A transfer cut into chunks that fit into one message each.

use std::ops::Range;

use peerbar_pci::Iova;
use rustix::io::Errno;

use crate::request_error::RequestError;

/// The chunks of a transfer, in their order.
#[derive(Debug)]
pub(crate) struct Chunks {
    address: Iova,
    left: Range<usize>,
    size: usize,
}

/// One chunk of a transfer, never empty.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) address: Iova,
    pub(crate) length: u64,
    /// The part of the caller's data.
    pub(crate) range: Range<usize>,
}

impl Chunks {
    /// Cuts `length` bytes at `address` into chunks of `size` bytes. EINVAL if the last byte's address is beyond 2^64.
    pub(crate) fn new(address: Iova, length: usize, size: usize) -> Result<Self, RequestError> {
        let last = u64::try_from(length.saturating_sub(1)).ok();
        last.and_then(|last| address.checked_add(last))
            .ok_or(RequestError::Refused(Errno::INVAL))?;
        Ok(Self {
            address,
            left: 0..length,
            size,
        })
    }
}

impl Iterator for Chunks {
    type Item = Chunk;

    fn next(&mut self) -> Option<Chunk> {
        let start = self.left.start;
        let end = start.saturating_add(self.size).min(self.left.end);
        let length = u64::try_from(end - start)
            .ok()
            .filter(|length| *length > 0)?;
        let address = self.address;
        self.left.start = end;
        // The address wraps after the last chunk if that ends with the address space.
        self.address = address.wrapping_add(length);
        Some(Chunk {
            address,
            length,
            range: start..end,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_cover_the_transfer_once(
            address in any::<u64>(),
            length in 0_usize..100_000,
            size in 100_usize..40_000,
        ) {
            let Ok(chunks) = Chunks::new(Iova(address), length, size) else {
                prop_assert!(address.checked_add(length as u64 - 1).is_none());
                return Ok(());
            };
            let mut covered = 0;
            for chunk in chunks {
                prop_assert_eq!(chunk.range.start, covered);
                prop_assert_eq!(chunk.address, Iova(address + covered as u64));
                prop_assert_eq!(chunk.range.len() as u64, chunk.length);
                prop_assert!(chunk.length > 0 && chunk.range.len() <= size);
                covered = chunk.range.end;
            }
            prop_assert_eq!(covered, length);
        }
    }

    #[test]
    fn a_transfer_may_end_with_the_address_space() {
        let mut chunks = Chunks::new(Iova(u64::MAX - 9), 10, 8).unwrap();
        assert_eq!(chunks.nth(1).unwrap().address, Iova(u64::MAX - 1));
        assert_eq!(chunks.next(), None);
        assert!(Chunks::new(Iova(u64::MAX - 9), 11, 8).is_err());
    }
}
