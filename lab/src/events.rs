//! Everything that a run waits for, in one place: output, connections, ends of children, signals.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Instant;

use anyhow::{Context, anyhow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::signals::Signals;

/// Source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSource {
    /// The guest's agent.
    Report,
    /// The guest's serial console.
    Console,
    /// The guest's trace events.
    Trace,
    /// QEMU's own output.
    QemuLog,
    /// QEMU itself.
    Qemu,
    /// The device server of this index.
    Server(usize),
    /// Work of this process, in another thread.
    Work,
    /// The run with this index, which is a separate process.
    Run(usize),
}

/// An event of a source.
#[derive(Debug)]
pub enum Event {
    /// Bytes arrived.
    Data(EventSource, Vec<u8>),
    /// No more bytes will.
    Closed(EventSource),
    /// A peer connected. The listener is no longer watched.
    Connected(EventSource, UnixStream),
    /// A child ended.
    Ended(EventSource),
    /// This process was asked to end by the signal of this number.
    Signal(i32),
}

enum Source {
    Bytes(Box<dyn ReadFd + Send>),
    Listener(UnixListener),
    Child(OwnedFd),
}

trait ReadFd: Read + AsFd {}
impl<R: Read + AsFd> ReadFd for R {}

/// Waits for any of its sources.
pub struct Events<'a> {
    signals: &'a Signals,
    sources: Vec<(EventSource, Source)>,
    /// The source whose turn it is. The turns prevent a busy source from delaying the others.
    turn: usize,
}

impl<'a> Events<'a> {
    /// Makes an `Events` that receives `signals`.
    pub fn new(signals: &'a Signals) -> Self {
        Self {
            signals,
            sources: Vec::new(),
            turn: 0,
        }
    }

    /// Waits for bytes of `stream`.
    pub fn add_bytes(&mut self, of: EventSource, stream: impl Read + AsFd + Send + 'static) {
        self.sources.push((of, Source::Bytes(Box::new(stream))));
    }

    /// Waits for the first connection to `listener`.
    pub fn add_listener(&mut self, of: EventSource, listener: UnixListener) {
        self.sources.push((of, Source::Listener(listener)));
    }

    /// Waits for the end of the child behind `pidfd`.
    pub fn add_child(&mut self, of: EventSource, pidfd: BorrowedFd<'_>) -> anyhow::Result<()> {
        let pidfd = pidfd.try_clone_to_owned().context("cannot watch a child")?;
        self.sources.push((of, Source::Child(pidfd)));
        Ok(())
    }

    /// Waits for nothing of that source any more.
    pub fn remove(&mut self, of: EventSource) {
        self.sources.retain(|(source, _)| *source != of);
    }

    /// Returns the next event, or `None` after `deadline`. Of several, a signal comes first, and
    /// the end of a child last. Sources of bytes take turns.
    pub fn next(&mut self, deadline: Instant) -> anyhow::Result<Option<Event>> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let timeout = Timespec::try_from(left).context("the deadline is too far")?;
            let sources = self.sources.iter().map(|(_, source)| source.fd());
            let fds = self.signals.fds().chain(sources);
            let mut fds: Vec<PollFd<'_>> = fds
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(anyhow!(error).context("cannot wait for events")),
            }
            let ready = fds
                .iter()
                .zip(0..)
                .filter(|(fd, _)| !fd.revents().is_empty());
            let ready: Vec<usize> = ready.map(|(_, index)| index).collect();
            let Some(first) = ready.into_iter().min_by_key(|index| self.rank(*index)) else {
                continue;
            };
            match first.checked_sub(self.signals.fds().count()) {
                Some(source) => return self.take(source).map(Some),
                None => {
                    if let Some(number) = self.signals.take(first)? {
                        return Ok(Some(Event::Signal(number)));
                    }
                }
            }
        }
    }

    /// Returns the order in which the descriptor `index` is served: rank, and distance from the
    /// source whose turn it is.
    fn rank(&self, index: usize) -> (u8, usize) {
        let Some(index) = index.checked_sub(self.signals.fds().count()) else {
            return (0, index);
        };
        match self.sources.get(index) {
            Some((_, Source::Child(_))) => (2, index),
            _ if index < self.turn => (1, index.saturating_add(self.sources.len())),
            _ => (1, index),
        }
    }

    /// Takes the event of the source `index`.
    fn take(&mut self, index: usize) -> anyhow::Result<Event> {
        let (of, source) = self
            .sources
            .get_mut(index)
            .context("an event without a source")?;
        let of = *of;
        let event = match source {
            Source::Bytes(stream) => match read_some(stream) {
                Some(bytes) => {
                    self.turn = index.saturating_add(1);
                    return Ok(Event::Data(of, bytes));
                }
                None => Event::Closed(of),
            },
            Source::Listener(listener) => {
                Event::Connected(of, listener.accept().context("cannot accept")?.0)
            }
            Source::Child(_) => Event::Ended(of),
        };
        self.sources.remove(index);
        Ok(event)
    }
}

