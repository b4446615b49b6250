//! The runs and matrices that are reported together, read from their folders, and the results that
//! are missing.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use peerbar_lab::exit::RunOutcome;
use peerbar_lab::finished_run::VERDICT;
use peerbar_lab::group_of;
use peerbar_lab::results::{CheckResult, CheckStatus, FORMAT, RESULTS, RunResults, SubtestResult};
use peerbar_lab::run_file;
use peerbar_lab::started::{STARTED, Started};
use peerbar_report::{Nested, Pair, PciFunction};
use serde::de::DeserializeOwned;

use crate::matrix::{MATRIX, MatrixFile, MatrixResults};
use crate::shard::{ShardPlan, ShardedList};
use crate::shard_series::ShardSeries;

/// Lines of a console's end that represent it if there is no room for all of them, and characters
/// of each.
const TAIL: usize = 60;
const LONGEST_LINE: usize = 400;
/// The most bytes of a console's start, and of its end, that are kept: a guest may print forever.
const MOST_CONSOLE: usize = 256 << 10;
/// Depth below a folder to which runs are searched for: folders of a CI's artifacts, of the runs,
/// of a matrix, of its boots.
const DEPTH: usize = 5;

/// The reasons why a run has no verdict.
const UNENDED: &str = "has not ended, or peerbar was killed";

/// Runs and matrices that are reported together.
#[derive(Clone, Debug, Default)]
pub struct Collection {
    /// The runs, in the order of their start.
    pub runs: Vec<ReportedRun>,
    /// The matrices, one for each kind of tested device.
    pub matrices: Vec<MatrixResults>,
    /// Results that shards should have but lack, one line each.
    pub missing: Vec<String>,
}

/// A run, with everything that a report shows of it.
#[derive(Clone, Debug)]
pub struct ReportedRun {
    /// Its folder.
    pub folder: PathBuf,
    /// Its results.
    pub results: RunResults,
    /// The PCI functions that its guest found.
    pub functions: Vec<PciFunction>,
    /// The guest's console, without its middle if it is long.
    pub console: String,
    /// The reasons for the routes of DMA between its devices.
    pub explanations: Vec<Explained>,
    /// Failed DMA, and the reasons, by device.
    pub faults: Vec<Explained>,
}

/// A text with a title.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explained {
    /// Its subject, in a line.
    pub title: String,
    /// The explanation, in lines.
    pub text: String,
    /// The pair of devices that it explains, if it explains a pair.
    pub pair: Option<Pair>,
    /// The reason why the kernel refuses peer-to-peer DMA between the two, if it does.
    pub refusal: Option<Refusal>,
}

/// The reason why the kernel refuses peer-to-peer DMA between two devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The deciding component, and the reason, in a few words.
    pub reason: String,
    /// The kernel's messages about it.
    pub kernel: Vec<String>,
    /// The smallest change that helps, if one is known.
    pub change: Option<String>,
}

