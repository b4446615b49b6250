//! dma-bufs of several ranges. A kernel that does not map them must be blamed for that, and nothing
//! else may be wrong (docs/reports/dma-buf-ranges.md).

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::launched::Launched;

/// The verdicts of the scenario's checks.
#[derive(Debug)]
struct Seen {
    by_bus_address: String,
    through_the_iommu: String,
    printed: String,
}

/// Runs the scenario with this IOMMU and these options.
fn run(iommu: &str, options: &[&str]) -> anyhow::Result<Seen> {
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/dma-buf-ranges.toml");
    let text = fs::read_to_string(scenario)?.replace("\"intel\"", &format!("{iommu:?}"));
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("ranges.toml"), text)?;
    let mut run = Launched::start(folder, &[&["run", "ranges.toml"], options].concat())?;
    let (_, results, progress) = run.end()?;
    let printed = results + &progress;
    let kept: Value = serde_json::from_str(&run.kept("results.json")?)?;
    let verdict = |check: &str| {
        let verdict = kept.pointer(&format!("/checks/{check}/verdict"));
        let verdict = verdict.and_then(Value::as_str).map(str::to_owned);
        verdict.with_context(|| printed.clone())
    };
    Ok(Seen {
        by_bus_address: verdict("0")?,
        through_the_iommu: verdict("1")?,
        printed,
    })
}

/// Checks that the ranges are right, or that the kernel is blamed with these words for those of
/// vfio-pci, and for those of the GPU's driver.
fn are_right_or_the_kernel_is_blamed(iommu: &str, words: &str) -> anyhow::Result<()> {
    let seen = run(iommu, &[])?;
    ensure!(seen.by_bus_address == "pass", "{}", seen.printed);
    if seen.through_the_iommu != "pass" {
        let blamed = [
            "the kernel's fault: each range is right as a dma-buf of its own",
            words,
            "the kernel's fault, since one range is right: a dma-buf of 5 ranges",
        ];
        let missing = blamed.iter().find(|words| !seen.printed.contains(**words));
        ensure!(missing.is_none(), "{missing:?}: {}", seen.printed);
    }
    Ok(())
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn ranges_are_right_or_intel_iommu_refuses_all_of_them() {
    let words = "of 2 ranges: none is mapped: the GPU's driver does not import the dma-buf: Address already in use";
    are_right_or_the_kernel_is_blamed("intel", words).unwrap();
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn ranges_are_right_or_virtio_iommu_maps_only_the_first() {
    let words = "of 2 ranges: a write to range 2 (BAR 0x300000 to 0x310000) fails: ";
    are_right_or_the_kernel_is_blamed("virtio", words).unwrap();
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn ranges_are_right_without_translation() {
    let seen = run("intel", &["--append", "iommu=pt"]).unwrap();
    let verdicts = [&seen.by_bus_address, &seen.through_the_iommu];
    assert_eq!(verdicts, ["pass", "pass"], "{}", seen.printed);
}
