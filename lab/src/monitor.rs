//! QEMU's monitor, which answers requests while the machine runs (QMP, docs/interop/qmp-spec of
//! QEMU).

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde_json::{Value, json};

/// Longest time for QEMU's answer to a command, with all events that come before.
const TIME_OUT: Duration = Duration::from_secs(10);
/// The longest line that is read.
const LONGEST: u64 = 1 << 20;

/// A connection to a monitor. QEMU serves one at a time.
pub(crate) struct Monitor {
    stream: BufReader<LimitedStream>,
    time_out: Duration,
    /// The number of the last command. An answer has it, too: one that came too late is not taken
    /// for the next one's.
    last: u64,
    /// The part of the next line that has been read.
    line: Vec<u8>,
}

/// A stream that is read until a deadline.
struct LimitedStream {
    stream: UnixStream,
    deadline: Instant,
}

impl Read for LimitedStream {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(space)
    }
}

impl Monitor {
    /// Connects to the monitor at `socket`.
    pub(crate) fn connect(socket: &Path) -> io::Result<Self> {
        let stream = connect_at_once(socket)?;
        stream.set_write_timeout(Some(TIME_OUT))?;
        let deadline = Instant::now() + TIME_OUT;
        let mut monitor = Self {
            stream: BufReader::new(LimitedStream { stream, deadline }),
            time_out: TIME_OUT,
            last: 0,
            line: Vec::new(),
        };
        monitor.line()?;
        monitor.execute(&json!({"execute": "qmp_capabilities"}))?;
        Ok(monitor)
    }

    /// Executes a command, and returns its result. After a late command (`TimedOut`, `WouldBlock`)
    /// others may follow.
    pub(crate) fn execute(&mut self, command: &Value) -> io::Result<Value> {
        self.last += 1;
        let mut command = command.clone();
        if let Some(members) = command.as_object_mut() {
            members.insert("id".to_owned(), self.last.into());
        }
        let limited = self.stream.get_mut();
        limited.deadline = Instant::now() + self.time_out;
        writeln!(limited.stream, "{command}")?;
        loop {
            let mut line = self.line()?;
            if line.get("id").and_then(Value::as_u64) != Some(self.last) {
                continue;
            }
            if let Some(error) = line.get("error") {
                return Err(io::Error::other(error.to_string()));
            }
            if let Some(returned) = line.get_mut("return") {
                return Ok(returned.take());
            }
        }
    }

    /// Executes a command of the human monitor, and returns its output.
    pub(crate) fn human(&mut self, line: &str) -> io::Result<String> {
        let arguments = json!({"command-line": line});
        let command = json!({"execute": "human-monitor-command", "arguments": arguments});
        let printed = self.execute(&command)?;
        Ok(printed.as_str().unwrap_or_default().trim().to_owned())
    }

    fn line(&mut self) -> io::Result<Value> {
        let begun = LONGEST.saturating_sub(self.line.len() as u64);
        let mut limited = self.stream.by_ref().take(begun);
        limited.read_until(b'\n', &mut self.line)?;
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_slice(&line)?)
    }
}

/// Returns `true` if a command has taken too long.
pub(crate) fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

/// Connects, unless others wait already to be accepted.
fn connect_at_once(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    #[test]
    fn answer_is_found_among_events_and_errors_are_passed_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let qemu = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            writeln!(&stream, r#"{{"QMP": {{}}}}"#).unwrap();
            let mut lines = BufReader::new(&stream).lines();
            let mut asked = Vec::new();
            for answer in [
                r#"{"return": {}, "id": 1}"#,
                "{\"event\": \"RESUME\"}\n{\"return\": 5, \"id\": 1}\n{\"return\": \"OK\\r\\n\", \"id\": 2}",
                r#"{"error": {"desc": "no such command"}, "id": 3}"#,
            ] {
                asked.push(lines.next().unwrap().unwrap());
                writeln!(&stream, "{answer}").unwrap();
            }
            asked
        });
        let mut monitor = Monitor::connect(&path).unwrap();
        assert_eq!(monitor.human("info pci").unwrap(), "OK");
        let error = monitor.execute(&json!({"execute": "x"})).unwrap_err();
        assert!(error.to_string().contains("no such command"), "{error}");
        let asked = qemu.join().unwrap();
        assert!(
            asked[1].contains(r#""command-line":"info pci""#),
            "{asked:?}"
        );
    }

    #[test]
    fn events_without_an_answer_do_not_keep_the_caller() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let qemu = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            writeln!(
                &stream,
                "{{\"QMP\": {{}}}}\n{{\"return\": {{}}, \"id\": 1}}"
            )
            .unwrap();
            while writeln!(&stream, r#"{{"event": "RTC_CHANGE"}}"#).is_ok() {}
        });
        let mut monitor = Monitor::connect(&path).unwrap();
        monitor.time_out = Duration::from_millis(200);
        let error = monitor.human("info pci").unwrap_err();
        assert!(is_late(&error), "{error}");
        drop(monitor);
        qemu.join().unwrap();
    }

    #[test]
    fn answer_that_was_too_late_is_not_the_next_one_s() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let (late, is_late_now) = std::sync::mpsc::channel();
        let qemu = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            writeln!(&stream, r#"{{"QMP": {{}}}}"#).unwrap();
            let mut lines = BufReader::new(&stream).lines();
            lines.next().unwrap().unwrap();
            // The second answer is begun in time, and ends too late.
            write!(
                &stream,
                "{{\"return\": {{}}, \"id\": 1}}\n{{\"return\": \"late"
            )
            .unwrap();
            lines.next().unwrap().unwrap();
            is_late_now.recv().unwrap();
            writeln!(&stream, r#"", "id": 2}}"#).unwrap();
            lines.next().unwrap().unwrap();
            writeln!(&stream, r#"{{"return": "right", "id": 3}}"#).unwrap();
        });
        let mut monitor = Monitor::connect(&path).unwrap();
        monitor.time_out = Duration::from_millis(200);
        let error = monitor.human("info pci").unwrap_err();
        assert!(is_late(&error), "{error}");
        late.send(()).unwrap();
        monitor.time_out = TIME_OUT;
        assert_eq!(monitor.human("info pci").unwrap(), "right");
        qemu.join().unwrap();
    }

    #[test]
    fn monitor_that_others_wait_for_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _waiting = UnixStream::connect(&path).unwrap();
        let error = Monitor::connect(&path).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
}
