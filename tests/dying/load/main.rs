//! The load in the guest. It runs until it is killed; errors of devices are permitted.
//!
//! `write SEED DISK=DEVICE... [DISK=FOLDER...] [MEMORY=P2PMEM...]` writes numbered blocks to each
//! disk, from RAM, through the page cache and from the p2pmem files, and numbered files to each
//! folder. It prints `flushed DISK FIRST COUNT` and `synced DISK NUMBER` after the fsync of blocks
//! and of a file, `verified DISK MEMORY` after a transfer from and to a device's memory, and
//! `wrong ...` for wrong data.
//!
//! `verify SEED DISK=DEVICE... [DISK=FOLDER...] < LINES` prints `wrong ...` for data that
//! contradicts such lines, `comparing COUNT` as it goes on, and finally `compared COUNT`.

#[path = "../content.rs"]
mod content;

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, thread};

use anyhow::{Context, bail};
use rustix::fs::OFlags;
use vm_memory::{
    FileOffset, MmapRegion, ReadVolatile, VolatileMemory, VolatileSlice, WriteVolatile,
};

use crate::content::{BLOCK, block};

/// Blocks of the largest write.
const LARGEST: u64 = 8;
/// Bytes of each half of a buffer: one for writes, one for reads.
const HALF: usize = 8 * BLOCK;
/// Lines that are compared between two progress reports.
const PROGRESS: u64 = 16;
/// Time that a thread waits after an error.
const PAUSE: Duration = Duration::from_millis(20);

/// The paths of the command line.
#[derive(Default)]
struct LoadPaths {
    /// Block devices, folders and p2pmem files, each with the name of its device.
    disks: Vec<(String, PathBuf)>,
    folders: Vec<(String, PathBuf)>,
    memories: Vec<(String, PathBuf)>,
}

/// A disk, with and without the page cache.
struct Disk {
    seed: u64,
    name: String,
    direct: File,
    cached: File,
}

/// Memory for transfers: RAM, or that of the device of this name.
struct Buffer {
    device: Option<String>,
    region: MmapRegion,
}

/// Blocks that are written at once.
struct Extent {
    first: u64,
    content: Vec<u8>,
}

impl LoadPaths {
    fn of(words: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut paths = Self::default();
        for word in words {
            let (name, path) = word.split_once('=').context("no NAME=PATH")?;
            let named = (name.to_owned(), PathBuf::from(path));
            match path {
                path if path.starts_with("/dev/") => paths.disks.push(named),
                path if path.starts_with("/sys/") => paths.memories.push(named),
                _ => paths.folders.push(named),
            }
        }
        Ok(paths)
    }
}

impl Buffer {
    fn in_ram() -> anyhow::Result<Self> {
        let region = MmapRegion::new(2 * HALF)?;
        Ok(Self {
            device: None,
            region,
        })
    }

    fn in_device(name: &str, p2pmem: &Path) -> anyhow::Result<Self> {
        let file = File::options().read(true).write(true).open(p2pmem)?;
        let region = MmapRegion::from_file(FileOffset::new(file, 0), 2 * HALF)?;
        Ok(Self {
            device: Some(name.to_owned()),
            region,
        })
    }

    /// Returns the first bytes of one half of it.
    fn half(&self, number: usize, bytes: usize) -> io::Result<VolatileSlice<'_>> {
        let slice = self.region.get_slice(number * HALF, bytes);
        slice.map_err(io::Error::other)
    }

    fn holds(&self, number: usize, content: &[u8]) -> io::Result<bool> {
        let mut found = vec![0; content.len()];
        self.half(number, content.len())?.copy_to(&mut found);
        Ok(found == content)
    }
}

impl Disk {
    fn open(seed: u64, name: &str, path: &Path) -> anyhow::Result<Self> {
        let direct = i32::try_from(OFlags::DIRECT.bits())?;
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        Ok(Self {
            seed,
            name: name.to_owned(),
            cached: options.open(path)?,
            direct: options.custom_flags(direct).open(path)?,
        })
    }

    /// Writes blocks, from each memory in turn.
    fn write_without_end(mut self, buffers: &[Buffer]) -> anyhow::Result<()> {
        let mut first = 1;
        for number in 0_usize.. {
            let count = 1 + u64::try_from(number)? % LARGEST;
            let extent = self.extent(first, count);
            // The last way is through the page cache.
            let done = match buffers.get(number % (buffers.len() + 1)) {
                Some(buffer) => self.write_from(buffer, &extent),
                None => self.write_cached(&extent),
            };
            if done.is_err() {
                thread::park_timeout(PAUSE);
            }
            first += count;
        }
        Ok(())
    }

    fn write_cached(&self, extent: &Extent) -> io::Result<()> {
        self.cached.write_all_at(&extent.content, extent.offset())?;
        self.cached.sync_data()?;
        self.say_flushed(extent)
    }