impl Source {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Bytes(stream) => stream.as_fd(),
            Self::Listener(listener) => listener.as_fd(),
            Self::Child(pidfd) => pidfd.as_fd(),
        }
    }
}

/// Reads the next bytes. A peer that is gone causes an error or an end of file, so both count as
/// the end.
fn read_some(stream: &mut impl Read) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        match stream.read(&mut bytes) {
            Ok(length) if length > 0 => {
                bytes.truncate(length);
                return Some(bytes);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(_) | Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};
    use std::sync::Mutex;
    use std::time::Duration;

    use signal_hook::consts::SIGHUP;
    use signal_hook::low_level::raise;

    use super::*;
    use crate::child::Child;

    /// A signal reaches every listener of the process, so these tests run one at a time.
    static ALONE: Mutex<()> = Mutex::new(());

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    #[test]
    fn output_of_a_child_precedes_its_end() {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo hello"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = Child::spawn(command).unwrap();
        let _alone = ALONE.lock();
        let signals = Signals::new().unwrap();
        let mut events = Events::new(&signals);
        events.add_bytes(EventSource::Console, child.take_stdout().unwrap());
        events.add_child(EventSource::Qemu, child.pidfd()).unwrap();
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(format!("{:?}", events.next(soon()).unwrap().unwrap()));
        }
        assert_eq!(
            seen[0],
            format!(
                "{:?}",
                Event::Data(EventSource::Console, b"hello\n".to_vec())
            )
        );
        assert!(seen.contains(&"Closed(Console)".to_owned()), "{seen:?}");
        assert!(seen.contains(&"Ended(Qemu)".to_owned()), "{seen:?}");
        assert!(events.next(Instant::now()).unwrap().is_none());
    }

    #[test]
    fn the_first_connection_is_handed_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let _alone = ALONE.lock();
        let signals = Signals::new().unwrap();
        let mut events = Events::new(&signals);
        events.add_listener(EventSource::Report, UnixListener::bind(&path).unwrap());
        let mut peer = UnixStream::connect(&path).unwrap();
        let Some(Event::Connected(EventSource::Report, stream)) = events.next(soon()).unwrap()
        else {
            panic!("no connection")
        };
        events.add_bytes(EventSource::Report, stream);
        peer.write_all(b"x").unwrap();
        assert!(
            matches!(events.next(soon()).unwrap(), Some(Event::Data(EventSource::Report, bytes)) if bytes == b"x")
        );
        drop(peer);
        assert!(matches!(
            events.next(soon()).unwrap(),
            Some(Event::Closed(EventSource::Report))
        ));
    }

    #[test]
    fn removed_source_has_no_event() {
        let mut events = Events::new(&crate::signals::NONE);
        let pairs = [EventSource::Work, EventSource::Console].map(|source| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            events.add_bytes(source, ours);
            theirs
        });
        drop(pairs);
        events.remove(EventSource::Work);
        let event = events.next(soon()).unwrap();
        let is_console = matches!(event, Some(Event::Closed(EventSource::Console)));
        assert!(is_console, "{event:?}");
        assert!(events.next(Instant::now()).unwrap().is_none());
    }

    #[test]
    fn flood_of_one_source_keeps_no_other_waiting() {
        let mut events = Events::new(&crate::signals::NONE);
        for flood in [EventSource::Console, EventSource::Report] {
            events.add_bytes(flood, std::fs::File::open("/dev/zero").unwrap());
        }
        let (done, end) = UnixStream::pair().unwrap();
        events.add_bytes(EventSource::Work, done);
        drop(end);
        let taken = std::iter::from_fn(|| events.next(soon()).unwrap());
        let kinds = taken.take(5).map(|event| match event {
            Event::Data(source, _) => (source, true),
            Event::Closed(source) => (source, false),
            other => panic!("{other:?}"),
        });
        let (console, report) = ((EventSource::Console, true), (EventSource::Report, true));
        let work = (EventSource::Work, false);
        assert_eq!(
            kinds.collect::<Vec<_>>(),
            [console, report, work, console, report]
        );
    }

    #[test]
    fn signal_comes_first_and_flood_keeps_the_deadline() {
        let _alone = ALONE.lock();
        let signals = Signals::new().unwrap();
        let mut events = Events::new(&signals);
        events.add_bytes(
            EventSource::Console,
            std::fs::File::open("/dev/zero").unwrap(),
        );
        assert!(matches!(
            events.next(soon()).unwrap(),
            Some(Event::Data(..))
        ));
        assert!(events.next(Instant::now()).unwrap().is_none());
        assert_eq!(signals.pending().unwrap(), None);
        raise(SIGHUP).unwrap();
        assert_eq!(signals.pending().unwrap(), Some(SIGHUP));
        assert!(matches!(
            events.next(soon()).unwrap(),
            Some(Event::Signal(SIGHUP))
        ));
        // Another thread may have waited for the same signal.
        assert!((0..3).all(|index| signals.take(index).unwrap().is_none()));
    }
}
