//! Runs at the same time, in one folder and with one cache.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::disks::{copy, two_disks};
use crate::launched::Launched;

/// Through the memory of a disk, from peer to peer.
const CMB: &str = "{ p2pmem = \"disk0\" }";

/// Sizes of the copies in KiB.
const SIZES: [u64; 4] = [64, 128, 256, 512];

/// Makes a folder with a scenario for each size: a counted copy of a size that no other run copies.
fn scenarios() -> anyhow::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    for size in SIZES {
        let check = copy("copy", ["disk1", "disk0"], CMB, &format!("{size}K"));
        let scenario = two_disks(&format!("size-{size}"), "4m") + &check;
        fs::write(folder.path().join(format!("{size}.toml")), scenario)?;
    }
    Ok(folder)
}

/// Returns the folder of the only run of the scenario `name`, or `None` if it did not start.
fn run_of(folder: &Path, name: &str) -> anyhow::Result<Option<PathBuf>> {
    let end = format!("Z-{name}");
    for run in fs::read_dir(folder.join("runs"))? {
        let run = run?.path();
        if run.to_string_lossy().ends_with(&end) {
            return Ok(Some(run));
        }
    }
    Ok(None)
}

#[test]
#[ignore = "boots guests; scripts/test runs it"]
fn four_runs_at_once_do_not_disturb_each_other() {
    let words = [
        "run", "64.toml", "128.toml", "256.toml", "512.toml", "--jobs", "4",
    ];
    let mut runs = Launched::start(scenarios().unwrap(), &words).unwrap();
    let (code, results, progress) = runs.end().unwrap();
    assert_eq!(code, Some(0), "{results}{progress}");
    assert_eq!(runs.sockets_left().unwrap(), 0);
    assert!(results.ends_with("4 of 4 runs passed\n"), "{results}");
    for size in SIZES {
        let name = format!("size-{size}");
        let line = format!("{name}: passed: ");
        assert_eq!(progress.matches(&line).count(), 1, "{progress}");
        let run = run_of(runs.folder.path(), &name).unwrap().unwrap();
        let log = fs::read_to_string(run.join("run.log")).unwrap();
        assert!(
            log.contains(&format!("passed: the only check passed ({name}, ")),
            "{log}"
        );
        let kept = fs::read_to_string(run.join("results.json")).unwrap();
        let kept: Value = serde_json::from_str(&kept).unwrap();
        // One disk reads and the other writes each byte, and the bytes of no other run are counted.
        let peer = kept
            .pointer("/checks/0/measure/peer_bytes")
            .and_then(Value::as_u64);
        assert_eq!(peer, Some(size * 2048), "{kept:#}");
    }
}

#[test]
#[ignore = "boots guests; scripts/test runs it"]
fn signal_ends_all_runs_that_go_on() {
    let words = ["run", "64.toml", "128.toml", "256.toml", "--jobs", "2"];
    let mut runs = Launched::start(scenarios().unwrap(), &words).unwrap();
    runs.wait_until_it_says("running: size-64, size-128")
        .unwrap();
    kill_process(runs.pid(), Signal::INT).unwrap();
    let (code, results, progress) = runs.end().unwrap();
    assert_eq!(code, Some(130), "{results}{progress}");
    assert_eq!(runs.sockets_left().unwrap(), 0);
    assert!(results.contains("0 of 2 runs passed\n"), "{results}");
    let third = run_of(runs.folder.path(), "size-256").unwrap();
    assert_eq!(third, None);
}
