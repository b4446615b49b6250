//! A transfer between a file and a buffer, and its parts.

use std::fmt;
use std::ops::Range;

use crate::alignment::Split;

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the file to the buffer.
    Read,
    /// From the buffer to the file.
    Write,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Read => "read",
            Direction::Write => "write",
        })
    }
}

/// A transfer that has been found possible.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    pub(crate) direction: Direction,
    /// Its offset in the file.
    pub(crate) offset: u64,
    /// Its range of the buffer.
    pub(crate) range: Range<u64>,
    pub(crate) split: Split,
}

impl Transfer {
    pub(crate) fn length(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }

    /// Returns the range of `length` bytes that starts `skip` bytes after the start.
    pub(crate) fn file_range(&self, skip: u64, length: u64) -> FileRange {
        let start = self.range.start.saturating_add(skip);
        FileRange {
            direction: self.direction,
            offset: self.offset.saturating_add(skip),
            range: start..start.saturating_add(length),
        }
    }

    /// Returns the peer-to-peer part.
    pub(crate) fn middle(&self) -> FileRange {
        self.file_range(self.split.head, self.split.middle)
    }
}

/// A part of a transfer: bytes of the file, and of the buffer.
#[derive(Clone, Debug)]
pub(crate) struct FileRange {
    pub(crate) direction: Direction,
    pub(crate) offset: u64,
    pub(crate) range: Range<u64>,
}

impl FileRange {
    pub(crate) fn length(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }

    /// Returns the rest after the first `done` bytes.
    pub(crate) fn after(&self, done: u64) -> FileRange {
        FileRange {
            direction: self.direction,
            offset: self.offset.saturating_add(done),
            range: self.range.start.saturating_add(done)..self.range.end,
        }
    }
}
