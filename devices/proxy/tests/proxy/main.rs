//! The daemon as a process, between a client and servers of the tests: a device that copies between
//! addresses, and a server of hand-made bytes.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test panics if it fails, and its numbers are small"
)]

mod below_a_switch;
mod copier;
mod faults;
mod lifetime;
mod pass_through;
mod posted;

use std::path::Path;

use peerbar_rig::{Daemon, DaemonCommand, wait_until};

/// Returns the command of a proxy of the server at this path.
fn proxy(server: &Path) -> DaemonCommand {
    let server = ["--server".into(), server.as_os_str().to_owned()];
    DaemonCommand::new(env!("CARGO_BIN_EXE_peerbar-proxy")).args(server)
}

/// Starts a proxy of the server at this path, below a switch.
#[track_caller]
fn below(switch: &Path, server: &Path, more: &[&str]) -> Daemon {
    let command = proxy(server).args(["--switch".into(), switch.as_os_str().to_owned()]);
    command.args(["--port-name", "proxy"]).args(more).start()
}

/// Waits until a condition is met.
#[track_caller]
fn until(what: &str, mut is_met: impl FnMut() -> bool) {
    wait_until(what, || is_met().then_some(()));
}
