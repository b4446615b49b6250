//! The result of a run, with versions, settings and machine: a table for people, JSON for programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};

use crate::figure::{Figure, readable};
use crate::machine::{Machine, Ticks};
use crate::table::table;

/// The figures of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Start time, in seconds since 1970.
    pub unix_seconds: u64,
    /// The measured commit of this project, which `scripts/bench` passes in `PEERBAR_COMMIT`.
    pub commit: String,
    /// The machine.
    pub machine: Machine,
    /// Versions of the parts, by name.
    pub versions: BTreeMap<String, String>,
    /// Settings of the measurements, by name.
    pub settings: BTreeMap<String, String>,
    /// The figures.
    pub figures: Vec<Figure>,
    /// Processor times at the start.
    #[serde(skip)]
    begun: Option<Ticks>,
}

impl Report {
    /// Returns a report of this machine and time, without figures. It already contains the version
    /// of Rust, which `scripts/bench` passes in `PEERBAR_RUSTC`.
    pub(crate) fn begin() -> Self {
        let said = |name| std::env::var(name).unwrap_or_else(|_| "unknown".to_owned());
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            unix_seconds: since.map_or(0, |since| since.as_secs()),
            commit: said("PEERBAR_COMMIT"),
            machine: Machine::here(),
            versions: [("rustc".to_owned(), said("PEERBAR_RUSTC"))].into(),
            settings: BTreeMap::new(),
            figures: Vec::new(),
            begun: Ticks::now(),
        }
    }

    /// Records other programs' use of the machine since the start. Children that are still alive
    /// count as others.
    pub(crate) fn end(&mut self) {
        let (begun, now) = (self.begun, Ticks::now());
        self.machine.others = begun
            .zip(now)
            .and_then(|(begun, now)| begun.others_until(&now));
    }

    /// Checks that every figure is a number.
    ///
    /// # Errors
    /// If one is not; the first is named.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let wrong = self.figures.iter().find(|figure| !figure.is_number());
        wrong.map_or(Ok(()), |figure| {
            let name = &figure.name;
            Err(anyhow!(
                "{name} is not a number: there was nothing to measure"
            ))
        })
    }

    /// Reads a report back.
    ///
    /// # Errors
    /// If the file cannot be read or holds something else.
    pub(crate) fn load(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text)
            .with_context(|| format!("{} is not a report of `peerbar-bench`", path.display()))
    }

    /// Returns the figures as a table. If other programs used the processors, it does not say which
    /// goals are reached.
    pub(crate) fn table(&self) -> String {
        let header = [
            "figure",
            "value",
            "unit",
            "beside",
            "its value",
            "ratio",
            "goal",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "CPU ns",
        ];
        let busy = self.machine.is_busy();
        let rows = self.figures.iter().map(|figure| cells(figure, busy));
        table(header, [1, 4, 5, 6, 7, 8, 9, 10], rows)
    }
}

fn cells(figure: &Figure, busy: bool) -> [String; 11] {
    let goal = figure.goal.zip(figure.reaches_goal());
    let goal = goal.map_or_else(String::new, |(goal, reached)| {
        let word = match (busy, reached) {
            (true, _) => "busy",
            (false, true) => "yes",
            (false, false) => "no",
        };
        format!("{goal}: {word}")
    });
    let latency = |of: fn(&crate::figure::Latency) -> f64| {
        let latency = figure.latency_us.as_ref();
        latency.map_or_else(String::new, |latency| readable(of(latency)))
    };
    [
        figure.name.clone(),
        readable(figure.value),
        figure.unit.clone(),
        figure.beside.what.clone(),
        readable(figure.beside.value),
        format!("{:.2}", figure.ratio),
        goal,
        latency(|latency| latency.p50),
        latency(|latency| latency.p99),
        latency(|latency| latency.p999),
        figure.cpu_ns.map_or_else(String::new, readable),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_reaches_no_goal() {
        let goal = Some(crate::figure::Goal::RatioAtLeast(0.5));
        let mut report = Report::begin();
        report.figures = vec![Figure {
            goal,
            ..Figure::of_rounds("x", "IOPS", true, "y", &[(1.0, 1.0)])
        }];
        (report.machine.cpus, report.machine.others) = (2, Some(0.1));
        assert!(report.table().contains(">= 0.50: yes"));
        report.machine.others = Some(1.0);
        assert!(report.table().contains(">= 0.50: busy"));
    }

    #[test]
    fn a_figure_without_a_number_is_named() {
        let mut report = Report::begin();
        report.figures = [("x", 1.0), ("y", 0.0)]
            .map(|(name, beside)| Figure::of_rounds(name, "IOPS", true, "z", &[(1.0, beside)]))
            .into();
        let error = report.check().unwrap_err().to_string();
        assert!(error.starts_with("y is not a number"), "{error}");
        report.figures.pop();
        assert!(report.check().is_ok());
    }

    #[test]
    fn a_report_is_read_back_as_it_was() {
        let mut report = Report::begin();
        report.begun = None;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.json");
        fs::write(&path, serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(Report::load(&path).unwrap(), report);
        fs::write(&path, "{}").unwrap();
        let error = Report::load(&path).unwrap_err().to_string();
        assert!(
            error.ends_with("is not a report of `peerbar-bench`"),
            "{error}"
        );
    }
}
