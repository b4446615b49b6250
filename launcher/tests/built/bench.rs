//! A benchmark in short, with the real server: its results are complete, and can be read back.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::PEERBAR;

#[test]
#[ignore = "needs what scripts/build makes"]
fn a_short_benchmark_has_every_figure() {
    let runs = tempfile::tempdir().unwrap();
    let host = [
        "bench",
        "host",
        "--quick",
        "--only",
        "read-4k/1-queues",
        "--runs",
    ];
    let measured = Command::new(PEERBAR)
        .args(host)
        .arg(runs.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&measured.stderr);
    assert!(measured.status.success(), "{said}");
    let results = runs.path().join("latest");
    let text = fs::read_to_string(results.join("results.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    let figures = report["figures"].as_array().unwrap();
    let mut names: Vec<&str> = figures
        .iter()
        .map(|figure| figure["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    let expected = ["null", "ram"].map(|backend| {
        ["1", "1/p99", "256", "32"]
            .map(|depth| format!("host/{backend}/read-4k/1-queues/depth-{depth}"))
    });
    assert_eq!(names, expected.concat());
    for figure in figures {
        assert!(figure["value"].as_f64().unwrap() > 0.0, "{figure}");
        assert!(figure["ratio"].as_f64().unwrap() > 0.0, "{figure}");
    }
    let compared = Command::new(PEERBAR)
        .args(["bench", "compare"])
        .args([&results, &results])
        .output()
        .unwrap();
    let table = String::from_utf8_lossy(&compared.stdout);
    assert!(
        table.contains("host/ram/read-4k/1-queues/depth-32"),
        "{table}"
    );
}