impl ReportedRun {
    /// Returns a run with `results` and nothing else.
    pub fn of(results: RunResults) -> Self {
        Self {
            folder: PathBuf::new(),
            results,
            functions: Vec::new(),
            console: String::new(),
            explanations: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// Reads the run in `folder`, without functions, explanations and faults: the caller that
    /// explains the run adds them. The folder may lack the file `verdict`.
    ///
    /// # Errors
    /// It has no results, or results of another format, or contradictory ones: a guest has changed
    /// them so that one part says that the run passed and another that it did not. It is the folder
    /// of one guest of several, whose results do not have the verdict on the run.
    fn read(folder: &Path) -> anyhow::Result<Self> {
        if let Some(group) = group_of(folder)? {
            bail!(
                "{}: only the results of one guest are there, without the verdict on the run: name the folder {}",
                folder.display(),
                group.display()
            );
        }
        let results: RunResults = json(&folder.join(RESULTS))?;
        if results.format != FORMAT {
            let folder = folder.display();
            bail!(
                "{folder}: its results are of format {}, this peerbar reads format {FORMAT}",
                results.format
            );
        }
        compare_verdict(folder, RESULTS, &results.verdict.to_string())?;
        if let Some(contradiction) = contradiction(&results) {
            let file = folder.join(RESULTS);
            bail!(
                "{}: {contradiction}: no run leaves that, so the file was changed",
                file.display()
            );
        }
        let console = run_file::read(&folder.join("console.log")).unwrap_or_default();
        Ok(Self {
            folder: folder.to_owned(),
            console: without_middle(&console),
            ..Self::of(results)
        })
    }

    /// Returns the explanations of the pairs of a check, with their numbers from 0.
    pub fn explanations_of<'a>(
        &'a self,
        check: &'a CheckResult,
    ) -> impl Iterator<Item = (usize, &'a Explained)> {
        let all = self.explanations.iter().enumerate();
        all.filter(|(_, explained)| {
            let pair = explained.pair.as_ref();
            pair.is_some_and(|pair| check.pairs.contains(pair))
        })
    }

    /// Returns the checks that failed, with their numbers from 0.
    pub fn failed(&self) -> impl Iterator<Item = (usize, &CheckResult)> {
        let checks = self.results.checks.iter().enumerate();
        checks.filter(|(_, check)| check.verdict == CheckStatus::Fail)
    }

    /// Returns the reasons why the kernel refuses DMA between the devices of failed checks, once
    /// for each of these checks.
    pub fn refusals(&self) -> impl Iterator<Item = &Refusal> {
        let explained = self
            .failed()
            .flat_map(|(_, check)| self.explanations_of(check));
        explained.filter_map(|(_, one)| one.refusal.as_ref())
    }

    /// Returns the kernel's messages about the [refusals](Self::refusals), each line once.
    pub fn kernel_words(&self) -> Vec<&str> {
        let mut words: Vec<&str> = Vec::new();
        for line in self.refusals().flat_map(|refusal| &refusal.kernel) {
            if !words.contains(&line.as_str()) {
                words.push(line);
            }
        }
        words
    }

    /// Returns the last lines of the console.
    pub fn console_tail(&self) -> String {
        let lines: Vec<&str> = self.console.lines().collect();
        let from = lines.len().saturating_sub(TAIL);
        let last = lines.get(from..).unwrap_or_default().iter();
        let last = last.map(|line| match line.char_indices().nth(LONGEST_LINE) {
            Some((end, _)) => format!("{}…", line.get(..end).unwrap_or(line)),
            None => (*line).to_owned(),
        });
        last.collect::<Vec<_>>().join("\n")
    }
}

/// Returns the start and the end of a console, with a note of the omitted part between them.
fn without_middle(console: &[u8]) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let Some(omitted) = console
        .len()
        .checked_sub(2 * MOST_CONSOLE)
        .filter(|more| *more > 0)
    else {
        return text(console);
    };
    let (start, rest) = console.split_at(MOST_CONSOLE);
    let (_, end) = rest.split_at(omitted);
    format!(
        "{}\n[{omitted} bytes are left out here: console.log has them]\n{}",
        text(start),
        text(end)
    )
}

impl Collection {
    /// Reads `folders`, each of a run or of a matrix that has ended.
    ///
    /// # Errors
    /// A folder that has neither, or lacks the file `verdict`.
    pub fn read(folders: &[PathBuf]) -> anyhow::Result<Self> {
        let mut collection = Self::default();
        for folder in folders {
            collection.add(folder)?;
            if let Some(line) = without_verdict(folder) {
                bail!(line);
            }
        }
        Ok(collection)
    }

    /// Reads the run or matrix in `folder`, as the process that makes it does before it writes the
    /// file `verdict`.
    ///
    /// # Errors
    /// The folder has neither.
    pub fn read_before_verdict(folder: &Path) -> anyhow::Result<Self> {
        let mut collection = Self::default();
        collection.add(folder)?;
        Ok(collection)
    }

