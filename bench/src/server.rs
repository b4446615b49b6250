//! A server process.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};
use peerbar_lab::exit::Failure;
use peerbar_lab::parent_death;
use peerbar_lab::programs::program;
use tempfile::TempDir;

/// Bytes of a logical block.
pub(crate) const BLOCK_BYTES: u32 = 4096;

/// The command that starts servers.
pub(crate) struct ServerCommand {
    /// Prefix of each command line that ends a server with this process.
    under: [OsString; 3],
    /// The program `peerbar-nvme`.
    program: PathBuf,
    /// Further arguments of the user.
    words: Vec<OsString>,
}

impl ServerCommand {
    /// Passes `words`, separated by blanks, to each `peerbar-nvme`.
    pub(crate) fn new(words: &str) -> Result<Self, Failure> {
        Ok(Self {
            under: parent_death::words()?,
            program: program("peerbar-nvme")?,
            words: words.split_whitespace().map(OsString::from).collect(),
        })
    }

    /// Starts a controller with one namespace.
    pub(crate) fn controller(&self, namespace: OsString) -> Result<Server, Failure> {
        let block_bytes = BLOCK_BYTES.to_string();
        let words = ["--serial", "bench", "--block-size", &block_bytes];
        let mut words: Vec<OsString> = words.map(OsString::from).into();
        words.extend(["--namespace".into(), namespace]);
        words.extend_from_slice(&self.words);
        let started = Server::start(&self.under, &self.program, words);
        started.map_err(|error| match self.words.as_slice() {
            [] => Failure::Environment(error),
            _ => Failure::Usage(error),
        })
    }
}

/// A listening server, killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    folder: TempDir,
}

impl Server {
    /// Starts `program` and waits until it is ready. If there are words in `under`, they are a
    /// program that runs it, and its arguments.
    fn start<W: Into<OsString>>(
        under: &[OsString],
        program: &Path,
        words: impl IntoIterator<Item = W>,
    ) -> anyhow::Result<Self> {
        let folder = TempDir::new().context("cannot create a folder for a socket")?;
        let log = folder.path().join("log");
        let stderr = File::create(&log).context("cannot create a log file")?;
        let (first, rest) = match under.split_first() {
            Some((first, rest)) => (first.as_os_str(), [rest, &[program.into()]].concat()),
            None => (program.as_os_str(), Vec::new()),
        };
        let child = Command::new(first)
            .args(rest)
            .arg("--socket-path")
            .arg(socket(&folder))
            .args(words.into_iter().map(Into::into))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            // Ctrl-C is for this process, which ends its servers in order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", Path::new(first).display()))?;
        let mut server = Self { child, folder };
        if server.is_ready() {
            return Ok(server);
        }
        let said = fs::read_to_string(&log).unwrap_or_default();
        let said = complaint(&said);
        bail!("{} does not start: {said}", program.display())
    }

    /// Returns the socket for clients.
    pub(crate) fn socket(&self) -> PathBuf {
        socket(&self.folder)
    }

    /// Returns its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the server is ready. Returns `false` if it has failed, which closes its standard
    /// output.
    fn is_ready(&mut self) -> bool {
        let mut line = String::new();
        let stdout = self.child.stdout.take().map(BufReader::new);
        let read = stdout.map(|mut stdout| stdout.read_line(&mut line));
        matches!(read, Some(Ok(_))) && line == "ready\n"
    }
}

/// Returns the error message of a program that failed: the line that starts with `error`, or the
/// last one.
fn complaint(said: &str) -> &str {
    let mut lines = said.lines().rev();
    let error = lines.clone().find_map(|line| line.strip_prefix("error: "));
    let last = || lines.find(|line| !line.trim().is_empty());
    error.or_else(last).unwrap_or("it ends without a message")
}

fn socket(folder: &TempDir) -> PathBuf {
    folder.path().join("socket")
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_fails_is_quoted() {
        let script = "echo first >&2; echo 'no such thing' >&2; exit 1";
        let error = start(script).unwrap_err().to_string();
        assert!(
            error.ends_with("sh does not start: no such thing"),
            "{error}"
        );
        let usage =
            "echo \"error: unexpected argument '--x'\" >&2; echo >&2; echo 'try --help' >&2";
        let error = start(usage).unwrap_err().to_string();
        assert!(error.ends_with(": unexpected argument '--x'"), "{error}");
        let error = start("exit 0").unwrap_err().to_string();
        assert!(error.ends_with("it ends without a message"), "{error}");
    }

    #[test]
    fn a_server_can_be_run_by_another_program() {
        let folder = TempDir::new().unwrap();
        let script = folder.path().join("script");
        fs::write(&script, "echo ready; read line").unwrap();
        let server = Server::start(&["sh".into()], &script, [""; 0]).unwrap();
        assert!(server.pid() > 0);
    }

    #[test]
    fn a_server_is_killed_when_dropped() {
        let server = start("echo ready; exec sleep 60").unwrap();
        let process = PathBuf::from(format!("/proc/{}", server.pid()));
        assert!(process.exists());
        drop(server);
        assert!(!process.exists());
    }

    /// Starts a shell with a script in place of the options of a server.
    fn start(script: &str) -> anyhow::Result<Server> {
        let folder = TempDir::new().unwrap();
        let program = folder.path().join("sh");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&program, mode).unwrap();
        Server::start(&[], &program, [""; 0])
    }
}
