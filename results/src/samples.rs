//! Results for the tests of the writers.

use std::time::{Duration, UNIX_EPOCH};

use peerbar_lab::exit::RunOutcome;
use peerbar_lab::results::{CheckResult, CheckStatus, FORMAT, RunResults, SubtestResult};
use peerbar_lab::started::Versions;
use peerbar_lab::utc::UtcTime;
use peerbar_lab::verdict::RunVerdict;
use peerbar_report::{
    Completer, Direction, IommuGroup, Measure, Pair, PayloadFlow, PciFunction, Route,
};

use crate::collection::{Explained, Refusal, ReportedRun};
use crate::matrix::{MatrixFile, MatrixResults};

/// Returns a run with a check of each verdict and one that was not run, and characters that mean
/// something in XML and HTML.
pub(crate) fn run() -> RunResults {
    let flow = |route, completer, direction| PayloadFlow {
        requester: "disk0".to_owned(),
        completer,
        route,
        direction,
        bytes: 1 << 20,
    };
    let passed = CheckResult {
        name: "disk0 to VRAM <and> back".to_owned(),
        kind: Some("gpu-file".to_owned()),
        measure: Measure {
            sizes: "4K-8M".to_owned(),
            bytes: 2 << 20,
            seconds: 0.5,
            routes: [(Route::Peer, 2 << 20)].into(),
            flows: vec![
                flow(Route::Peer, Completer::PeerBar, Direction::Read),
                flow(Route::Peer, Completer::PeerBar, Direction::Write),
            ],
            peer_bytes: 2 << 20,
            ..Measure::default()
        },
        pairs: vec![Pair::of("gpu0", "disk0")],
        ..CheckResult::default()
    };
    let failed = CheckResult {
        name: "copy #1".to_owned(),
        kind: Some("copy".to_owned()),
        verdict: CheckStatus::Fail,
        diagnostics: vec![r#"4096 bytes at offset 0: "wrong" & <late>"#.to_owned()],
        subtests: vec![SubtestResult {
            name: "suite".to_owned(),
            verdict: CheckStatus::Fail,
            subtests: vec![
                subtest("first", CheckStatus::Pass),
                SubtestResult {
                    diagnostics: vec!["expected <1>".to_owned()],
                    ..subtest("second", CheckStatus::Fail)
                },
            ],
            ..SubtestResult::default()
        }],
        ..CheckResult::default()
    };
    let skipped = CheckResult {
        name: "fio".to_owned(),
        verdict: CheckStatus::Skip,
        skipped: Some("no fio".to_owned()),
        ..CheckResult::default()
    };
    RunResults {
        format: FORMAT,
        scenario: "demo".to_owned(),
        verdict: RunVerdict {
            outcome: RunOutcome::TimedOut,
            reason: "the guest did not finish within 90 s".to_owned(),
        },
        exit_code: 124,
        started: UtcTime::from(UNIX_EPOCH + Duration::from_secs(1_795_231_718)),
        seconds: 12.5,
        series: None,
        versions: Versions {
            peerbar: "0.1.0".to_owned(),
            qemu: "11.1.3".to_owned(),
            kernel: "7.3.4".to_owned(),
            packages: None,
        },
        checks: vec![passed, failed, skipped],
        not_run: vec!["reset".to_owned()],
    }
}

fn subtest(name: &str, verdict: CheckStatus) -> SubtestResult {
    SubtestResult {
        name: name.to_owned(),
        verdict,
        ..SubtestResult::default()
    }
}

/// Returns a disk and a GPU below a switch, and a disk at a root port.
pub(crate) fn functions() -> Vec<PciFunction> {
    let function = |address: &str, parent: &str, port_type, class| PciFunction {
        address: address.to_owned(),
        name: None,
        parent: parent.to_owned(),
        vendor: 0x1b36,
        device: 0x10,
        class,
        port_type: Some(port_type),
        acs: None,
        iommu_group: None,
        driver: None,
        p2pmem: None,
    };
    let device = |name: &str, address: &str, parent: &str, class| PciFunction {
        name: Some(name.to_owned()),
        iommu_group: Some(IommuGroup {
            number: 1,
            kind: "DMA-FQ".to_owned(),
        }),
        p2pmem: Some(64 << 20),
        ..function(address, parent, 0, class)
    };
    let bridge =
        |address: &str, parent: &str, port_type| function(address, parent, port_type, 0x060400);
    vec![
        bridge("0000:00:02.0", "pci0000:00", 4),
        bridge("0000:01:00.0", "0000:00:02.0", 5),
        bridge("0000:02:00.0", "0000:01:00.0", 6),
        device("disk0", "0000:03:00.0", "0000:02:00.0", 0x01_0802),
        bridge("0000:02:01.0", "0000:01:00.0", 6),
        device("gpu0", "0000:04:00.0", "0000:02:01.0", 0x12_0000),
        bridge("0000:00:03.0", "pci0000:00", 4),
        device("disk1", "0000:05:00.0", "0000:00:03.0", 0x01_0802),
    ]
}

/// Returns the run in that machine, where the kernel refuses the pair of the check that passes.
pub(crate) fn reported() -> ReportedRun {
    let explained = |title: &str| Explained {
        title: title.to_owned(),
        text: "rule <b>".to_owned(),
        ..Explained::default()
    };
    ReportedRun {
        functions: functions(),
        console: "[    1.0] <oops>\n".to_owned(),
        explanations: vec![Explained {
            pair: Some(Pair::of("gpu0", "disk0")),
            refusal: Some(Refusal {
                reason: "host bridge pci0000:00 is not on the kernel's list".to_owned(),
                kernel: vec!["nvme 0000:03:00.0: cannot be used".to_owned()],
                change: Some("in [machine]: cpu = \"EPYC\"".to_owned()),
            }),
            ..explained("disk0 to memory of gpu0: not supported")
        }],
        faults: vec![explained("disk0: 1 DMA failed")],
        ..ReportedRun::of(run())
    }
}

/// Returns a matrix with a cell that agrees and one that does not.
pub(crate) fn matrix() -> MatrixResults {
    let text = r#"{
        "format": 1, "exit_code": 1,
        "matrix": {
            "device": "peerbar",
            "versions": {"peerbar": "0.1.0", "qemu": "11.1.3", "kernel": "7.3.4", "packages": null},
            "seconds": 60.0, "caveat": null, "flaws": ["b0: the console says: <BUG>"],
            "cells": [
                {"cpu": "EPYC", "iommu": "none", "topology": "one-switch", "flow": "nvme-vram",
                 "provider": "sw0-gpu", "client": "sw0-disk",
                 "rule": {"way": "peer", "mapping": "bus-address", "why": "one switch", "path": []},
                 "seen": {"way": "peer", "faults": 0}, "disagreement": null},
                {"cpu": "EPYC", "iommu": "intel", "topology": "one-switch", "flow": "nvme-vram",
                 "provider": "sw0-gpu", "client": "sw0-disk",
                 "rule": {"way": "peer", "mapping": "bus-address", "why": "one switch", "path": []},
                 "seen": {"way": "wrong", "faults": 1}, "disagreement": "success with <wrong> data"}
            ]
        }
    }"#;
    let file: MatrixFile = serde_json::from_str(text).unwrap();
    file.into_matrix().unwrap()
}