    /// Adds the run or matrix in `folder`.
    fn add(&mut self, folder: &Path) -> anyhow::Result<()> {
        let shown = folder.display();
        if folder.join(MATRIX).exists() {
            self.add_matrix(MatrixResults::read(folder)?);
        } else if folder.join(RESULTS).exists() {
            self.runs.push(ReportedRun::read(folder)?);
        } else if let Some(verdict) = verdict_without_results(folder) {
            bail!(
                "{shown}: the run has no results: {verdict}; its console.log and qemu.log say more"
            );
        } else if !folder.exists() {
            bail!("{shown}: no run found: run a scenario, or name the folder of a run");
        } else {
            bail!(
                "{shown}: neither {RESULTS} nor {MATRIX} is there: name the folder of a run or of a matrix, or look below \
                 it with --merge"
            );
        }
        Ok(())
    }

    /// Reads all runs, matrices and plans of shards below `folders`, and finds the results that the
    /// plans lack. Leaves out results of other series than the plans'. The boots of a matrix do not
    /// count as runs, and links are not followed.
    ///
    /// # Errors
    /// A folder without any of them, or plans of shards that do not belong together.
    pub fn merge(folders: &[PathBuf]) -> anyhow::Result<Self> {
        let mut found = FoundRuns::default();
        for folder in folders {
            let before = found.count();
            found.look(folder, DEPTH)?;
            if found.count() == before {
                bail!(
                    "{}: no run, matrix or plan of a shard is in it: name the folder that --runs named",
                    folder.display()
                );
            }
        }
        let [scenarios, matrix] = [ShardedList::Scenarios, ShardedList::Matrix]
            .map(|of| ShardSeries::of(of, &found.plans));
        let (scenarios, matrix) = (scenarios?, matrix?);
        let mut collection = Self::default();
        let mut parts = Vec::new();
        for folder in found.folders {
            if folder.join(MATRIX).exists() {
                let part = MatrixResults::read(&folder)?;
                if matrix.has(part.series.as_deref(), &folder) {
                    parts.push(part);
                }
            } else {
                let run = ReportedRun::read(&folder)?;
                if scenarios.has(run.results.series.as_deref(), &folder) {
                    collection.runs.push(run);
                }
            }
        }
        for (series, folder, line) in found.unended {
            if scenarios.has(series.as_deref(), &folder) || matrix.has(series.as_deref(), &folder) {
                collection.missing.push(line);
            }
        }
        collection.runs.sort_by_key(|run| run.results.started);
        let runs = collection.runs.iter();
        let runs = runs.map(|run| (run.results.series.as_deref(), run.results.scenario.clone()));
        let mut missing = scenarios.missing(runs);
        let cells = parts.iter().flat_map(|part| {
            let boots = part.cells.iter();
            boots.map(|cell| {
                (
                    part.series.as_deref(),
                    format!("{}, {}", cell.cpu, cell.iommu),
                )
            })
        });
        missing.extend(matrix.missing(cells));
        collection.missing.extend(missing);
        parts
            .into_iter()
            .for_each(|part| collection.add_matrix(part));
        Ok(collection)
    }

    /// Returns the name of each run among the others: its scenario, with a number if that was run
    /// several times.
    pub fn run_names(&self) -> Vec<String> {
        let scenarios: Vec<&str> = self.runs.iter().map(|run| &*run.results.scenario).collect();
        let count = |of: &[&str], name| of.iter().filter(|other| **other == name).count();
        let names = scenarios.iter().enumerate().map(|(index, &name)| {
            let earlier = scenarios.get(..index).unwrap_or_default();
            match count(&scenarios, name) {
                1 => name.to_owned(),
                _ => format!("{name} #{}", count(earlier, name).saturating_add(1)),
            }
        });
        names.collect()
    }

    /// Returns `true` if everything passed, and nothing is missing.
    pub fn is_passed(&self) -> bool {
        let runs = self.runs.iter().all(|run| run.results.exit_code == 0);
        runs && self.matrices.iter().all(MatrixResults::is_passed) && self.missing.is_empty()
    }

