//! A suite from its start to its results.

use std::time::{Duration, SystemTime};

use anyhow::anyhow;
use peerbar_lab::artifacts::Own;
use peerbar_lab::exit::Failure;
use peerbar_lab::folder::Folder;
use peerbar_lab::progress::Progress;
use peerbar_lab::signals::Signals;
use peerbar_lab::terminal::print;

use crate::cli::Extent;
use crate::report::Report;
use crate::server::ServerCommand;

/// The file with the figures, in a run's folder.
pub(crate) const RESULTS: &str = "results.json";

/// The extent of a suite, and the report of its figures.
pub(crate) struct SuiteContext<'a, O> {
    pub(crate) extent: &'a Extent,
    /// Its options.
    pub(crate) options: &'a O,
    /// The folder for the results and for each guest's folder.
    pub(crate) folder: Folder,
    /// They live as long as the process, because they also end a lab's guest.
    pub(crate) signals: &'static Signals,
    /// The report of the figures.
    pub(crate) report: Report,
    progress: Option<Progress>,
}

/// A suite that drives servers from the host.
pub(crate) type HostContext<'a> = SuiteContext<'a, ServerCommand>;
/// A suite that boots guests.
pub(crate) type GuestContext<'a> = SuiteContext<'a, Own>;

impl<O> SuiteContext<'_, O> {
    /// Shows the name of the next measurement, or fails after a signal.
    pub(crate) fn stage(&mut self, name: &str) -> Result<(), Failure> {
        self.progress
            .get_or_insert_with(Progress::default)
            .stage(name);
        self.check_signals()
    }

    /// Returns `true` if a figure of that name is wanted.
    pub(crate) fn wants(&self, name: &str) -> bool {
        name.contains(&self.extent.only)
    }

    fn check_signals(&self) -> Result<(), Failure> {
        let pending = self.signals.pending()?;
        pending.map_or(Ok(()), |signal| Err(Failure::Interrupted(signal)))
    }

    /// Keeps and prints the figures, also before a failure.
    fn conclude(&mut self) -> Result<(), Failure> {
        self.progress = None;
        let (report, only) = (&mut self.report, &self.extent.only);
        report.end();
        report.figures.retain(|figure| figure.name.contains(only));
        self.folder.write_json(RESULTS, report)?;
        if report.figures.is_empty() {
            return Err(Failure::Usage(anyhow!(
                "no figure has `{only}` in its name"
            )));
        }
        let settings = report.settings.iter();
        let settings: String = settings
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| format!("{name}: {value}\n"))
            .collect();
        let (table, machine) = (report.table(), &report.machine);
        let path = self.folder.path().join(RESULTS);
        print(&format!("{table}{machine}\n{settings}{}\n", path.display()))?;
        Ok(report.check()?)
    }
}

impl HostContext<'_> {
    /// Returns the number of rounds of each measurement.
    pub(crate) fn rounds(&self) -> u32 {
        if self.extent.quick { 1 } else { 5 }
    }

    /// Returns the length of a round.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_millis(if self.extent.quick { 100 } else { 200 })
    }
}

/// Runs a suite, keeps its figures and prints them.
pub(crate) fn run<O>(
    name: &str,
    extent: &Extent,
    options: &O,
    measure: impl FnOnce(&mut SuiteContext<'_, O>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut context = SuiteContext {
        extent,
        options,
        folder: Folder::create(&extent.runs, &format!("bench-{name}"), SystemTime::now())?,
        signals: Box::leak(Box::new(Signals::new()?)),
        report: Report::begin(),
        progress: None,
    };
    let rounds = if extent.quick {
        "one, short"
    } else {
        "several"
    };
    let settings = &mut context.report.settings;
    settings.insert("rounds".to_owned(), rounds.to_owned());
    let measured = measure(&mut context);
    if measured.is_ok() || !context.report.figures.is_empty() {
        context.conclude()?;
    }
    context.check_signals()?;
    measured
}
