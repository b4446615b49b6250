//! The reports of a run, for programs and for people, and how parts of a list are joined.

use std::fs;
use std::path::Path;

use anyhow::ensure;
use peerbar_picture::browser::{rendered, seen};
use peerbar_results::schema_check::misfits;
use serde_json::{Value, json};

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

/// Returns a copy from peer to peer, its control, and a copy that the kernel refuses.
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

/// Returns the output of `peerbar report --as FORMAT` about the last run in `folder`.
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

/// A description of the visible parts of the page, in JavaScript.
const LOOK: &str = r##"({
    names: all("#run-0-routes svg .name").map(element => element.textContent).sort(),
    refused: all("#run-0-routes svg .line.refused").length,
    top: all(".glance").filter(element => box(element).bottom < innerHeight).length,
    why: all("details.explained[open] pre").length > 0,
})"##;

/// Compares the page of the run in `folder` with its checks.
fn check_page(folder: &Path) -> anyhow::Result<()> {
    let page = folder.join("runs/latest/report.html").canonicalize()?;
    let source = fs::read_to_string(&page)?;
    for part in ["http:", "https:", "<script", "url("] {
        ensure!(!source.contains(part), "the page has {part}");
    }
    for width in [400, 1280] {
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
        let seen = seen(&page, width, "", LOOK)?;
        // The pair that the kernel refuses is a line, the first screen says why, and the
        // explanation of the failed check is open.
        let expected = json!({
            "width": width, "names": ["disk0", "disk1", "disk2"], "cut": [], "wide": [], "refused": 1, "top": 1, "why": true,
        });
        ensure!(seen == expected, "{seen:#}");
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
        junit.contains(r#"tests="4" skipped="0" errors="1" failures="1""#),
        "{junit}"
    );
    check_page(folder).unwrap();

    for format in ["junit", "json", "html"] {
        let reason = "1 of 3 checks did not pass: the kernel refuses";
        let written = report_as(format, folder).unwrap();
        assert!(written.contains(reason), "{format}: {written}");
    }

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