    /// Adds a matrix to the one of the same kind of devices, if there is one: the parts of shards.
    fn add_matrix(&mut self, matrix: MatrixResults) {
        let same = |other: &&mut MatrixResults| other.device == matrix.device;
        match self.matrices.iter_mut().find(same) {
            Some(first) => first.add(matrix),
            None => self.matrices.push(matrix),
        }
    }
}

/// Returns a contradiction in `results` that no run can have left, if there is one.
fn contradiction(results: &RunResults) -> Option<String> {
    let RunResults {
        verdict, exit_code, ..
    } = results;
    if *exit_code != verdict.outcome.code() {
        return Some(format!(
            "the exit code is {exit_code}, and the verdict `{verdict}`"
        ));
    }
    let failed = results.checks.iter().find(|check| !check.passed());
    let part = results.checks.iter().find_map(failed_part);
    let wrong = match (failed, results.not_run.first(), part) {
        (Some(check), ..) => Some(format!("`{}` did not pass", check.name)),
        (None, Some(name), _) => Some(format!("`{name}` was not run")),
        (None, None, part) => part.map(|name| format!("`{name}` failed")),
    };
    let has_passed = verdict.outcome == RunOutcome::Passed;
    let wrong = wrong.filter(|_| has_passed);
    wrong.map(|wrong| format!("the verdict is `{verdict}`, and {wrong}"))
}

/// Returns the name of a failed subtest.
fn failed_part(check: &CheckResult) -> Option<String> {
    let mut parts = SubtestResult::leaves(&check.subtests).into_iter();
    let (name, _) = parts.find(|(_, part)| part.verdict == CheckStatus::Fail)?;
    Some(format!("{} / {name}", check.name))
}

/// Compares the file `verdict` in `folder` with the `verdict` in `file` of it. The folder may lack
/// the former: it is written after the results are read for the first time.
///
/// # Errors
/// They differ, or the file cannot be read.
fn compare_verdict(folder: &Path, file: &str, verdict: &str) -> anyhow::Result<()> {
    let last = match run_file::read_to_string(&folder.join(VERDICT)) {
        Ok(last) => last,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => error.to_string(),
    };
    let (last, verdict) = (last.trim_end(), verdict.trim_end());
    ensure!(
        last == verdict,
        "{}: {file} says `{verdict}`, and the file {VERDICT} `{last}`: the run could not be stored, or one was changed",
        folder.display()
    );
    Ok(())
}

/// Returns a line about the results in `folder` if they lack the file `verdict`, the last one of a
/// run: a guest may have removed it and changed the results.
fn without_verdict(folder: &Path) -> Option<String> {
    let is_missing = !folder.join(VERDICT).exists();
    is_missing.then(|| {
        format!(
            "{}: the file {VERDICT} is missing, so the run {UNENDED}: wait for its end, or run it again",
            folder.display()
        )
    })
}

/// The contents of the folders of a merge.
#[derive(Default)]
struct FoundRuns {
    folders: BTreeSet<PathBuf>,
    plans: Vec<ShardPlan>,
    /// Runs that have begun and have no results, or no verdict: the series, the folder, and a line
    /// about each.
    unended: Vec<(Option<String>, PathBuf, String)>,
}

impl FoundRuns {
    fn count(&self) -> usize {
        self.folders.len() + self.plans.len() + self.unended.len()
    }

    fn look(&mut self, folder: &Path, depth: usize) -> anyhow::Result<()> {
        let has_results = folder.join(RESULTS).exists() || folder.join(MATRIX).exists();
        let line = match has_results {
            true => without_verdict(folder),
            false => verdict_without_results(folder)
                .map(|verdict| format!("{}: {verdict}", folder.display())),
        };
        if let Some(line) = line {
            let series = Started::read(folder)
                .ok()
                .and_then(|started| started.series);
            self.unended.push((series, folder.to_owned(), line));
            return Ok(());
        }
        if has_results {
            self.folders.insert(folder.to_owned());
            return Ok(());
        }
        let entries = fs::read_dir(folder)
            .with_context(|| format!("cannot read the folder {}", folder.display()))?;
        let mut paths = Vec::new();
        for entry in entries {
            paths.push(entry?.path());
        }
        paths.sort();
        for path in paths {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_symlink() {
                continue;
            } else if path.is_dir() && depth > 0 {
                self.look(&path, depth.saturating_sub(1))?;
            } else if name.contains("-shard-") && name.ends_with(".json") {
                self.plans.push(json(&path)?);
            }
        }
        Ok(())
    }
}

