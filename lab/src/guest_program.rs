//! A program that the host has started in a guest, as a client of the guest's agent sees it.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use peerbar_report::exec::{
    GuestMessage, HostMessage, INPUT_WINDOW, MessageError, PORT, ProgramEnd, ProgramRequest,
    RequestError, TerminalSize,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use thiserror::Error;

use crate::qemu::VSOCK;

/// Bytes of input in one message.
const CHUNK: usize = 256 << 10;
/// Longest answer to the request for a connection: `OK 4294967295`.
const LONGEST_ANSWER: usize = 14;

/// The reason why a program in the guest has no status.
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
    /// Nobody listens at the guest's socket: its run has ended, perhaps by a signal that left the
    /// socket.
    #[error("the guest behind {} has ended, or its peerbar was killed: start another run", .0.display())]
    Ended(PathBuf),
    /// Nothing in the guest takes programs.
    #[error(
        "the guest takes no programs: its agent has not started yet, or is gone; console.log in the folder of its run says more"
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
    /// The request is invalid.
    #[error("the guest cannot be asked for that")]
    Request(#[from] RequestError),
    /// It has not ended in time.
    #[error("the program has not ended in time")]
    Late,
    /// The guest has stopped in the middle of something.
    #[error("the guest has neither sent nor taken anything for {} s", .0.as_secs())]
    Silent(Duration),
    /// The stream of [`GuestProgram::ends_with`] has become readable before it ended.
    #[error("the program was given up: a signal has come, or its guest or a server has ended")]
    GivenUp,
    /// The guest is gone, or does not keep to the protocol.
    #[error(
        "the connection to the guest is lost; console.log and qemu.log in the folder of its run say more"
    )]
    Gone(#[source] Option<MessageError>),
    /// Its input cannot be read.
    #[error("cannot read the program's input")]
    Input(#[source] io::Error),
    /// Its output cannot be passed on.
    #[error("cannot write the program's output")]
    Output(#[source] io::Error),
}

/// A program in the guest. On drop, it is ended by SIGHUP.
///
/// Only [`GuestProgram::run`] waits for the guest, which may stop in the middle of a message or
/// read nothing.
#[derive(Debug)]
pub struct GuestProgram {
    /// Does not block.
    stream: UnixStream,
    /// Set if the guest has accepted the connection.
    is_accepted: bool,
    /// The message that has begun to come.
    received: Vec<u8>,
    /// Bytes that the socket has not taken.
    unsent: Vec<u8>,
    /// Bytes of input that the guest still takes.
    credit: u32,
    /// Time at which [`GuestProgram::run`] gives up.
    deadline: Option<Instant>,
    /// Ends [`GuestProgram::run`] once it is readable.
    stop: Option<UnixStream>,
    /// Longest time in which the guest may neither send nor take anything.
    silence: Option<Duration>,
}

/// Returns the socket of the guest of a run's folder.
///
/// # Errors
/// [`ProgramError::NoGuest`].
pub fn socket_of(run: &Path) -> Result<PathBuf, ProgramError> {
    // The run's folder may be too deep for a socket's address, but the target of the link is not.
    let socket = std::fs::read_link(run.join(VSOCK)).ok();
    let socket = socket.filter(|socket| socket.exists());
    socket.ok_or_else(|| ProgramError::NoGuest(run.to_owned()))
}

/// Checks that none of `stops` is readable, without waiting.
///
/// # Errors
/// [`ProgramError::GivenUp`].
pub(crate) fn check_stops(stops: &[UnixStream]) -> Result<(), ProgramError> {
    let fds = stops.iter().map(|stop| PollFd::new(stop, PollFlags::IN));
    let mut fds: Vec<PollFd<'_>> = fds.collect();
    match retry_on_intr(|| poll(&mut fds, Some(&Timespec::default()))) {
        Ok(0) => Ok(()),
        _ => Err(ProgramError::GivenUp),
    }
}

impl GuestProgram {
    /// Asks the guest behind `socket` to start `request`. The first message shows if it has
    /// started.
    ///
    /// # Errors
    /// The reason why the guest cannot be asked.
    pub fn start(socket: &Path, request: &ProgramRequest) -> Result<Self, ProgramError> {
        request.check()?;
        let failed = |source: io::Error| {
            let path = socket.to_owned();
            match source.kind() {
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                    ProgramError::Ended(path)
                }
                _ => ProgramError::Socket { path, source },
            }
        };
        let stream = UnixStream::connect(socket).map_err(failed)?;
        stream.set_nonblocking(true).map_err(failed)?;
        let mut program = Self {
            stream,
            is_accepted: false,
            received: Vec::new(),
            unsent: format!("CONNECT {PORT}\n").into_bytes(),
            credit: INPUT_WINDOW,
            deadline: None,
            stop: None,
            silence: None,
        };
        program.send(&HostMessage::Start(request.clone()))?;
        Ok(program)
    }

    /// Makes [`GuestProgram::run`] give up after `limit`.
    pub fn ends_within(self, limit: Duration) -> Self {
        let deadline = Instant::now().checked_add(limit);
        Self { deadline, ..self }
    }

    /// Makes [`GuestProgram::run`] give up when `stop` receives something, or its other end is
    /// closed.
    pub fn ends_with(self, stop: UnixStream) -> Self {
        let stop = Some(stop);
        Self { stop, ..self }
    }

    /// Makes [`GuestProgram::run`] give up when the guest neither sends nor takes anything for this
    /// time.
    pub fn is_silent_for_at_most(self, limit: Duration) -> Self {
        let silence = Some(limit);
        Self { silence, ..self }
    }

    /// Returns `true` if the guest has answered.
    pub fn is_accepted(&self) -> bool {
        self.is_accepted
    }

    /// Bytes of input that the guest takes now.
    pub fn input_credit(&self) -> usize {
        match self.has_unsent() {
            // A guest that does not read gets no more to hold here.
            true => 0,
            false => usize::try_from(self.credit).unwrap_or_default().min(CHUNK),
        }
    }

    /// Returns `true` if [`GuestProgram::flush`] has something to do once the socket is writable.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends input, at most [`GuestProgram::input_credit`] bytes. Returns the number of bytes sent.
    ///
    /// # Errors
    /// [`ProgramError::Gone`].
    pub fn send_input(&mut self, bytes: &[u8]) -> Result<usize, ProgramError> {
        let bytes = bytes.get(..self.input_credit()).unwrap_or(bytes);
        if !bytes.is_empty() {
            self.send(&HostMessage::Input(bytes.to_vec()))?;
            let sent = u32::try_from(bytes.len()).unwrap_or_default();
            self.credit = self.credit.saturating_sub(sent);
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

    /// Returns its next output, or its end, or `None` if neither has arrived.
    ///
    /// # Errors
    /// [`ProgramError::NotTaken`] and [`ProgramError::Refused`] for a program that was not started;
    /// [`ProgramError::Gone`].
    pub fn next_message(&mut self) -> Result<Option<GuestMessage>, ProgramError> {
        loop {
            match self.missing()? {
                0 if self.is_accepted => break,
                0 => {
                    self.is_accepted = true;
                    self.received.clear();
                }
                missing => {
                    if !self.receive(missing)? {
                        return Ok(None);
                    }
                }
            }
        }
        let message = GuestMessage::read_from(&mut self.received.as_slice());
        self.received.clear();
        match message.map_err(|error| ProgramError::Gone(Some(error)))? {
            Some(GuestMessage::Refused { reason, status }) => {
                Err(ProgramError::Refused { reason, status })
            }
            Some(GuestMessage::InputTaken(bytes)) => {
                self.credit = self.credit.saturating_add(bytes).min(INPUT_WINDOW);
                Ok(Some(GuestMessage::InputTaken(bytes)))
            }
            message => Ok(message),
        }
    }

    /// Returns the number of bytes that complete the current message: the answer to the request for
    /// a connection, or a later message.
    fn missing(&self) -> Result<usize, ProgramError> {
        match self.received.as_slice() {
            message if self.is_accepted => {
                GuestMessage::missing(message).map_err(|error| ProgramError::Gone(Some(error)))
            }
            [answer @ .., b'\n'] if answer.starts_with(b"OK ") => Ok(0),
            [.., b'\n'] => Err(ProgramError::NotTaken),
            answer if answer.len() > LONGEST_ANSWER => Err(ProgramError::NotTaken),
            _ => Ok(1),
        }
    }

    /// Receives at most `count` bytes. Returns `false` if there are none yet.
    fn receive(&mut self, count: usize) -> Result<bool, ProgramError> {
        let before = self.received.len();
        let mut bytes = vec![0; count];
        let error = match self.stream.read(&mut bytes) {
            Ok(0) => io::ErrorKind::ConnectionReset.into(),
            Ok(count) => {
                self.received
                    .extend_from_slice(bytes.get(..count).unwrap_or_default());
                return Ok(true);
            }
            Err(error) => error,
        };
        Err(match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => return Ok(false),
            io::ErrorKind::ConnectionReset if !self.is_accepted => ProgramError::NotTaken,
            io::ErrorKind::ConnectionReset if before == 0 => ProgramError::Gone(None),
            io::ErrorKind::ConnectionReset => ProgramError::Gone(Some(MessageError::CutOff)),
            _ => gone(error),
        })
    }

    /// Gives it `input`, writes its output, and waits for its end.
    ///
    /// # Errors
    /// Those of [`GuestProgram::wait_for_message`], [`ProgramError::Input`] and
    /// [`ProgramError::Output`].
    pub fn run(
        mut self,
        input: &mut dyn Read,
        output: &mut dyn Write,
        errors: &mut dyn Write,
    ) -> Result<ProgramEnd, ProgramError> {
        let mut is_open = true;
        loop {
            self.check_limits()?;
            while is_open && self.input_credit() > 0 {
                let mut bytes = vec![0; self.input_credit()];
                let count = input.read(&mut bytes).map_err(ProgramError::Input)?;
                bytes.truncate(count);
                self.send_input(&bytes)?;
                is_open = count > 0;
                if !is_open {
                    self.end_input()?;
                }
            }
            match self.next_message()? {
                Some(GuestMessage::Output(bytes)) => output.write_all(&bytes),
                Some(GuestMessage::ErrorOutput(bytes)) => errors.write_all(&bytes),
                Some(GuestMessage::Ended(end)) => return Ok(end),
                Some(GuestMessage::InputTaken(_) | GuestMessage::Refused { .. }) => Ok(()),
                None => {
                    self.wait()?;
                    Ok(())
                }
            }
            .map_err(ProgramError::Output)?;
        }
    }

    /// Waits for its next output, or its end.
    ///
    /// # Errors
    /// As [`GuestProgram::next_message`], [`ProgramError::Late`], [`ProgramError::Silent`] and
    /// [`ProgramError::GivenUp`].
    pub fn wait_for_message(&mut self) -> Result<GuestMessage, ProgramError> {
        loop {
            self.check_limits()?;
            match self.next_message()? {
                Some(message) => return Ok(message),
                None => self.wait()?,
            }
        }
    }

    /// Checks that the program need not be abandoned. A guest that never stops sending can exceed
    /// the deadline, too.
    fn check_limits(&self) -> Result<(), ProgramError> {
        match self.deadline.is_some_and(|at| at <= Instant::now()) {
            true => Err(ProgramError::Late),
            false => check_stops(self.stop.as_slice()),
        }
    }

    /// Waits until the guest sends something, or takes unsent bytes, or the program must be
    /// abandoned.
    fn wait(&mut self) -> Result<(), ProgramError> {
        let mut events = PollFlags::IN;
        events.set(PollFlags::OUT, self.has_unsent());
        let left = self
            .deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let limit = [left, self.silence].into_iter().flatten().min();
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut fds = vec![PollFd::new(&self.stream, events)];
        fds.extend(
            self.stop
                .iter()
                .map(|stop| PollFd::new(stop, PollFlags::IN)),
        );
        let ready = retry_on_intr(|| poll(&mut fds, limit.as_ref()));
        match (ready.map_err(|error| gone(error.into()))?, self.silence) {
            (0, Some(silence)) if left.is_none_or(|left| silence < left) => {
                Err(ProgramError::Silent(silence))
            }
            _ => self.flush(),
        }
    }

    fn send(&mut self, message: &HostMessage) -> Result<(), ProgramError> {
        message.write_to(&mut self.unsent).map_err(gone)?;
        self.flush()
    }

    /// Sends as many of the unsent bytes as the socket takes.
    ///
    /// # Errors
    /// [`ProgramError::Gone`].
    pub fn flush(&mut self) -> Result<(), ProgramError> {
        while self.has_unsent() {
            match self.stream.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => break,
                    io::ErrorKind::Interrupted => {}
                    // The program has ended, or the guest has: the next message tells the
                    // difference.
                    io::ErrorKind::BrokenPipe => self.unsent.clear(),
                    _ => return Err(gone(error)),
                },
            }
        }
        Ok(())
    }
}

