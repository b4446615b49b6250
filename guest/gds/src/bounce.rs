//! The detour through host memory.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

use crate::alignment::Alignment;
use crate::buffer::{Buffer, HostBuffer};
use crate::traffic::Counters;
use crate::transfer::FileRange;
use crate::{Error, Gpu, Result};

/// Bytes of one round.
const SIZE: u64 = 1 << 20;

/// A range of host memory that both the disk and the GPU's copy engine reach.
#[derive(Debug)]
pub(crate) struct Bounce {
    gpu: Gpu,
    host: HostBuffer,
    alignment: Alignment,
}

/// The range that one round of a transfer covers.
#[derive(Debug)]
struct Round {
    /// Start and length of whole blocks in the file.
    low: u64,
    blocks: u64,
    /// Offset of the wanted bytes in them, and their number.
    skip: u64,
    length: u64,
    /// Their offset in the GPU's buffer.
    at: u64,
}

impl Round {
    /// Returns `true` if the round covers bytes that are not wanted.
    fn is_partial(&self) -> bool {
        self.length < self.blocks
    }
}

impl Bounce {
    pub(crate) fn new(gpu: &Gpu, alignment: Alignment) -> Result<Self> {
        let size = SIZE.max(alignment.block.saturating_mul(2));
        Ok(Bounce {
            gpu: gpu.clone(),
            host: gpu.allocate_host(size)?,
            alignment,
        })
    }

    /// Reads a range of the file. Returns the number of bytes that it has.
    pub(crate) fn read(
        &self,
        file: &File,
        file_range: &FileRange,
        buffer: &Buffer,
        counters: &Counters,
        failed: impl Fn(io::Error) -> Error,
    ) -> Result<u64> {
        self.in_rounds(file_range, counters, |round| {
            let count = self.fetch(file, round).map_err(&failed)?;
            let wanted = count.saturating_sub(round.skip).min(round.length);
            let from = self.host.span(part(round.skip, wanted))?;
            self.gpu.copy(from, buffer.span(part(round.at, wanted))?)?;
            Ok(wanted)
        })
    }

    /// Writes a range of the file. Returns the number of bytes that it took.
    pub(crate) fn write(
        &self,
        file: &File,
        file_range: &FileRange,
        buffer: &Buffer,
        counters: &Counters,
        failed: impl Fn(io::Error) -> Error,
    ) -> Result<u64> {
        self.in_rounds(file_range, counters, |round| {
            let old = match round.is_partial() {
                true => self.fetch(file, round).map_err(&failed)?,
                false => round.blocks,
            };
            let from = buffer.span(part(round.at, round.length))?;
            self.gpu
                .copy(from, self.host.span(part(round.skip, round.length))?)?;
            if old < round.blocks {
                return self.store_at_end(file, round).map_err(&failed);
            }
            let count = self.store(file, round).map_err(&failed)?;
            Ok(count.saturating_sub(round.skip).min(round.length))
        })
    }

    fn in_rounds(
        &self,
        file_range: &FileRange,
        counters: &Counters,
        mut carry: impl FnMut(&Round) -> Result<u64>,
    ) -> Result<u64> {
        let mut done: u64 = 0;
        while done < file_range.length() {
            let round = self.round(file_range, done);
            let moved = carry(&round)?;
            // At once, since these bytes have bounced even if the next round fails.
            counters.bounced(moved);
            done = done.saturating_add(moved);
            if moved < round.length {
                break;
            }
        }
        Ok(done)
    }

    fn round(&self, file_range: &FileRange, done: u64) -> Round {
        let start = file_range.offset.saturating_add(done);
        let low = self.alignment.down(start);
        let skip = start.saturating_sub(low);
        let left = file_range.length().saturating_sub(done);
        let capacity = self.alignment.down(self.host.size());
        let length = left.min(capacity.saturating_sub(skip));
        Round {
            low,
            blocks: self
                .alignment
                .up(skip.saturating_add(length))
                .unwrap_or(capacity),
            skip,
            length,
            at: file_range.range.start.saturating_add(done),
        }
    }

    /// Reads the round's blocks from the file. Returns the number of bytes, which is smaller only
    /// where the file ends.
    fn fetch(&self, file: &File, round: &Round) -> io::Result<u64> {
        self.repeat(round, |at| {
            let offset = round.low.saturating_add(at);
            self.host
                .mapping()
                .read_file(at..round.blocks, file, offset)
        })
    }

    /// Writes the round's blocks to the file. Returns the number of bytes that it took.
    fn store(&self, file: &File, round: &Round) -> io::Result<u64> {
        self.repeat(round, |at| {
            let offset = round.low.saturating_add(at);
            self.host
                .mapping()
                .write_file(at..round.blocks, file, offset)
        })
    }

    /// Writes only the round's bytes if the file ends within its last block. Returns the number of
    /// bytes that it took. Uses the page cache: whole blocks would make the file too long, and
    /// truncating it could remove bytes that another thread has just written.
    fn store_at_end(&self, file: &File, round: &Round) -> io::Result<u64> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let cached = OpenOptions::new().write(true).open(path)?;
        let mut done: u64 = 0;
        while done < round.length {
            let at = round.skip.saturating_add(done);
            let range = at..round.skip.saturating_add(round.length);
            let offset = round.low.saturating_add(at);
            match self.host.mapping().write_file(range, &cached, offset)? {
                0 => break,
                count => done = done.saturating_add(count),
            }
        }
        Ok(done)
    }

    fn repeat(&self, round: &Round, attempt: impl Fn(u64) -> io::Result<u64>) -> io::Result<u64> {
        let mut done: u64 = 0;
        while done < round.blocks {
            let count = attempt(done)?;
            done = done.saturating_add(count);
            if count == 0 || self.alignment.down(count) != count {
                break;
            }
        }
        Ok(done)
    }
}

fn part(start: u64, length: u64) -> std::ops::Range<u64> {
    start..start.saturating_add(length)
}
