//! Runs a suite, keeps its figures and prints them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use crate::cli::{BootOptions, Extent, GuestOptions, HostOptions, Suite};
use crate::guests::context::SuiteContext;
use crate::guests::{boot, guest, idle, iommu, p2p};
use crate::{Error, Options, Progress as Steps, Report, compare, growth, host, peers};
use anyhow::anyhow;
use peerbar_lab::exit::Failure;
use peerbar_lab::folder::Folder;
use peerbar_lab::parent_death;
use peerbar_lab::programs::program;
use peerbar_lab::progress::Progress;
use peerbar_lab::signals::Signals;
use peerbar_lab::terminal::print;

/// The file with the figures in a run's folder.
const RESULTS: &str = "results.json";

/// Measures.
pub(crate) fn run(what: &Suite) -> Result<ExitCode, Failure> {
    match what {
        Suite::Host(options) => on_host("bench-host", host::measure, options)?,
        Suite::Peers(options) => on_host("bench-peers", peers::measure, options)?,
        Suite::Growth(options) => on_host("bench-growth", growth::measure, options)?,
        Suite::Guest(options) => in_guest("bench-guest", guest::measure, options)?,
        Suite::P2p(options) => in_guest("bench-p2p", p2p::measure, options)?,
        Suite::Iommu(options) => in_guest("bench-iommu", iommu::measure, options)?,
        Suite::Idle(options) => in_guest("bench-idle", idle::measure, options)?,
        Suite::Boot(options) => on_boot(options)?,
        Suite::Compare { first, second } => {
            print(&compare(&load(first)?, &load(second)?))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A suite that needs no guest.
type HostSuite = fn(&Options, &mut Report, &mut Steps<'_>) -> Result<(), Error>;

fn on_host(name: &str, suite: HostSuite, options: &HostOptions) -> Result<(), Failure> {
    let extent = &options.extent;
    let signals = Signals::new()?;
    let how = Options {
        under: parent_death::words()?.into(),
        server: program("peerbar-nvme")?,
        words: options
            .server
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
        quick: extent.quick,
        only: extent.only.clone(),
    };
    let folder = Folder::create(&extent.runs, name, SystemTime::now())?;
    let mut progress = Progress::default();
    let mut report = Report::begin();
    add_extent(&mut report, extent);
    report
        .settings
        .insert("server".to_owned(), options.server.clone());
    let mut next = |step: &str| {
        progress.stage(step);
        match signals.pending() {
            Ok(None) => Ok(()),
            _ => Err(Error::Interrupted),
        }
    };
    let measured = suite(&how, &mut report, &mut next);
    drop(progress);
    if measured.is_ok() || !report.figures.is_empty() {
        conclude(&extent.only, &mut report, &folder)?;
    }
    if let Some(signal) = signals.pending()? {
        return Err(Failure::Interrupted(signal));
    }
    measured.map_err(|error| match error {
        Error::Server { .. } if !how.words.is_empty() => Failure::Usage(error.into()),
        other => Failure::Environment(other.into()),
    })
}

/// A suite that boots guests.
type GuestSuite = fn(&mut SuiteContext<'_>) -> Result<(), Failure>;

fn in_guest(name: &str, suite: GuestSuite, options: &GuestOptions) -> Result<(), Failure> {
    let extent = &options.extent;
    let signals = Signals::new()?;
    let folder = Folder::create(&extent.runs, name, SystemTime::now())?;
    let mut context = SuiteContext {
        extent,
        own: &options.own,
        folder: &folder,
        signals: &signals,
        report: Report::begin(),
    };
    add_extent(&mut context.report, extent);
    let measured = suite(&mut context);
    if measured.is_ok() || !context.report.figures.is_empty() {
        conclude(&extent.only, &mut context.report, &folder)?;
    }
    measured
}

fn on_boot(options: &BootOptions) -> Result<(), Failure> {
    let folder = Folder::create(&options.runs, "bench-boot", SystemTime::now())?;
    let mut report = Report::begin();
    boot::measure(options, &mut report, &folder)?;
    conclude("", &mut report, &folder)
}

/// Notes how much is measured.
fn add_extent(report: &mut Report, extent: &Extent) {
    let rounds = if extent.quick {
        "one, short"
    } else {
        "several"
    };
    report
        .settings
        .insert("rounds".to_owned(), rounds.to_owned());
}

/// Keeps and prints what was measured, also before a failure.
fn conclude(only: &str, report: &mut Report, folder: &Folder) -> Result<(), Failure> {
    report.end();
    report.figures.retain(|figure| figure.name.contains(only));
    folder.write_json(RESULTS, report)?;
    if report.figures.is_empty() {
        return Err(Failure::Usage(anyhow!(
            "no figure has `{only}` in its name"
        )));
    }
    let place = folder.path().join(RESULTS);
    let told = report
        .settings
        .iter()
        .filter(|(_, value)| !value.is_empty());
    let settings: String = told
        .map(|(name, value)| format!("{name}: {value}\n"))
        .collect();
    print(&format!(
        "{}\n{}\n{settings}{}\n",
        report.table(),
        report.machine,
        place.display()
    ))?;
    Ok(report.check().map_err(anyhow::Error::from)?)
}

/// Reads results, named by their file or by its folder.
fn load(path: &Path) -> Result<Report, Failure> {
    let file = if path.is_dir() {
        path.join(RESULTS)
    } else {
        PathBuf::from(path)
    };
    Report::load(&file).map_err(|error| match error {
        Error::Report { .. } | Error::System { .. } => Failure::Usage(error.into()),
        other => Failure::Environment(other.into()),
    })
}
