//! A connection to the server, and the account of its last exchange.

use std::io;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use peerbar_vfio_user::decode::{self, Payload, command_name, error_name};

use crate::outcome::{Failing, Outcome, Violation};
use crate::wire::{self, ERROR, Message, REPLY, command};
use crate::{Lost, RawClient};

/// The capabilities that the check proposes: those of QEMU.
pub(crate) const PROPOSED: &str = r#"{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576,"max_dma_maps":65535,"pgsizes":4096,"write_multiple":true}}"#;

/// The bits of a header's flags that have a meaning in a reply.
const KNOWN: u32 = 0xf | ERROR;

/// A connection.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) raw: RawClient,
    time_out: Duration,
    /// The last thing that was sent, in words.
    sent: String,
    /// The last thing that was received, in words.
    received: String,
    /// The server has answered everything, so that the next test can use the connection.
    pub(crate) in_sync: bool,
    /// The server has hung up.
    pub(crate) is_hung_up_on: bool,
    /// The payload of the reply to VERSION, once there is one.
    pub(crate) version: Vec<u8>,
    /// That reply in words.
    version_text: String,
}

impl Session {
    /// Begins a connection. The next test gets another one unless [`Session::agree`] succeeds.
    pub(crate) fn new(stream: UnixStream, time_out: Duration) -> io::Result<Self> {
        Ok(Self {
            raw: RawClient::new(stream, time_out)?,
            time_out,
            sent: "nothing".to_owned(),
            received: "nothing".to_owned(),
            in_sync: false,
            is_hung_up_on: false,
            version: Vec::new(),
            version_text: String::new(),
        })
    }

    /// Agrees on a version.
    pub(crate) fn agree(&mut self) -> Outcome {
        let proposal = wire::version(0, 0, PROPOSED);
        self.version = self.success(command::VERSION, &proposal)?.payload;
        self.version_text = self.received.clone();
        self.in_sync = true;
        Ok(())
    }

    /// Returns a violation in the exchange of VERSION.
    pub(crate) fn violation_of_version(&self, expected: &str) -> Failing {
        Failing::Violation(Violation {
            sent: request_text(command::VERSION, &wire::version(0, 0, PROPOSED), 0),
            received: self.version_text.clone(),
            expected: expected.to_owned(),
        })
    }

    /// Hangs up, and waits until the server has, too: it can then serve the next client. A server
    /// that goes on sending is left after the time-out.
    pub(crate) fn hang_up(mut self) {
        let deadline = Instant::now() + self.time_out;
        // Both fail if the server has hung up.
        let _ = self.raw.stream.shutdown(Shutdown::Write);
        while Instant::now() < deadline && self.raw.receive().is_ok() {}
    }

    /// Sends a command and returns its reply, which must have a correct header.
    pub(crate) fn ask(&mut self, command: u16, payload: &[u8]) -> Outcome<Message> {
        self.ask_with(command, payload, &[])
    }