/// Describes how the run in `folder` ended, or that it has not ended: the run has no results.
/// Returns `None` if there is no run.
fn verdict_without_results(folder: &Path) -> Option<String> {
    if !folder.join(STARTED).exists() {
        return None;
    }
    let verdict = run_file::read_to_string(&folder.join(VERDICT));
    Some(match verdict {
        Ok(verdict) if verdict.trim().is_empty() => "its verdict could not be stored".to_owned(),
        Ok(verdict) => verdict.trim_end().to_owned(),
        Err(_) => format!("it {UNENDED}"),
    })
}

fn json<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = run_file::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).map_err(|error| {
        let reason = match error.is_eof() {
            true => "is cut short, so the run could not be stored",
            false => "is not of this version of peerbar",
        };
        anyhow!(error).context(format!("{} {reason}", path.display()))
    })
}

impl MatrixResults {
    /// Reads the matrix in `folder`, which may lack the file `verdict`.
    ///
    /// # Errors
    /// It is missing, has another format, or contradicts the file `verdict`.
    fn read(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(MATRIX);
        let file: MatrixFile = json(&path)?;
        let matrix = file
            .into_matrix()
            .with_context(|| format!("cannot read {}", path.display()))?;
        let outcome = match matrix.is_passed() {
            true => RunOutcome::Passed,
            false => RunOutcome::Failed,
        };
        compare_verdict(folder, MATRIX, &outcome.to_string())?;
        Ok(matrix)
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use crate::samples;
    use crate::shard::ShardItem;

    /// Writes a run of the series "series".
    fn write_run(folder: &Path, scenario: &str) {
        write_run_of("series", folder, scenario);
    }

    fn write_run_of(series: &str, folder: &Path, scenario: &str) {
        fs::create_dir_all(folder).unwrap();
        let run = RunResults {
            scenario: scenario.to_owned(),
            series: Some(series.to_owned()),
            ..samples::run()
        };
        store(folder, &run);
    }

    /// Writes results and their verdict.
    fn store(folder: &Path, run: &RunResults) {
        let text = serde_json::to_string(run).unwrap();
        fs::write(folder.join(RESULTS), text).unwrap();
        fs::write(folder.join(VERDICT), run.verdict.to_string()).unwrap();
    }

    fn write_plan(folder: &Path, shard: &str, items: &[&str]) {
        write_plan_of(ShardedList::Scenarios, folder, shard, items, 1);
    }

    fn write_plan_of(of: ShardedList, folder: &Path, shard: &str, items: &[&str], results: usize) {
        fs::create_dir_all(folder).unwrap();
        let item = |name: &&str| ShardItem {
            name: (*name).to_owned(),
            results,
        };
        let plan = ShardPlan {
            of,
            shard: shard.parse().unwrap(),
            series: "series".to_owned(),
            items: items.iter().map(item).collect(),
        };
        let text = serde_json::to_string(&plan).unwrap();
        fs::write(folder.join(plan.file_name()), text).unwrap();
    }

    fn write_started(folder: &Path) {
        let versions = serde_json::to_value(samples::run().versions).unwrap();
        let started = serde_json::json!({ "command": [], "process": 1, "series": "series", "versions": versions });
        fs::write(folder.join(STARTED), started.to_string()).unwrap();
    }

    #[test]
    fn lost_repeat_is_missed() {
        let all = tempfile::tempdir().unwrap();
        write_plan_of(ShardedList::Scenarios, all.path(), "1/1", &["a", "b"], 2);
        for folder in ["1-a", "2-b", "3-a"] {
            let (_, scenario) = folder.split_at(2);
            write_run(&all.path().join(folder), scenario);
        }
        let merged = Collection::merge(&[all.path().to_owned()]).unwrap();
        assert_eq!(
            merged.missing,
            ["scenarios: b (shard 1/1 has 1 of 2 results of it)"]
        );
    }

    #[test]
    fn result_of_another_series_is_left_out() {
        let all = tempfile::tempdir().unwrap();
        write_plan(all.path(), "1/1", &["a", "b"]);
        write_run(&all.path().join("2-a"), "a");
        write_run_of("former", &all.path().join("1-b"), "b");
        let merged = Collection::merge(&[all.path().to_owned()]).unwrap();
        assert_eq!(merged.run_names(), ["a"]);
        assert_eq!(
            merged.missing,
            ["scenarios: b (shard 1/1 has no result of it)"]
        );
        write_run_of("former", &all.path().join("plain/1-b"), "b");
        let plain = Collection::merge(&[all.path().join("plain")]).unwrap();
        assert!(plain.missing.is_empty() && plain.runs.len() == 1);
    }

    #[test]
    fn results_that_contradict_themselves_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let read = |change: fn(&mut RunResults)| {
            let mut run = samples::run();
            change(&mut run);
            store(folder.path(), &run);
            let read = Collection::read(&[folder.path().to_owned()]);
            read.map(|collection| collection.is_passed())
                .map_err(|error| format!("{error:#}"))
        };
        assert_eq!(read(|_| {}), Ok(false));
        let code = read(|run| run.exit_code = 0).unwrap_err();
        let wanted = "results.json: the exit code is 0, and the verdict `timed out: ";
        assert!(code.contains(wanted), "{code}");
        let check = read(|run| {
            run.exit_code = 0;
            run.verdict.outcome = RunOutcome::Passed;
        });
        let check = check.unwrap_err();
        assert!(check.contains("and `copy #1` did not pass"), "{check}");
        fn pass(run: &mut RunResults) {
            run.exit_code = 0;
            run.verdict.outcome = RunOutcome::Passed;
            let checks = run.checks.iter_mut();
            checks.for_each(|check| check.verdict = CheckStatus::Pass);
        }
        let rest = read(pass).unwrap_err();
        assert!(rest.contains("and `reset` was not run"), "{rest}");
        let part = read(|run| {
            pass(run);
            run.not_run.clear();
        });
        let part = part.unwrap_err();
        assert!(
            part.contains("and `copy #1 / suite / second` failed"),
            "{part}"
        );
        fs::write(folder.path().join(RESULTS), "{\"format\": 1").unwrap();
        let cut = Collection::read(&[folder.path().to_owned()]).unwrap_err();
        assert!(format!("{cut:#}").contains("is cut short"), "{cut:#}");
        store(folder.path(), &samples::run());
        fs::write(folder.path().join(VERDICT), "passed: all\n").unwrap();
        let other = Collection::read(&[folder.path().to_owned()]).unwrap_err();
        assert!(
            other
                .to_string()
                .contains("and the file verdict `passed: all`: "),
            "{other}"
        );
    }

