//! The lines on their way to a file or to standard output.
//!
//! The traffic never waits for their reader: lines wait in memory, up to a limit, beyond which they
//! are dropped and counted.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, anyhow};
use peerbar_lab::exit::Failure;
use peerbar_lab::signals::Signals;
use peerbar_lab::terminal::print;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::lines::Lines;

/// Bytes of lines that may wait for their reader.
const MOST: usize = 16 << 20;

/// A queue of lines, and the thread that writes them.
pub(super) struct Output {
    queue: Arc<Queue>,
    /// Has its end once the thread has ended.
    ended: UnixStream,
    /// Lines dropped since the last one that was added.
    lost: u64,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lines: VecDeque<String>,
    bytes: usize,
    /// No more lines will come.
    is_last: bool,
    /// The reason why nothing more can be written.
    failure: Option<anyhow::Error>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for lines, and returns the first, or `None` after the last.
    fn take(&self) -> Option<String> {
        let is_idle = |state: &mut State| state.lines.is_empty() && !state.is_last;
        let waited = self.changed.wait_while(self.lock(), is_idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let lines = state.lines.pop_front()?;
        state.bytes = state.bytes.saturating_sub(lines.len());
        Some(lines)
    }
}

impl Output {
    /// Starts to write to `file`, or to standard output.
    pub(super) fn start(file: Option<File>) -> anyhow::Result<Self> {
        let queue = Arc::new(Queue::default());
        let (ended, end) = UnixStream::pair().context("cannot make a socket pair")?;
        let written = Arc::clone(&queue);
        thread::Builder::new()
            .name("trace".to_owned())
            .spawn(move || {
                write(&written, file);
                drop(end);
            })
            .context("cannot start a thread")?;
        Ok(Self {
            queue,
            ended,
            lost: 0,
        })
    }

    /// Adds lines, or drops them if too many wait. Returns at once.
    pub(super) fn add(&mut self, lines: String, of: &dyn Lines) {
        if lines.is_empty() {
            return;
        }
        let mut state = self.queue.lock();
        if state.bytes.saturating_add(lines.len()) > MOST {
            self.lost = self.lost.saturating_add(1);
            return;
        }
        if self.lost > 0 {
            let lost = of.lost(std::mem::take(&mut self.lost));
            state.push(lost);
        }
        state.push(lines);
        self.queue.changed.notify_one();
    }

    /// Adds the last lines, and waits until all are written, or a further signal comes.
    ///
    /// # Errors
    /// Lines could not be written.
    pub(super) fn finish(
        self,
        last: String,
        of: &dyn Lines,
        signals: &Signals,
    ) -> Result<(), Failure> {
        let mut state = self.queue.lock();
        if self.lost > 0 {
            state.push(of.lost(self.lost));
        }
        state.push(last);
        state.is_last = true;
        drop(state);
        self.queue.changed.notify_one();
        wait(&self.ended, signals)?;
        match self.queue.lock().failure.take() {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }
}

impl State {
    fn push(&mut self, lines: String) {
        if self.failure.is_none() {
            self.bytes = self.bytes.saturating_add(lines.len());
            self.lines.push_back(lines);
        }
    }
}

/// Writes until the last line. After a failure it discards the rest.
fn write(queue: &Queue, mut file: Option<File>) {
    while let Some(lines) = queue.take() {
        let written = match &mut file {
            Some(file) => file
                .write_all(lines.as_bytes())
                .context("cannot write the trace"),
            None => print(&lines),
        };
        if let Err(failure) = written {
            queue.lock().failure = Some(failure);
            return;
        }
    }
}

/// Waits for the end of the thread behind `ended`. Signals that have come before do not count.
fn wait(ended: &UnixStream, signals: &Signals) -> Result<(), Failure> {
    for index in 0..signals.fds().count() {
        signals.take(index)?;
    }
    loop {
        let ends = PollFd::new(ended, PollFlags::IN);
        let fds = signals.fds();
        let fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = std::iter::once(ends).chain(fds).collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => Err(anyhow!(error).context("cannot wait for the trace's reader"))?,
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        if fds.first().is_some_and(is_ready) {
            return Ok(());
        }
        if let Some(signal) = signals.pending()? {
            return Err(Failure::Interrupted(signal));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use peerbar_lab::signals::NONE;

    use super::*;
    use crate::vfio_user::lines::TextLines;

    #[test]
    fn lines_are_written_in_their_order() {
        let mut file = tempfile::tempfile().unwrap();
        let lines = TextLines::new(0, None);
        let mut output = Output::start(Some(file.try_clone().unwrap())).unwrap();
        for line in ["a\n", "", "b\n"] {
            output.add(line.to_owned(), &lines);
        }
        output.finish("c\n".to_owned(), &lines, &NONE).unwrap();
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "a\nb\nc\n");
    }

    #[test]
    fn slow_reader_loses_lines_and_is_told() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let lines = TextLines::new(0, None);
        let mut output = Output::start(Some(File::from(writer))).unwrap();
        let line = format!("{}\n", "x".repeat((1 << 20) - 1));
        // 16 of them wait, and one may be on its way into the pipe, which has less space.
        for _ in 0..20 {
            output.add(line.clone(), &lines);
        }
        let lost = output.lost;
        assert!((3..=4).contains(&lost), "{lost}");
        let reader = thread::spawn(move || {
            let mut text = String::new();
            File::from(reader).read_to_string(&mut text).unwrap();
            text
        });
        output.finish("end\n".to_owned(), &lines, &NONE).unwrap();
        let text = reader.join().unwrap();
        let told =
            format!("\n{lost} messages not shown: the reader of the trace is too slow\nend\n");
        assert!(text.ends_with(&told), "{}", &text[text.len() - 100..]);
    }

    #[test]
    fn full_disk_is_reported_at_the_end_and_stops_nothing() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let lines = TextLines::new(0, None);
        let mut output = Output::start(Some(full)).unwrap();
        output.add("a\n".to_owned(), &lines);
        while output.queue.lock().failure.is_none() {
            thread::yield_now();
        }
        output.add("b\n".to_owned(), &lines);
        let failure = output.finish(String::new(), &lines, &NONE).unwrap_err();
        assert!(
            failure.to_string().starts_with("cannot write the trace: "),
            "{failure}"
        );
    }
}
