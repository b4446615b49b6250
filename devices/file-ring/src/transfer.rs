//! A transfer between pinned memory and a file, step by step.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::Fd;
use libc::{iovec, off_t};
use peerbar_dma::{Direction, DmaFault, Pinned};

use crate::progress::Progress;

/// The most parts of memory in one step (readv(2), IOV_MAX). Only a transfer of no more parts is
/// a single step, unless the kernel moves less than it could.
pub const MOST_PARTS: usize = 1024;

/// Addresses for the kernel.
#[derive(Default)]
pub(crate) struct Addresses(Vec<iovec>);

// SAFETY: only the kernel uses them as addresses, and they mean the same in every thread.
unsafe impl Send for Addresses {}

/// A transfer in progress.
pub(crate) struct Transfer {
    memory: Pinned,
    addresses: Addresses,
    /// The first of them that is yet to be filled or emptied.
    next: usize,
    offset: u64,
    left: usize,
    moved: usize,
}

impl Transfer {
    /// Makes a transfer of all of the memory, from `offset` of the file on. Reuses the list
    /// `addresses`. Fails if the memory is smaller than announced.
    pub(crate) fn new(memory: Pinned, offset: u64, mut addresses: Addresses) -> io::Result<Self> {
        addresses.0.clear();
        for (span, len) in memory.memory() {
            let pointer = span.file.pointer(span.offset, len);
            addresses.0.push(iovec {
                iov_base: pointer.map_err(io::Error::other)?.cast(),
                iov_len: len,
            });
        }
        Ok(Self {
            left: addresses.0.iter().map(|part| part.iov_len).sum(),
            memory,
            addresses,
            next: 0,
            offset,
            moved: 0,
        })
    }

    /// Returns the next step.
    pub(crate) fn entry(&self, file: Fd) -> Entry {
        let (parts, count) = self.next_parts();
        match self.memory.direction() {
            Direction::Write => opcode::Readv::new(file, parts, count.into())
                .offset(self.offset)
                .build(),
            Direction::Read => opcode::Writev::new(file, parts, count.into())
                .offset(self.offset)
                .build(),
        }
    }

    /// Returns the parts of memory of the next step, and their number.
    fn next_parts(&self) -> (*const iovec, u16) {
        let parts = self.addresses.0.get(self.next..).unwrap_or_default();
        let count = parts.len().min(MOST_PARTS);
        (parts.as_ptr(), u16::try_from(count).unwrap_or(0))
    }

    /// Moves all data at once, to or from a file that is in memory.
    pub(crate) fn move_now(&mut self, file: &File) -> io::Result<()> {
        loop {
            let moved = match self.step_now(file) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                moved => moved?,
            };
            match self.advance(moved) {
                Progress::More => {}
                Progress::Over(outcome) => return outcome,
            }
        }
    }

    /// Makes the next step. Returns the number of bytes moved.
    fn step_now(&self, file: &File) -> io::Result<usize> {
        let (fd, (parts, count)) = (file.as_raw_fd(), self.next_parts());
        let offset = off_t::try_from(self.offset).map_err(io::Error::other)?;
        // SAFETY: there are `count` parts, which lie in memory that stays mapped as long as it is
        // pinned. Other processes also write it; there is no reference to it.
        let moved = unsafe {
            match self.memory.direction() {
                Direction::Write => libc::preadv(fd, parts, count.into(), offset),
                Direction::Read => libc::pwritev(fd, parts, count.into(), offset),
            }
        };
        usize::try_from(moved).map_err(|_| io::Error::last_os_error())
    }

    /// Records that a step has moved `count` bytes.
    pub(crate) fn advance(&mut self, count: usize) -> Progress {
        if self.memory.intact().is_err() {
            // The error with which the kernel reports a fault.
            return Progress::Over(Err(io::Error::from_raw_os_error(libc::EFAULT)));
        }
        if count == 0 && self.left > 0 {
            return Progress::Over(Err(self.stuck().into()));
        }
        self.left = self.left.saturating_sub(count);
        self.moved = self.moved.saturating_add(count);
        self.offset = self.offset.saturating_add(count as u64);
        let mut count = count;
        while let Some(part) = self.addresses.0.get_mut(self.next) {
            let done = count.min(part.iov_len);
            part.iov_base = part.iov_base.wrapping_byte_add(done);
            part.iov_len -= done;
            count -= done;
            if part.iov_len > 0 {
                break;
            }
            self.next += 1;
        }
        if self.left > 0 {
            Progress::More
        } else {
            Progress::Over(Ok(()))
        }
    }

    /// Returns the error of a step that moved no data.
    fn stuck(&self) -> io::ErrorKind {
        match self.memory.direction() {
            Direction::Write => io::ErrorKind::UnexpectedEof,
            Direction::Read => io::ErrorKind::WriteZero,
        }
    }

    /// Unpins the memory and records the transfer. Returns the list, for reuse.
    pub(crate) fn end(self, outcome: &io::Result<()>) -> Addresses {
        let errno = outcome.as_ref().err().and_then(io::Error::raw_os_error);
        let fault = (errno == Some(libc::EFAULT)).then_some(DmaFault::NoMemory);
        self.memory.end(self.moved, fault);
        self.addresses
    }
}
