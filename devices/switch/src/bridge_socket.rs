//! The socket on which the switch asks for the windows that its ports forward.
//!
//! A question is a line, `bridge-windows NUMBER`, and so is its answer: the number and a
//! [`BridgeWindows`] as text, or `unknown` if the other end does not know them at the moment.

use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use crate::bridge_windows::BridgeWindows;
use crate::last_line::{LastLine, is_for_later};
use crate::limits::MAX_BRIDGE_WINDOWS;

const QUESTION: &str = "bridge-windows";
const UNKNOWN: &str = "unknown";

/// Returns the question with this number, including the end of its line.
fn question(number: u64) -> String {
    format!("{QUESTION} {number}\n")
}

/// Returns the number of a question, or `None` if the line is not a question.
pub fn number_of(question: &str) -> Option<u64> {
    let number = question.strip_prefix(QUESTION)?.strip_prefix(' ')?;
    number.parse().ok()
}

/// Returns the answer to a question, including the end of its line. `windows` is `None` if they are
/// unknown at the moment.
pub fn answer_to(number: u64, windows: Option<&BridgeWindows>) -> String {
    let windows = windows.map_or_else(|| UNKNOWN.to_owned(), BridgeWindows::to_string);
    format!("{number} {windows}\n")
}

/// The switch's end of the socket. No operation waits on it.
#[derive(Debug)]
pub struct BridgeSocket {
    stream: UnixStream,
    answer: LastLine,
}

impl BridgeSocket {
    /// Makes a bridge socket of `stream`.
    ///
    /// # Errors
    /// The error of fcntl(2).
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let answer = LastLine::default();
        Ok(Self { stream, answer })
    }

    /// Asks, unless the other end still has many questions to read. Returns `true` if it has asked.
    ///
    /// # Errors
    /// The other end is gone.
    pub(crate) fn ask(&self, number: u64) -> io::Result<bool> {
        let question = question(number);
        match (&self.stream).write(question.as_bytes()) {
            Ok(sent) if sent == question.len() => Ok(true),
            Ok(_) => Err(ErrorKind::WriteZero.into()),
            Err(error) if is_for_later(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the last complete answer, if there is one, and the number of its question. The
    /// answer is `None` if the windows are unknown.
    ///
    /// # Errors
    /// The other end is gone, or sends a line that is not an answer.
    pub(crate) fn receive(&mut self) -> io::Result<Option<(u64, Option<BridgeWindows>)>> {
        let line = self.answer.receive(&self.stream, MAX_BRIDGE_WINDOWS)?;
        line.as_deref().map(answer).transpose()
    }
}

impl AsFd for BridgeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn answer(line: &str) -> io::Result<(u64, Option<BridgeWindows>)> {
    let (number, windows) = line.split_once(' ').unwrap_or((line, ""));
    let number = number.parse().map_err(io::Error::other)?;
    let windows = match windows {
        UNKNOWN => None,
        windows => Some(windows.parse().map_err(io::Error::other)?),
    };
    Ok((number, windows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_whole_answer_is_received() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut socket = BridgeSocket::new(ours).unwrap();
        assert_eq!(socket.receive().unwrap(), None);
        let windows: BridgeWindows = "a=0x1-0x2".parse().unwrap();
        let answer = answer_to(7, Some(&windows));
        assert_eq!(answer, "7 a=0x1-0x2\n");
        (&theirs).write_all(answer.as_bytes()).unwrap();
        (&theirs).write_all(b"8 b=0x3-").unwrap();
        assert_eq!(socket.receive().unwrap(), Some((7, Some(windows))));
        (&theirs).write_all(b"0x4\n").unwrap();
        let (number, windows) = socket.receive().unwrap().unwrap();
        assert_eq!(
            (number, windows.unwrap().to_string()),
            (8, "b=0x3-0x4".to_owned())
        );
        let unknown = answer_to(9, None);
        (&theirs).write_all(unknown.as_bytes()).unwrap();
        assert_eq!(socket.receive().unwrap(), Some((9, None)));
        // No port has a window.
        (&theirs).write_all(b"10 \n").unwrap();
        let nothing = Some((10, Some(BridgeWindows::default())));
        assert_eq!(socket.receive().unwrap(), nothing);
        for line in ["what?\n", "11 a=b\n", "-1 unknown\n"] {
            (&theirs).write_all(line.as_bytes()).unwrap();
            assert!(socket.receive().is_err(), "{line}");
        }
        drop(theirs);
        let error = socket.receive().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn question_has_its_number() {
        assert_eq!(number_of(question(12).trim_end()), Some(12));
        for other in ["", "bridge-windows", "bridge-windows x", "12"] {
            assert_eq!(number_of(other), None, "{other}");
        }
    }

    #[test]
    fn answer_without_an_end_is_refused() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut socket = BridgeSocket::new(ours).unwrap();
        let error = (0..).find_map(|_| {
            (&theirs).write_all(&[b'x'; 4096]).unwrap();
            socket.receive().err()
        });
        assert_eq!(error.unwrap().to_string(), "a line without an end");
    }
}
