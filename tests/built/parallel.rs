//! Runs at the same time, in one folder and with one cache.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::Context;
use serde_json::Value;

use crate::command;
use crate::disks::{copy, two_disks};

/// Through the memory of a disk, from peer to peer.
const CMB: &str = "{ p2pmem = \"disk0\" }";

/// The sizes of the copies in KiB.
const SIZES: [u64; 4] = [64, 128, 256, 512];

fn start(folder: &Path, size: u64) -> anyhow::Result<Child> {
    let file = format!("{size}.toml");
    // A copy of some bytes that no other run copies, counted.
    let check = copy("copy", ["disk1", "disk0"], CMB, &format!("{size}K"));
    let scenario = two_disks("parallel", "4m") + &check;
    fs::write(folder.join(&file), scenario)?;
    let name = format!("size-{size}");
    let run = command(&["run", &file, "--name", &name], folder)
        .env("TMPDIR", folder.join("sockets"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    run.context("peerbar does not start")
}

#[test]
#[ignore = "boots guests; scripts/test runs it"]
fn four_runs_at_once_do_not_disturb_each_other() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("sockets")).unwrap();
    let runs = SIZES.map(|size| start(folder.path(), size).unwrap());
    for (run, size) in runs.into_iter().zip(SIZES) {
        let output = run.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{size} KiB: {said}");
        let run = folder.path().join(format!("runs/size-{size}"));
        let results = fs::read_to_string(run.join("results.json")).unwrap();
        let results: Value = serde_json::from_str(&results).unwrap();
        // Each byte is read by one disk and written by the other, and no other run's are among them.
        let peer = results
            .pointer("/checks/0/measure/peer_bytes")
            .and_then(Value::as_u64);
        assert_eq!(peer, Some(size * 2048), "{results:#}");
    }
    let left = fs::read_dir(folder.path().join("sockets")).unwrap();
    assert_eq!(left.count(), 0);
}
