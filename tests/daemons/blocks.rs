//! What each block of a disk may contain.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, ensure};

use crate::memory::{BLOCK, stamp};

/// The stamps that the blocks of a disk may have.
#[derive(Default)]
pub(crate) struct Blocks {
    /// Of blocks whose write and flush were acknowledged. Others are zeroes.
    flushed: BTreeMap<u64, u64>,
    /// Of writes without both, beside that.
    pending: BTreeMap<u64, Vec<u64>>,
    last: u64,
}

impl Blocks {
    /// A stamp that no block has.
    pub(crate) fn next_stamp(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A write of `stamp` is about to be submitted.
    pub(crate) fn write(&mut self, number: u64, stamp: u64) {
        self.pending.entry(number).or_default().push(stamp);
    }

    /// The write, and a flush after it, are acknowledged.
    pub(crate) fn flush(&mut self, number: u64, stamp: u64) {
        self.flushed.insert(number, stamp);
        self.pending.remove(&number);
    }

    /// Whether these blocks were flushed last with these stamps.
    pub(crate) fn are_flushed(&self, mut stamps: impl Iterator<Item = (u64, u64)>) -> bool {
        stamps.all(|(number, stamp)| self.flushed.get(&number) == Some(&stamp))
    }

    /// That a block read as `content` has what it may have. From now on that is what it must have.
    pub(crate) fn check(&mut self, number: u64, content: &[u8]) -> anyhow::Result<()> {
        let found = stamp(content).with_context(|| format!("block {number} is mixed"))?;
        let flushed = self.flushed.get(&number).copied().unwrap_or(0);
        let pending = self.pending.remove(&number).unwrap_or_default();
        ensure!(
            found == flushed || pending.contains(&found),
            "block {number} has stamp {found}: {flushed} was flushed, {pending:?} were written later"
        );
        self.flush(number, found);
        Ok(())
    }

    /// That each block in the image has what it may have; how many were flushed.
    pub(crate) fn check_image(&mut self, image: &Path) -> anyhow::Result<usize> {
        let image = File::open(image)?;
        let numbers = self.flushed.keys().chain(self.pending.keys());
        let numbers: Vec<u64> = numbers.copied().collect();
        let mut content = [0; BLOCK];
        for number in numbers {
            image.read_exact_at(&mut content, number * BLOCK as u64)?;
            self.check(number, &content)?;
        }
        Ok(self.flushed.len())
    }

    /// Numbers of the blocks with writes that are not flushed.
    pub(crate) fn unsure(&self) -> Vec<u64> {
        self.pending.keys().copied().collect()
    }
}

#[test]
fn block_keeps_what_was_flushed_until_it_is_written() {
    let content = |stamp| crate::memory::block(stamp);
    let mut blocks = Blocks::default();
    blocks.check(1, &[0; BLOCK]).unwrap();
    blocks.write(1, 5);
    blocks.flush(1, 5);
    assert!(blocks.check(1, &[0; BLOCK]).is_err());
    assert!(blocks.check(1, &content(6)).is_err());
    blocks.write(1, 6);
    blocks.check(1, &content(6)).unwrap();
    assert!(blocks.check(1, &content(5)).is_err(), "it was seen as 6");
}
