//! A program that the host has started in a guest, as a client of the guest's agent sees it.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use peerbar_exec::{
    GuestMessage, HostMessage, INPUT_WINDOW, MessageError, PORT, ProgramEnd, ProgramRequest,
    RequestError, TerminalSize,
};
use thiserror::Error;

use crate::qemu::VSOCK;

/// Bytes of input in one message.
const CHUNK: usize = 32 << 10;
/// Longest answer to the request for a connection: `OK 4294967295`.
const LONGEST_ANSWER: usize = 14;

/// Why a program in the guest has no status.
#[derive(Debug, Error)]
pub enum ProgramError {
    /// The run has no guest that takes programs, or not any more.
    #[error("{} has no guest that takes programs: no run is there, it is over, or it is a `peerbar run` without --keep; `peerbar shell` starts a guest that does", .0.display())]
    NoGuest(PathBuf),
    /// The guest's socket cannot be used.
    #[error("cannot talk to the guest at {}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Nothing in the guest takes programs.
    #[error(
        "the guest takes no programs: its agent has not started yet, or is gone; its console says more"
    )]
    NotTaken,
    /// The guest has not started it.
    #[error("{reason}")]
    Refused {
        /// Why.
        reason: String,
        /// The exit status that a shell has for that.
        status: i32,
    },
    /// The request is none.
    #[error("the guest cannot be asked for that")]
    Request(#[from] RequestError),
    /// The guest is gone, or does not keep to the protocol.
    #[error("the guest is gone")]
    Gone(#[source] Option<MessageError>),
    /// Its input cannot be read.
    #[error("cannot read what the program shall get")]
    Input(#[source] io::Error),
    /// Its output cannot be passed on.
    #[error("cannot write what the program prints")]
    Output(#[source] io::Error),
}

/// A program in the guest. Dropped, it is ended by SIGHUP.
#[derive(Debug)]
pub struct GuestProgram {
    stream: UnixStream,
    /// Bytes of input that may be sent now.
    room: u32,
}

/// The socket of the guest of a run's folder.
///
/// # Errors
/// [`ProgramError::NoGuest`].
pub fn socket_of(run: &Path) -> Result<PathBuf, ProgramError> {
    // The run's folder may be too deep for a socket's address; what the link names is not.
    let socket = std::fs::read_link(run.join(VSOCK)).ok();
    let socket = socket.filter(|socket| socket.exists());
    socket.ok_or_else(|| ProgramError::NoGuest(run.to_owned()))
}

impl GuestProgram {
    /// Asks the guest behind `socket` to start `request`. Whether it has started shows with the first message.
    ///
    /// # Errors
    /// What keeps the guest from being asked.
    pub fn start(socket: &Path, request: &ProgramRequest) -> Result<Self, ProgramError> {
        request.check()?;
        let failed = |source| ProgramError::Socket {
            path: socket.to_owned(),
            source,
        };
        let mut stream = UnixStream::connect(socket).map_err(failed)?;
        writeln!(stream, "CONNECT {PORT}").map_err(failed)?;
        if !is_taken(&mut stream).map_err(failed)? {
            return Err(ProgramError::NotTaken);
        }
        let mut program = Self {
            stream,
            room: INPUT_WINDOW,
        };
        program.send(&HostMessage::Start(request.clone()))?;
        Ok(program)
    }

    /// Bytes of input that the guest takes now.
    pub fn room(&self) -> usize {
        usize::try_from(self.room).unwrap_or_default().min(CHUNK)
    }

    /// Sends input, at most [`GuestProgram::room`] bytes; the number of those sent.
    ///
    /// # Errors
    /// [`ProgramError::Gone`].
    pub fn send_input(&mut self, bytes: &[u8]) -> Result<usize, ProgramError> {
        let bytes = bytes.get(..self.room()).unwrap_or(bytes);
        if !bytes.is_empty() {
            self.send(&HostMessage::Input(bytes.to_vec()))?;
            let sent = u32::try_from(bytes.len()).unwrap_or_default();
            self.room = self.room.saturating_sub(sent);
        }
        Ok(bytes.len())
    }

    /// Ends its input.
    ///
    /// # Errors
    /// [`ProgramError::Gone`].
    pub fn end_input(&mut self) -> Result<(), ProgramError> {
        self.send(&HostMessage::InputEnd)
    }

    /// Sends a signal to its process group.
    ///
    /// # Errors
    /// [`ProgramError::Gone`].
    pub fn signal(&mut self, number: i32) -> Result<(), ProgramError> {
        self.send(&HostMessage::Signal(number))
    }

    /// Tells it the size of its terminal.
    ///
    /// # Errors
    /// [`ProgramError::Gone`].
    pub fn resize(&mut self, size: TerminalSize) -> Result<(), ProgramError> {
        self.send(&HostMessage::Resize(size))
    }

    /// Waits for its next output, or its end.
    ///
    /// # Errors
    /// [`ProgramError::Refused`] for a program that was not started; [`ProgramError::Gone`].
    pub fn next_message(&mut self) -> Result<GuestMessage, ProgramError> {
        let message = GuestMessage::read_from(&mut self.stream);
        let message = message.map_err(|error| ProgramError::Gone(Some(error)))?;
        match message {
            None => Err(ProgramError::Gone(None)),
            Some(GuestMessage::Refused { reason, status }) => {
                Err(ProgramError::Refused { reason, status })
            }
            Some(GuestMessage::InputTaken(bytes)) => {
                self.room = self.room.saturating_add(bytes).min(INPUT_WINDOW);
                Ok(GuestMessage::InputTaken(bytes))
            }
            Some(message) => Ok(message),
        }
    }

    /// Gives it `input`, writes what it prints, and waits for its end.
    ///
    /// # Errors
    /// As [`GuestProgram::next_message`], [`ProgramError::Input`] and [`ProgramError::Output`].
    pub fn run(
        mut self,
        input: &mut dyn Read,
        output: &mut dyn Write,
        errors: &mut dyn Write,
    ) -> Result<ProgramEnd, ProgramError> {
        let mut is_open = true;
        loop {
            while is_open && self.room() > 0 {
                let mut bytes = vec![0; self.room()];
                let count = input.read(&mut bytes).map_err(ProgramError::Input)?;
                bytes.truncate(count);
                self.send_input(&bytes)?;
                is_open = count > 0;
                if !is_open {
                    self.end_input()?;
                }
            }
            match self.next_message()? {
                GuestMessage::Output(bytes) => output.write_all(&bytes),
                GuestMessage::ErrorOutput(bytes) => errors.write_all(&bytes),
                GuestMessage::Ended(end) => return Ok(end),
                GuestMessage::InputTaken(_) | GuestMessage::Refused { .. } => Ok(()),
            }
            .map_err(ProgramError::Output)?;
        }
    }

    fn send(&mut self, message: &HostMessage) -> Result<(), ProgramError> {
        match message.write_to(&mut self.stream) {
            // It has ended, or the guest has: the next message tells which.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            sent => sent.map_err(|error| ProgramError::Gone(Some(MessageError::Read(error)))),
        }
    }
}

impl AsFd for GuestProgram {
    /// Readable when [`GuestProgram::next_message`] has something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Reads the answer to `CONNECT`: `OK` and a number, or the end.
fn is_taken(stream: &mut UnixStream) -> io::Result<bool> {
    let mut answer = Vec::new();
    let mut byte = [0];
    while answer.len() <= LONGEST_ANSWER && stream.read(&mut byte)? > 0 {
        if byte == *b"\n" {
            return Ok(answer.starts_with(b"OK "));
        }
        answer.extend_from_slice(&byte);
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    /// A guest that takes one connection and does `work` with it after the greeting.
    fn guest(
        work: impl FnOnce(BufReader<UnixStream>) + Send + 'static,
    ) -> (tempfile::TempDir, PathBuf, thread::JoinHandle<()>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let guest = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            assert_eq!(line, "CONNECT 1024\n");
            work(stream);
        });
        (folder, path, guest)
    }

    #[test]
    fn input_beyond_the_window_waits_for_the_guest() {
        let total = usize::try_from(INPUT_WINDOW).unwrap() * 3;
        let (_folder, path, guest) = guest(move |mut stream| {
            stream.get_ref().write_all(b"OK 1\n").unwrap();
            let mut got = 0;
            let mut held = 0;
            loop {
                match HostMessage::read_from(&mut stream).unwrap().unwrap() {
                    HostMessage::Start(request) => assert_eq!(request.words, ["cat"]),
                    HostMessage::Input(bytes) => {
                        got += bytes.len();
                        held += u32::try_from(bytes.len()).unwrap();
                        assert!(held <= INPUT_WINDOW);
                        if held == INPUT_WINDOW {
                            let taken = GuestMessage::InputTaken(held);
                            taken.write_to(&mut stream.get_ref()).unwrap();
                            held = 0;
                        }
                    }
                    HostMessage::InputEnd => break,
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(got, total);
            for message in [
                GuestMessage::Output(b"out".to_vec()),
                GuestMessage::ErrorOutput(b"err".to_vec()),
                GuestMessage::Ended(ProgramEnd::Exited(4)),
            ] {
                message.write_to(&mut stream.get_ref()).unwrap();
            }
        });
        let program = GuestProgram::start(&path, &ProgramRequest::new(["cat"])).unwrap();
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let end = program.run(&mut &vec![7; total][..], &mut output, &mut errors);
        assert_eq!(end.unwrap(), ProgramEnd::Exited(4));
        assert_eq!((output, errors), (b"out".to_vec(), b"err".to_vec()));
        guest.join().unwrap();
    }

    #[test]
    fn end_is_told_of_a_program_that_leaves_its_input() {
        let (_folder, path, guest) = guest(|mut stream| {
            stream.get_ref().write_all(b"OK 1\n").unwrap();
            HostMessage::read_from(&mut stream).unwrap();
            let ended = GuestMessage::Ended(ProgramEnd::Exited(3));
            ended.write_to(&mut stream.get_ref()).unwrap();
        });
        let mut program = GuestProgram::start(&path, &ProgramRequest::new(["true"])).unwrap();
        guest.join().unwrap();
        program.send_input(b"nobody reads this").unwrap();
        program.signal(2).unwrap();
        let end = GuestMessage::Ended(ProgramEnd::Exited(3));
        assert_eq!(program.next_message().unwrap(), end);
    }

    #[test]
    fn guest_that_takes_no_programs_is_named() {
        let (_folder, path, guest) = guest(drop);
        let error = GuestProgram::start(&path, &ProgramRequest::new(["true"])).unwrap_err();
        assert!(matches!(error, ProgramError::NotTaken), "{error}");
        guest.join().unwrap();
        let run = tempfile::tempdir().unwrap();
        let error = socket_of(run.path()).unwrap_err().to_string();
        assert!(
            error.contains("has no guest that takes programs"),
            "{error}"
        );
    }

    #[test]
    fn program_that_is_refused_has_a_status() {
        let (_folder, path, guest) = guest(|mut stream| {
            stream.get_ref().write_all(b"OK 1\n").unwrap();
            HostMessage::read_from(&mut stream).unwrap();
            let refused = GuestMessage::Refused {
                reason: "no such program".into(),
                status: 127,
            };
            refused.write_to(&mut stream.get_ref()).unwrap();
        });
        let mut program = GuestProgram::start(&path, &ProgramRequest::new(["x"])).unwrap();
        let error = program.next_message().unwrap_err();
        assert!(
            matches!(error, ProgramError::Refused { status: 127, .. }),
            "{error}"
        );
        guest.join().unwrap();
    }
}