fn gone(error: io::Error) -> ProgramError {
    ProgramError::Gone(Some(MessageError::Read(error)))
}

impl AsFd for GuestProgram {
    /// Readable when [`GuestProgram::next_message`] has something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    /// Returns a guest that takes one connection and does `work` with it after the greeting.
    pub(crate) fn guest(
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

    const LONG: Duration = Duration::from_secs(60);

    /// Returns the reason why a program has no end within `limit`.
    fn failed(path: &Path, limit: Duration) -> ProgramError {
        let program = GuestProgram::start(path, &ProgramRequest::new(["x"])).unwrap();
        let program = program.ends_within(limit);
        let end = program.run(&mut io::empty(), &mut io::sink(), &mut io::sink());
        end.unwrap_err()
    }

    #[test]
    fn program_is_given_up_with_what_it_ends_with() {
        for says in [true, false] {
            let (stop, stopped) = UnixStream::pair().unwrap();
            // It accepts and sends nothing until the host leaves.
            let (_folder, path, guest) = guest(move |mut stream| {
                stream.get_ref().write_all(b"OK 1\n").unwrap();
                let open = says.then_some(&stop);
                open.into_iter()
                    .for_each(|mut stop| stop.write_all(&[15]).unwrap());
                let _stays_open = says.then_some(stop);
                let _ = io::copy(&mut stream, &mut io::sink());
            });
            let program = GuestProgram::start(&path, &ProgramRequest::new(["x"])).unwrap();
            let program = program.ends_with(stopped).ends_within(LONG);
            let end = program.run(&mut io::empty(), &mut io::sink(), &mut io::sink());
            assert!(matches!(end, Err(ProgramError::GivenUp)), "{end:?}");
            guest.join().unwrap();
        }
    }

    #[test]
    fn guest_that_stops_in_a_message_holds_nothing_up() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (_folder, path, guest) = guest(move |stream| {
            let mut message = b"OK 1\n".to_vec();
            let output = GuestMessage::Output(vec![7; 1000]);
            output.write_to(&mut message).unwrap();
            stream.get_ref().write_all(&message[..500]).unwrap();
            let _ = stopped.recv();
            stream.get_ref().write_all(&message[500..]).unwrap();
        });
        let mut program = GuestProgram::start(&path, &ProgramRequest::new(["x"])).unwrap();
        while program.received.is_empty() || !program.is_accepted() {
            program.wait().unwrap();
            assert_eq!(program.next_message().unwrap(), None);
        }
        // The server does not read the sent bytes either.
        for _ in 0..20_000 {
            program.signal(2).unwrap();
        }
        assert!(program.has_unsent());
        assert_eq!(program.send_input(b"x").unwrap(), 0);
        let late = program.ends_within(Duration::ZERO);
        let end = late.run(&mut io::empty(), &mut io::sink(), &mut io::sink());
        assert!(matches!(end, Err(ProgramError::Late)), "{end:?}");
        drop(stop);
        // Its program is gone.
        guest.join().unwrap_err();
    }

