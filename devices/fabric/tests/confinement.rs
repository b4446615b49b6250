//! What a fabric can still do after it was taken over.

#![allow(clippy::unwrap_used, reason = "a test that goes wrong shall panic")]

use std::io::ErrorKind;
use std::process::Command;

use peerbar_fabric::make_certificates;
use peerbar_sandbox::take_over;

#[test]
fn server_taken_over_can_only_serve() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_peerbar-fabric"));
    server
        .arg("--socket-path")
        .arg(folder.path().join("socket"))
        .arg("--control")
        .arg(folder.path().join("control"))
        .arg("--record")
        .arg(folder.path().join("record"));
    check(&mut server);
}

#[test]
fn server_with_tunnels_taken_over_can_only_serve() {
    let folder = tempfile::tempdir().unwrap();
    make_certificates(folder.path(), &["here".to_owned()]).unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_peerbar-fabric"));
    server
        .arg("--socket-path")
        .arg(folder.path().join("socket"))
        .args(["--listen", "127.0.0.1:0", "--certificates"])
        .arg(folder.path().join("here"));
    check(&mut server);
}

fn check(server: &mut Command) {
    for (attempt, outcome) in take_over::attempts(server).unwrap() {
        let refused = matches!(&outcome, Err(error) if error.kind() == ErrorKind::PermissionDenied);
        assert!(refused, "{attempt}: {outcome:?}");
    }
}
