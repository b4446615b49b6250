//! An operation of the kernel on a file, step by step.

use std::io;
use std::os::fd::AsRawFd;

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::{Fd, FsyncFlags};

use crate::check::Check;
use crate::file::RingFile;
use crate::progress::Progress;
use crate::transfer::Transfer;
use crate::zeroing::Zeroing;

/// An operation in progress. `T` identifies it to its owner.
pub(crate) struct Operation<T> {
    pub(crate) file: RingFile,
    pub(crate) work: Work,
    pub(crate) owner: T,
}

/// The kind of an operation.
pub(crate) enum Work {
    Transfer(Transfer),
    Zeroing(Zeroing),
    Check(Check),
    /// Brings `len` bytes from `offset` on to stable storage, with the metadata that is needed to
    /// read them (fdatasync(2)). If both are 0, the whole file.
    Sync {
        offset: u64,
        len: u32,
    },
}

impl<T> Operation<T> {
    /// Returns its next step, for the kernel.
    pub(crate) fn entry(&self) -> Entry {
        let fd = Fd(self.file.file().as_raw_fd());
        match &self.work {
            Work::Transfer(transfer) => transfer.entry(fd),
            Work::Zeroing(zeroing) => zeroing.entry(fd),
            Work::Check(check) => check.entry(fd),
            Work::Sync { offset, len } => opcode::Fsync::new(fd)
                .offset(*offset)
                .len(*len)
                .flags(FsyncFlags::DATASYNC)
                .build(),
        }
    }
}

impl Work {
    /// Takes the result of a step.
    pub(crate) fn advance(&mut self, result: io::Result<usize>) -> Progress {
        match (self, result) {
            (_, Err(error)) if error.kind() == io::ErrorKind::Interrupted => Progress::More,
            (Self::Zeroing(zeroing), result) => zeroing.advance(result),
            (_, Err(error)) => Progress::Over(Err(error)),
            (Self::Transfer(transfer), Ok(count)) => transfer.advance(count),
            (Self::Check(check), Ok(count)) => check.advance(count),
            (Self::Sync { .. }, Ok(_)) => Progress::Over(Ok(())),
        }
    }
}
