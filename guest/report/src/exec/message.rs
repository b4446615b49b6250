//! The messages of both sides.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::exec::frame::{self, MessageError};
use crate::exec::request::{ProgramRequest, TerminalSize};

/// Kind of a frame with JSON.
const JSON: u8 = 0;
/// Kinds of frames with bytes.
const INPUT: u8 = 1;
const OUTPUT: u8 = 2;
const ERROR_OUTPUT: u8 = 3;

/// A message of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum HostMessage {
    /// Start this program. The first message, and only the first.
    Start(ProgramRequest),
    /// Bytes for its standard input.
    #[serde(skip)]
    Input(Vec<u8>),
    /// Its standard input has ended.
    InputEnd,
    /// Send this signal to its process group.
    Signal(i32),
    /// Its terminal has this size now.
    Resize(TerminalSize),
}

/// A message of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum GuestMessage {
    /// The program was not started. The last message.
    Refused {
        /// The reason, in one line.
        reason: String,
        /// The exit status that a shell uses for this: 126 or 127.
        status: i32,
    },
    /// The program's input has taken this number of bytes.
    InputTaken(u32),
    /// Bytes of its standard output, or of its terminal.
    #[serde(skip)]
    Output(Vec<u8>),
    /// Bytes of its standard error.
    #[serde(skip)]
    ErrorOutput(Vec<u8>),
    /// The program has ended. The last message.
    Ended(ProgramEnd),
}

/// The end of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProgramEnd {
    /// By itself, with this status.
    Exited(i32),
    /// By the signal of this number.
    Signaled(i32),
}

impl ProgramEnd {
    /// Returns the exit status as a shell reports it: 128 plus the number of a signal.
    pub fn status(self) -> i32 {
        match self {
            Self::Exited(status) => status,
            Self::Signaled(signal) => signal.saturating_add(128),
        }
    }
}

impl HostMessage {
    /// Writes the message.
    ///
    /// # Errors
    /// Those of the stream, and `InvalidInput` if the message is too long.
    pub fn write_to(&self, stream: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Input(bytes) => frame::write(stream, INPUT, bytes),
            other => write_json(stream, other),
        }
    }

    /// Reads the next message, or returns `None` at the end of the stream.
    ///
    /// # Errors
    /// The mistake in the stream.
    pub fn read_from(stream: &mut impl Read) -> Result<Option<Self>, MessageError> {
        match frame::read(stream)? {
            None => Ok(None),
            Some((JSON, content)) => parsed(&content).map(Some),
            Some((INPUT, content)) => Ok(Some(Self::Input(content))),
            Some((kind, _)) => Err(MessageError::UnknownKind(kind)),
        }
    }
}

impl GuestMessage {
    /// Returns the missing bytes of the message that begins with `received`, at first only those of
    /// its head, or 0 if [`GuestMessage::read_from`] can read it.
    ///
    /// # Errors
    /// A message that is too long.
    pub fn missing(received: &[u8]) -> Result<usize, MessageError> {
        frame::missing(received)
    }

    /// Writes the message.
    ///
    /// # Errors
    /// Those of the stream, and `InvalidInput` if the message is too long.
    pub fn write_to(&self, stream: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Output(bytes) => frame::write(stream, OUTPUT, bytes),
            Self::ErrorOutput(bytes) => frame::write(stream, ERROR_OUTPUT, bytes),
            other => write_json(stream, other),
        }
    }

    /// Reads the next message, or returns `None` at the end of the stream.
    ///
    /// # Errors
    /// A stream that cannot be read, and a status that no program has: a guest must not make a
    /// program that was not started look like one that succeeded.
    pub fn read_from(stream: &mut impl Read) -> Result<Option<Self>, MessageError> {
        match frame::read(stream)? {
            None => Ok(None),
            Some((JSON, content)) => parsed::<Self>(&content)?.plausible().map(Some),
            Some((OUTPUT, content)) => Ok(Some(Self::Output(content))),
            Some((ERROR_OUTPUT, content)) => Ok(Some(Self::ErrorOutput(content))),
            Some((kind, _)) => Err(MessageError::UnknownKind(kind)),
        }
    }
}

impl GuestMessage {
    /// Returns the message, if its status is one that a program or a shell can have.
    fn plausible(self) -> Result<Self, MessageError> {
        let (status, statuses) = match &self {
            Self::Refused { status, .. } => (*status, 126..=127),
            Self::Ended(ProgramEnd::Exited(status)) => (*status, 0..=255),
            Self::Ended(ProgramEnd::Signaled(signal)) => (*signal, 1..=64),
            Self::InputTaken(_) | Self::Output(_) | Self::ErrorOutput(_) => return Ok(self),
        };
        match statuses.contains(&status) {
            true => Ok(self),
            false => Err(MessageError::Status(status)),
        }
    }
}

fn write_json(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    frame::write(stream, JSON, &serde_json::to_vec(message)?)
}

