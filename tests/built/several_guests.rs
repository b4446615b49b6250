//! Guests of one scenario that `peerbar run --keep` has kept, and programs in them.

#![allow(clippy::unwrap_used, reason = "a test panics if it fails")]

use std::fs;
use std::process::Output;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::failures::children;
use crate::launched::Launched;
use crate::peerbar;

/// Two guests, one of which fails its only check.
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
        results.contains("failed: left: 1 of 1 checks did not pass: fails"),
        "{results}"
    );
}

/// Two guests on one fabric. The first is busy, the second has finished its check.
const BUSY: &str = r#"
name = "busy-guest"
timeout = "4m"
tools = true

[[guest]]
name = "left"

[[guest]]
name = "right"

[[nic]]
guest = "left"
name = "nic0"

[[nic]]
guest = "right"
name = "nic1"

[[check]]
guest = "left"
name = "endless"
kind = "command"
timeout = "3m"
run = "sleep 1000"

[[check]]
guest = "right"
name = "own"
kind = "command"
run = "true"
"#;

/// Time limit for both guests to boot.
const BOOTED: Duration = Duration::from_secs(180);

/// Waits until the check of the second guest has its result.
fn wait_for_own_check(run: &mut Launched) {
    let report = run.folder.path().join("runs/latest/right/report.ktap");
    let deadline = Instant::now() + BOOTED;
    let is_done = || fs::read_to_string(&report).is_ok_and(|text| text.contains("ok 1 "));
    while !is_done() {
        let ended = run.launcher.try_wait().unwrap();
        assert!(ended.is_none(), "the run ended: {:?}", run.end());
        assert!(Instant::now() < deadline, "no result in {report:?}");
        let words = ["exec", "--attach", "--guest", "right", "--", "true"];
        peerbar(&words, run.folder.path()).unwrap();
    }
}

#[test]
#[ignore = "boots two guests twice; scripts/test runs it"]
fn death_of_a_server_ends_the_run_while_another_guest_is_busy() {
    for (server, owner) in [("nic1", "right: server nic1"), ("fabric", "server fabric")] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("busy.toml"), BUSY).unwrap();
        let mut run = Launched::start(folder, &["run", "busy.toml"]).unwrap();
        wait_for_own_check(&mut run);
        let program = match server {
            "fabric" => "peerbar-fabric",
            _ => "peerbar-efa",
        };
        let is_it = |line: &str| line.contains(program) && line.contains(server);
        let children = children(&run).unwrap();
        let server = children.iter().find(|(line, _)| is_it(line)).unwrap();
        kill_process(server.1, Signal::KILL).unwrap();
        let (code, results, progress) = run.end().unwrap();
        assert_eq!(code, Some(1), "{results}{progress}");
        let verdict = format!("failed: {owner} ended (signal: 9 (SIGKILL))");
        assert!(results.contains(&verdict), "{results}");
        // The endless check was not waited for, and the result of the other one is kept.
        let results: Value = serde_json::from_str(&run.kept("results.json").unwrap()).unwrap();
        assert_eq!(results["not_run"], json!(["left: endless"]), "{results}");
        assert_eq!(results["checks"][0]["name"], "right: own", "{results}");
        assert_eq!(results["checks"][0]["verdict"], "pass", "{results}");
        assert_eq!(run.sockets_left().unwrap(), 0);
    }
}
