//! A transfer cut into pieces that fit into one message each.

use std::ops::Range;

use rustix::io::Errno;

use crate::client::RequestError;

/// A transfer and the size of its pieces.
#[derive(Debug)]
pub(crate) struct Pieces {
    address: u64,
    length: u64,
    size: u64,
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
    pub(crate) fn new(address: u64, length: usize, size: u64) -> Result<Self, RequestError> {
        let too_far = RequestError::Refused(Errno::INVAL);
        let length = u64::try_from(length).map_err(|_| too_far)?;
        address
            .checked_add(length.saturating_sub(1))
            .ok_or(too_far)?;
        Ok(Self {
            address,
            length,
            size,
        })
    }

    /// The piece of that number, counted from 0.
    pub(crate) fn get(&self, number: u64) -> Option<Piece> {
        let start = number.checked_mul(self.size)?;
        let length = self.length.checked_sub(start)?.min(self.size);
        if length == 0 {
            return None;
        }
        let first = usize::try_from(start).ok()?;
        let end = first.checked_add(usize::try_from(length).ok()?)?;
        Some(Piece {
            address: self.address.checked_add(start)?,
            length,
            range: first..end,
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
            size in 100_u64..40_000,
        ) {
            let Ok(pieces) = Pieces::new(address, length, size) else {
                prop_assert!(address.checked_add(length as u64 - 1).is_none());
                return Ok(());
            };
            let mut covered = 0;
            for piece in (0..).map_while(|number| pieces.get(number)) {
                prop_assert_eq!(piece.range.start, covered);
                prop_assert_eq!(piece.address, address + covered as u64);
                prop_assert_eq!(piece.range.len() as u64, piece.length);
                prop_assert!(piece.length > 0 && piece.length <= size);
                covered = piece.range.end;
            }
            prop_assert_eq!(covered, length);
        }
    }

    #[test]
    fn a_transfer_may_end_with_the_address_space() {
        let pieces = Pieces::new(u64::MAX - 9, 10, 8).unwrap();
        assert_eq!(pieces.get(1).unwrap().address, u64::MAX - 1);
        assert_eq!(pieces.get(2), None);
        assert!(Pieces::new(u64::MAX - 9, 11, 8).is_err());
    }
}
