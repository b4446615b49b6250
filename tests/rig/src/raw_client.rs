//! A client that sends any bytes, and receives one message at a time.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::TIME_OUT;
use crate::wire::{self, CAPABILITIES, Message, NO_REPLY, command};

/// A client of a vfio-user server that the test drives message by message. It hangs up when it is
/// dropped.
#[derive(Debug)]
pub struct RawClient {
    /// The connection.
    pub stream: UnixStream,
    next_id: u16,
}

impl Drop for RawClient {
    /// Hangs up at once. A process that another test is about to start has copies of all
    /// descriptors for a moment.
    fn drop(&mut self) {
        // Fails if the server has hung up.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl RawClient {
    /// Makes a client that has sent nothing so far.
    pub fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(TIME_OUT)).unwrap();
        stream.set_write_timeout(Some(TIME_OUT)).unwrap();
        Self {
            stream,
            next_id: 0x100,
        }
    }

    /// Agrees on a version, with QEMU's capabilities.
    #[track_caller]
    pub fn agree(&mut self) {
        let version = wire::version(0, 0, CAPABILITIES);
        self.ask(command::VERSION, &version).ok();
    }

    /// Sends a command and takes its reply.
    #[track_caller]
    pub fn ask(&mut self, command: u16, payload: &[u8]) -> Message {
        self.ask_with(command, payload, &[])
    }

    /// Sends a command with descriptors and takes its reply.
    #[track_caller]
    pub fn ask_with(
        &mut self,
        command: u16,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Message {
        let id = self.take_id();
        self.send_with(&wire::message(id, command, 0, payload), descriptors);
        let reply = self.receive();
        assert_eq!((reply.id, reply.command), (id, command));
        reply
    }

    /// Sends a command that wants no reply.
    pub fn post(&mut self, command: u16, payload: &[u8]) {
        let id = self.take_id();
        self.send(&wire::message(id, command, NO_REPLY, payload));
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends bytes, and descriptors with the first of them.
    pub fn send_with(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        wire::send(&self.stream, bytes, descriptors).unwrap();
    }

    /// Returns the next message, which must come.
    #[track_caller]
    pub fn receive(&mut self) -> Message {
        let message = wire::receive(&self.stream).unwrap();
        message.expect("the server has hung up")
    }

    /// Returns `true` if the server has hung up without sending anything first.
    pub fn is_hung_up_on(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0))
    }

    /// Returns `true` if there is data to read.
    pub fn is_readable(&self) -> bool {
        let mut polled = [PollFd::new(&self.stream, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).unwrap() > 0
    }

    fn take_id(&mut self) -> u16 {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }
}
