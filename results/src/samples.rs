//! Results for the tests of the writers.

use chrono::DateTime;
use peerbar_lab::exit::Outcome;
use peerbar_lab::results::{CheckResult, CheckStatus, FORMAT, RunResults};
use peerbar_lab::started::Versions;
use peerbar_lab::verdict::Verdict;
use peerbar_report::{Completer, Direction, Measure, Pair, PayloadFlow, Route};

/// A run with a check of each verdict and one that was not run, and characters that mean something in XML and HTML.
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
        verdict: Verdict {
            outcome: Outcome::TimedOut,
            reason: "the guest was not done after 90 s".to_owned(),
        },
        exit_code: 124,
        started: DateTime::from_timestamp(1_795_231_718, 0).unwrap_or_default(),
        seconds: 12.5,
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
