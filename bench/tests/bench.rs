//! Short benchmarks with the real servers: results are complete and can be read back, and the goals
//! that must be reached on any machine, however busy, are reached.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context, ensure};
use peerbar_lab::programs::program;
use serde_json::Value;
use tempfile::TempDir;

/// The program.
#[allow(clippy::unwrap_used, reason = "without it no test can run")]
static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| program("peerbar-bench").unwrap());

/// Runs a short measurement. Returns the folder with its results, and its figures by name.
fn measure(suite: &[&str]) -> anyhow::Result<(TempDir, BTreeMap<String, Value>)> {
    let folder = tempfile::tempdir()?;
    let output = Command::new(&*PROGRAM)
        .args(suite)
        .args(["--quick", "--runs"])
        .arg(folder.path().join("runs"))
        .current_dir(&folder)
        .env("TMPDIR", folder.path())
        .output()
        .context("peerbar-bench does not start")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(0), "{said}");
    let results = std::fs::read(folder.path().join("runs/latest/results.json"))?;
    let report: Value = serde_json::from_slice(&results)?;
    let figures = report.pointer("/figures").and_then(Value::as_array);
    let named = figures.into_iter().flatten().map(|figure| {
        let name = figure.pointer("/name").and_then(Value::as_str);
        Ok((name.context("no name")?.to_owned(), figure.clone()))
    });
    let figures = named.collect::<anyhow::Result<_>>()?;
    Ok((folder, figures))
}

#[test]
#[ignore = "needs what scripts/build makes"]
fn short_host_suite_has_every_figure() {
    let (folder, figures) = measure(&["host", "--only", "read-4k/1-queues"]).unwrap();
    let names: Vec<&str> = figures.keys().map(String::as_str).collect();
    let (one, null) = (["32"].as_slice(), ["1", "1/p99", "256", "32"].as_slice());
    let ram = ["1", "1/p99", "1/p99/and-copy", "256", "32"].as_slice();
    let name =
        |backend: &str, depth: &str| format!("host/{backend}/read-4k/1-queues/depth-{depth}");
    let expected: Vec<String> = [("file", one), ("null", null), ("ram", ram)]
        .into_iter()
        .flat_map(|(backend, depths)| depths.iter().map(move |depth| name(backend, depth)))
        .collect();
    assert_eq!(names, expected);
    for figure in figures.values() {
        assert!(figure["value"].as_f64().unwrap() > 0.0, "{figure}");
        assert!(figure["ratio"].as_f64().unwrap() > 0.0, "{figure}");
    }
    let results = folder.path().join("runs/latest");
    let compared = Command::new(&*PROGRAM)
        .arg("compare")
        .args([&results, &results])
        .output()
        .unwrap();
    let table = String::from_utf8_lossy(&compared.stdout);
    assert!(
        table.contains("host/ram/read-4k/1-queues/depth-32"),
        "{table}"
    );
}

/// Two adapters, compared with software RoCE. `peerbar-verbs` compares every byte, perftest every
/// number of messages.
#[test]
#[ignore = "boots a guest"]
fn short_rdma_suite_has_every_figure() {
    let (_, figures) = measure(&["rdma", "--only", "write-64"]).unwrap();
    let names: Vec<&str> = figures.keys().map(String::as_str).collect();
    let expected = [
        "one-adapter/perftest/over-rxe",
        "one-adapter/vram/over-guest-ram",
        "two-adapters/vram/over-guest-ram",
    ];
    assert_eq!(names, expected.map(|what| format!("rdma/write-64/{what}")));
    for figure in figures.values() {
        assert!(figure["value"].as_f64().unwrap() > 0.0, "{figure}");
        assert!(figure["ratio"].as_f64().unwrap() > 0.0, "{figure}");
    }
}
