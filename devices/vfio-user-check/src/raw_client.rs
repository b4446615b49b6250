//! A client that sends any bytes, and receives one message at a time.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thiserror::Error;

use crate::wire::{self, Message, NO_REPLY};

/// A client of a vfio-user server that its user drives message by message. It hangs up when it is
/// dropped.
#[derive(Debug)]
pub struct RawClient {
    /// The connection.
    pub stream: UnixStream,
    next_id: u16,
}

/// The reason why a connection is of no more use.
#[derive(Debug, Error)]
pub enum Lost {
    /// The server has closed the connection.
    #[error("the server has hung up")]
    HungUp,
    /// The server has sent nothing, or taken nothing, for the client's time-out.
    #[error("nothing within the time-out")]
    TimedOut,
    /// The server has sent something that is not a message, such as a part of one, or the system
    /// call has failed.
    #[error("{0}")]
    Failed(io::Error),
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::TimedOut,
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Self::HungUp,
            _ => Self::Failed(error),
        }
    }
}

impl Drop for RawClient {
    /// Hangs up at once, although a process that another thread is about to start has copies of all
    /// descriptors for a moment.
    fn drop(&mut self) {
        self.hang_up();
    }
}

impl RawClient {
    /// Makes a client that has sent nothing so far. It waits `time_out` for the server.
    ///
    /// # Errors
    /// The stream's time-outs cannot be set.
    pub fn new(stream: UnixStream, time_out: Duration) -> io::Result<Self> {
        stream.set_read_timeout(Some(time_out))?;
        stream.set_write_timeout(Some(time_out))?;
        Ok(Self {
            stream,
            next_id: 0x100,
        })
    }

    /// Hangs up, whatever the server is about to send.
    pub fn hang_up(&self) {
        // Fails if the server has hung up.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Sends a command with descriptors. Returns its id.
    pub fn command(
        &mut self,
        command: u16,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<u16, Lost> {
        let id = self.take_id();
        self.send_with(&wire::message(id, command, 0, payload), descriptors)?;
        Ok(id)
    }

    /// Sends a command that wants no reply.
    pub fn post(&mut self, command: u16, payload: &[u8]) -> Result<(), Lost> {
        let id = self.take_id();
        self.send(&wire::message(id, command, NO_REPLY, payload))
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), Lost> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// Sends bytes, and descriptors with the first of them.
    pub fn send_with(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Lost> {
        Ok(wire::send(&self.stream, bytes, descriptors)?)
    }

    /// Returns the next message.
    pub fn receive(&mut self) -> Result<Message, Lost> {
        wire::receive(&self.stream)?.ok_or(Lost::HungUp)
    }

    /// Waits until the server hangs up. Returns `true` if it does so without sending anything first.
    pub fn is_hung_up_on(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0))
    }

    /// Returns `true` if there is data to read, or the end of the stream.
    pub fn is_readable(&self) -> bool {
        let mut polled = [PollFd::new(&self.stream, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    fn take_id(&mut self) -> u16 {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }
}
