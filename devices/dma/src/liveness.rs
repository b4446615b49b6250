//! Whether the process that lends memory lives, without asking another process: a pipe whose end for writing it alone has.
//!
//! The kernel closes that end when the process ends, however it ends, and the other end then reads as hung up (poll(2), POLLHUP). Every
//! process that has an end for writing would keep the pipe alive, so the lender shows the one for reading.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, FileType, StatxFlags, statx};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::memory_error::MemoryError;

/// At the lender: it is over when this is dropped, or the process ends.
#[derive(Debug)]
pub(crate) struct OwnLiveness {
    shown: OwnedFd,
    _held: OwnedFd,
}

impl OwnLiveness {
    /// # Errors
    /// [`MemoryError::Os`] if there are no descriptors left.
    pub(crate) fn new() -> Result<Self, MemoryError> {
        let pipe = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
        let (shown, held) = pipe.map_err(|errno| MemoryError::Os {
            action: "make a pipe beside it",
            size: 0,
            source: errno.into(),
        })?;
        Ok(Self { shown, _held: held })
    }

    /// The end for the reader.
    pub(crate) fn shown(&self) -> BorrowedFd<'_> {
        self.shown.as_fd()
    }
}

/// At the reader.
#[derive(Debug)]
pub(crate) struct LenderLiveness(OwnedFd);

impl LenderLiveness {
    /// # Errors
    /// [`MemoryError::NotAPipe`]: to ask or to close another file may wait for another process.
    pub(crate) fn new(fd: OwnedFd) -> Result<Self, MemoryError> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let status = statx(&fd, c"", flags, StatxFlags::TYPE);
        let status = status.map_err(|_| MemoryError::NotAPipe)?;
        let is_pipe = FileType::from_raw_mode(status.stx_mode.into()).is_fifo();
        is_pipe.then_some(Self(fd)).ok_or(MemoryError::NotAPipe)
    }

    /// Whether the lender has ended. If that cannot be found out, it counts as ended.
    pub(crate) fn is_over(&self) -> bool {
        const AT_ONCE: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // A hang-up is reported whether it is asked for or not.
        let mut asked = [PollFd::new(&self.0, PollFlags::empty())];
        poll(&mut asked, Some(&AT_ONCE)) != Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn lender_is_over_once_its_own_end_is_closed() {
        let own = OwnLiveness::new().unwrap();
        let shown = || own.shown().try_clone_to_owned().unwrap();
        let (first, second) = (
            LenderLiveness::new(shown()).unwrap(),
            LenderLiveness::new(shown()).unwrap(),
        );
        assert!(!first.is_over() && !second.is_over());
        let third = shown();
        drop(own);
        assert!(first.is_over() && second.is_over());
        assert!(LenderLiveness::new(third).unwrap().is_over());
    }

    #[test]
    fn anything_but_a_pipe_is_refused() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let files: [OwnedFd; 3] = [
            socket.into(),
            memfd_create("test", MemfdFlags::CLOEXEC).unwrap(),
            File::open("/dev/null").unwrap().into(),
        ];
        for fd in files {
            let refused = LenderLiveness::new(fd);
            assert!(matches!(refused, Err(MemoryError::NotAPipe)));
        }
    }
}
