//! Lines of a socket on which nothing waits, of which only the last one matters.

use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;

/// How much is read at once in bytes.
const PART: usize = 4096;

/// What has been received of a line that has no end yet.
#[derive(Debug, Default)]
pub struct LastLine(Vec<u8>);

impl LastLine {
    /// Reads once from a socket that does not block. The last whole line that has come, if one has.
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
