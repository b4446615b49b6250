//! An operation of the kernel's on a file, step by step.

use std::io;
use std::os::fd::AsRawFd;

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::{Fd, FsyncFlags};

use crate::check::Check;
use crate::file::RingFile;
use crate::transfer::Transfer;
use crate::zeroing::Zeroing;

/// An operation that goes on. `T` is its owner's.
pub(crate) struct Operation<T> {
    pub(crate) file: RingFile,
    pub(crate) work: Work,
    pub(crate) owner: T,
}

/// What the kernel is to do.
pub(crate) enum Work {
    Transfer(Transfer),
    Zeroing(Zeroing),
    Check(Check),
    /// Brings what was written there to stable storage, but for what is not needed to find it (fdatasync(2)).
    Sync(Stretch),
}

/// A part of a file.
#[derive(Clone, Copy)]
pub(crate) struct Stretch {
    pub(crate) offset: u64,
    /// 0 with an offset of 0: up to the end.
    pub(crate) len: u32,
}

impl Stretch {
    pub(crate) const WHOLE: Self = Self { offset: 0, len: 0 };
}

/// How far an operation has come.
pub(crate) enum Progress {
    /// Another step is to be made.
    More,
    /// All data is moved, and is to be brought to stable storage there.
    ToSync(Stretch),
    /// It has ended.
    Over(io::Result<()>),
}

impl<T> Operation<T> {
    /// The next step of it, for the kernel.
    pub(crate) fn entry(&self) -> Entry {
        let fd = Fd(self.file.file().as_raw_fd());
        match &self.work {
            Work::Transfer(transfer) => transfer.entry(fd),
            Work::Zeroing(zeroing) => zeroing.entry(fd),
            Work::Check(check) => check.entry(fd),
            Work::Sync(stretch) => opcode::Fsync::new(fd)
                .offset(stretch.offset)
                .len(stretch.len)
                .flags(FsyncFlags::DATASYNC)
                .build(),
        }
    }
}

impl Work {
    /// What has become of a step.
    pub(crate) fn advance(&mut self, result: io::Result<usize>) -> Progress {
        match (self, result) {
            (_, Err(error)) if error.kind() == io::ErrorKind::Interrupted => Progress::More,
            (Self::Zeroing(zeroing), result) => zeroing.advance(result),
            (_, Err(error)) => Progress::Over(Err(error)),
            (Self::Transfer(transfer), Ok(count)) => transfer.advance(count),
            (Self::Check(check), Ok(count)) => check.advance(count),
            (Self::Sync(_), Ok(_)) => Progress::Over(Ok(())),
        }
    }
}
