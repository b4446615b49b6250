//! The patterns that checks write to disks, and the expected results of a GPU's kernels.
//!
//! Bytes on a disk tell which disk, which block and which round they belong to, so a wrong byte
//! shows where it came from.
//!
//! This is a separate crate because it touches each byte of each transfer: the gate optimizes it,
//! but not the agent.

#![forbid(unsafe_code)]

pub mod launch;

use std::fmt;

/// Unit of the pattern in bytes; the smallest block that a disk can have.
pub const BLOCK: usize = 512;

const MAGIC: u32 = 0x5045_4552;

/// The contents of one disk in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Number of the disk.
    pub disk: u32,
    /// Number of the round; no two rounds of a boot have the same.
    pub round: u64,
}

/// The difference between data and the pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    expected: Tag,
    seen: Option<Tag>,
    /// Index of the first wrong byte in the compared data.
    first: usize,
    wrong: usize,
    length: usize,
}

/// The content of the head of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tag {
    pattern: Pattern,
    block: u64,
}

impl Pattern {
    /// Returns the pattern's bytes of `offset..offset + length`, both multiples of [`BLOCK`].
    pub fn bytes(self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        for (block, chunk) in blocks_from(offset).zip(bytes.chunks_mut(BLOCK)) {
            fill(
                Tag {
                    pattern: self,
                    block,
                },
                chunk,
            );
        }
        bytes
    }

    /// Compares every byte of `seen` with the pattern at `offset`.
    ///
    /// # Errors
    /// The difference, and where the wrong data seems to come from.
    pub fn verify(self, offset: u64, seen: &[u8]) -> Result<(), Mismatch> {
        let expected = self.bytes(offset, seen.len());
        if expected == seen {
            return Ok(());
        }
        let differs = |(expected, seen): (&u8, &u8)| expected != seen;
        let first = expected
            .iter()
            .zip(seen)
            .position(differs)
            .unwrap_or(seen.len());
        let wrong = expected
            .iter()
            .zip(seen)
            .filter(|pair| differs(*pair))
            .count();
        let index = first / BLOCK;
        let block = blocks_from(offset).nth(index).unwrap_or_default();
        Err(Mismatch {
            expected: Tag {
                pattern: self,
                block,
            },
            seen: seen.chunks(BLOCK).nth(index).and_then(read_tag),
            first,
            wrong,
            length: seen.len(),
        })
    }
}

fn blocks_from(offset: u64) -> impl Iterator<Item = u64> {
    (offset / BLOCK as u64)..
}

/// Writes the head, then words that no other block of any disk or round has at the same offset.
fn fill(tag: Tag, chunk: &mut [u8]) {
    let head = u64::from(MAGIC) << 32 | u64::from(tag.pattern.disk);
    let start = mix(mix(mix(head) ^ tag.pattern.round) ^ tag.block);
    let body = std::iter::successors(Some(start), |word| {
        Some(word.wrapping_add(0x9e37_79b9_7f4a_7c15))
    });
    let words = [head, tag.block, tag.pattern.round].into_iter().chain(body);
    for (word, bytes) in words.zip(chunk.chunks_exact_mut(8)) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^ word >> 32
}

fn read_tag(chunk: &[u8]) -> Option<Tag> {
    let mut words = chunk
        .chunks_exact(8)
        .map(|word| word.try_into().map_or(0, u64::from_le_bytes));
    let (head, block, round) = (words.next()?, words.next()?, words.next()?);
    let disk = u32::try_from(head & u64::from(u32::MAX)).ok()?;
    (head >> 32 == u64::from(MAGIC)).then_some(Tag {
        pattern: Pattern { disk, round },
        block,
    })
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "block {} of disk {} in round {}",
            self.block, self.pattern.disk, self.pattern.round
        )
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} bytes are wrong, from byte {} on: expected {}, seen ",
            self.wrong, self.length, self.first, self.expected
        )?;
        match &self.seen {
            Some(tag) if *tag == self.expected => f.write_str("its head with other bytes after it"),
            Some(tag) => write!(f, "{tag}"),
            None => f.write_str("bytes that no check wrote"),
        }
    }
}

impl std::error::Error for Mismatch {}

#[cfg(test)]
mod tests {
    use super::*;

    const PATTERN: Pattern = Pattern { disk: 1, round: 7 };

    #[test]
    fn the_pattern_is_its_own_at_every_offset() {
        let bytes = PATTERN.bytes(0, 8 * BLOCK);
        assert_eq!(PATTERN.verify(0, &bytes), Ok(()));
        assert_eq!(
            PATTERN.bytes(3 * BLOCK as u64, BLOCK),
            bytes[3 * BLOCK..4 * BLOCK]
        );
    }

    #[test]
    fn every_wrong_byte_is_found() {
        let bytes = PATTERN.bytes(4096, 2 * BLOCK);
        for at in 0..bytes.len() {
            let mut seen = bytes.clone();
            seen[at] ^= 1;
            let mismatch = PATTERN.verify(4096, &seen).unwrap_err();
            assert_eq!((mismatch.first, mismatch.wrong), (at, 1));
        }
    }

    #[test]
    fn a_mismatch_says_where_the_bytes_came_from() {
        let other = Pattern { disk: 0, round: 6 }.bytes(0, BLOCK);
        let mut seen = PATTERN.bytes(0, 2 * BLOCK);
        seen[BLOCK..].copy_from_slice(&other);
        let message = PATTERN.verify(0, &seen).unwrap_err().to_string();
        assert!(
            message.contains(
                "expected block 1 of disk 1 in round 7, seen block 0 of disk 0 in round 6"
            ),
            "{message}"
        );
        let message = PATTERN.verify(0, &[0; BLOCK]).unwrap_err().to_string();
        assert!(
            message.ends_with("seen bytes that no check wrote"),
            "{message}"
        );
    }
}
