//! What the guest does while a part dies, and what it says of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, ensure};

/// The shell script of the load.
pub(crate) const SCRIPT: &str = include_str!("load.sh");
/// Bytes of a block that it writes.
const BLOCK: usize = 4096;

/// What the load has said.
#[derive(Default)]
pub(crate) struct Said {
    /// Bytes of a line that is not complete.
    rest: Vec<u8>,
    /// Numbers of the blocks that are flushed, by disk.
    pub(crate) flushed: BTreeMap<String, BTreeSet<u64>>,
    /// How often fio has verified what it wrote through peer memory.
    pub(crate) verified: usize,
    /// Lines of wrong data.
    pub(crate) wrong: Vec<String>,
}

impl Said {
    /// Takes output of the load.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.rest.extend(bytes);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            self.take_line(String::from_utf8(line)?.trim_end())?;
        }
        Ok(())
    }

    fn take_line(&mut self, line: &str) -> anyhow::Result<()> {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["flushed", disk, number] => {
                let blocks = self.flushed.entry((*disk).to_owned()).or_default();
                blocks.insert(number.parse()?);
            }
            ["verified"] => self.verified += 1,
            ["wrong", ..] => self.wrong.push(line.to_owned()),
            _ => anyhow::bail!("the load says: {line}"),
        }
        Ok(())
    }

    /// How many blocks of `disk` are flushed.
    pub(crate) fn blocks(&self, disk: &str) -> usize {
        self.flushed.get(disk).map_or(0, BTreeSet::len)
    }

    /// That each flushed block of `disk` is in its image.
    pub(crate) fn check_image(&self, seed: u64, disk: &str, image: &Path) -> anyhow::Result<()> {
        let file = File::open(image).context("cannot open the image")?;
        for number in self.flushed.get(disk).into_iter().flatten() {
            let mut found = [0; BLOCK];
            file.read_exact_at(&mut found, number * BLOCK as u64)?;
            let kept = found.as_slice() == block(seed, disk, *number);
            ensure!(kept, "block {number} of {disk} was flushed and is lost");
        }
        Ok(())
    }
}

/// The block `number` of `disk`, as the script's `block` makes it.
fn block(seed: u64, disk: &str, number: u64) -> Vec<u8> {
    let line = format!("peerbar {seed} {disk} {number}\n");
    line.bytes().cycle().take(BLOCK).collect()
}

#[test]
fn lost_block_of_an_image_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("disk0.img");
    let content = [vec![0; BLOCK], block(7, "disk0", 1), block(7, "disk0", 2)];
    std::fs::write(&image, content.concat()).unwrap();
    let mut said = Said::default();
    said.take(b"flushed disk0 1\nflushed dis").unwrap();
    said.take(b"k0 2\nverified\n").unwrap();
    assert_eq!((said.blocks("disk0"), said.verified), (2, 1));
    said.check_image(7, "disk0", &image).unwrap();
    let file = File::options().write(true).open(&image).unwrap();
    file.write_all_at(b"x", 2 * BLOCK as u64 + 100).unwrap();
    let lost = said.check_image(7, "disk0", &image).unwrap_err();
    assert_eq!(lost.to_string(), "block 2 of disk0 was flushed and is lost");
}