    /// Writes from `buffer`, and reads back to it.
    fn write_from(&mut self, buffer: &Buffer, extent: &Extent) -> io::Result<()> {
        let Extent { content, .. } = extent;
        let half = |number| buffer.half(number, content.len());
        half(0)?.copy_from(content);
        self.at(extent)?
            .write_all_volatile(&half(0)?)
            .map_err(io::Error::other)?;
        self.direct.sync_data()?;
        // Memory of a device that is gone does not keep its content.
        if !buffer.holds(0, content)? {
            return Err(io::ErrorKind::NotConnected.into());
        }
        self.say_flushed(extent)?;
        half(1)?.copy_from(&vec![0; content.len()]);
        self.at(extent)?
            .read_exact_volatile(&mut half(1)?)
            .map_err(io::Error::other)?;
        let is_right = buffer.holds(1, content)?;
        let Self { name, .. } = self;
        match &buffer.device {
            Some(device) if is_right => say(&format!("verified {name} {device}")),
            Some(device) if buffer.holds(0, content)? => say(&format!("wrong {name} {device}")),
            None if !is_right => say(&format!("wrong {name} {}", extent.first)),
            _ => Ok(()),
        }
    }

    /// Returns the device at the offset of an extent, without the page cache.
    fn at(&mut self, extent: &Extent) -> io::Result<&mut File> {
        self.direct.seek(SeekFrom::Start(extent.offset()))?;
        Ok(&mut self.direct)
    }

    fn say_flushed(&self, extent: &Extent) -> io::Result<()> {
        let count = extent.content.len() / BLOCK;
        say(&format!("flushed {} {} {count}", self.name, extent.first))
    }

    /// Returns `true` if these blocks are on the disk.
    fn has(&mut self, extent: &Extent, buffer: &Buffer) -> anyhow::Result<bool> {
        let mut half = buffer.half(0, extent.content.len())?;
        self.at(extent)?.read_exact_volatile(&mut half)?;
        Ok(buffer.holds(0, &extent.content)?)
    }

    /// Returns `count` blocks from `first` on, as they are written.
    fn extent(&self, first: u64, count: u64) -> Extent {
        let blocks = first..first + count;
        let content = blocks.flat_map(|number| block(self.seed, &self.name, number));
        Extent {
            first,
            content: content.collect(),
        }
    }
}

impl Extent {
    fn offset(&self) -> u64 {
        self.first * BLOCK as u64
    }
}

/// Writes one file after the other, each like a program that must not lose it.
fn write_files(seed: u64, disk: &str, folder: &Path) -> anyhow::Result<()> {
    let directory = File::open(folder)?;
    for number in 1_u64.. {
        let write = || {
            let mut file = File::create(folder.join(number.to_string()))?;
            file.write_all(&block(seed, disk, number))?;
            file.sync_all()?;
            directory.sync_all()?;
            say(&format!("synced {disk} {number}"))
        };
        if write().is_err() {
            thread::park_timeout(PAUSE);
        }
    }
    Ok(())
}

/// Prints a line at once.
fn say(line: &str) -> io::Result<()> {
    io::stdout()
        .lock()
        .write_all(format!("{line}\n").as_bytes())
}

fn write(seed: u64, paths: &LoadPaths) -> anyhow::Result<()> {
    thread::scope(|scope| {
        for (name, path) in &paths.disks {
            let disk = Disk::open(seed, name, path)?;
            let of_devices = paths.memories.iter();
            let of_devices = of_devices.map(|(name, path)| Buffer::in_device(name, path));
            let buffers: Vec<Buffer> = [Buffer::in_ram()]
                .into_iter()
                .chain(of_devices)
                .collect::<Result<_, _>>()?;
            scope.spawn(move || disk.write_without_end(&buffers));
        }
        for (disk, folder) in &paths.folders {
            scope.spawn(move || write_files(seed, disk, folder));
        }
        Ok(())
    })
}

fn verify(seed: u64, paths: &LoadPaths) -> anyhow::Result<()> {
    let buffer = Buffer::in_ram()?;
    let disks = paths.disks.iter();
    let disks = disks.map(|(name, path)| Disk::open(seed, name, path));
    let mut disks: Vec<Disk> = disks.collect::<Result<_, _>>()?;
    let mut compared = 0_u64;
    for line in io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let is_there = match words.as_slice() {
            ["flushed", disk, first, count] => {
                let known = disks.iter_mut().find(|known| known.name == *disk);
                let known = known.with_context(|| format!("no disk {disk}"))?;
                let extent = known.extent(first.parse()?, count.parse()?);
                known.has(&extent, &buffer)?
            }
            ["synced", disk, number] => {
                let mut folders = paths.folders.iter();
                let folder = folders.find(|(known, _)| known == disk);
                let (_, folder) = folder.with_context(|| format!("no folder of {disk}"))?;
                let found = std::fs::read(folder.join(number));
                let expected = block(seed, disk, number.parse()?);
                found.is_ok_and(|found| found == expected)
            }
            _ => bail!("no such line: {line}"),
        };
        compared += 1;
        if compared % PROGRESS == 0 {
            say(&format!("comparing {compared}"))?;
        }
        if !is_there {
            say(&format!("wrong {line}"))?;
        }
    }
    Ok(say(&format!("compared {compared}"))?)
}

fn main() -> anyhow::Result<()> {
    let mut words = env::args().skip(1);
    let mode = words.next().context("no mode")?;
    let seed = words.next().context("no seed")?.parse()?;
    let paths = LoadPaths::of(words)?;
    match mode.as_str() {
        "write" => write(seed, &paths),
        "verify" => verify(seed, &paths),
        mode => bail!("no such mode: {mode}"),
    }
}
