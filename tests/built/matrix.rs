//! Matrices that must not agree, or that are interrupted.

use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::launched::Launched;

/// Starts a matrix of one boot.
fn start(words: &[&str]) -> anyhow::Result<Launched> {
    let one = ["matrix", "--cpu", "EPYC", "--topology", "one-switch"];
    Launched::start(tempfile::tempdir()?, &[&one, words].concat())
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn data_corrupted_by_qemu_controller_is_seen() {
    let words = ["--device", "qemu-nvme", "--iommu", "intel", "--json"];
    let mut matrix = start(&words).unwrap();
    let (code, printed, _) = matrix.end().unwrap();
    assert_eq!(code, Some(0), "{printed}");
    let printed: Value = serde_json::from_str(&printed).unwrap();
    let cell = &printed["matrix"]["cells"][0];
    assert_eq!(cell["rule"]["way"], "peer", "{cell:#}");
    let seen = &cell["seen"];
    let fixed = "QEMU corrupts no data any more: the README says that it does";
    assert_eq!(seen["way"], "wrong", "{fixed}: {cell:#}");
    assert_eq!(seen["record"], Value::Null);
    assert!(
        seen["fault"].as_str().unwrap().starts_with("DMAR: "),
        "{seen:#}"
    );
    assert!(cell["disagreement"].is_string(), "{cell:#}");
    let kept = matrix.kept("matrix.json").unwrap();
    assert_eq!(serde_json::from_str::<Value>(&kept).unwrap(), printed);
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn a_matrix_that_is_interrupted_ends_its_boots() {
    let mut matrix = start(&["--iommu", "none"]).unwrap();
    matrix.wait_until_it_says("boot 1 of 1").unwrap();
    kill_process(matrix.pid(), Signal::TERM).unwrap();
    let (code, printed, _) = matrix.end().unwrap();
    assert_eq!((code, printed.as_str()), (Some(143), ""));
    assert_eq!(matrix.sockets_left().unwrap(), 0);
    let read = |file| matrix.kept(file).unwrap();
    assert_eq!(read("verdict"), "not run: ended by signal 15\n");
    let started: Value = serde_json::from_str(&read("started.json")).unwrap();
    assert_eq!(started["process"], json!(matrix.launcher.id()));
}
