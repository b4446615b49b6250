//! Signals the client's eventfds without waiting for the client.
//!
//! The client can fill an eventfd's counter and clear O_NONBLOCK at any moment, so a write(2) may block. The kernel signals an
//! eventfd at the end of an asynchronous operation (io_submit(2), IOCB_FLAG_RESFD), and does not wait there: a full counter
//! stays full.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use vmm_sys_util::aio::{IOCB_FLAG_RESFD, IoContext, IoControlBlock, IoEvent};

use crate::eventfd::event::Event;

/// IOCB_CMD_POLL (linux/aio_abi.h).
const POLL: u16 = 5;
/// POLLIN (poll(2)).
const READABLE: u64 = 1;
/// The least number of completions that the kernel keeps until they are discarded.
const COMPLETIONS: u32 = 64;
/// Attempts at a signal while other threads take the space that was made in the completion queue.
const ATTEMPTS: usize = 1000;

/// Signals eventfds, from any number of threads.
#[derive(Debug)]
pub struct Signaller {
    context: IoContext,
    /// Readable at all times, so that a poll of it completes within io_submit(2).
    readable: OwnedFd,
}

impl Signaller {
    /// Makes a signaller with a context of asynchronous I/O.
    ///
    /// # Errors
    /// The kernel has no asynchronous I/O, or no context left (/proc/sys/fs/aio-max-nr).
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            context: IoContext::new(COMPLETIONS)?,
            readable: eventfd(1, EventfdFlags::CLOEXEC)?,
        })
    }

    /// Adds one to the counter of an eventfd. A full counter stays full.
    pub fn signal(&self, event: &Event) {
        if let Err(error) = self.submit(event) {
            log::debug!("an eventfd cannot be signalled: {error}");
        }
    }

    fn submit(&self, event: &Event) -> io::Result<()> {
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

fn number(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let number = u32::try_from(fd.as_raw_fd());
    number.map_err(|_| Errno::BADF.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An eventfd without O_NONBLOCK.
    fn event() -> Event {
        eventfd(0, EventfdFlags::empty())
            .unwrap()
            .try_into()
            .unwrap()
    }

    fn count(event: &Event) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(event, &mut count).unwrap();
        u64::from_ne_bytes(count)
    }

    #[test]
    fn every_signal_counts() {
        let signaller = Signaller::new().unwrap();
        let event = event();
        for _ in 0..10_000 {
            signaller.signal(&event);
        }
        assert_eq!(count(&event), 10_000);
    }

    #[test]
    fn full_blocking_eventfd_is_signalled_without_waiting() {
        let signaller = Signaller::new().unwrap();
        let event = event();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        for _ in 0..1000 {
            signaller.signal(&event);
        }
        assert_eq!(count(&event), u64::MAX);
    }

    #[test]
    fn threads_share_a_signaller_and_lose_no_signal() {
        let signaller = Signaller::new().unwrap();
        let event = event();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5000).for_each(|_| signaller.submit(&event).unwrap()));
            }
        });
        assert_eq!(count(&event), 20_000);
    }
}
