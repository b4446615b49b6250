//! The signals that would end this process.

use std::fs;
use std::io;
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

/// The signals that would end this process. They are recorded as long as this lives, so that none
/// gets lost between two stages of a run.
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

/// No signals, because a test's process ends by them.
pub static NONE: Signals = Signals {
    each: Vec::new(),
    any: None,
};

impl Signals {
    /// Starts to record signals. A signal that was ignored when this process started stays ignored:
    /// nohup(1) does that with SIGHUP, and a shell without job control with SIGINT for background
    /// processes.
    pub fn new() -> anyhow::Result<Self> {
        let (any, write_any) = pair()?;
        let mut each = Vec::new();
        let ignored = ignored().context("cannot ask which signals are ignored")?;
        for number in NUMBERS
            .into_iter()
            .filter(|number| !ignored.contains(number))
        {
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

    /// Returns the descriptors that become readable with a signal, one for each number.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.each.iter().map(|signal| signal.stream.as_fd())
    }

    /// Takes the signal behind descriptor `index` of [`Signals::fds`], or `None` if another thread
    /// has taken it.
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

    /// Returns the number of a signal that came and was not taken.
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

/// Returns the signals that this process ignores (proc_pid_status(5), SigIgn).
fn ignored() -> io::Result<Vec<i32>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let mask = mask.ok_or(io::ErrorKind::InvalidData)?;
    let is_set = |number: &i32| mask & (1 << (number - 1)) != 0;
    Ok((1..=64).filter(is_set).collect())
}

fn pair() -> anyhow::Result<(UnixStream, UnixStream)> {
    UnixStream::pair().context("cannot make a socket pair")
}

fn register(number: i32, write: UnixStream) -> anyhow::Result<SigId> {
    pipe::register(number, write).context("cannot handle signals")
}
