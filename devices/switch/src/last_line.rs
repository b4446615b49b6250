//! Lines of a socket that is read without waiting. Only the last line matters.

use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;

/// Bytes that are read at once.
const PART: usize = 4096;

/// The received part of a line that has not ended yet.
#[derive(Debug, Default)]
pub struct LastLine(Vec<u8>);

impl LastLine {
    /// Reads once from a nonblocking socket. Returns the last complete line, if there is one.
    ///
    /// # Errors
    /// The other end is gone (`UnexpectedEof`), or a line is longer than `longest` bytes.
    pub fn receive(
        &mut self,
        mut stream: &UnixStream,
        longest: usize,
    ) -> io::Result<Option<String>> {
        let mut part = [0; PART];
        let read = match stream.read(&mut part) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if is_for_later(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.0.extend(part.iter().take(read));
        let Some(end) = self.0.iter().rposition(|byte| *byte == b'\n') else {
            return match self.0.len() > longest {
                true => Err(io::Error::other("a line without an end")),
                false => Ok(None),
            };
        };
        let lines: Vec<u8> = self.0.drain(..=end).collect();
        let lines = String::from_utf8_lossy(&lines);
        Ok(lines.lines().next_back().map(str::to_owned))
    }
}

pub(crate) fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
