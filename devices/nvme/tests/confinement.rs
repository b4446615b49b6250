//! The confinement of a controller: the actions that remain possible after an attacker has taken it
//! over.

#![allow(clippy::unwrap_used, reason = "a test panics if it fails")]

use std::fs::File;

use peerbar_rig::DaemonCommand;
use peerbar_sandbox::take_over::{assert_confined, attempts};
use peerbar_sandbox::{Connections, ServerKind};

#[test]
fn server_taken_over_can_only_serve() {
    let server = DaemonCommand::new(env!("CARGO_BIN_EXE_peerbar-nvme"));
    let image = server.folder().join("image");
    File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let image = format!("file={}", image.display());
    let server = server.args(["--serial", "test", "--namespace", &image]);
    assert_confined(&mut server.command(), ServerKind::Device, Connections::None);
}

#[test]
fn server_without_sandbox_can_open_files() {
    let server = DaemonCommand::new(env!("CARGO_BIN_EXE_peerbar-nvme"));
    let server = server.args(["--serial", "test", "--namespace", "ram=1M", "--no-sandbox"]);
    let attempts = attempts(&mut server.command(), Connections::None).unwrap();
    assert!(
        matches!(attempts.as_slice(), [("open a file", Ok(_))]),
        "{attempts:?}"
    );
}
