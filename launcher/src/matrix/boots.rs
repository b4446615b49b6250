//! The boots: each an ordinary `peerbar run` in a process of its own, several at once.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

use super::cell::Tried;
use super::kernel::KernelChoice;
use super::placement::Pair;
use crate::explain::observed_guest::ObservedGuest;
use crate::explain::recorded::Recorded;
use peerbar_lab::child::{Child, last_line};
use peerbar_lab::events::{Event, EventSource, Events};
use peerbar_lab::exit::{Failure, RunOutcome};
use peerbar_lab::folder::Folder;
use peerbar_lab::parent_death;
use peerbar_lab::progress::Progress;
use peerbar_lab::results::CheckResult;
use peerbar_lab::signals::Signals;

/// How long a run may take to end in order after it was asked to.
const END: Duration = Duration::from_secs(20);
/// How long to wait for any news; a run has a time limit of its own.
const NEWS: Duration = Duration::from_secs(3600);

/// A run to be made.
pub(super) struct Order {
    /// What it and its files are called.
    pub(super) name: String,
    /// Its scenario.
    pub(super) scenario: String,
}

/// What a run has left.
pub(super) struct Left {
    results: Vec<CheckResult>,
    guest: ObservedGuest,
    /// What is wrong with it beyond its checks.
    pub(super) flaw: Option<String>,
}

impl Left {
    /// What it has left of its check `index`, which tried `pair`; nothing if it ended before.
    pub(super) fn of(&self, index: usize, pair: Pair) -> Option<Tried> {
        Some(Tried {
            check: self.results.get(index)?.clone(),
            kernel: KernelChoice::of(&self.guest, pair),
        })
    }
}

/// Makes all runs of `orders`, `jobs` at a time, with their files in `folder`; `own` are words for each of their command
/// lines.
pub(super) fn run(
    orders: &[Order],
    own: &[OsString],
    jobs: usize,
    folder: &Folder,
    signals: &Signals,
) -> Result<(), Failure> {
    let mut progress = Progress::default();
    let mut events = Events::new(signals);
    let mut running: BTreeMap<usize, Child> = BTreeMap::new();
    let mut waiting = orders.iter().enumerate();
    let mut done: usize = 0;
    loop {
        for (index, order) in waiting.by_ref().take(jobs.saturating_sub(running.len())) {
            let child = start(order, own, folder)?;
            events.add_child(EventSource::Run(index), child.pidfd())?;
            running.insert(index, child);
            progress.stage(&format!(
                "boot {} of {}: {}",
                index.saturating_add(1),
                orders.len(),
                order.name
            ));
        }
        if running.is_empty() {
            return Ok(());
        }
        match events.next(Instant::now() + NEWS)? {
            Some(Event::Ended(EventSource::Run(index))) => {
                running.remove(&index);
                done = done.saturating_add(1);
                let name = orders.get(index).map_or("", |order| &order.name);
                progress.stage(&format!("{done} of {} are done: {name}", orders.len()));
            }
            Some(Event::Signal(signal)) => {
                for child in running.values_mut() {
                    child.end(END)?;
                }
                return Err(Failure::Interrupted(signal));
            }
            Some(_) | None => {}
        }
    }
}

fn start(order: &Order, own: &[OsString], folder: &Folder) -> Result<Child, Failure> {
    let scenario = format!("{}.toml", order.name);
    folder.write(&scenario, &order.scenario)?;
    let log = folder.file(&log_name(&order.name))?;
    let mut command =
        Command::new(std::env::current_exe().context("cannot find this program's own file")?);
    command.arg("run").arg(folder.path().join(&scenario));
    command
        .arg("--runs")
        .arg(folder.path().join(&order.name))
        .args(own);
    let mut wrapped = parent_death::wrapped(&command)?;
    wrapped
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("cannot share a log")?)
        .stderr(log);
    Ok(Child::spawn(wrapped)?)
}

fn log_name(order: &str) -> String {
    format!("{order}.log")
}

/// Where the run called `name` has its files.
pub(super) fn folder_of(name: &str, folder: &Path) -> PathBuf {
    folder.join(name).join("latest")
}

/// What the run called `name` has left.
///
/// # Errors
/// What it said last, if it has left nothing.
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
