//! QEMU's monitor: what a machine is asked while it runs (QMP, docs/interop/qmp-spec of QEMU).

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Take, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

/// How long QEMU may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest line that is read.
const LONGEST: u64 = 1 << 20;

/// A connection to a monitor. QEMU serves one at a time.
pub(crate) struct Monitor(BufReader<UnixStream>);

impl Monitor {
    /// Connects to the monitor at `socket`.
    pub(crate) fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut monitor = Self(BufReader::new(stream));
        monitor.line()?;
        monitor.execute(&json!({"execute": "qmp_capabilities"}))?;
        Ok(monitor)
    }

    /// Has a command carried out; what it returns.
    pub(crate) fn execute(&mut self, command: &Value) -> io::Result<Value> {
        writeln!(self.0.get_mut(), "{command}")?;
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
        let mut limited: Take<&mut BufReader<UnixStream>> = self.0.by_ref().take(LONGEST);
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
}