    #[test]
    fn run_without_its_verdict_is_not_reported() {
        let all = tempfile::tempdir().unwrap();
        let run = all.path().join("1-a");
        write_run(&run, "a");
        write_started(&run);
        write_plan(all.path(), "1/1", &["a"]);
        fs::remove_file(run.join(VERDICT)).unwrap();
        let line = format!(
            "{}: the file verdict is missing, so the run has not ended, or peerbar was killed: wait for its end, or run it again",
            run.display()
        );
        let error = Collection::read(std::slice::from_ref(&run)).unwrap_err();
        assert_eq!(error.to_string(), line);
        let merged = Collection::merge(&[all.path().to_owned()]).unwrap();
        assert_eq!(merged.missing[0], line);
        assert!(merged.runs.is_empty() && !merged.is_passed());
        let before = Collection::read_before_verdict(&run).unwrap();
        assert_eq!(before.runs.len(), 1);
    }

    #[test]
    fn matrix_without_its_verdict_or_with_another_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let matrix = samples::matrix();
        let file = serde_json::json!({ "format": 1, "exit_code": 1, "matrix": matrix });
        fs::write(folder.path().join(MATRIX), file.to_string()).unwrap();
        let read =
            || Collection::read(&[folder.path().to_owned()]).map_err(|error| error.to_string());
        let missing = read().unwrap_err();
        assert!(
            missing.contains(": the file verdict is missing, "),
            "{missing}"
        );
        let verdict = folder.path().join(VERDICT);
        fs::write(&verdict, "passed\n").unwrap();
        let other = read().unwrap_err();
        let wanted = "matrix.json says `failed`, and the file verdict `passed`: ";
        assert!(other.contains(wanted), "{other}");
        fs::write(&verdict, "failed\n").unwrap();
        assert_eq!(read().unwrap().matrices.len(), 1);
    }

    #[test]
    fn half_a_boot_of_a_matrix_is_missed() {
        let all = tempfile::tempdir().unwrap();
        let boots = ["EPYC, none", "EPYC, intel"];
        write_plan_of(ShardedList::Matrix, all.path(), "1/1", &boots, 1);
        let matrix = MatrixResults {
            series: Some("series".to_owned()),
            ..samples::matrix()
        };
        let folder = all.path().join("1-matrix");
        fs::create_dir(&folder).unwrap();
        let merge = |matrix: &MatrixResults| {
            let file = serde_json::json!({ "format": 1, "exit_code": 1, "series": matrix.series, "matrix": matrix });
            fs::write(folder.join(MATRIX), file.to_string()).unwrap();
            fs::write(folder.join(VERDICT), "failed\n").unwrap();
            Collection::merge(&[all.path().to_owned()]).unwrap()
        };
        assert!(merge(&matrix).missing.is_empty());
        write_plan_of(ShardedList::Matrix, all.path(), "1/1", &boots, 2);
        let half = "matrix: EPYC, none (shard 1/1 has 1 of 2 results of it)";
        assert_eq!(merge(&matrix).missing[0], half);
        let former = merge(&samples::matrix());
        assert!(former.matrices.is_empty() && former.missing.len() == 2);
    }

    #[test]
    fn second_plan_of_a_shard_is_refused() {
        let all = tempfile::tempdir().unwrap();
        let (one, two) = (all.path().join("one"), all.path().join("two"));
        write_plan(&one, "1/2", &["a", "b"]);
        write_plan(&two, "1/2", &["a", "b"]);
        let merge = || Collection::merge(&[all.path().to_owned()]);
        assert_eq!(merge().unwrap().missing.len(), 2);
        let plan = two.join("scenarios-shard-1-of-2.json");
        let other = fs::read_to_string(&plan)
            .unwrap()
            .replace("\"series\":\"series\"", "\"series\":\"other\"");
        fs::write(&plan, other).unwrap();
        let error = merge().unwrap_err().to_string();
        assert!(
            error.starts_with("shard 1/2 of the scenarios has run twice"),
            "{error}"
        );
    }

    #[test]
    fn merge_says_what_is_missing_and_of_which_shard() {
        let all = tempfile::tempdir().unwrap();
        let (one, two) = (all.path().join("one/runs"), all.path().join("two/runs"));
        let items = ["a", "b", "c", "d"];
        write_plan(&one, "1/3", &items);
        write_plan(&two, "2/3", &items);
        write_run(&one.join("1-a"), "a");
        write_run(&two.join("1-b"), "b");
        let dead = one.join("2-d");
        fs::create_dir(&dead).unwrap();
        write_started(&dead);
        let merged = Collection::merge(&[all.path().to_owned()]).unwrap();
        assert_eq!(merged.runs.len(), 2);
        let expected = [
            format!(
                "{}: it has not ended, or peerbar was killed",
                dead.display()
            ),
            "scenarios: c (shard 3/3 is missing)".to_owned(),
            "scenarios: d (shard 1/3 has no result of it)".to_owned(),
        ];
        assert_eq!(merged.missing, expected);
        assert!(!merged.is_passed());
    }

    #[test]
    fn files_that_a_guest_has_replaced_are_not_waited_for() {
        let run = tempfile::tempdir().unwrap();
        write_run(run.path(), "a");
        let fifo = |name: &str| {
            let path = run.path().join(name);
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap();
        };
        fifo("console.log");
        let read = Collection::read(&[run.path().to_owned()]).unwrap();
        assert_eq!(read.runs[0].console, "");
        fs::remove_file(run.path().join(RESULTS)).unwrap();
        fifo(RESULTS);
        let error = Collection::read(&[run.path().to_owned()]).unwrap_err();
        assert!(format!("{error:#}").contains("--share-rw"), "{error:#}");
    }

    #[test]
    fn long_console_has_a_start_an_end_and_short_lines() {
        let line = [b'x'; 1 << 20];
        let console = [&b"first\n"[..], &line, b"\nlast"].concat();
        let run = ReportedRun {
            console: without_middle(&console),
            ..ReportedRun::of(samples::run())
        };
        assert!(run.console.starts_with("first\n") && run.console.ends_with("\nlast"));
        assert!(
            run.console.contains("\n[524299 bytes are left out here"),
            "{}",
            run.console.len()
        );
        assert!(run.console.len() < 3 * MOST_CONSOLE);
        assert!(
            run.console_tail().len() < 2000,
            "{}",
            run.console_tail().len()
        );
        assert_eq!(without_middle(b"short"), "short");
    }

    #[test]
    fn shards_of_different_lists_are_not_merged() {
        let all = tempfile::tempdir().unwrap();
        write_plan(all.path(), "1/2", &["a"]);
        write_plan(all.path(), "2/2", &["b"]);
        let error = Collection::merge(&[all.path().to_owned()]).unwrap_err();
        assert!(
            error.to_string().contains("name different lists"),
            "{error}"
        );
    }

    #[test]
    fn folder_without_runs_is_refused_by_name() {
        let empty = tempfile::tempdir().unwrap();
        let error = Collection::merge(&[empty.path().to_owned()]).unwrap_err();
        assert!(error.to_string().contains("no run, matrix or plan"));
        let error = Collection::read(&["no/such".into()]).unwrap_err();
        let message = "no/such: no run found: run a scenario, ";
        assert!(error.to_string().starts_with(message), "{error}");
        let error = Collection::read(&[empty.path().to_owned()]).unwrap_err();
        let message = ": neither results.json nor matrix.json is there: name the folder of a run";
        assert!(error.to_string().contains(message), "{error}");
    }

    #[test]
    fn run_without_results_is_known_as_one() {
        let run = tempfile::tempdir().unwrap();
        let read = || Collection::read(&[run.path().to_owned()]).unwrap_err();
        write_started(run.path());
        let message = |verdict: &str| {
            let run = run.path().display();
            format!(
                "{run}: the run has no results: {verdict}; its console.log and qemu.log say more"
            )
        };
        let killed = message("it has not ended, or peerbar was killed");
        assert_eq!(read().to_string(), killed);
        fs::write(run.path().join(VERDICT), "not run: no memory\n").unwrap();
        assert_eq!(read().to_string(), message("not run: no memory"));
        fs::write(run.path().join(VERDICT), "").unwrap();
        let unstored = message("its verdict could not be stored");
        assert_eq!(read().to_string(), unstored);
    }

    #[test]
    fn results_of_another_format_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunResults {
            format: 7,
            ..samples::run()
        };
        let text = serde_json::to_string(&run).unwrap();
        fs::write(folder.path().join(RESULTS), text).unwrap();
        let error = ReportedRun::read(folder.path()).unwrap_err().to_string();
        assert!(
            error.ends_with("of format 7, this peerbar reads format 1"),
            "{error}"
        );
    }
}
