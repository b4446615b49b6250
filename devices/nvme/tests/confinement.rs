//! What a controller can still do after it was taken over.

#![allow(clippy::unwrap_used, reason = "a test that goes wrong shall panic")]

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use peerbar_sandbox::take_over;

#[test]
fn server_taken_over_can_only_serve() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let mut server = server(folder.path());
    server.args(["--namespace", &format!("file={}", image.display())]);
    for (attempt, outcome) in take_over::attempts(&mut server).unwrap() {
        let refused = matches!(&outcome, Err(error) if error.kind() == ErrorKind::PermissionDenied);
        assert!(refused, "{attempt}: {outcome:?}");
    }
}

#[test]
fn server_without_sandbox_can_open_files() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = server(folder.path());
    server.args(["--namespace", "ram=1M", "--no-sandbox"]);
    let attempts = take_over::attempts(&mut server).unwrap();
    assert!(
        matches!(attempts.as_slice(), [("open a file", Ok(_))]),
        "{attempts:?}"
    );
}

fn server(folder: &Path) -> Command {
    let mut server = Command::new(env!("CARGO_BIN_EXE_peerbar-nvme"));
    server
        .arg("--socket-path")
        .arg(folder.join("socket"))
        .args(["--serial", "test"]);
    server
}
