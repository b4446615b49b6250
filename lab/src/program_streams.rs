//! Standard input and output of a program in a guest, as streams that wait.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Instant;

use peerbar_report::exec::GuestMessage;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use crate::guest_program::{GuestProgram, ProgramError, check_stops};

/// The most bytes of its output that may wait to be read.
const MOST_OUTPUT: usize = 1 << 20;
/// The most bytes of its error output that are kept, the first ones.
const MOST_ERRORS: usize = 8 << 10;

/// A program in a guest. The streams write its standard input and read its standard output; both
/// wait for it until a deadline, or until another guest has ended. All clones are of the same
/// program.
#[derive(Clone)]
pub(crate) struct ProgramStreams {
    inner: Rc<RefCell<Inner>>,
    deadline: Instant,
    /// Become readable when the work must be abandoned.
    stops: Rc<[UnixStream]>,
}

struct Inner {
    program: GuestProgram,
    output: VecDeque<u8>,
    errors: Vec<u8>,
    status: Option<i32>,
}

impl ProgramStreams {
    /// Returns the streams of `program`.
    pub(crate) fn new(program: GuestProgram, deadline: Instant, stops: Rc<[UnixStream]>) -> Self {
        Self {
            inner: Rc::new(RefCell::new(Inner {
                program,
                output: VecDeque::new(),
                errors: Vec::new(),
                status: None,
            })),
            deadline,
            stops,
        }
    }

    /// Ends its input, and waits for its end. Returns its exit status, and the start of its error
    /// output.
    ///
    /// # Errors
    /// Those of reading.
    pub(crate) fn finish(mut self) -> io::Result<(i32, String)> {
        self.inner.borrow_mut().program.end_input().map_err(other)?;
        io::copy(&mut self, &mut io::sink())?;
        let inner = self.inner.borrow();
        let errors = String::from_utf8_lossy(&inner.errors).into_owned();
        Ok((inner.status.unwrap_or_default(), errors))
    }

    /// Checks that there is time left, and that the work must not be abandoned. This precedes every
    /// message, so that a guest that never pauses is also stopped.
    fn may_go_on(&self) -> io::Result<()> {
        if self.deadline <= Instant::now() {
            return Err(other(ProgramError::Late));
        }
        check_stops(&self.stops).map_err(|_| io::Error::other("it was given up"))
    }

    /// Waits until the program sends something, or takes more, or the work must end.
    fn wait(&self, program: &mut GuestProgram) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut events = PollFlags::IN;
        events.set(PollFlags::OUT, program.has_unsent());
        let mut fds = vec![PollFd::new(&*program, events)];
        let stops = self.stops.iter();
        fds.extend(stops.map(|stop| PollFd::new(stop, PollFlags::IN)));
        retry_on_intr(|| poll(&mut fds, Some(&left)))?;
        drop(fds);
        program.flush().map_err(other)
    }

    /// Takes the next message, or waits for one; [`Inner::take`] returns `true` if there was one.
    fn step(&self, inner: &mut Inner) -> io::Result<()> {
        self.may_go_on()?;
        match inner.take()? {
            true => Ok(()),
            false => self.wait(&mut inner.program),
        }
    }
}

impl Inner {
    /// Takes the next message of the program. Returns `true` if there was one.
    fn take(&mut self) -> io::Result<bool> {
        match self.program.next_message().map_err(other)? {
            Some(GuestMessage::Output(bytes)) => {
                self.output.extend(bytes);
                if self.output.len() > MOST_OUTPUT {
                    return Err(io::Error::other("it printed more than it was asked for"));
                }
            }
            Some(GuestMessage::ErrorOutput(bytes)) => {
                let free = MOST_ERRORS.saturating_sub(self.errors.len());
                self.errors.extend(bytes.into_iter().take(free));
            }
            Some(GuestMessage::Ended(end)) => self.status = Some(end.status()),
            Some(GuestMessage::InputTaken(_) | GuestMessage::Refused { .. }) => {}
            None => return Ok(false),
        }
        Ok(true)
    }
}

impl Read for ProgramStreams {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut inner = self.inner.borrow_mut();
        // Output that is there already has its limit, too: its reader may want all of it.
        self.may_go_on()?;
        while inner.output.is_empty() && inner.status.is_none() {
            self.step(&mut inner)?;
        }
        inner.output.read(bytes)
    }
}

