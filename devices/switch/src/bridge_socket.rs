//! The socket by which the switch asks what its ports forward.
//!
//! It sends `bridge-windows` on a line. The answer is a line: a [`BridgeWindows`] as text, or `unknown` if that cannot be told now.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use crate::bridge_windows::BridgeWindows;
use crate::limits::MAX_BRIDGE_WINDOWS;

/// The question.
pub const QUESTION: &str = "bridge-windows";
/// The answer of somebody who cannot tell now.
pub const UNKNOWN: &str = "unknown";

/// The switch's end of the socket. Nothing waits on it.
#[derive(Debug)]
pub struct BridgeSocket {
    stream: UnixStream,
    /// What has been received of the next answer.
    received: Vec<u8>,
}

impl BridgeSocket {
    /// The socket `stream`.
    ///
    /// # Errors
    /// That of fcntl(2).
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let received = Vec::new();
        Ok(Self { stream, received })
    }

    /// Asks.
    ///
    /// # Errors
    /// The other end is gone, or reads no questions.
    pub(crate) fn ask(&self) -> io::Result<()> {
        writeln!(&self.stream, "{QUESTION}")
    }

    /// The last whole answer that has come, if one has. `Some(None)` is [`UNKNOWN`], or no answer at all, which is logged.
    ///
    /// # Errors
    /// The other end is gone, or sends more than an answer.
    pub(crate) fn receive(&mut self) -> io::Result<Option<Option<BridgeWindows>>> {
        let mut part = [0; 4096];
        let read = match (&self.stream).read(&mut part) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if is_for_later(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.received.extend(part.iter().take(read));
        let Some(end) = self.received.iter().rposition(|byte| *byte == b'\n') else {
            let is_too_long = self.received.len() > MAX_BRIDGE_WINDOWS;
            return match is_too_long {
                true => Err(io::Error::other("an answer without an end")),
                false => Ok(None),
            };
        };
        let lines: Vec<u8> = self.received.drain(..=end).collect();
        let lines = String::from_utf8_lossy(&lines);
        Ok(lines.lines().next_back().map(answer))
    }
}

impl AsFd for BridgeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn answer(line: &str) -> Option<BridgeWindows> {
    if line == UNKNOWN {
        return None;
    }
    let windows = line.parse();
    windows
        .inspect_err(|error| log::warn!("the answer about bridge windows: {error}"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_whole_answer_is_received() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut socket = BridgeSocket::new(ours).unwrap();
        assert_eq!(socket.receive().unwrap(), None);
        (&theirs).write_all(b"a=0x1-0x2\nb=0x3-").unwrap();
        let text = |answer: Option<BridgeWindows>| answer.map(|windows| windows.to_string());
        let received = socket.receive().unwrap().map(text);
        assert_eq!(received, Some(Some("a=0x1-0x2".to_owned())));
        (&theirs).write_all(b"0x4\n").unwrap();
        let received = socket.receive().unwrap().map(text);
        assert_eq!(received, Some(Some("b=0x3-0x4".to_owned())));
        for line in ["unknown\n", "what?\n"] {
            (&theirs).write_all(line.as_bytes()).unwrap();
            assert_eq!(socket.receive().unwrap(), Some(None), "{line}");
        }
        drop(theirs);
        let error = socket.receive().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn answer_without_an_end_is_refused() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut socket = BridgeSocket::new(ours).unwrap();
        let error = (0..).find_map(|_| {
            (&theirs).write_all(&[b'x'; 4096]).unwrap();
            socket.receive().err()
        });
        assert_eq!(error.unwrap().to_string(), "an answer without an end");
    }
}
