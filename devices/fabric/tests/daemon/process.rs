//! The daemon as a process.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A running `peerbar-fabric`, killed when dropped.
pub(crate) struct Daemon {
    pub(crate) path: PathBuf,
    pub(crate) child: Child,
    /// Where other fabrics make tunnels to it.
    pub(crate) tunnels: String,
    pub(crate) folder: tempfile::TempDir,
}

impl Daemon {
    pub(crate) fn start(words: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let (child, tunnels) = started(&path, folder.path().join("control"), words);
        Self {
            path,
            child,
            tunnels,
            folder,
        }
    }

    /// Kills the daemon, and starts another one at the same path.
    pub(crate) fn start_again(&mut self, words: &[&str]) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let control = self.folder.path().join("control");
        (self.child, self.tunnels) = started(&self.path, control, words);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The answer to an order.
    pub(crate) fn order(&self, order: &str) -> String {
        let mut client = UnixStream::connect(self.folder.path().join("control")).unwrap();
        writeln!(client, "{order}").unwrap();
        let mut answer = String::new();
        BufReader::new(client).read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }
}

fn started(path: &std::path::Path, control: PathBuf, words: &[&str]) -> (Child, String) {
    let mut command = program();
    command
        .arg("--socket-path")
        .arg(path)
        .arg("--control")
        .arg(control)
        .args(words)
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let tunnels = if words.contains(&"--listen") {
        let line = lines.next().unwrap().unwrap();
        line.strip_prefix("tunnels at ").unwrap().to_owned()
    } else {
        String::new()
    };
    (child, tunnels)
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_peerbar-fabric"))
}