impl Write for ProgramStreams {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut inner = self.inner.borrow_mut();
        loop {
            if inner.status.is_some() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            match inner.program.send_input(bytes).map_err(other)? {
                0 if !bytes.is_empty() => self.step(&mut inner)?,
                count => return Ok(count),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut inner = self.inner.borrow_mut();
        while inner.program.has_unsent() {
            self.step(&mut inner)?;
        }
        Ok(())
    }
}

fn other(error: ProgramError) -> io::Error {
    io::Error::other(error)
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use peerbar_report::exec::{HostMessage, ProgramEnd, ProgramRequest};

    use super::*;
    use crate::guest_program::tests::guest;

    fn long() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn send(stream: &BufReader<UnixStream>, message: &GuestMessage) {
        message.write_to(&mut stream.get_ref()).unwrap();
    }

    fn start(path: &std::path::Path) -> GuestProgram {
        GuestProgram::start(path, &ProgramRequest::new(["x"])).unwrap()
    }

    #[test]
    fn line_is_answered_and_the_end_has_a_status() {
        let (_folder, path, guest) = guest(|mut stream| {
            stream.get_ref().write_all(b"OK 1\n").unwrap();
            let start = HostMessage::read_from(&mut stream).unwrap();
            assert!(matches!(start, Some(HostMessage::Start(_))), "{start:?}");
            let input = HostMessage::read_from(&mut stream).unwrap();
            assert_eq!(input, Some(HostMessage::Input(b"ask\n".to_vec())));
            send(&stream, &GuestMessage::ErrorOutput(b"why".to_vec()));
            send(&stream, &GuestMessage::Output(b"answer\n".to_vec()));
            let end = HostMessage::read_from(&mut stream).unwrap();
            assert_eq!(end, Some(HostMessage::InputEnd));
            send(&stream, &GuestMessage::Ended(ProgramEnd::Exited(3)));
        });
        let mut streams = ProgramStreams::new(start(&path), long(), Rc::default());
        streams.write_all(b"ask\n").unwrap();
        let mut answer = [0; 7];
        streams.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"answer\n");
        assert_eq!(streams.finish().unwrap(), (3, "why".to_owned()));
        guest.join().unwrap();
    }

    #[test]
    fn silent_guest_is_left_at_the_deadline_or_a_stop() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        for (deadline, wanted) in [
            (Instant::now(), "the program has not ended in time"),
            (long(), "it was given up"),
        ] {
            let (_folder, path, guest) = guest(|mut stream| {
                // Until the program is dropped.
                let _ = io::copy(&mut stream, &mut io::sink());
            });
            let stops = match deadline <= Instant::now() {
                true => Vec::new(),
                false => vec![UnixStream::from(ours.as_fd().try_clone_to_owned().unwrap())],
            };
            (&theirs).write_all(&[2]).unwrap();
            let mut streams = ProgramStreams::new(start(&path), deadline, stops.into());
            let error = streams.read(&mut [0]).unwrap_err();
            assert_eq!(error.to_string(), wanted);
            drop(streams);
            guest.join().unwrap();
        }
    }

    #[test]
    fn guest_that_never_pauses_is_left_as_well() {
        let flood = [
            GuestMessage::ErrorOutput(vec![7; 1000]),
            GuestMessage::Output(vec![7; 1000]),
            GuestMessage::InputTaken(1),
        ];
        let ways = [
            (true, "the program has not ended in time"),
            (false, "it was given up"),
        ];
        for (message, (is_late, wanted)) in flood.iter().flat_map(|m| ways.map(|way| (m, way))) {
            let message = message.clone();
            let (_folder, path, guest) = guest(move |stream| {
                stream.get_ref().write_all(b"OK 1\n").unwrap();
                // Until the program is dropped.
                while message.write_to(&mut stream.get_ref()).is_ok() {}
            });
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let mut streams = ProgramStreams::new(start(&path), long(), [ours].into());
            while !streams.inner.borrow().program.is_accepted() {
                streams.step(&mut streams.inner.borrow_mut()).unwrap();
            }
            match is_late {
                true => streams.deadline = Instant::now(),
                false => theirs.write_all(&[2]).unwrap(),
            }
            let error = streams.finish().unwrap_err();
            assert_eq!(error.to_string(), wanted);
            guest.join().unwrap();
        }
    }
}
