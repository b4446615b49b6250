//! QEMU's monitor: what a machine is asked while it runs (QMP, docs/interop/qmp-spec of QEMU).

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long QEMU may take to answer a command, with all events that come before.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest line that is read.
const LONGEST: u64 = 1 << 20;

/// A connection to a monitor. QEMU serves one at a time.
pub(crate) struct Monitor {
    stream: BufReader<LimitedStream>,
    patience: Duration,
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
        Self::connect_with(socket, PATIENCE)
    }

    fn connect_with(socket: &Path, patience: Duration) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_write_timeout(Some(patience))?;
        let deadline = Instant::now() + patience;
        let mut monitor = Self {
            stream: BufReader::new(LimitedStream { stream, deadline }),
            patience,
        };
        monitor.line()?;
        monitor.execute(&json!({"execute": "qmp_capabilities"}))?;
        Ok(monitor)
    }

    /// Has a command carried out; what it returns.
    pub(crate) fn execute(&mut self, command: &Value) -> io::Result<Value> {
        let limited = self.stream.get_mut();
        limited.deadline = Instant::now() + self.patience;
        writeln!(limited.stream, "{command}")?;
        loop {
            let mut line = self.line()?;
            if let Some(error) = line.get("error") {
                return Err(io::Error::other(error.to_string()));
            }
            // Events come in between.
            if let Some(returned) = line.get_mut("return") {
                return Ok(returned.take());
            }
        }
    }

    /// Has a command of the human monitor carried out; what it prints.
    pub(crate) fn human(&mut self, line: &str) -> io::Result<String> {
        let arguments = json!({"command-line": line});
        let command = json!({"execute": "human-monitor-command", "arguments": arguments});
        let printed = self.execute(&command)?;
        Ok(printed.as_str().unwrap_or_default().trim().to_owned())
    }

    fn line(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        let mut limited = self.stream.by_ref().take(LONGEST);
        if limited.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&line)?)
    }
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
                r#"{"return": {}}"#,
                "{\"event\": \"RESUME\"}\n{\"return\": \"OK\\r\\n\"}",
                r#"{"error": {"desc": "no such command"}}"#,
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
            writeln!(&stream, "{{\"QMP\": {{}}}}\n{{\"return\": {{}}}}").unwrap();
            while writeln!(&stream, r#"{{"event": "RTC_CHANGE"}}"#).is_ok() {}
        });
        let mut monitor = Monitor::connect_with(&path, Duration::from_millis(200)).unwrap();
        let error = monitor.human("info pci").unwrap_err();
        let late = [ErrorKind::TimedOut, ErrorKind::WouldBlock];
        assert!(late.contains(&error.kind()), "{error}");
        drop(monitor);
        qemu.join().unwrap();
    }
}
