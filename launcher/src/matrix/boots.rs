//! The boots: each an ordinary `peerbar run` in a separate process, several at once.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use anyhow::anyhow;

use super::cell::Tried;
use super::kernel::KernelChoice;
use super::placement::Pair;
use crate::explain::observed_guest::ObservedGuest;
use crate::explain::recorded::Recorded;
use crate::jobs::{self, Jobs};
use peerbar_lab::child::{Child, last_line};
use peerbar_lab::exit::{Failure, RunOutcome};
use peerbar_lab::folder::Folder;
use peerbar_lab::progress::Progress;
use peerbar_lab::results::CheckResult;
use peerbar_lab::signals::Signals;

/// A run to be made.
pub(super) struct Order {
    /// Its name, which is also that of its files.
    pub(super) name: String,
    /// Its scenario.
    pub(super) scenario: String,
}

/// The results of a run.
pub(super) struct Left {
    results: Vec<CheckResult>,
    guest: ObservedGuest,
    /// A problem outside of its checks.
    pub(super) flaw: Option<String>,
}

impl Left {
    /// Returns its result of the check `index`, which tried `pair`, or `None` if it ended before.
    pub(super) fn of(&self, index: usize, pair: Pair) -> Option<Tried> {
        Some(Tried {
            check: self.results.get(index)?.clone(),
            kernel: KernelChoice::of(&self.guest, pair),
        })
    }
}

/// Makes all runs of `orders`, `most` at a time, with their files in `folder`; `own` are words for each of their command
/// lines.
pub(super) fn run(
    orders: &[Order],
    own: &[OsString],
    most: usize,
    folder: &Folder,
    signals: &Signals,
) -> Result<(), Failure> {
    let mut boots = Boots {
        orders,
        own,
        folder,
        progress: Progress::default(),
        done: 0,
    };
    match jobs::run(&mut boots, most, signals)? {
        Some(signal) => Err(Failure::Interrupted(signal)),
        None => Ok(()),
    }
}

/// The boots as jobs.
struct Boots<'a> {
    orders: &'a [Order],
    own: &'a [OsString],
    folder: &'a Folder,
    progress: Progress,
    done: usize,
}

impl Jobs for Boots<'_> {
    fn start(&mut self, number: usize) -> Result<Option<Child>, Failure> {
        let Some(order) = self.orders.get(number) else {
            return Ok(None);
        };
        let child = start(order, self.own, self.folder)?;
        self.progress.stage(&format!(
            "boot {} of {}: {}",
            number.saturating_add(1),
            self.orders.len(),
            order.name
        ));
        Ok(Some(child))
    }

    fn ended(&mut self, number: usize, _status: ExitStatus) -> Result<(), Failure> {
        self.done = self.done.saturating_add(1);
        let name = self.orders.get(number).map_or("", |order| &order.name);
        let (done, all) = (self.done, self.orders.len());
        self.progress
            .stage(&format!("{done} of {all} are done: {name}"));
        Ok(())
    }
}

fn start(order: &Order, own: &[OsString], folder: &Folder) -> Result<Child, Failure> {
    let scenario = format!("{}.toml", order.name);
    folder.write(&scenario, &order.scenario)?;
    let log = folder.file(&log_name(&order.name))?;
    let (file, runs) = (
        folder.path().join(scenario),
        folder.path().join(&order.name),
    );
    let words = [
        OsString::from("run"),
        file.into(),
        "--runs".into(),
        runs.into(),
    ];
    jobs::start(&[&words, own].concat(), &log)
}

fn log_name(order: &str) -> String {
    format!("{order}.log")
}

/// Returns the folder of the run `name`.
pub(super) fn folder_of(name: &str, folder: &Path) -> PathBuf {
    folder.join(name).join("latest")
}

/// Returns the results of the run `name`.
///
/// # Errors
/// The last output of a run without results.
pub(super) fn left(name: &str, folder: &Path) -> anyhow::Result<Left> {
    let error = || {
        let words = last_line(&folder.join(log_name(name)));
        anyhow!("the boot has no results: {words}")
    };
    let run = Recorded::read(&folder_of(name, folder)).map_err(|_| error())?;
    let failed = run.verdict.outcome != RunOutcome::Passed;
    let beyond = failed && run.results.iter().all(CheckResult::passed);
    Ok(Left {
        results: run.results,
        guest: ObservedGuest::of(run.evidence).ok_or_else(error)?,
        flaw: beyond.then_some(run.verdict.reason),
    })
}
