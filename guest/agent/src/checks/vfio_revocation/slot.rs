//! The reads into a part of the memory.

use std::time::Duration;

use anyhow::ensure;

use peerbar_pattern::Pattern;

/// Bytes of one read.
pub(super) const READ: u64 = 32 << 10;
/// Number of outstanding reads.
pub(super) const DEPTH: u64 = 16;
/// Bytes of the GPU's memory that the reads fill.
pub(super) const LENGTH: u64 = READ * DEPTH;
/// Ranges of the disk from which each part of the memory is read in turn. With three, a read that
/// ended with success but moved nothing leaves contents that neither it nor the next one has.
pub(super) const RANGES: u64 = 3;
/// Time limit for a command, or for the load as a whole.
pub(super) const TIME_OUT: Duration = Duration::from_secs(20);

/// A part of the memory, of [`READ`] bytes, and its reads, one after the other. A failed read is
/// repeated from the same offset on the disk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    /// Number of successful reads.
    done: u64,
    /// `true` if another one has begun, which has failed or not ended.
    is_open: bool,
}

impl Slot {
    /// Begins a read into the slot with this number. Returns its byte offset on the disk.
    pub(super) fn begin(&mut self, number: u64) -> u64 {
        self.is_open = true;
        Self::disk_offset(number, self.done)
    }

    pub(super) fn end_with_success(&mut self) {
        self.done = self.done.saturating_add(1);
        self.is_open = false;
    }

    /// Returns the offset on the disk of the read of a slot that follows `earlier` successful ones.
    pub(super) fn disk_offset(number: u64, earlier: u64) -> u64 {
        let set = (earlier % RANGES).saturating_mul(LENGTH);
        set.saturating_add(number.saturating_mul(READ))
    }

    /// Checks that each byte of `seen` comes from the last successful read, or from the one that
    /// has begun since. Returns `false` if there was no such read, in which case nothing is known.
    pub(super) fn judge(self, number: u64, seen: &[u8], pattern: Pattern) -> anyhow::Result<bool> {
        let Some(last) = self.done.checked_sub(1) else {
            return Ok(false);
        };
        let of_read = |earlier| pattern.bytes(Self::disk_offset(number, earlier), seen.len());
        let mut expected = of_read(last);
        if self.is_open {
            for ((expected, begun), seen) in expected.iter_mut().zip(of_read(self.done)).zip(seen) {
                if begun == *seen {
                    *expected = begun;
                }
            }
        }
        let wrong = expected
            .iter()
            .zip(seen)
            .filter(|(expected, seen)| expected != seen)
            .count();
        ensure!(
            wrong == 0,
            "{wrong} of {} bytes are not of read {last}, which ended with success{}",
            seen.len(),
            if self.is_open {
                ", nor of the next one"
            } else {
                ""
            }
        );
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATTERN: Pattern = Pattern { disk: 1, round: 2 };

    /// Part 3 of the memory as successful read `earlier` leaves it.
    fn left_by(earlier: u64) -> Vec<u8> {
        PATTERN.bytes(
            Slot::disk_offset(3, earlier),
            usize::try_from(READ).unwrap(),
        )
    }

    #[test]
    fn read_that_moved_nothing_but_succeeded_is_found() {
        let mut slot = Slot::default();
        assert!(!slot.judge(3, &left_by(0), PATTERN).unwrap());
        for earlier in 0..5 {
            assert_eq!(slot.begin(3), Slot::disk_offset(3, earlier));
            slot.end_with_success();
        }
        assert!(slot.judge(3, &left_by(4), PATTERN).unwrap());
        let error = slot.judge(3, &left_by(3), PATTERN).unwrap_err().to_string();
        assert!(
            error.ends_with("read 4, which ended with success"),
            "{error}"
        );
        // The next one fails, and is repeated from the same offset.
        assert_eq!(slot.begin(3), slot.begin(3));
        let error = slot.judge(3, &left_by(3), PATTERN).unwrap_err().to_string();
        assert!(error.ends_with("nor of the next one"), "{error}");
    }

    #[test]
    fn read_that_failed_may_have_moved_some_bytes() {
        let mut slot = Slot::default();
        slot.begin(3);
        slot.end_with_success();
        slot.begin(3);
        let mut seen = left_by(0);
        seen[7000..9000].copy_from_slice(&left_by(1)[7000..9000]);
        assert!(slot.judge(3, &seen, PATTERN).unwrap());
        seen[8000] ^= 1;
        assert!(slot.judge(3, &seen, PATTERN).is_err());
    }
}
