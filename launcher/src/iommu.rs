//! `peerbar iommu`: the mappings that the devices of a run knew, and the reasons why a DMA failed,
//! from their flight records.

mod behind;
mod data;
pub(crate) mod device_kind;
mod follow;
pub(crate) mod injected;
mod kernel;
pub(crate) mod line;
pub(crate) mod recorded;
pub(crate) mod register_writes;
pub(crate) mod text;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use peerbar_flight::{Finding, FindingKind};
use serde_json::Value;

use recorded::{Recorded, Unjudged};

use crate::cli;
use peerbar_lab::count::counted;
use peerbar_lab::exit::Failure;
use peerbar_lab::scenario::{Sanitize, Scenario};
use peerbar_lab::terminal::print;
use peerbar_results::Explained;

/// Exit code if the sanitizer has found something, or could not judge all.
const FINDINGS: u8 = 1;

/// Shows the requested parts.
pub(crate) fn iommu(options: &cli::Debugger) -> Result<ExitCode, Failure> {
    let run = options.guest.folder(options.run.path())?;
    let mut recorded = Recorded::open(&run).map_err(Failure::Usage)?;
    recorded
        .show_only(options.device.as_deref())
        .map_err(Failure::Usage)?;
    if options.follow {
        if !recorded.shown().any(|device| device.live) {
            let run = run.display();
            return Err(Failure::Usage(anyhow!(
                "no device of {run} is running, so no events will come: --history shows the recorded ones"
            )));
        }
        follow::follow(&recorded)?;
        return Ok(ExitCode::SUCCESS);
    }
    let sanitized = options.sanitize.then(|| recorded.sanitized());
    let sanitized = sanitized.as_ref();
    let unjudged = sanitized.map_or_else(Vec::new, |sanitized| {
        let unjudged = recorded.unjudged(sanitized, recorded.expected());
        unjudged.iter().map(ToString::to_string).collect()
    });
    let shown = if options.json {
        let all = data::all(&recorded, sanitized, &unjudged);
        serde_json::to_string_pretty(&all).context("cannot write JSON")? + "\n"
    } else if options.history {
        line::history(&recorded)
    } else {
        text::all(&recorded, options, sanitized, &unjudged)
    };
    print(&shown)?;
    let found = sanitized.is_some_and(|sanitized| !sanitized.findings.is_empty());
    let is_clean = !found && unjudged.is_empty();
    Ok(ExitCode::from(if is_clean { 0 } else { FINDINGS }))
}

/// The faults of a device since some time.
pub(crate) struct NewFaults {
    /// The first of them.
    pub(crate) first: Vec<ExplainedFault>,
    /// Number of further faults.
    pub(crate) more: usize,
    /// Time of the last one, CLOCK_MONOTONIC in nanoseconds.
    pub(crate) last: u64,
}

/// A fault and all that is known about its address.
pub(crate) struct ExplainedFault {
    /// Lines for people.
    pub(crate) text: String,
    /// For programs, as in `peerbar iommu --json`.
    pub(crate) data: Value,
}

/// Returns the faults of `device` in a run after `nanos` of CLOCK_MONOTONIC; `most` of them are
/// explained.
pub(crate) fn faults_since(
    run: &Path,
    device: &str,
    nanos: u64,
    most: usize,
) -> anyhow::Result<NewFaults> {
    let recorded = Recorded::open(run)?;
    let mut devices = recorded.shown();
    let device = devices.find(|known| known.name == device);
    let device = device.with_context(|| format!("no record of the device in {}", run.display()))?;
    let faults = device.history.faults.iter();
    let faults: Vec<_> = faults.filter(|fault| fault.at.nanos > nanos).collect();
    let explained = faults.iter().take(most).map(|fault| ExplainedFault {
        text: text::fault(&recorded, device, fault),
        data: data::fault(&recorded, device, fault),
    });
    Ok(NewFaults {
        first: explained.collect(),
        more: faults.len().saturating_sub(most),
        last: faults.last().map_or(nanos, |fault| fault.at.nanos),
    })
}

/// Returns the reasons why DMA failed in the run in `folder`, one text for each device with a
/// failure; nothing without flight records.
pub(crate) fn faults(folder: &Path) -> Vec<Explained> {
    let recorded = match Recorded::open(folder) {
        Ok(recorded) => recorded,
        Err(error) => {
            log::debug!("{}: no faults are shown: {error:#}", folder.display());
            return Vec::new();
        }
    };
    let devices = recorded.shown().filter(|device| device.history.failed > 0);
    let explained = devices.map(|device| Explained {
        title: format!("{}: {} DMA failed", device.name, device.history.failed),
        text: text::faults(&recorded, device, text::FEW)
            + &injected::lines(&device.flight).join("\n"),
        ..Explained::default()
    });
    explained.collect()
}

/// The start of each [`complaint`].
pub(crate) const SANITIZER: &str = "the sanitizer has ";

/// Returns the complaint of the sanitizer about the completed run of `scenario` in one line, or
/// `None` if it has found nothing or is not requested.
pub(crate) fn complaint(folder: &Path, scenario: &Scenario) -> anyhow::Result<Option<String>> {
    let Some(wanted) = &scenario.machine.sanitize else {
        return Ok(None);
    };
    let devices = scenario.devices().filter(|device| device.is_ours());
    let names: Vec<String> = devices.map(|device| device.name().to_owned()).collect();
    judged(folder, wanted, &names)
}

