//! What an adapter can still do after it was taken over.

#![allow(clippy::unwrap_used, reason = "a test that goes wrong shall panic")]

use std::io::ErrorKind;
use std::process::Command;

use peerbar_sandbox::take_over;

#[test]
fn server_taken_over_can_only_serve() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_peerbar-efa"));
    server
        .arg("--socket-path")
        .arg(folder.path().join("socket"));
    for (attempt, outcome) in take_over::attempts(&mut server).unwrap() {
        let refused = matches!(&outcome, Err(error) if error.kind() == ErrorKind::PermissionDenied);
        assert!(refused, "{attempt}: {outcome:?}");
    }
}
