//! Transfers between two disks and a GPU: their data, their routes, their records.

use std::collections::HashMap;
use std::process::Command;

use peerbar_flight::{Event, Purpose};
use peerbar_lab::iommu::Iommu;
use peerbar_lab::programs::program;
use peerbar_lab::scenario::{GpuBuilder, NvmeBuilder, ScenarioBuilder};
use peerbar_lab::{DeviceCounters, Lab, LabOptions, Route, Verdict};
use peerbar_nvme_spec::command::CommandFlags;

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

/// Bytes that a disk has moved to and from its peers, by the way in which Linux described their
/// memory.
#[derive(Debug, Default, PartialEq, Eq)]
struct PeerBytes {
    by_prps: u64,
    by_sgls: u64,
}

/// Returns these bytes of all commands of `device` so far.
#[track_caller]
fn peer_bytes(lab: &Lab, device: &str) -> PeerBytes {
    let mut flags = HashMap::new();
    let mut bytes = PeerBytes::default();
    for record in &lab.flight_record(device).unwrap().records {
        match record.event {
            Event::Begin { origin, operation } => {
                flags.insert(origin, CommandFlags::from_bits(operation.flags));
            }
            Event::Dma(dma) if (dma.route, dma.purpose) == (Route::Peer, Purpose::Payload) => {
                match flags.get(&dma.origin).unwrap().psdt() {
                    0 => bytes.by_prps += dma.len,
                    _ => bytes.by_sgls += dma.len,
                }
            }
            _ => {}
        }
    }
    bytes
}

#[test]
#[ignore = "boots a guest; scripts/test runs it"]
fn copy_below_a_switch_goes_from_peer_to_peer() {
    let scenario = ScenarioBuilder::new("lab-peers")
        .key("timeout", "2m")
        .machine("sanitize", true)
        // By default Linux takes SGLs only for segments of 32 KiB, and pages of peers do not join.
        .machine("kernel-parameters", "nvme.sgl_threshold=1")
        .iommu(Iommu::Intel)
        .switch("switch0")
        .nvme(
            NvmeBuilder::new("disk0")
                .below("switch0")
                .cmb("16M")
                .ram("32M"),
        )
        .nvme(
            NvmeBuilder::new("disk1")
                .below("switch0")
                .key("sgl", true)
                .ram("32M"),
        )
        .gpu(GpuBuilder::new("gpu0", "64M").below("switch0"))
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

    let copied = peer_bytes(&lab, "disk1");
    assert_eq!((copied.by_prps, copied.by_sgls), (0, moved), "into the CMB");
    let file = "kind = \"gpu-file\"\ngpu = \"gpu0\"\ndisks = [\"disk1\"]\n\
                sizes = [\"4K\", \"1M\"]\noffsets = [0]";
    let row = lab.check_table(file).unwrap();
    assert_eq!(row.verdict, Verdict::Pass, "{:?}", row.diagnostics);
    // Read into VRAM, and written back.
    let both = peer_bytes(&lab, "disk1");
    let by_sgls = both.by_sgls - copied.by_sgls;
    assert_eq!(both.by_prps, 0, "{both:?}");
    assert!(by_sgls >= 2 * ((1 << 20) + 4096), "{by_sgls} bytes");

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
