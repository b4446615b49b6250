//! The permitted contents of each block of a disk.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, ensure};

use crate::memory::{BLOCK, stamp};

/// The stamps that the blocks of a disk may have.
#[derive(Default)]
pub(crate) struct Blocks {
    /// The possible stamps of each written block; others are zeroes. One stamp if its last write
    /// and a flush after it were acknowledged.
    possible: BTreeMap<u64, Vec<u64>>,
    last: u64,
}

impl Blocks {
    /// Returns a stamp that no block has.
    pub(crate) fn next_stamp(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Returns the possible stamps of a block.
    pub(crate) fn possible(&self, number: u64) -> &[u64] {
        self.possible.get(&number).map_or(&[0], Vec::as_slice)
    }

    /// Notes a write of `stamp` that is about to be submitted.
    pub(crate) fn write(&mut self, number: u64, stamp: u64) {
        let possible = self.possible.entry(number).or_insert_with(|| vec![0]);
        possible.push(stamp);
    }

    /// Notes that the block has one of these stamps, and keeps it until it is written again.
    pub(crate) fn flush(&mut self, number: u64, stamps: Vec<u64>) {
        self.possible.insert(number, stamps);
    }

    /// Returns `true` if these blocks have these stamps and no others.
    pub(crate) fn are_flushed(&self, mut stamps: impl Iterator<Item = (u64, u64)>) -> bool {
        stamps.all(|(number, stamp)| self.possible(number) == [stamp])
    }

    /// Checks that a block that was read as `content` has a possible stamp. From now on it must
    /// have that one.
    pub(crate) fn check(&mut self, number: u64, content: &[u8]) -> anyhow::Result<()> {
        let found = stamp(content).with_context(|| format!("block {number} is mixed"))?;
        let possible = self.possible(number);
        ensure!(
            possible.contains(&found),
            "block {number} has stamp {found}, not one of {possible:?}"
        );
        self.flush(number, vec![found]);
        Ok(())
    }

    /// Checks that each block in the image has a possible stamp. Returns the number of written
    /// blocks.
    pub(crate) fn check_image(&mut self, image: &Path) -> anyhow::Result<usize> {
        let image = File::open(image)?;
        let numbers: Vec<u64> = self.possible.keys().copied().collect();
        let mut content = [0; BLOCK];
        for number in numbers {
            image.read_exact_at(&mut content, number * BLOCK as u64)?;
            self.check(number, &content)?;
        }
        Ok(self.possible.len())
    }

    /// Returns the numbers of the blocks that may have one of several stamps.
    pub(crate) fn unsure(&self) -> Vec<u64> {
        let unsure = self.possible.iter().filter(|(_, stamps)| stamps.len() > 1);
        unsure.map(|(number, _)| *number).collect()
    }
}

#[test]
fn block_keeps_what_was_flushed_until_it_is_written() {
    let content = |stamp| crate::memory::block(stamp);
    let mut blocks = Blocks::default();
    blocks.check(1, &[0; BLOCK]).unwrap();
    blocks.write(1, 5);
    blocks.flush(1, vec![5]);
    assert!(blocks.check(1, &[0; BLOCK]).is_err());
    assert!(blocks.check(1, &content(6)).is_err());
    blocks.write(1, 6);
    blocks.check(1, &content(6)).unwrap();
    assert!(blocks.check(1, &content(5)).is_err(), "it was seen as 6");
}
