//! Waiting until there is something to read.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Waits until one of `descriptors` has something to read, or its end; which of them do. A signal may end the wait early.
/// The descriptors are polled in the given order.
pub(crate) fn wait<const N: usize>(descriptors: [BorrowedFd<'_>; N]) -> Result<[bool; N], Errno> {
    let mut polled = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match poll(&mut polled, None) {
        Ok(_) | Err(Errno::INTR) => Ok(polled.map(|fd| !fd.revents().is_empty())),
        Err(error) => Err(error),
    }
}
