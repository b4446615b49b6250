//! A transfer cut into pieces that fit into one message each.

use std::ops::Range;

use rustix::io::Errno;

use crate::client::RequestError;

/// The pieces of a transfer, in their order.
#[derive(Debug)]
pub(crate) struct Pieces {
    address: u64,
    left: Range<usize>,
    size: usize,
}

/// One piece of a transfer, never empty.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) address: u64,
    pub(crate) length: u64,
    /// Where it belongs in the caller's data.
    pub(crate) range: Range<usize>,
}

impl Pieces {
    /// Cuts `length` bytes at `address` into pieces of `size` bytes. EINVAL if the last byte's address is beyond 2^64.
    pub(crate) fn new(address: u64, length: usize, size: usize) -> Result<Self, RequestError> {
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

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let start = self.left.start;
        let end = start.saturating_add(self.size).min(self.left.end);
        let length = u64::try_from(end - start)
            .ok()
            .filter(|length| *length > 0)?;
        let address = self.address;
        self.left.start = end;
        // Wraps behind the last piece of all if that ends with the address space.
        self.address = address.wrapping_add(length);
        Some(Piece {
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
        fn pieces_cover_the_transfer_once(
            address in any::<u64>(),
            length in 0_usize..100_000,
            size in 100_usize..40_000,
        ) {
            let Ok(pieces) = Pieces::new(address, length, size) else {
                prop_assert!(address.checked_add(length as u64 - 1).is_none());
                return Ok(());
            };
            let mut covered = 0;
            for piece in pieces {
                prop_assert_eq!(piece.range.start, covered);
                prop_assert_eq!(piece.address, address + covered as u64);
                prop_assert_eq!(piece.range.len() as u64, piece.length);
                prop_assert!(piece.length > 0 && piece.range.len() <= size);
                covered = piece.range.end;
            }
            prop_assert_eq!(covered, length);
        }
    }

    #[test]
    fn a_transfer_may_end_with_the_address_space() {
        let mut pieces = Pieces::new(u64::MAX - 9, 10, 8).unwrap();
        assert_eq!(pieces.nth(1).unwrap().address, u64::MAX - 1);
        assert_eq!(pieces.next(), None);
        assert!(Pieces::new(u64::MAX - 9, 11, 8).is_err());
    }
}
