//! A server that sends any bytes.

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use crate::wire::{self, Message, REPLY, command, message};

/// The server's end of a session that the test drives message by message.
#[derive(Debug)]
pub struct RawServer(UnixStream);

impl RawServer {
    /// Takes the server's end of a stream.
    pub fn new(stream: UnixStream) -> Self {
        Self(stream)
    }

    /// Replies to a command.
    pub fn reply(&self, asked: &Message, payload: &[u8]) {
        self.reply_with(asked, payload, &[]);
    }

    /// Replies to a command, with descriptors.
    pub fn reply_with(&self, asked: &Message, payload: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let reply = message(asked.id, asked.command, REPLY, payload);
        self.send(&reply, descriptors);
    }

    /// Sends bytes, and descriptors with the first of them.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        // Fails if the client has given up.
        let _ = wire::send(&self.0, bytes, descriptors);
    }

    /// Returns the next message, which must come.
    #[track_caller]
    pub fn receive(&self) -> Message {
        let message = wire::receive(&self.0).unwrap();
        message.expect("the client has hung up")
    }

    /// Answers the client's messages until it hangs up, those for which `answer` returns `false` by
    /// [`RawServer::answer`].
    pub fn serve(&self, mut answer: impl FnMut(&Self, &Message) -> bool) {
        while let Ok(Some(message)) = wire::receive(&self.0) {
            if !answer(self, &message) {
                self.answer(&message);
            }
        }
    }

    /// Answers like a server whose device has regions of 16 KiB that read as 0x5a and ignore
    /// writes, and 20 vectors of each interrupt index.
    pub fn answer(&self, asked: &Message) {
        let index = || asked.payload[8..12].to_vec();
        match asked.command {
            command::VERSION => self.reply(asked, &[0, 0, 0, 0]),
            command::INFO => self.reply(asked, &wire::words(&[16, 3, 9, 5])),
            command::REGION_INFO => {
                let start = [wire::words(&[32, 3]), index(), wire::words(&[0])].concat();
                self.reply(asked, &[start, wire::quads(&[0x4000, 0])].concat());
            }
            command::IRQ_INFO => {
                let start = [wire::words(&[16, 1]), index()].concat();
                self.reply(asked, &[start, wire::words(&[20])].concat());
            }
            command::REGION_READ => {
                let count = wire::number(&asked.payload[12..16]) as usize;
                self.reply(asked, &[asked.payload.clone(), vec![0x5a; count]].concat());
            }
            command::REGION_WRITE => self.reply(asked, &asked.payload[..16]),
            _ => self.reply(asked, &[]),
        }
    }
}
