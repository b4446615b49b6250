//! A part of a file that is read, step by step, and compared with pinned memory if there is any.

use std::io;

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::Fd;
use peerbar_dma::{DmaFault, Pinned, Span};
use thiserror::Error;

use crate::progress::Progress;

/// How much one step reads.
pub(crate) const STEP: usize = 1 << 14;

/// What a file holds is not what it was compared with.
#[derive(Debug, Error)]
#[error("the file holds something else")]
pub struct Differs;

/// A part of a file that is not checked yet.
pub(crate) struct Check {
    offset: u64,
    left: u64,
    /// Where a step reads to: [`STEP`] bytes.
    buffer: Span,
    /// The address of that.
    address: usize,
    /// The expected content, if any, and how much of it has been compared.
    memory: Option<Pinned>,
    seen: usize,
}

impl Check {
    /// `len` bytes from `offset` on, which are what the memory holds, if there is any. It fails if the buffer is smaller
    /// than a step.
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

    /// The next step.
    pub(crate) fn entry(&self, file: Fd) -> Entry {
        let buffer = std::ptr::with_exposed_provenance_mut(self.address);
        let len = u32::try_from(self.next()).unwrap_or(0);
        opcode::Read::new(file, buffer, len)
            .offset(self.offset)
            .build()
    }

    /// How much the next step reads at most.
    fn next(&self) -> usize {
        usize::try_from(self.left).map_or(STEP, |left| left.min(STEP))
    }

    /// A step has read `count` bytes.
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

    /// Compares what a step has read with the memory.
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
        // As the kernel reports a fault.
        let fault = |_| io::Error::from_raw_os_error(libc::EFAULT);
        memory.read(self.seen, expected).map_err(fault)?;
        self.seen = self.seen.saturating_add(count);
        if found == expected {
            Ok(())
        } else {
            Err(io::Error::other(Differs))
        }
    }

    /// Unpins the memory and records what was compared.
    pub(crate) fn end(self, outcome: &io::Result<()>) {
        let errno = outcome.as_ref().err().and_then(io::Error::raw_os_error);
        let fault = (errno == Some(libc::EFAULT)).then_some(DmaFault::NoMemory);
        if let Some(memory) = self.memory {
            memory.end(self.seen, fault);
        }
    }
}