    #[test]
    fn guest_that_stops_in_a_message_is_silent() {
        let (_folder, path, guest) = guest(move |mut stream| {
            stream.get_ref().write_all(b"OK 1\n\x02\xff").unwrap();
            let _ = io::copy(&mut stream, &mut io::sink());
        });
        let program = GuestProgram::start(&path, &ProgramRequest::new(["x"])).unwrap();
        let program = program.is_silent_for_at_most(Duration::from_millis(50));
        let end = program.run(&mut io::empty(), &mut io::sink(), &mut io::sink());
        assert!(matches!(end, Err(ProgramError::Silent(_))), "{end:?}");
        guest.join().unwrap();
    }

    #[test]
    fn guest_that_talks_without_end_is_late() {
        let (_folder, path, guest) = guest(move |stream| {
            let mut stream = stream.get_ref();
            stream.write_all(b"OK 1\n").unwrap();
            let nothing = GuestMessage::InputTaken(0);
            while nothing.write_to(&mut stream).is_ok() {}
        });
        let error = failed(&path, Duration::from_millis(50));
        assert!(matches!(error, ProgramError::Late), "{error}");
        guest.join().unwrap();
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
    fn program_that_leaves_its_input_ends_with_its_status() {
        let (_folder, path, guest) = guest(|mut stream| {
            stream.get_ref().write_all(b"OK 1\n").unwrap();
            HostMessage::read_from(&mut stream).unwrap();
            let ended = GuestMessage::Ended(ProgramEnd::Exited(3));
            ended.write_to(&mut stream.get_ref()).unwrap();
        });
        let mut program = GuestProgram::start(&path, &ProgramRequest::new(["true"])).unwrap();
        guest.join().unwrap();
        program.send_input(b"unread").unwrap();
        program.signal(2).unwrap();
        let end = program.run(&mut io::empty(), &mut io::sink(), &mut io::sink());
        assert_eq!(end.unwrap(), ProgramEnd::Exited(3));
    }

    #[test]
    fn guest_that_takes_no_programs_is_named() {
        let (_folder, path, guest) = guest(drop);
        let error = failed(&path, LONG);
        assert!(matches!(error, ProgramError::NotTaken), "{error}");
        guest.join().unwrap();
        // The listener is gone, then its socket, too: a run that was killed.
        for _ in 0..2 {
            let error = GuestProgram::start(&path, &ProgramRequest::new(["x"])).unwrap_err();
            assert!(matches!(error, ProgramError::Ended(_)), "{error}");
            let _ = std::fs::remove_file(&path);
        }
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
        let error = failed(&path, LONG);
        assert!(
            matches!(error, ProgramError::Refused { status: 127, .. }),
            "{error}"
        );
        guest.join().unwrap();
    }
}
