//! The daemon as a process.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use peerbar_rig::{Daemon, DaemonCommand};

/// A running `peerbar-fabric`.
pub(crate) fn start(args: &[&str]) -> Daemon {
    command().args(args).start()
}

pub(crate) fn command() -> DaemonCommand {
    let command = DaemonCommand::new(env!("CARGO_BIN_EXE_peerbar-fabric"));
    command.file("--control", "control")
}

/// Returns the answer to a command.
pub(crate) fn order(daemon: &Daemon, order: &str) -> String {
    let mut client = UnixStream::connect(daemon.folder().join("control")).unwrap();
    writeln!(client, "{order}").unwrap();
    let mut answer = String::new();
    BufReader::new(client).read_line(&mut answer).unwrap();
    answer.trim_end().to_owned()
}