fn parsed<T: DeserializeOwned>(content: &[u8]) -> Result<T, MessageError> {
    serde_json::from_slice(content).map_err(MessageError::Content)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::exec::LONGEST_FRAME;

    fn host_messages() -> Vec<HostMessage> {
        let size = TerminalSize {
            rows: 24,
            columns: 80,
        };
        let mut request = ProgramRequest::new(["cat", "-"]);
        request.terminal = Some(size);
        vec![
            HostMessage::Start(request),
            HostMessage::Input(b"\0\xff".to_vec()),
            HostMessage::InputEnd,
            HostMessage::Signal(2),
            HostMessage::Resize(size),
        ]
    }

    fn guest_messages() -> Vec<GuestMessage> {
        vec![
            GuestMessage::Refused {
                reason: "no such file".into(),
                status: 127,
            },
            GuestMessage::InputTaken(7),
            GuestMessage::Output(b"out".to_vec()),
            GuestMessage::ErrorOutput(Vec::new()),
            GuestMessage::Ended(ProgramEnd::Signaled(9)),
        ]
    }

    #[test]
    fn messages_read_back_in_order() {
        let mut stream = Vec::new();
        for message in host_messages() {
            message.write_to(&mut stream).unwrap();
        }
        let mut rest = &stream[..];
        for message in host_messages() {
            let read = HostMessage::read_from(&mut rest).unwrap();
            assert_eq!(read, Some(message));
        }
        assert_eq!(HostMessage::read_from(&mut rest).unwrap(), None);
        let mut stream = Vec::new();
        for message in guest_messages() {
            message.write_to(&mut stream).unwrap();
        }
        let mut rest = &stream[..];
        for message in guest_messages() {
            let read = GuestMessage::read_from(&mut rest).unwrap();
            assert_eq!(read, Some(message));
        }
        assert_eq!(GuestMessage::read_from(&mut rest).unwrap(), None);
    }

    #[test]
    fn status_that_no_program_has_is_an_error() {
        let refused = |status| GuestMessage::Refused {
            reason: String::new(),
            status,
        };
        let ended = GuestMessage::Ended;
        for message in [
            refused(0),
            refused(1),
            ended(ProgramEnd::Exited(256)),
            ended(ProgramEnd::Signaled(-128)),
            ended(ProgramEnd::Signaled(128)),
        ] {
            let mut stream = Vec::new();
            message.write_to(&mut stream).unwrap();
            let read = GuestMessage::read_from(&mut &stream[..]);
            assert!(matches!(read, Err(MessageError::Status(_))), "{message:?}");
        }
    }

    #[test]
    fn cut_off_message_is_an_error() {
        let mut stream = Vec::new();
        HostMessage::Signal(2).write_to(&mut stream).unwrap();
        for end in 1..stream.len() {
            let error = HostMessage::read_from(&mut &stream[..end]).unwrap_err();
            assert!(matches!(error, MessageError::CutOff), "{end}: {error}");
        }
    }

    #[test]
    fn missing_bytes_complete_a_message() {
        for message in guest_messages() {
            let (mut sent, mut received) = (Vec::new(), Vec::new());
            message.write_to(&mut sent).unwrap();
            let mut rest = sent.as_slice();
            // The second piece of a frame is split once more.
            for most in [3, usize::MAX, 1, usize::MAX] {
                let count = GuestMessage::missing(&received).unwrap().min(most);
                let (next, left) = rest.split_at(count);
                received.extend_from_slice(next);
                rest = left;
            }
            assert_eq!(GuestMessage::missing(&received).unwrap(), 0);
            let read = GuestMessage::read_from(&mut received.as_slice());
            assert_eq!((read.unwrap(), rest), (Some(message), &[][..]));
        }
        let error = GuestMessage::missing(&[OUTPUT, 1, 0, 16, 0]).unwrap_err();
        assert!(matches!(error, MessageError::TooLong(0x10_0001)), "{error}");
    }

    #[test]
    fn too_long_message_is_neither_sent_nor_read() {
        let bytes = vec![0; usize::try_from(LONGEST_FRAME).unwrap() + 1];
        let error = HostMessage::Input(bytes).write_to(&mut Vec::new());
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let error = HostMessage::read_from(&mut &[INPUT, 1, 0, 16, 0][..]).unwrap_err();
        assert!(matches!(error, MessageError::TooLong(0x10_0001)), "{error}");
    }

    #[test]
    fn status_of_a_signal_is_a_shells() {
        assert_eq!(ProgramEnd::Exited(3).status(), 3);
        assert_eq!(ProgramEnd::Signaled(15).status(), 143);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut host = &bytes[..];
            while let Ok(Some(_)) = HostMessage::read_from(&mut host) {}
            let mut guest = &bytes[..];
            while let Ok(Some(_)) = GuestMessage::read_from(&mut guest) {}
        }
    }
}
