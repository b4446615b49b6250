//! Messages as lines of JSON.

use std::io::{BufRead, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::end::End;
use crate::error::{Error, Result};
use crate::message::{Answer, Command};

/// The longest line of a message in bytes.
const LONGEST: u64 = 64 << 10;

/// An end in another process, at the other side of two streams.
pub struct LineEnd<R, W> {
    answers: R,
    commands: W,
}

impl<R: BufRead, W: Write> LineEnd<R, W> {
    /// Makes the end that reads `commands` and writes `answers`.
    pub fn new(answers: R, commands: W) -> Self {
        Self { answers, commands }
    }
}

impl<R: BufRead, W: Write> End for LineEnd<R, W> {
    fn ask(&mut self, command: &Command) -> Result<Answer> {
        write(&mut self.commands, command)?;
        read(&mut self.answers)?.ok_or(Error::Ended)
    }
}

pub(crate) fn write(stream: &mut impl Write, message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message).map_err(std::io::Error::from)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    Ok(stream.flush()?)
}

/// Returns the next message, or `None` at the end of the stream.
pub(crate) fn read<T: DeserializeOwned>(stream: &mut impl BufRead) -> Result<Option<T>> {
    let mut line = Vec::new();
    stream.take(LONGEST).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    let message = serde_json::from_slice(&line);
    message.map(Some).map_err(|source| Error::NoMessage {
        line: String::from_utf8_lossy(&line).chars().take(80).collect(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;
    use crate::fake::FakeEnd;
    use crate::message::{Content, Span};
    use crate::server::serve;

    #[test]
    fn end_behind_two_streams_answers_as_one_at_hand() {
        let (commands, to_end) = UnixStream::pair().unwrap();
        let (from_end, answers) = UnixStream::pair().unwrap();
        let served = thread::spawn(move || {
            let end = FakeEnd::pair(4096).0;
            serve(end, BufReader::new(commands), answers)
        });
        let mut end = LineEnd::new(BufReader::new(from_end), to_end);
        let Answer::Address(address) = end.ask(&Command::Address).unwrap() else {
            panic!("no address");
        };
        assert_eq!(address.size, 4096);
        let span = Span {
            offset: 0,
            length: 8,
        };
        let content = Content::Value(7);
        let fill = Command::Put { span, content };
        assert_eq!(end.ask(&fill).unwrap(), Answer::Done);
        let refused = end.ask(&Command::Wait).unwrap();
        assert!(matches!(refused, Answer::Failed { .. }), "{refused:?}");
        drop(end);
        served.join().unwrap().unwrap();
    }

    #[test]
    fn line_that_is_no_message_is_an_error_with_its_start() {
        let mut end = LineEnd::new(&b"Segmentation fault\n"[..], Vec::new());
        let error = end.ask(&Command::Wait).unwrap_err().to_string();
        assert!(error.contains("sent \"Segmentation fault"), "{error}");
        let mut end = LineEnd::new(&b""[..], Vec::new());
        assert!(matches!(end.ask(&Command::Wait), Err(Error::Ended)));
    }

    #[test]
    fn line_without_an_end_is_read_up_to_a_limit() {
        let endless = std::io::repeat(b'x');
        let mut end = LineEnd::new(BufReader::new(endless), Vec::new());
        let error = end.ask(&Command::Wait).unwrap_err();
        assert!(matches!(error, Error::NoMessage { .. }), "{error}");
    }
}