/// Does the work of [`complaint`] for the devices that should have a record.
fn judged(folder: &Path, wanted: &Sanitize, names: &[String]) -> anyhow::Result<Option<String>> {
    let recorded = match Recorded::open(folder) {
        Ok(recorded) => recorded,
        Err(error) => {
            let complaint = format!("the sanitizer has judged nothing: {error:#}");
            return Ok(Some(complaint));
        }
    };
    let sanitized = recorded.sanitized();
    let unjudged = recorded.unjudged(&sanitized, names);
    let missed = unjudged.iter().find_map(|unjudged| match unjudged {
        Unjudged::NoRecord(name) => Some(format!(
            "the sanitizer has not judged {name}, which has no flight record: the log of its server says why"
        )),
        Unjudged::Lost(name, lost) => Some(format!(
            "the sanitizer has missed {} of {name}: let the scenario do less",
            counted(*lost, "record")
        )),
        // A run that is sanitized records everything.
        Unjudged::OnlyFailures(_) | Unjudged::Uncompared(_) => None,
    });
    if missed.is_some() {
        return Ok(missed);
    }
    let findings = &sanitized.findings;
    let unexpected = |(_, finding): &&(_, Finding)| !wanted.expected.contains(&finding.kind);
    let mut others = findings.iter().filter(unexpected);
    if let Some((device, first)) = others.next() {
        let first = text::finding(&recorded, device, first);
        let more = match others.count() {
            0 => String::new(),
            more => format!("; and {more} more, which `peerbar iommu --sanitize` shows"),
        };
        return Ok(Some(format!("the sanitizer has found: {first}{more}")));
    }
    let is_uncompared = |unjudged: &&Unjudged<'_>| matches!(unjudged, Unjudged::Uncompared(_));
    if let Some(uncompared) = unjudged.iter().find(is_uncompared) {
        return Ok(Some(format!(
            "the sanitizer has not judged all: {uncompared}; let the scenario do less"
        )));
    }
    let found = |kind: &FindingKind| findings.iter().any(|(_, finding)| finding.kind == *kind);
    let missing = wanted.expected.iter().find(|kind| !found(kind));
    Ok(
        missing
            .map(|kind| format!("the sanitizer has found no {kind}, which the scenario expects")),
    )
}

#[cfg(test)]
mod tests {
    use peerbar_flight::{
        Completer, Direction, Dma, DmaOutcome, Event, Level, Origin, Purpose, Recorder, Route,
    };
    use peerbar_pci::Iova;

    use super::*;

    /// Reads of unmapped addresses, as a device records them.
    fn stray(count: u64) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk0.flight");
        let recorder = Recorder::create(&path, "disk0", Level::All).unwrap();
        recorder.record(Event::Client(true));
        for number in 0..count {
            let dma = Dma {
                origin: Origin::Queue(1),
                purpose: Purpose::Payload,
                direction: Direction::Read,
                address: Iova(0x4000 + number * 0x10_0000),
                len: 8,
                route: Route::Upstream,
                completer: Completer::Unknown,
                outcome: DmaOutcome::ClientRefused(19),
                took: 0,
            };
            recorder.dma(dma, recorder.clock());
        }
        folder
    }

    fn complaint_of(folder: &tempfile::TempDir, expected: &[FindingKind]) -> Option<String> {
        let expected = expected.to_vec();
        judged(folder.path(), &Sanitize { expected }, &["disk0".to_owned()]).unwrap()
    }

    #[test]
    fn sanitized_run_has_the_expected_findings_only() {
        let clean = stray(0);
        assert_eq!(complaint_of(&clean, &[]), None);
        let missing = complaint_of(&clean, &[FindingKind::PastEnd]).unwrap();
        assert!(missing.contains("has found no past-end"), "{missing}");
        let one = stray(1);
        assert_eq!(complaint_of(&one, &[FindingKind::NeverMapped]), None);
        let other = complaint_of(&one, &[FindingKind::PastEnd]).unwrap();
        assert!(
            other.contains("DMA by an address that was never mapped"),
            "{other}"
        );
        let three = complaint_of(&stray(3), &[]).unwrap();
        assert!(three.contains("; and 2 more, which"), "{three}");
    }

    #[test]
    fn sanitized_run_without_a_record_does_not_pass() {
        let clean = stray(0);
        let wanted = Sanitize::default();
        let complaint = |folder: &tempfile::TempDir, names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            judged(folder.path(), &wanted, &names).unwrap().unwrap()
        };
        let one = complaint(&clean, &["disk0", "disk1"]);
        assert!(
            one.starts_with("the sanitizer has not judged disk1"),
            "{one}"
        );
        let empty = tempfile::tempdir().unwrap();
        let nothing = complaint(&empty, &["disk0"]);
        assert!(
            nothing.starts_with("the sanitizer has judged nothing: "),
            "{nothing}"
        );
        std::fs::write(clean.path().join("disk1.flight"), "cut").unwrap();
        let cut = complaint(&clean, &["disk0", "disk1"]);
        assert!(cut.contains("disk1.flight"), "{cut}");
    }

    #[test]
    fn sanitized_run_with_lost_records_does_not_pass() {
        let more_than_the_ring_has = (1 << 20) + 1;
        let message = complaint_of(&stray(more_than_the_ring_has), &[FindingKind::NeverMapped]);
        assert!(
            message
                .unwrap()
                .contains("has missed 2 records of disk0: let the scenario do less")
        );
    }
}
