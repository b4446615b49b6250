//! The eventfds that a client passes.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, readlinkat};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// An eventfd of the client.
///
/// The client shares the open file description and its flags, so it can make a read(2) or a
/// write(2) of it block at any moment, with or without O_NONBLOCK. [`Event::take`] never waits. A
/// device signals the eventfd by means that do not wait either, such as the completion of an
/// asynchronous operation (IORING_REGISTER_EVENTFD, or [`crate::eventfd::Signaller`]).
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// Takes the signals since the last call. Returns `true` if there were any.
    pub fn take(&self) -> bool {
        take(self.0.as_fd())
    }
}

/// Takes the signals of an eventfd without waiting. Returns `true` if there were any.
pub(crate) fn take(eventfd: BorrowedFd<'_>) -> bool {
    /// The file's own position (preadv2(2)).
    const NO_OFFSET: u64 = u64::MAX;
    let mut count = [0; 8];
    let mut space = [IoSliceMut::new(&mut count)];
    preadv2(eventfd, &mut space, NO_OFFSET, ReadWriteFlags::NOWAIT).is_ok()
}

impl TryFrom<OwnedFd> for Event {
    type Error = Errno;

    /// Fails with EINVAL if the descriptor is not an eventfd. Only the kernel's own inodes have
    /// such a name in /proc: the name of a file begins with a slash.
    fn try_from(fd: OwnedFd) -> Result<Self, Errno> {
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        match readlinkat(CWD, path, Vec::new())?.as_bytes() {
            b"anon_inode:[eventfd]" => Ok(Self(fd)),
            _ => Err(Errno::INVAL),
        }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn only_an_eventfd_is_an_event() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let memory = memfd_create("anon_inode:[eventfd]", MemfdFlags::CLOEXEC).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let named = std::fs::File::create(folder.path().join("anon_inode:[eventfd]")).unwrap();
        for fd in [read, write, memory, named.into()] {
            assert_eq!(Event::try_from(fd).unwrap_err(), Errno::INVAL);
        }
        Event::try_from(eventfd(0, EventfdFlags::CLOEXEC).unwrap()).unwrap();
    }

    #[test]
    fn signals_of_a_blocking_event_are_taken_without_waiting() {
        let event = Event::try_from(eventfd(0, EventfdFlags::empty()).unwrap()).unwrap();
        assert!(!event.take());
        rustix::io::write(&event, &2_u64.to_ne_bytes()).unwrap();
        assert!(event.take() && !event.take());
    }
}
