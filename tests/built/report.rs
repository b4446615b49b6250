//! What a run leaves to be read, by programs and by people, and how parts of a list are joined.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use peerbar_results::schema_check::misfits;
use serde_json::Value;

use crate::disks::{copy, two_disks};
use crate::peerbar;

/// A disk at a root port of a processor that the kernel does not trust.
const DISTRUSTED: &str = r#"
[machine]
cpu = "Haswell"

[[nvme]]
name = "disk2"
namespaces = [{ ram = "16M" }]
"#;

/// A copy from peer to peer, its control, and a copy that the kernel refuses.
fn scenario(name: &str) -> String {
    let cmb = "{ p2pmem = \"disk0\" }";
    let pair = ["disk0", "disk1"];
    [
        two_disks(name, "120s"),
        DISTRUSTED.to_owned(),
        copy("through <the> CMB", pair, cmb, "1M"),
        copy("the control", pair, "\"guest-ram\"", "1M"),
        copy("the kernel refuses", ["disk2", "disk1"], cmb, "4K"),
    ]
    .concat()
}

/// What Chromium needs in a container without a display and without a network.
const CHROMIUM: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=2000",
];

/// What `peerbar report --as FORMAT` prints of the last run in `folder`.
fn report_as(format: &str, folder: &Path) -> anyhow::Result<String> {
    let output = peerbar(&["report", "--as", format], folder)?;
    ensure!(
        output.status.code() == Some(1),
        "a run that failed is reported as one that passed"
    );
    Ok(String::from_utf8(output.stdout)?)
}

fn validate(value: &Value, schema: &str) -> anyhow::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema");
    let schema: Value = serde_json::from_slice(&fs::read(path.join(schema))?)?;
    let misfits = misfits(&schema, value);
    ensure!(misfits.is_empty(), "{misfits:?}");
    Ok(())
}

/// The page as Chromium has read it, in a window of `width` pixels.
fn rendered(page: &Path, width: u32) -> anyhow::Result<String> {
    let profile = tempfile::tempdir()?;
    let output = Command::new("chromium")
        .args(CHROMIUM)
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--window-size={width},900"))
        .arg("--dump-dom")
        .arg(format!("file://{}", page.display()))
        .output()
        .context("chromium: run scripts/needs chromium")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let complaints: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .collect();
    ensure!(complaints.is_empty(), "{complaints:?}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Holds the page of the run in `folder` against its checks.
fn check_page(folder: &Path) -> anyhow::Result<()> {
    let page = folder.join("runs/latest/report.html").canonicalize()?;
    let source = fs::read_to_string(&page)?;
    for part in ["http:", "https:", "<script", "url("] {
        ensure!(!source.contains(part), "the page has {part}");
    }
    for width in [390, 1280] {
        let dom = rendered(&page, width)?;
        ensure!(dom.matches("<details class=\"check").count() == 3, "{dom}");
        ensure!(
            dom.matches("<h1").count() == 1 && dom.contains("<main"),
            "{dom}"
        );
        for name in [
            "through &lt;the&gt; CMB",
            "the control",
            "the kernel refuses",
        ] {
            ensure!(dom.contains(name), "the page lacks {name}");
        }
        // The requester of each side, as the devices counted.
        ensure!(
            dom.contains("disk0 → own memory") && dom.contains("disk1 ← disk0"),
            "{dom}"
        );
        ensure!(dom.contains("× the bounce"), "no bars");
    }
    Ok(())
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn run_leaves_results_for_programs_and_people() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for name in ["mixed", "other"] {
        fs::write(folder.join(format!("{name}.toml")), scenario(name)).unwrap();
    }
    let words = ["run", "mixed.toml", "other.toml", "--shard", "1/2"];
    let run = peerbar(&words, folder).unwrap();
    assert_eq!(
        run.status.code(),
        Some(1),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );

    let results = fs::read(folder.join("runs/latest/results.json")).unwrap();
    let results: Value = serde_json::from_slice(&results).unwrap();
    validate(&results, "run-1.json").unwrap();
    assert_eq!(results["checks"][0]["control"], 2);
    let junit = fs::read_to_string(folder.join("runs/latest/junit.xml")).unwrap();
    assert!(
        junit.contains(r#"tests="3" skipped="0" errors="0" failures="1""#),
        "{junit}"
    );
    check_page(folder).unwrap();

    let lines = report_as("kselftest", folder).unwrap();
    assert!(
        lines.contains("\nok 1 selftests: peerbar: through <the> CMB\n"),
        "{lines}"
    );
    assert!(
        lines.contains("\nnot ok 3 selftests: peerbar: the kernel refuses"),
        "{lines}"
    );
    let kcidb: Value = serde_json::from_str(&report_as("kcidb", folder).unwrap()).unwrap();
    assert_eq!(kcidb["tests"][2]["status"], "FAIL");

    let merge = ["report", "--merge", "runs", "--output", "all"];
    let merged = peerbar(&merge, folder).unwrap();
    let message = String::from_utf8_lossy(&merged.stdout).into_owned();
    let missing = "missing: scenarios: other (shard 2/2 is missing)\n";
    assert!(
        merged.status.code() == Some(1) && message.ends_with(missing),
        "{message}"
    );
    let report = fs::read(folder.join("all/report.json")).unwrap();
    let report = serde_json::from_slice(&report).unwrap();
    validate(&report, "report-1.json").unwrap();
    assert_eq!(
        report["missing"][0],
        "scenarios: other (shard 2/2 is missing)"
    );
    assert!(folder.join("all/junit.xml").exists() && folder.join("all/report.html").exists());
}
