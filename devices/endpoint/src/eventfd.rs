//! The client's eventfds, signalled and taken back without waiting for the client.
//!
//! O_NONBLOCK belongs to the open file description, which the client shares. It can clear the flag and fill the counter at
//! any moment, so a write(2) may block. The kernel signals an eventfd at the end of an asynchronous operation (io_submit(2),
//! IOCB_FLAG_RESFD), and does not wait there: a full counter stays full.

use std::io::{self, ErrorKind, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use vmm_sys_util::aio::{IOCB_FLAG_RESFD, IoContext, IoControlBlock, IoEvent};

/// IOCB_CMD_POLL (linux/aio_abi.h).
const POLL: u16 = 5;
/// POLLIN (poll(2)).
const READABLE: u64 = 1;
/// How many completions the kernel keeps at least until they are discarded.
const COMPLETIONS: u32 = 64;
/// How often a signal is tried while other threads take the space that one has made in the completion queue.
const ATTEMPTS: usize = 1000;

/// Signals eventfds, from any number of threads.
#[derive(Debug)]
pub(crate) struct Signaller {
    context: IoContext,
    /// Readable at all times, so that a poll of it completes within io_submit(2).
    readable: OwnedFd,
}

impl Signaller {
    /// Fails where the kernel has no asynchronous I/O, or no context left (/proc/sys/fs/aio-max-nr).
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            context: IoContext::new(COMPLETIONS)?,
            readable: eventfd(1, EventfdFlags::CLOEXEC)?,
        })
    }

    /// Adds one to an eventfd. What is no eventfd is not signalled.
    pub(crate) fn signal(&self, event: &OwnedFd) {
        if let Err(error) = self.submit(event) {
            log::debug!("an interrupt's eventfd cannot be signalled: {error}");
        }
    }

    fn submit(&self, event: &OwnedFd) -> io::Result<()> {
        let mut operation = IoControlBlock {
            aio_lio_opcode: POLL,
            aio_fildes: number(self.readable.as_fd())?,
            aio_buf: READABLE,
            aio_flags: IOCB_FLAG_RESFD,
            aio_resfd: number(event.as_fd())?,
            ..IoControlBlock::default()
        };
        for _ in 0..ATTEMPTS {
            match self.context.submit(&[&mut operation]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.discard_completions()?
                }
                submitted => return submitted.map(drop),
            }
        }
        Err(ErrorKind::WouldBlock.into())
    }

    fn discard_completions(&self) -> io::Result<()> {
        let mut completions = [IoEvent::default(); COMPLETIONS as usize];
        self.context.get_events(0, &mut completions, None).map(drop)
    }
}

/// Takes the signals of an eventfd; whether there were any. RWF_NOWAIT holds whatever the client does to O_NONBLOCK.
pub(crate) fn take(event: &OwnedFd) -> bool {
    /// The file's own position, as for a stream (preadv2(2)).
    const NO_OFFSET: u64 = u64::MAX;
    let mut count = [0; 8];
    let mut space = [IoSliceMut::new(&mut count)];
    preadv2(event, &mut space, NO_OFFSET, ReadWriteFlags::NOWAIT).is_ok()
}

fn number(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let number = u32::try_from(fd.as_raw_fd());
    number.map_err(|_| Errno::BADF.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An eventfd without O_NONBLOCK whose counter takes no more writes.
    fn full() -> OwnedFd {
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        event
    }

    #[test]
    fn signals_are_counted_and_taken() {
        let signaller = Signaller::new().unwrap();
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        assert!(!take(&event));
        for _ in 0..10_000 {
            signaller.signal(&event);
        }
        let mut count = [0; 8];
        rustix::io::read(&event, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 10_000);
        signaller.signal(&event);
        assert!(take(&event) && !take(&event));
    }

    #[test]
    fn full_blocking_eventfd_is_signalled_without_waiting() {
        let signaller = Signaller::new().unwrap();
        let event = full();
        for _ in 0..1000 {
            signaller.signal(&event);
        }
        assert!(take(&event), "it is still full");
    }

    #[test]
    fn threads_share_a_signaller_and_lose_no_signal() {
        let signaller = Signaller::new().unwrap();
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5000).for_each(|_| signaller.submit(&event).unwrap()));
            }
        });
        let mut count = [0; 8];
        rustix::io::read(&event, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 20_000);
    }

    #[test]
    fn what_is_no_eventfd_is_left_alone() {
        let signaller = Signaller::new().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        assert!(signaller.submit(&write).is_err());
        assert!(!take(&read));
    }
}
