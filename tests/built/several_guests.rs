//! Guests of one scenario that `peerbar run --keep` has left running, and programs in them.

#![allow(clippy::unwrap_used, reason = "a test that goes wrong shall panic")]

use std::fs;
use std::process::Output;

use rustix::process::{Signal, kill_process};

use crate::launched::Launched;
use crate::peerbar;

/// Two guests, whose only check fails in one of them.
const SCENARIO: &str = r#"
name = "kept-guests"
timeout = "4m"
tools = true

[[guest]]
name = "left"

[[guest]]
name = "right"

[[nvme]]
guest = "left"
name = "disk0"
namespaces = [{ ram = "16M" }]

[[nvme]]
guest = "right"
name = "disk1"
namespaces = [{ ram = "16M" }]

[[check]]
guest = "left"
name = "fails"
kind = "command"
run = "exit 3"
"#;

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes))
        .concat()
}

#[test]
#[ignore = "boots two guests; scripts/test runs it"]
fn kept_guests_take_programs_until_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("kept.toml"), SCENARIO).unwrap();
    let mut run = Launched::start(folder, &["run", "--keep", "kept.toml"]).unwrap();
    run.wait_until_it_says("end it:").unwrap();
    let exec = |words: &[&str]| {
        let words = [&["exec", "--attach"], words].concat();
        peerbar(&words, run.folder.path()).unwrap()
    };
    let seen = exec(&[
        "--guest",
        "right",
        "--",
        "sh",
        "-c",
        "ls /host; ls {disk1:disk}",
    ]);
    let seen = said(&seen);
    assert!(
        seen.contains("kept.toml") && seen.contains("/dev/nvme0n1"),
        "{seen}"
    );
    let unknown = exec(&["--guest", "left", "--", "ls", "{disk1:disk}"]);
    assert_eq!(unknown.status.code(), Some(2), "{}", said(&unknown));
    let unnamed = exec(&["--", "true"]);
    let message = said(&unnamed);
    assert!(
        message.contains("add --guest left or --guest right"),
        "{message}"
    );
    let words = [
        "inject",
        "disk1",
        "drop",
        "completion",
        "write",
        "--guest",
        "right",
    ];
    let injected = peerbar(&words, run.folder.path()).unwrap();
    assert!(injected.status.success(), "{}", said(&injected));
    kill_process(run.pid(), Signal::INT).unwrap();
    let (code, results, _) = run.end().unwrap();
    assert_eq!(code, Some(1), "{results}");
    assert!(
        results.contains("failed: left: 1 of 1 checks did not pass"),
        "{results}"
    );
}