    /// Like [`Session::ask`], with descriptors.
    pub(crate) fn ask_with(
        &mut self,
        command: u16,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Outcome<Message> {
        self.sent = request_text(command, payload, descriptors.len());
        let sent = self.raw.command(command, payload, descriptors);
        let id = self.alive(sent)?;
        let reply = self.receive()?;
        self.check_header(&reply, id, command)?;
        Ok(reply)
    }

    /// Sends a command that must succeed.
    pub(crate) fn success(&mut self, command: u16, payload: &[u8]) -> Outcome<Message> {
        self.success_with(command, payload, &[])
    }

    /// Like [`Session::success`], with descriptors.
    pub(crate) fn success_with(
        &mut self,
        command: u16,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Outcome<Message> {
        let reply = self.ask_with(command, payload, descriptors)?;
        self.expect(!is_error(&reply), "success")?;
        Ok(reply)
    }

    /// Sends a command that the server must refuse. Returns the errno.
    pub(crate) fn refusal(&mut self, command: u16, payload: &[u8]) -> Outcome<u32> {
        let reply = self.ask(command, payload)?;
        self.expect(is_error(&reply), "an error")?;
        Ok(reply.error)
    }

    /// Sends a command with an argsz too small for its reply. The server must refuse it, or cut the
    /// reply to argsz bytes.
    pub(crate) fn shortened(&mut self, command: u16, argsz: u32, payload: &[u8]) -> Outcome {
        let reply = self.ask(command, payload)?;
        let most = usize::try_from(argsz).unwrap_or_default();
        let is_right = is_error(&reply) || reply.payload.len() <= most;
        self.expect(is_right, format!("an error, or at most {argsz} bytes"))
    }

    /// Sends a command, which may succeed or fail, but whose reply must come. The next command must
    /// be answered, too, so the server has taken the whole message.
    pub(crate) fn answered(
        &mut self,
        command: u16,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Outcome {
        self.ask_with(command, payload, descriptors)?;
        self.still_answers()
    }

    /// Checks that a command is answered after the last one.
    pub(crate) fn still_answers(&mut self) -> Outcome {
        let before = std::mem::take(&mut self.sent);
        let outcome = self.success(command::INFO, &device_info(16));
        self.sent = format!("{before}; then {}", self.sent);
        outcome.map(drop).map_err(|failing| failing.after(&before))
    }

    /// Sends bytes, which are described by `what`.
    pub(crate) fn send(&mut self, what: impl Into<String>, bytes: &[u8]) -> Outcome {
        self.send_with(what, bytes, &[])
    }

    /// Like [`Session::send`], with descriptors.
    pub(crate) fn send_with(
        &mut self,
        what: impl Into<String>,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Outcome {
        self.sent = what.into();
        let sent = self.raw.send_with(bytes, descriptors);
        self.alive(sent)
    }

    /// Returns the next message.
    pub(crate) fn receive(&mut self) -> Outcome<Message> {
        let received = self.raw.receive();
        let message = self.alive(received)?;
        self.received = reply_text(&message);
        Ok(message)
    }

    /// Waits until the server answers with an error or hangs up. A success is a violation, and so is
    /// a server that does neither.
    pub(crate) fn refused_or_hung_up(&mut self) -> Outcome {
        self.in_sync = false;
        match self.raw.receive() {
            Ok(message) => {
                self.received = reply_text(&message);
                let is_refusal = is_error(&message);
                self.expect(is_refusal, "an error, or the end of the connection")
            }
            Err(Lost::HungUp) => {
                self.is_hung_up_on = true;
                Ok(())
            }
            Err(lost) => {
                self.received = lost.to_string();
                Err(self.violation("an error, or the end of the connection"))
            }
        }
    }

    /// Waits until the server answers or hangs up, and requires no more than that.
    pub(crate) fn answered_or_hung_up(&mut self) -> Outcome {
        self.in_sync = false;
        match self.raw.receive() {
            Ok(message) => {
                self.received = reply_text(&message);
                Ok(())
            }
            Err(Lost::HungUp) => {
                self.is_hung_up_on = true;
                Ok(())
            }
            Err(lost) => {
                self.received = lost.to_string();
                Err(self.violation("an answer, or the end of the connection"))
            }
        }
    }

    /// Fails with the last exchange unless it is as it must be.
    pub(crate) fn expect(&self, is_right: bool, expected: impl Into<String>) -> Outcome {
        match is_right {
            true => Ok(()),
            false => Err(self.violation(expected)),
        }
    }

    /// Returns a violation in the last exchange.
    pub(crate) fn violation(&self, expected: impl Into<String>) -> Failing {
        Failing::Violation(Violation {
            sent: self.sent.clone(),
            received: self.received.clone(),
            expected: expected.into(),
        })
    }

    /// Fails unless two values of the last exchange are equal.
    pub(crate) fn expect_equal<T>(&self, name: &str, value: T, expected: T) -> Outcome
    where
        T: PartialEq + std::fmt::LowerHex,
    {
        let text = format!("{name} {expected:#x}, not {value:#x}");
        self.expect(value == expected, text)
    }

    /// Turns the end of the connection into a violation.
    fn alive<T>(&mut self, result: Result<T, Lost>) -> Outcome<T> {
        result.map_err(|lost| {
            self.in_sync = false;
            self.is_hung_up_on = matches!(lost, Lost::HungUp);
            self.received = lost.to_string();
            self.violation("a reply")
        })
    }

    /// Checks the header of the reply to a command.
    fn check_header(&mut self, reply: &Message, id: u16, command: u16) -> Outcome {
        // A reply to something else would mislead the next test.
        let was_in_sync = std::mem::replace(&mut self.in_sync, false);
        self.expect_equal("message ID", reply.id, id)?;
        self.expect_equal("command", reply.command, command)?;
        self.expect_equal("type", reply.flags & 0xf, REPLY)?;
        self.in_sync = was_in_sync;
        self.expect_equal("flags", reply.flags & !KNOWN, 0)?;
        let is_header = reply.payload.is_empty() && reply.descriptors.is_empty();
        self.expect(
            !is_error(reply) || is_header,
            "an error reply of a header alone",
        )
    }
}

/// Returns the payload of DEVICE_GET_INFO.
pub(crate) fn device_info(argsz: u32) -> Vec<u8> {
    wire::words(&[argsz, 0, 0, 0])
}

/// Returns `true` if a reply reports a failure.
pub(crate) fn is_error(message: &Message) -> bool {
    message.flags & ERROR != 0
}

/// Returns a command in words.
pub(crate) fn request_text(command: u16, payload: &[u8], descriptors: usize) -> String {
    let fields = decode::request(command, &whole(payload)).to_string();
    let mut text = name(command);
    if !fields.is_empty() {
        text = format!("{text} {fields}");
    }
    with_descriptors(text, descriptors)
}

fn name(command: u16) -> String {
    match command_name(command) {
        Some(name) => name.to_owned(),
        None => format!("the unknown command {command:#x}"),
    }
}

fn reply_text(reply: &Message) -> String {
    let bytes = reply.payload.len();
    let fields = || decode::reply(reply.command, &whole(&reply.payload)).to_string();
    let (kind, content) = match is_error(reply) {
        true => ("an error reply", error_name(reply.error)),
        false => ("a reply", fields()),
    };
    let text = match content.is_empty() {
        true => format!("{kind} with {bytes} bytes"),
        false => format!("{kind} with {bytes} bytes: {content}"),
    };
    with_descriptors(text, reply.descriptors.len())
}

fn with_descriptors(text: String, descriptors: usize) -> String {
    match descriptors {
        0 => text,
        1 => format!("{text}, with a descriptor"),
        count => format!("{text}, with {count} descriptors"),
    }
}

fn whole(payload: &[u8]) -> Payload<'_> {
    Payload {
        start: payload,
        length: payload.len(),
        most_data: 32,
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn server_that_goes_on_sending_is_left() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let session = Session::new(ours, Duration::from_millis(50)).unwrap();
        let server = thread::spawn(move || {
            let reply = wire::message(1, command::INFO, REPLY, &[0; 16]);
            while wire::send(&theirs, &reply, &[]).is_ok() {}
        });
        session.hang_up();
        server.join().unwrap();
    }
}
