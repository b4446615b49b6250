//! The remaining powers of devices below a switch, or at a fabric, after a takeover: they can
//! connect to Unix sockets, and nothing more.

use std::process::Command;

use peerbar_lab::programs::program;
use peerbar_sandbox::take_over::assert_confined;
use peerbar_sandbox::{Connections, ServerKind};
use tempfile::TempDir;

use crate::server;

/// Takes over a device that has attached to a server by this option.
#[track_caller]
fn check_attached(server: &str, device: &str, option: &str, words: &[&str]) {
    let folder = TempDir::new().unwrap();
    let at = server::start(server, &[]).unwrap();
    let mut command = Command::new(program(device).unwrap());
    command
        .arg("--socket-path")
        .arg(folder.path().join("device.sock"));
    command.arg(option).arg(at.socket()).args(words);
    assert_confined(&mut command, ServerKind::Device, Connections::Unix);
    server::end(at).unwrap();
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn device_below_a_switch_can_only_serve_and_connect() {
    let words = ["--vram", "16M", "--port-name", "gpu0"];
    check_attached("peerbar-switch", "peerbar-gpu", "--switch", &words);
}

#[test]
#[ignore = "takes what scripts/build makes; scripts/test runs it"]
fn adapter_at_a_fabric_can_only_serve_and_connect() {
    check_attached("peerbar-fabric", "peerbar-efa", "--fabric", &[]);
}
