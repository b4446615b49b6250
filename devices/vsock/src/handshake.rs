//! The greeting of a program of the host: `CONNECT PORT`, as in Firecracker and vhost-device-vsock.

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;

/// Longest line that is a request, with its newline: `CONNECT 4294967295\n`.
const LONGEST: usize = 19;

/// A program of the host that has connected and not completed its greeting.
#[derive(Debug)]
pub(crate) struct Greeting {
    stream: UnixStream,
    line: Vec<u8>,
}

/// The progress of a greeting.
#[derive(Debug)]
pub(crate) enum GreetingStep {
    /// The greeting is incomplete.
    Unfinished(Greeting),
    /// The program requests this port of the guest.
    Port(UnixStream, u32),
    /// The stream ended, or its data is not a greeting.
    Wrong,
}

impl Greeting {
    /// Makes a greeting that comes on `stream`, which must be nonblocking.
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            line: Vec::new(),
        }
    }

    /// Continues to read. Bytes after the line stay in the socket.
    pub(crate) fn read_on(mut self) -> GreetingStep {
        let mut byte = [0];
        loop {
            match self.stream.read(&mut byte) {
                Ok(0) => return GreetingStep::Wrong,
                Ok(_) => self.line.extend_from_slice(&byte),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return GreetingStep::Unfinished(self);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return GreetingStep::Wrong,
            }
            if byte == *b"\n" {
                return match port(&self.line) {
                    Some(port) => GreetingStep::Port(self.stream, port),
                    None => GreetingStep::Wrong,
                };
            }
            if self.line.len() >= LONGEST {
                return GreetingStep::Wrong;
            }
        }
    }
}

fn port(line: &[u8]) -> Option<u32> {
    let line = std::str::from_utf8(line).ok()?.trim_end();
    let (word, port) = line.split_once(' ')?;
    word.eq_ignore_ascii_case("connect").then_some(())?;
    port.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn said(words: &[u8]) -> GreetingStep {
        let (mut program, stream) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        program.write_all(words).unwrap();
        let progress = Greeting::new(stream).read_on();
        drop(program);
        progress
    }

    #[test]
    fn greeting_names_a_port_and_leaves_the_rest() {
        let GreetingStep::Port(mut stream, port) = said(b"CONNECT 1024\nrest") else {
            panic!("no port")
        };
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert_eq!((port, rest.as_str()), (1024, "rest"));
    }

    #[test]
    fn greeting_in_pieces_goes_on() {
        let (mut program, stream) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        program.write_all(b"CONN").unwrap();
        let GreetingStep::Unfinished(greeting) = Greeting::new(stream).read_on() else {
            panic!("finished")
        };
        program.write_all(b"ECT 4294967295\r\n").unwrap();
        // The carriage return makes the line one byte longer than it may be.
        assert!(matches!(greeting.read_on(), GreetingStep::Wrong));
    }

    #[test]
    fn other_words_are_refused() {
        for wrong in [
            &b"CONNECT\n"[..],
            b"CONNECT x\n",
            b"CONNECT 4294967296\n",
            b"HELLO 1\n",
            b"\xff\xff 1\n",
            b"GET / HTTP/1.1 and so on",
        ] {
            assert!(matches!(said(wrong), GreetingStep::Wrong), "{wrong:?}");
        }
    }
}
