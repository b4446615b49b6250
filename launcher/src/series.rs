//! `peerbar run`: the runs of one or more scenarios, repeated or in shards.

mod parallel;

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use peerbar_lab::debugger;
use peerbar_lab::exit::{Failure, RunOutcome};
use peerbar_lab::runs::{RunName, Runs};
use peerbar_lab::scenario::Scenario;
use peerbar_lab::signals::Signals;
use peerbar_lab::terminal::{print, say};
use peerbar_results::{Shard, ShardItem, ShardPlan, ShardedList};

use crate::cli;
use crate::group;
use crate::run::{self, EndedRun};
use crate::runnable::Runnable;

/// Executes the runs of `options`. All scenarios are read before the first starts.
pub(crate) fn run(options: &cli::Run) -> Result<ExitCode, Failure> {
    // One for the whole life of the process.
    let signals: &'static Signals = Box::leak(Box::new(Signals::new()?));
    let mut scenarios = scenarios(options)?;
    if options.dry_run {
        for scenario in &scenarios {
            run::dry_run(options, scenario, signals)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(shard) = options.shard {
        let names = distinct(scenarios.iter().map(|scenario| scenario.name().to_owned()))?;
        let results = results_of_each(options);
        let items = names.into_iter().map(|name| ShardItem { name, results });
        write_plan(
            ShardedList::Scenarios,
            shard,
            items.collect(),
            &options.runs,
        )?;
        scenarios = shard.part(scenarios);
        if scenarios.is_empty() {
            print(&format!("shard {shard} has no scenario\n"))?;
        }
    }
    named_once(options.runs.name.as_ref(), scenarios.len())?;
    options.runs.check()?;
    if options.jobs.get() > 1 {
        return parallel::run(options, &scenarios, signals);
    }
    let mut series = Series::default();
    let mut rounds = 0;
    while !scenarios.is_empty() && wants_more(options, rounds) && !series.ends(options.until_fail) {
        rounds += 1;
        for scenario in &scenarios {
            let done = match scenario {
                Runnable::Single(scenario) => run::run(options, scenario, signals),
                Runnable::Group(group) => group::run(options, group, signals),
            };
            series.take(scenario.name(), done)?;
            if series.ends(options.until_fail) {
                break;
            }
        }
    }
    print(&series.summary())?;
    Ok(ExitCode::from(series.code()))
}

fn scenarios(options: &cli::Run) -> Result<Vec<Runnable>, Failure> {
    if let Some(port) = separate_port(options) {
        return Err(Failure::Usage(anyhow!(
            "{port} is not a scenario: write a port as --gdb={port}"
        )));
    }
    let mut scenarios = match options.scenarios.as_slice() {
        [] => vec![Runnable::of_one(Scenario::demo()?)],
        paths => {
            let read = paths.iter().map(|path| Runnable::load(path));
            read.collect::<Result<_, _>>()?
        }
    };
    for scenario in &mut scenarios {
        if let Some(timeout) = options.timeout {
            scenario.set_timeout(timeout.0);
        }
        if let Some(port) = options.gdb {
            debugger::check_port(port)?;
            scenario.only_guest("--gdb")?.timeout = debugger::NO_LIMIT;
        }
        if let Runnable::Single(scenario) = scenario {
            scenario.live = options.verbose;
        }
        scenario.serve_disks_by(options.workers, options.poll);
        scenario
            .select_checks(&options.checks)
            .map_err(Failure::Usage)?;
        if options.trace {
            scenario.trace();
        }
        if options.keep {
            scenario.prepare_to_keep()?;
        }
    }
    Ok(scenarios)
}

/// Returns a port that does not follow `--gdb` by `=`, so that it is taken for a scenario.
fn separate_port(options: &cli::Run) -> Option<u16> {
    let scenarios = options.scenarios.iter().filter(|path| !path.exists());
    let mut ports = scenarios.filter_map(|path| path.to_str()?.parse().ok());
    options.gdb.and(ports.next())
}

/// Returns the names of the runs in shards. A merge finds the missing ones by them.
fn distinct(names: impl Iterator<Item = String>) -> Result<Vec<String>, Failure> {
    let mut items: Vec<String> = Vec::new();
    for name in names {
        if items.contains(&name) {
            return Err(Failure::Usage(anyhow!(
                "two scenarios are called `{name}`, and a merge of shards knows them by their names: rename one"
            )));
        }
        items.push(name);
    }
    Ok(items)
}

/// Rejects one name for the folders of several scenarios. Clap rejects it for repeated runs.
fn named_once(name: Option<&RunName>, scenarios: usize) -> Result<(), Failure> {
    match name {
        Some(_) if scenarios > 1 => Err(Failure::Usage(anyhow!(
            "--name is for the folder of one run, and {scenarios} scenarios are asked for: leave it out, or name a folder for all of \
             them by --runs"
        ))),
        _ => Ok(()),
    }
}

/// Returns `true` if another round must follow this number of them, provided that nothing has
/// failed.
fn wants_more(options: &cli::Run, rounds: u32) -> bool {
    match options.repeat {
        Some(most) => rounds < most.get(),
        None => options.until_fail || rounds == 0,
    }
}

/// Returns the number of results that a scenario has at the end, or at least.
fn results_of_each(options: &cli::Run) -> usize {
    let repeat = options.repeat.filter(|_| !options.until_fail);
    repeat.map_or(1, |most| usize::try_from(most.get()).unwrap_or(usize::MAX))
}

/// Writes the items of all shards, and the series of this one, into the folder of all runs.
pub(crate) fn write_plan(
    of: ShardedList,
    shard: Shard,
    items: Vec<ShardItem>,
    runs: &Runs,
) -> anyhow::Result<()> {
    let folder = &runs.folder;
    let plan = ShardPlan {
        of,
        shard,
        series: runs.series().id().to_owned(),
        items,
    };
    let path = folder.join(plan.file_name());
    let text = serde_json::to_string_pretty(&plan).context("cannot write the shard's plan")?;
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    fs::write(&path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}

/// The results of the runs so far.
#[derive(Default)]
struct Series {
    runs: usize,
    /// Those that did not pass: exit code, and a line about each.
    failed: Vec<(u8, String)>,
    interrupted: bool,
}

impl Series {
    /// Adds a run of the scenario `name`. The reason why it did not run is printed immediately if
    /// others may follow.
    fn take(&mut self, name: &str, run: Result<EndedRun, Failure>) -> Result<(), Failure> {
        match &run {
            Err(Failure::Interrupted(signal)) => return Err(Failure::Interrupted(*signal)),
            Err(failure) => say(format_args!("peerbar: {failure}")),
            Ok(_) => {}
        }
        self.note(name, run);
        Ok(())
    }

    /// Adds a run of the scenario `name`.
    fn note(&mut self, name: &str, run: Result<EndedRun, Failure>) {
        self.runs += 1;
        match run {
            Ok(EndedRun { outcome, folder }) => {
                self.interrupted |= matches!(outcome, RunOutcome::Interrupted(_));
                if outcome != RunOutcome::Passed {
                    let line = format!("{name}: {outcome}, see {}", folder.display());
                    self.failed.push((outcome.code(), line));
                }
            }
            Err(failure) => {
                let line = format!("{name}: not run: {failure}");
                self.failed.push((failure.code(), line));
            }
        }
    }

    /// Returns `true` if no run must follow.
    fn ends(&self, until_fail: bool) -> bool {
        self.interrupted || until_fail && !self.failed.is_empty()
    }

    /// Returns the code of the first run that did not pass.
    fn code(&self) -> u8 {
        let first = self.failed.first().map(|(code, _)| *code);
        first.unwrap_or(RunOutcome::Passed.code())
    }

    /// Returns the number of passed runs, and the failed ones; an empty text for a single run,
    /// which has printed it itself.
    fn summary(&self) -> String {
        if self.runs < 2 {
            return String::new();
        }
        let passed = self.runs.saturating_sub(self.failed.len());
        let failed = self.failed.iter().map(|(_, line)| format!("  {line}\n"));
        let failed: String = failed.collect();
        format!("{passed} of {} runs passed\n{failed}", self.runs)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::Parser;

    use super::*;

    fn options(words: &[&str]) -> cli::Run {
        let words = [&["peerbar", "run"], words].concat();
        match cli::Cli::parse_from(words).command {
            cli::Command::Run(options) => options,
            _ => panic!("not a run"),
        }
    }

    fn rounds(words: &[&str]) -> usize {
        let options = options(words);
        (0..100)
            .take_while(|round| wants_more(&options, *round))
            .count()
    }

    #[test]
    fn number_of_rounds_is_that_of_the_options() {
        assert_eq!(rounds(&[]), 1);
        assert_eq!(rounds(&["--repeat", "7"]), 7);
        assert_eq!(rounds(&["--until-fail"]), 100);
        assert_eq!(rounds(&["--until-fail", "--repeat", "3"]), 3);
    }

    #[test]
    fn port_behind_a_blank_is_no_scenario() {
        let port = |words: &[&str]| separate_port(&options(words));
        assert_eq!(port(&["--gdb", "1234"]), Some(1234));
        assert_eq!(port(&["--gdb=1234"]), None);
        assert_eq!(port(&["--gdb", "my.toml"]), None);
        assert_eq!(port(&["1234"]), None);
    }

    #[test]
    fn name_is_for_one_run() {
        let name: RunName = "x".parse().unwrap();
        assert!(named_once(Some(&name), 1).is_ok() && named_once(None, 3).is_ok());
        let message = named_once(Some(&name), 2).unwrap_err().to_string();
        assert!(
            message.starts_with("--name is for the folder of one run, and 2 "),
            "{message}"
        );
    }

    #[test]
    fn number_of_results_is_that_of_the_rounds() {
        assert_eq!(results_of_each(&options(&[])), 1);
        assert_eq!(results_of_each(&options(&["--repeat", "7"])), 7);
        assert_eq!(
            results_of_each(&options(&["--until-fail", "--repeat", "3"])),
            1
        );
    }

    fn series(outcomes: &[RunOutcome]) -> Series {
        let mut series = Series::default();
        for &outcome in outcomes {
            let folder = PathBuf::from("runs/x");
            series
                .take("demo", Ok(EndedRun { outcome, folder }))
                .unwrap();
        }
        series
    }

    #[test]
    fn series_fails_with_the_first_failure() {
        let mut mixed = series(&[RunOutcome::Passed, RunOutcome::TimedOut, RunOutcome::Failed]);
        let broken = Err(Failure::Environment(anyhow!("no memory")));
        mixed.take("demo", broken).unwrap();
        let expected = "1 of 4 runs passed\n  demo: timed out, see runs/x\n  demo: failed, see runs/x\n  demo: not run: no \
                        memory\n";
        assert_eq!((mixed.code(), mixed.summary().as_str()), (124, expected));
        assert!(mixed.ends(true) && !mixed.ends(false));
    }

    #[test]
    fn shards_have_no_two_items_of_one_name() {
        let names = |names: [&str; 3]| distinct(names.map(str::to_owned).into_iter());
        assert_eq!(names(["a", "b", "c"]).unwrap().len(), 3);
        let error = names(["a", "b", "a"]).unwrap_err().to_string();
        assert!(error.contains("two scenarios are called `a`"), "{error}");
    }

    #[test]
    fn single_run_has_no_summary_and_its_own_code() {
        let single = series(&[RunOutcome::GuestDied]);
        assert_eq!((single.code(), single.summary()), (255, String::new()));
        assert_eq!(series(&[]).code(), 0);
    }

    #[test]
    fn signal_ends_a_series() {
        assert!(series(&[RunOutcome::Interrupted(2)]).ends(false));
        assert!(!series(&[RunOutcome::Passed]).ends(true));
    }

    #[test]
    fn broken_scenario_is_refused_before_the_first_run() {
        let options = options(&["../scenarios/demo.toml", "no/such.toml"]);
        let message = scenarios(&options).err().unwrap().to_string();
        assert!(message.contains("no/such.toml"), "{message}");
    }
}
