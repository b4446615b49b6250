//! Between our standard streams and a program in the guest: input, output, signals, and the terminal.

use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use anyhow::Context;
use peerbar_lab::guest_program::{GuestProgram, ProgramError};
use peerbar_report::exec::{GuestMessage, TerminalSize};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM, SIGWINCH};
use signal_hook::low_level::{pipe, unregister};

/// The Ctrl-C, or SIGTERM, at which a program is left that does not end by it.
const MOST_INTERRUPTS: u32 = 3;
/// Bytes that a pipe takes without blocking if poll(2) calls it writable (pipe(7), PIPE_BUF).
const UNBLOCKED: usize = 4096;
/// Exit status of a program that is left: that of one that SIGINT ends.
const LEFT: i32 = 130;

/// Size of our terminal if a program gets one: as in a shell, if both input and output are one.
pub(crate) fn terminal_size() -> Option<TerminalSize> {
    (io::stdin().is_terminal() && io::stdout().is_terminal()).then(window)
}

/// Size of our terminal; one that does not know has the usual one.
fn window() -> TerminalSize {
    let size = tcgetwinsize(stdout()).ok();
    let size = size.filter(|size| size.ws_row > 0 && size.ws_col > 0);
    TerminalSize {
        rows: size.map_or(24, |size| size.ws_row),
        columns: size.map_or(80, |size| size.ws_col),
    }
}

/// Relays until the program ends, and returns its exit status. The numbers of signals come as bytes by `signals`, whose end
/// leaves the program.
///
/// # Errors
/// A program that was not started, a guest that is gone, or output that cannot be written.
pub(crate) fn relay(
    program: GuestProgram,
    has_terminal: bool,
    signals: UnixStream,
) -> anyhow::Result<i32> {
    let terminal = has_terminal.then(RawTerminal::new).transpose()?;
    let relay = Relay {
        program,
        signals,
        window: terminal.as_ref().map(|terminal| &terminal.changes),
        reads: true,
        output: None,
        interrupts: 0,
    };
    relay.run()
}

/// Our terminal, which passes all on as it comes. Dropped, it is as it was.
struct RawTerminal {
    before: Termios,
    /// A byte for each change of its size.
    changes: UnixStream,
    registration: SigId,
}

impl RawTerminal {
    fn new() -> anyhow::Result<Self> {
        let (changes, change) = UnixStream::pair().context("cannot make a socket pair")?;
        let registration = pipe::register(SIGWINCH, change).context("cannot handle signals")?;
        let before = tcgetattr(stdin()).context("cannot ask the terminal for its mode")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Drain, &raw)
            .context("cannot set the terminal's mode")?;
        Ok(Self {
            before,
            changes,
            registration,
        })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that is gone needs no mode.
        let _ = tcsetattr(stdin(), OptionalActions::Drain, &self.before);
        unregister(self.registration);
    }
}

struct Relay<'a> {
    program: GuestProgram,
    signals: UnixStream,
    window: Option<&'a UnixStream>,
    /// Set until our input has ended.
    reads: bool,
    /// Output of the program that our streams have not yet accepted. Until then, no message is
    /// read.
    output: Option<Output>,
    interrupts: u32,
}

/// Bytes on their way to one of our streams, which may block for as long as its reader likes.
struct Output {
    is_error: bool,
    bytes: Vec<u8>,
    written: usize,
}

impl Output {
    fn new(is_error: bool, bytes: Vec<u8>) -> Self {
        Self {
            is_error,
            bytes,
            written: 0,
        }
    }

    /// Writes as much as `stream` accepts without blocking, if poll(2) calls it writable. Returns
    /// `true` if that was the last.
    fn write_to(&mut self, stream: impl AsFd) -> Result<bool, Errno> {
        let rest = self.bytes.get(self.written..).unwrap_or_default();
        let some = rest.get(..UNBLOCKED).unwrap_or(rest);
        match rustix::io::write(stream, some) {
            Ok(count) => self.written = self.written.saturating_add(count),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        Ok(self.written >= self.bytes.len())
    }
}

/// An event source that is ready.
#[derive(Clone, Copy)]
enum Source {
    Program,
    Unsent,
    Output,
    Signals,
    Window,
    Input,
}

impl Relay<'_> {
    fn run(mut self) -> anyhow::Result<i32> {
        loop {
            for source in self.wait()? {
                let status = match source {
                    Source::Program => self.take_message()?,
                    Source::Unsent => self.pass_unsent()?,
                    Source::Output => self.pass_output()?,
                    Source::Signals => self.take_signal()?,
                    Source::Window => self.take_window()?,
                    Source::Input => self.take_input()?,
                };
                if let Some(status) = status {
                    return Ok(status);
                }
            }
        }
    }

