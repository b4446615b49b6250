//! Reads a part of a file step by step, and compares it with pinned memory if there is any.

use std::io;

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::Fd;
use peerbar_dma::{DmaFault, Pinned, Span};
use thiserror::Error;

use crate::progress::Progress;

/// Bytes that one step reads.
pub(crate) const STEP: usize = 1 << 14;

/// The contents of the file differ from the memory that they were compared with.
#[derive(Debug, Error)]
#[error("the file holds something else")]
pub struct Differs;

/// A part of a file that has not been checked yet.
pub(crate) struct Check {
    offset: u64,
    left: u64,
    /// Buffer for a step: [`STEP`] bytes.
    buffer: Span,
    /// The address of the buffer.
    address: usize,
    /// The expected contents, if any.
    memory: Option<Pinned>,
    seen: usize,
}

impl Check {
    /// Makes a check of `len` bytes from `offset` on, which must equal the memory, if there is any.
    /// Fails if the buffer is smaller than a step.
    pub(crate) fn new(
        (offset, len): (u64, u64),
        memory: Option<Pinned>,
        buffer: Span,
    ) -> io::Result<Self> {
        let pointer = buffer.file.pointer(buffer.offset, STEP);
        Ok(Self {
            offset,
            left: len,
            address: pointer.map_err(io::Error::other)?.expose_provenance(),
            buffer,
            memory,
            seen: 0,
        })
    }

    pub(crate) fn has_pinned(&self) -> bool {
        self.memory.is_some()
    }

    /// Returns the next step.
    pub(crate) fn entry(&self, file: Fd) -> Entry {
        let buffer = std::ptr::with_exposed_provenance_mut(self.address);
        let len = u32::try_from(self.next()).unwrap_or(0);
        opcode::Read::new(file, buffer, len)
            .offset(self.offset)
            .build()
    }

    /// Returns the most bytes that the next step reads.
    fn next(&self) -> usize {
        usize::try_from(self.left).map_or(STEP, |left| left.min(STEP))
    }

    /// Records that a step has read `count` bytes.
    pub(crate) fn advance(&mut self, count: usize) -> Progress {
        if count == 0 && self.left > 0 {
            return Progress::Over(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        if let Err(error) = self.compare(count) {
            return Progress::Over(Err(error));
        }
        self.offset = self.offset.saturating_add(count as u64);
        self.left = self.left.saturating_sub(count as u64);
        match self.left {
            0 => Progress::Over(Ok(())),
            _ => Progress::More,
        }
    }

    /// Compares the bytes that a step has read with the memory.
    fn compare(&mut self, count: usize) -> io::Result<()> {
        let Some(memory) = &self.memory else {
            return Ok(());
        };
        let (mut found, mut expected) = ([0; STEP], [0; STEP]);
        let too_much = io::ErrorKind::InvalidData;
        let found = found.get_mut(..count).ok_or(too_much)?;
        let expected = expected.get_mut(..count).ok_or(too_much)?;
        let buffer = self.buffer.file.read(self.buffer.offset, found);
        buffer.map_err(io::Error::other)?;
        // The error with which the kernel reports a fault.
        let fault = |_| io::Error::from_raw_os_error(libc::EFAULT);
        memory.read(self.seen, expected).map_err(fault)?;
        self.seen = self.seen.saturating_add(count);
        if found == expected {
            Ok(())
        } else {
            Err(io::Error::other(Differs))
        }
    }

    /// Unpins the memory and records the comparison.
    pub(crate) fn end(self, outcome: &io::Result<()>) {
        let errno = outcome.as_ref().err().and_then(io::Error::raw_os_error);
        let fault = (errno == Some(libc::EFAULT)).then_some(DmaFault::NoMemory);
        if let Some(memory) = self.memory {
            memory.end(self.seen, fault);
        }
    }
}
