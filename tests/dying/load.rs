//! The output of the load in the guest.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, ensure};

use crate::content::{BLOCK, block};

/// The parsed output of the load.
#[derive(Default)]
pub(crate) struct Said {
    /// Bytes of an incomplete line.
    rest: Vec<u8>,
    /// First block and number of blocks of each flush, by disk.
    flushed: BTreeMap<String, BTreeSet<(u64, u64)>>,
    /// Numbers of the files on the disk, by disk.
    synced: BTreeMap<String, BTreeSet<u64>>,
    /// Number of correct transfers from and to a device's memory, by disk and owner of the memory.
    verified: BTreeMap<(String, String), usize>,
    /// Lines about wrong data.
    pub(crate) wrong: Vec<String>,
    /// Number of flushes that have been compared so far, as last reported, and in the end.
    pub(crate) comparing: usize,
    pub(crate) compared: Option<usize>,
}

impl Said {
    /// Parses output of the load.
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
            ["flushed", disk, first, count] => {
                let flushes = self.flushed.entry((*disk).to_owned()).or_default();
                flushes.insert((first.parse()?, count.parse()?));
            }
            ["synced", disk, number] => {
                let files = self.synced.entry((*disk).to_owned()).or_default();
                files.insert(number.parse()?);
            }
            ["verified", disk, device] => {
                let pair = ((*disk).to_owned(), (*device).to_owned());
                *self.verified.entry(pair).or_default() += 1;
            }
            ["wrong", ..] => self.wrong.push(line.to_owned()),
            ["comparing", count] => self.comparing = count.parse()?,
            ["compared", count] => self.compared = Some(count.parse()?),
            _ => anyhow::bail!("the load says: {line}"),
        }
        Ok(())
    }

    /// Returns the number of flushes of blocks of `disk`.
    pub(crate) fn flushes(&self, disk: &str) -> usize {
        self.flushed.get(disk).map_or(0, BTreeSet::len)
    }

    /// Returns the number of correct transfers between a disk and a device's memory.
    pub(crate) fn verified(&self) -> usize {
        self.verified.values().sum()
    }

    /// Returns `true` if transfers of `disk` from and to the memory of `device` were correct.
    pub(crate) fn is_verified(&self, disk: &str, device: &str) -> bool {
        let mut pairs = self.verified.keys();
        pairs.any(|(verified, owner)| verified == disk && owner == device)
    }

    /// Returns the number of files and flushes of blocks.
    pub(crate) fn all(&self) -> usize {
        let files = self.synced.values().map(BTreeSet::len);
        let flushes = self.flushed.values().map(BTreeSet::len);
        files.chain(flushes).sum()
    }

    /// Returns the expected content of the disks, as lines of the load.
    pub(crate) fn lines(&self) -> String {
        let mut lines = String::new();
        for (disk, flushes) in &self.flushed {
            for (first, count) in flushes {
                // Writing to a String does not fail.
                let _ = writeln!(lines, "flushed {disk} {first} {count}");
            }
        }
        for (disk, files) in &self.synced {
            for number in files {
                let _ = writeln!(lines, "synced {disk} {number}");
            }
        }
        lines
    }

    /// Checks that each flushed block of `disk` is in its image.
    pub(crate) fn check_image(&self, seed: u64, disk: &str, image: &Path) -> anyhow::Result<()> {
        let file = File::open(image).context("cannot open the image")?;
        let flushes = self.flushed.get(disk).into_iter().flatten();
        for number in flushes.flat_map(|(first, count)| *first..first + count) {
            let mut found = [0; BLOCK];
            file.read_exact_at(&mut found, number * BLOCK as u64)?;
            let kept = found.as_slice() == block(seed, disk, number);
            ensure!(kept, "block {number} of {disk} was flushed and is lost");
        }
        Ok(())
    }
}

#[test]
fn lost_block_of_an_image_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("disk0.img");
    let content = [vec![0; BLOCK], block(7, "disk0", 1), block(7, "disk0", 2)];
    std::fs::write(&image, content.concat()).unwrap();
    let mut said = Said::default();
    said.take(b"flushed disk0 1 2\nflushed dis").unwrap();
    said.take(b"k0 2 1\nverified disk0 gpu0\nsynced disk0 9\n")
        .unwrap();
    assert_eq!(
        (said.flushes("disk0"), said.verified(), said.all()),
        (2, 1, 3)
    );
    let is_verified = |device| said.is_verified("disk0", device);
    assert_eq!(["gpu0", "disk1"].map(is_verified), [true, false]);
    let lines = "flushed disk0 1 2\nflushed disk0 2 1\nsynced disk0 9\n";
    assert_eq!(said.lines(), lines);
    said.check_image(7, "disk0", &image).unwrap();
    let file = File::options().write(true).open(&image).unwrap();
    file.write_all_at(b"x", 2 * BLOCK as u64 + 100).unwrap();
    let lost = said.check_image(7, "disk0", &image).unwrap_err();
    assert_eq!(lost.to_string(), "block 2 of disk0 was flushed and is lost");
}
