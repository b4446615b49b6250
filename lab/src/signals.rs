//! The signals that would end this process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, anyhow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::{pipe, unregister};

const NUMBERS: [i32; 3] = [SIGHUP, SIGINT, SIGTERM];

/// The signals that would end this process: taken note of as long as this lives, so that none gets lost between two
/// stages of a run.
#[derive(Debug)]
pub struct Signals {
    each: Vec<Signal>,
    any: Option<UnixStream>,
}

#[derive(Debug)]
struct Signal {
    number: i32,
    stream: UnixStream,
    registrations: [SigId; 2],
}

/// No signals: a test's process ends by them.
pub static NONE: Signals = Signals {
    each: Vec::new(),
    any: None,
};

impl Signals {
    /// Begins to take note.
    pub fn new() -> anyhow::Result<Self> {
        let (any, write_any) = pair()?;
        let mut each = Vec::new();
        for number in NUMBERS {
            let (stream, write) = pair()?;
            let write_any = write_any.try_clone().context("cannot handle signals")?;
            let registrations = [register(number, write)?, register(number, write_any)?];
            each.push(Signal {
                number,
                stream,
                registrations,
            });
        }
        Ok(Self {
            each,
            any: Some(any),
        })
    }

    /// Becomes readable, and stays so, with the first signal of any number.
    pub fn any(&self) -> anyhow::Result<Option<OwnedFd>> {
        let any = self.any.as_ref().map(UnixStream::try_clone).transpose();
        Ok(any.context("cannot share the signals")?.map(OwnedFd::from))
    }

    /// What becomes readable with a signal, one for each number.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.each.iter().map(|signal| signal.stream.as_fd())
    }

    /// Takes the signal behind descriptor `index` of [`Signals::fds`]; none if another thread has taken it.
    pub fn take(&self, index: usize) -> anyhow::Result<Option<i32>> {
        let Some(signal) = self.each.get(index) else {
            return Ok(None);
        };
        match recv(&signal.stream, &mut [0], RecvFlags::DONTWAIT) {
            Ok(_) => Ok(Some(signal.number)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(anyhow!(error).context("cannot read a signal")),
        }
    }

    /// The number of a signal that came and was not taken.
    pub fn pending(&self) -> anyhow::Result<Option<i32>> {
        let mut fds: Vec<PollFd<'_>> = self
            .fds()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        poll(&mut fds, Some(&Timespec::default()))
            .map_err(|error| anyhow!(error).context("cannot ask for signals"))?;
        let ready = fds.iter().position(|fd| !fd.revents().is_empty());
        Ok(ready.and_then(|index| self.each.get(index).map(|signal| signal.number)))
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for signal in &self.each {
            for registration in signal.registrations {
                unregister(registration);
            }
        }
    }
}

fn pair() -> anyhow::Result<(UnixStream, UnixStream)> {
    UnixStream::pair().context("cannot make a socket pair")
}

fn register(number: i32, write: UnixStream) -> anyhow::Result<SigId> {
    pipe::register(number, write).context("cannot handle signals")
}
