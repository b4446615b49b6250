//! A client that sends any bytes, for tests that know what happens to them.

use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use crate::TIME_OUT;
use crate::wire::{self, CAPABILITIES, Message, Outcome, command};

/// A client of a vfio-user server that the test drives message by message. It hangs up when it is
/// dropped.
#[derive(Debug)]
pub struct RawClient(peerbar_vfio_user_check::RawClient);

impl Deref for RawClient {
    type Target = peerbar_vfio_user_check::RawClient;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for RawClient {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl RawClient {
    /// Makes a client that has sent nothing so far.
    pub fn new(stream: UnixStream) -> Self {
        Self(peerbar_vfio_user_check::RawClient::new(stream, TIME_OUT).unwrap())
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
        let id = self.command(command, payload, descriptors).unwrap();
        let reply = self.receive();
        assert_eq!((reply.id, reply.command), (id, command));
        reply
    }

    /// Sends a command that wants no reply.
    pub fn post(&mut self, command: u16, payload: &[u8]) {
        self.0.post(command, payload).unwrap();
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.0.send(bytes).unwrap();
    }

    /// Sends bytes, and descriptors with the first of them.
    pub fn send_with(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        self.0.send_with(bytes, descriptors).unwrap();
    }

    /// Returns the next message, which must come.
    #[track_caller]
    pub fn receive(&mut self) -> Message {
        self.0.receive().unwrap()
    }
}
