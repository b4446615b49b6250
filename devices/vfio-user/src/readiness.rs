//! Waiting for descriptors to become readable.

use std::time::Duration;

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Waits until one of `descriptors` is readable, or at its end. Returns `true` for each that is. A
/// signal may end the wait early. The descriptors are polled in the given order.
pub(crate) fn wait<const N: usize>(descriptors: [BorrowedFd<'_>; N]) -> Result<[bool; N], Errno> {
    wait_for(None, descriptors)
}

/// Like [`wait`], for at most this time.
pub(crate) fn wait_for<const N: usize>(
    time: Option<Duration>,
    descriptors: [BorrowedFd<'_>; N],
) -> Result<[bool; N], Errno> {
    let time = time.map(Timespec::try_from).transpose();
    let time = time.map_err(|_| Errno::INVAL)?;
    let mut polled = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match poll(&mut polled, time.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(polled.map(|fd| !fd.revents().is_empty())),
        Err(error) => Err(error),
    }
}