    fn wait(&self) -> anyhow::Result<Vec<Source>> {
        let (input, output, errors) = (stdin(), stdout(), stderr());
        let first = match &self.output {
            None => (Source::Program, PollFd::new(&self.program, PollFlags::IN)),
            Some(said) => {
                let stream = if said.is_error { &errors } else { &output };
                (Source::Output, PollFd::new(stream, PollFlags::OUT))
            }
        };
        let signals = (Source::Signals, PollFd::new(&self.signals, PollFlags::IN));
        let mut sources = vec![first, signals];
        if self.program.has_unsent() {
            sources.push((Source::Unsent, PollFd::new(&self.program, PollFlags::OUT)));
        }
        if let Some(window) = self.window {
            sources.push((Source::Window, PollFd::new(window, PollFlags::IN)));
        }
        if self.reads && self.program.input_credit() > 0 {
            sources.push((Source::Input, PollFd::new(&input, PollFlags::IN)));
        }
        let mut fds: Vec<PollFd<'_>> = sources.iter().map(|(_, fd)| fd.clone()).collect();
        rustix::io::retry_on_intr(|| poll(&mut fds, None)).context("cannot wait for a program")?;
        let ready = sources.iter().zip(&fds);
        let ready = ready.filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ready.map(|((source, _), _)| *source).collect())
    }

    fn take_message(&mut self) -> anyhow::Result<Option<i32>> {
        match self.program.next_message()? {
            Some(GuestMessage::Output(bytes)) => self.output = Some(Output::new(false, bytes)),
            Some(GuestMessage::ErrorOutput(bytes)) => self.output = Some(Output::new(true, bytes)),
            Some(GuestMessage::Ended(end)) => return Ok(Some(end.status())),
            Some(GuestMessage::InputTaken(_) | GuestMessage::Refused { .. }) | None => {}
        }
        Ok(None)
    }

    fn pass_unsent(&mut self) -> anyhow::Result<Option<i32>> {
        self.program.flush()?;
        Ok(None)
    }

    fn pass_output(&mut self) -> anyhow::Result<Option<i32>> {
        let Some(output) = &mut self.output else {
            return Ok(None);
        };
        let written = match output.is_error {
            true => output.write_to(stderr()),
            false => output.write_to(stdout()),
        };
        match written {
            Ok(is_last) => {
                if is_last {
                    self.output = None;
                }
                Ok(None)
            }
            // This is the status of a program of the host that writes into a pipe without a reader.
            Err(Errno::PIPE) => Ok(Some(141)),
            Err(error) => Err(ProgramError::Output(error.into()).into()),
        }
    }

    fn take_signal(&mut self) -> anyhow::Result<Option<i32>> {
        let mut number = [0];
        let count = (&self.signals).read(&mut number);
        if count.context("cannot read a signal")? == 0 {
            return Ok(Some(LEFT));
        }
        let [number] = number.map(i32::from);
        if number == SIGINT || number == SIGTERM {
            self.interrupts = self.interrupts.saturating_add(1);
        }
        // A guest that has not answered has no program to signal.
        if self.interrupts >= MOST_INTERRUPTS || !self.program.is_accepted() {
            return Ok(Some(LEFT));
        }
        self.program.signal(number)?;
        Ok(None)
    }

    fn take_window(&mut self) -> anyhow::Result<Option<i32>> {
        if let Some(mut window) = self.window {
            window.read(&mut [0]).context("cannot read a signal")?;
            self.program.resize(self::window())?;
        }
        Ok(None)
    }

    fn take_input(&mut self) -> anyhow::Result<Option<i32>> {
        let mut bytes = vec![0; self.program.input_credit()];
        // Not through the standard library's buffer, whose contents are invisible to poll(2).
        match rustix::io::read(stdin(), bytes.as_mut_slice()) {
            Ok(0) => {
                self.reads = false;
                self.program.end_input()?;
            }
            Ok(count) => {
                bytes.truncate(count);
                self.program.send_input(&bytes)?;
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            // The terminal may be gone, for example.
            Err(error) => {
                log::debug!("standard input: {error}");
                self.reads = false;
                self.program.end_input()?;
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::pipe::pipe;

    use super::*;

    /// A relay with a guest that does `work`, and Ctrl-C typed as often as it is heeded at last.
    fn interrupted(work: impl FnOnce(&UnixStream) + Send + 'static) -> anyhow::Result<i32> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let (worked, is_at_work) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let guest = std::thread::spawn(move || {
            let stream = listener.accept().unwrap().0;
            work(&stream);
            worked.send(()).unwrap();
            let _ = ended.recv();
        });
        let request = peerbar_report::exec::ProgramRequest::new(["x"]);
        let program = GuestProgram::start(&path, &request).unwrap();
        is_at_work.recv().unwrap();
        let (signals, mut numbers) = UnixStream::pair().unwrap();
        let number = u8::try_from(SIGINT).unwrap();
        io::Write::write_all(&mut numbers, &[number; 3]).unwrap();
        let status = relay(program, false, signals);
        drop(end);
        guest.join().unwrap();
        status
    }

    #[test]
    fn interrupts_leave_a_guest_that_stops_anywhere() {
        use std::io::Write;
        assert_eq!(interrupted(|_| ()).unwrap(), LEFT);
        let half = |mut stream: &UnixStream| stream.write_all(b"OK 1\n\x02\xff\x00").unwrap();
        assert_eq!(interrupted(half).unwrap(), LEFT);
    }

    fn is_writable(stream: impl AsFd) -> bool {
        let mut fds = [PollFd::new(&stream, PollFlags::OUT)];
        poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() > 0
    }

    #[test]
    fn output_waits_for_a_slow_reader_without_blocking() {
        let (reader, writer) = pipe().unwrap();
        let mut reader = File::from(reader);
        let bytes: Vec<u8> = (0..100_000_u32).map(|at| at.to_le_bytes()[0]).collect();
        let mut output = Output::new(false, bytes.clone());
        let (mut read, mut is_last) = (Vec::new(), false);
        while !is_last {
            // A write that blocked would never end.
            while !is_last && is_writable(&writer) {
                is_last = output.write_to(&writer).unwrap();
            }
            let mut some = [0; 10_000];
            let count = reader.read(&mut some).unwrap();
            read.extend_from_slice(&some[..count]);
        }
        drop(writer);
        reader.read_to_end(&mut read).unwrap();
        assert!(read == bytes, "{} bytes", read.len());
    }

    #[test]
    fn output_without_a_reader_is_an_error() {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let mut output = Output::new(true, vec![1]);
        assert_eq!(output.write_to(&writer), Err(Errno::PIPE));
    }
}
