//! A transfer between two disks: its data, its route, its record.

use std::process::Command;

use peerbar_lab::iommu::Iommu;
use peerbar_lab::programs::program;
use peerbar_lab::scenario::{NvmeBuilder, ScenarioBuilder};
use peerbar_lab::{DeviceCounters, Lab, LabOptions, Route, Verdict};

/// The folder of its runs.
const RUNS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../runs");

/// Returns the bytes that `device` has moved by `route`.
fn bytes(lab: &Lab, device: &str, route: Route) -> u64 {
    let counters = lab.counters();
    let DeviceCounters::Counted { dma, .. } = counters.get(device).unwrap() else {
        panic!("{counters:?}");
    };
    let of_route = dma.iter().filter(|entry| entry.route == route);
    of_route.map(|entry| entry.bytes).sum()
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn copy_below_a_switch_goes_from_peer_to_peer() {
    let scenario = ScenarioBuilder::new("lab-peers")
        .key("timeout", "2m")
        .iommu(Iommu::Intel)
        .switch("switch0")
        .nvme(
            NvmeBuilder::new("disk0")
                .below("switch0")
                .cmb("16M")
                .ram("32M"),
        )
        .nvme(NvmeBuilder::new("disk1").below("switch0").ram("32M"))
        .build()
        .unwrap();
    let mut lab = LabOptions::default().runs(RUNS).start(scenario).unwrap();
    let before = bytes(&lab, "disk1", Route::Peer);
    let copy = "kind = \"copy\"\nfrom = \"disk1\"\nto = \"disk0\"\nthrough = { p2pmem = \"disk0\" }\n\
                sizes = [\"4K\", \"1M\"]\noffsets = [0]";
    let row = lab.check_table(copy).unwrap();
    assert_eq!(row.verdict, Verdict::Pass, "{:?}", row.diagnostics);
    let moved = bytes(&lab, "disk1", Route::Peer) - before;
    assert!(moved >= (1 << 20) + 4096, "{moved} bytes went to the peer");

    let record = lab.flight_record("disk1").unwrap();
    assert_eq!(record.header.name, "disk1");
    assert!(
        !record.now.is_empty(),
        "a device behind an IOMMU has mappings"
    );

    let finished = lab.shut_down().unwrap();
    assert!(finished.is_passed(), "{}", finished.verdict);
    let explain = Command::new(program("peerbar").unwrap())
        .args(["explain", "--run"])
        .arg(&finished.folder)
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&explain.stdout);
    assert!(
        explain.status.success(),
        "the kernel does not agree:\n{message}"
    );
    assert!(message.contains("disk1"), "{message}");
}
