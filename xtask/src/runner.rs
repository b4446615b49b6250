//! Runs the chosen entries: steps one after the other, then guest runs, several at a time.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::fs::{FlockOperation, flock};

use crate::command::{self, Ended};
use crate::outcome::{self, Outcome, Row};
use crate::plan::{Action, Chosen, Entry, Plan};
use crate::programs::{FOLDER, TestPrograms};

/// The folder of the logs, of derived scenarios and of the runs' own folders.
const RECORDS: &str = "target/test";
/// Number of lines shown of a failed entry's log.
const SHOWN: usize = 60;

/// Runs entries and collects the rows of the table.
pub(crate) struct Runner {
    root: PathBuf,
    seed: u64,
    jobs: usize,
    rows: Mutex<Vec<Row>>,
    /// Held while the runner lives: another runner would remove this one's records.
    _lock: File,
}

impl Runner {
    /// Makes a runner in the workspace at `root`.
    ///
    /// # Errors
    /// A folder for the records that cannot be made.
    pub(crate) fn new(
        root: PathBuf,
        seed: u64,
        jobs: Option<NonZero<usize>>,
    ) -> anyhow::Result<Self> {
        let lock = lock(&root)?;
        let records = root.join(RECORDS);
        if records.exists() {
            fs::remove_dir_all(&records)
                .with_context(|| format!("cannot remove {}", records.display()))?;
        }
        fs::create_dir_all(&records)
            .with_context(|| format!("cannot make {}", records.display()))?;
        let jobs = jobs.or_else(|| thread::available_parallelism().ok());
        Ok(Self {
            root,
            seed,
            jobs: jobs.map_or(1, NonZero::get),
            rows: Mutex::new(Vec::new()),
            _lock: lock,
        })
    }

    /// Runs `chosen` and prints the outcome. Returns the exit code, which says if all passed.
    ///
    /// # Errors
    /// The reason why entries cannot run at all.
    pub(crate) fn run(self, plan: &Plan, chosen: &Chosen<'_>) -> anyhow::Result<ExitCode> {
        ensure!(
            !chosen.steps.is_empty() || !chosen.runs.is_empty(),
            "there is nothing to run"
        );
        let started = Instant::now();
        println!("== seed {}, {} guest runs at a time", self.seed, self.jobs);
        let is_built = self.run_steps(chosen)?;
        if is_built && !chosen.runs.is_empty() {
            let tests = TestPrograms::find(&self.root)?;
            plan.check_tests(&tests)?;
            let (alone, together): (Vec<&Entry>, Vec<&Entry>) =
                chosen.runs.iter().copied().partition(|entry| entry.alone);
            self.run_together(together, self.jobs, &tests);
            self.run_together(alone, 1, &tests);
        }
        let rows = self
            .rows
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        for row in &rows {
            if let Outcome::Failed(_) | Outcome::TimedOut(_) = row.outcome {
                println!("\n== {} {}; its output ends with:", row.name, row.outcome);
                println!("{}", last_lines(&log_of(&row.name)));
                println!(
                    "== to repeat it alone: scripts/test --only {} --seed {}",
                    row.name, self.seed
                );
            }
        }
        print!("\n{}", outcome::table(&rows, started.elapsed()));
        if !is_built {
            println!("the build failed: its dependents did not run");
        }
        let is_bad = |row: &Row| !matches!(row.outcome, Outcome::Passed | Outcome::Skipped);
        let failed = !is_built || rows.iter().any(is_bad);
        Ok(ExitCode::from(u8::from(failed)))
    }

    /// Runs the steps that need no build, the build, and the other steps. Returns `false` if the
    /// build was needed and failed.
    fn run_steps(&self, chosen: &Chosen<'_>) -> anyhow::Result<bool> {
        let (with_build, without): (Vec<&Entry>, Vec<&Entry>) =
            chosen.steps.iter().copied().partition(|step| step.built);
        for step in without {
            self.attempt(step, None);
        }
        if with_build.is_empty() && chosen.runs.is_empty() {
            return Ok(true);
        }
        if !self.build()? {
            return Ok(false);
        }
        for step in with_build {
            self.attempt(step, None);
        }
        Ok(true)
    }

    /// Builds programs and tests. Returns `true` on success.
    fn build(&self) -> anyhow::Result<bool> {
        let mut command = Command::new("scripts/build");
        command.arg("--tests");
        let limit = Duration::from_secs(3000);
        let started = Instant::now();
        println!("== build");
        let ended = command::run(command, started + limit, limit, log("build")?, None)?;
        let is_built = ended.outcome == Outcome::Passed;
        self.report("build", Ok(ended), started);
        Ok(is_built)
    }

    /// Runs entries, `jobs` at a time, in their order.
    fn run_together(&self, entries: Vec<&Entry>, jobs: usize, tests: &TestPrograms) {
        let queue = Mutex::new(VecDeque::from(entries));
        let next = || {
            queue
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop_front()
        };
        thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| {
                    while let Some(entry) = next() {
                        self.attempt(entry, Some(tests));
                    }
                });
            }
        });
    }

    /// Runs an entry and reports its outcome.
    fn attempt(&self, entry: &Entry, tests: Option<&TestPrograms>) {
        println!("== {}", entry.name);
        let started = Instant::now();
        let ended = if entry.root && !rustix::process::geteuid().is_root() {
            Ok(Ended {
                outcome: Outcome::Skipped,
                processor: Duration::ZERO,
            })
        } else {
            self.carry_out(entry, started, tests)
        };
        self.report(&entry.name, ended, started);
    }

    fn report(&self, name: &str, ended: anyhow::Result<Ended>, started: Instant) {
        let ended = ended.unwrap_or_else(|error| Ended {
            outcome: Outcome::Failed(format!("{error:#}")),
            processor: Duration::ZERO,
        });
        let row = Row {
            name: name.to_owned(),
            outcome: ended.outcome,
            wall: started.elapsed(),
            processor: ended.processor,
        };
        println!(
            "   {} {} ({:.0} s)",
            row.name,
            row.outcome,
            row.wall.as_secs_f64()
        );
        self.rows
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(row);
    }

    /// Runs the commands of an entry until one fails.
    fn carry_out(
        &self,
        entry: &Entry,
        started: Instant,
        tests: Option<&TestPrograms>,
    ) -> anyhow::Result<Ended> {
        let runs = self.root.join(RECORDS).join("runs").join(&entry.name);
        let mut all = Ended {
            outcome: Outcome::Passed,
            processor: Duration::ZERO,
        };
        for mut command in self.commands(entry, &runs, tests)? {
            command
                .env("PEERBAR_PROGRAMS", self.root.join(FOLDER))
                .env("PEERBAR_TEST_SEED", self.seed.to_string())
                .env("PROPTEST_RNG_SEED", self.seed.to_string());
            let own = entry
                .env
                .iter()
                .filter(|(name, _)| std::env::var_os(name).is_none());
            command.envs(own);
            let log = log(&entry.name)?;
            let ended = command::run(
                command,
                started + entry.limit(),
                entry.limit(),
                log,
                Some(&runs),
            )?;
            all.processor += ended.processor;
            if ended.outcome != Outcome::Passed {
                all.outcome = ended.outcome;
                break;
            }
        }
        if all.outcome == Outcome::Passed && runs.exists() {
            fs::remove_dir_all(&runs)
                .with_context(|| format!("cannot remove {}", runs.display()))?;
        }
        Ok(all)
    }

    fn commands(
        &self,
        entry: &Entry,
        runs: &Path,
        tests: Option<&TestPrograms>,
    ) -> anyhow::Result<Vec<Command>> {
        match entry.action()? {
            Action::Command(text) => {
                let mut command = Command::new("bash");
                command.args(["-euo", "pipefail", "-c", text]);
                Ok(vec![command])
            }
            Action::Tests { program, arguments } => {
                let tests = tests.context("tests are guest runs: list it as [[run]]")?;
                let program = tests.get(program)?;
                let names = program.names(&arguments)?;
                ensure!(!names.is_empty(), "no test has these names: {arguments:?}");
                let mut command = Command::new(&program.path);
                command.args(arguments).current_dir(&program.folder);
                Ok(vec![command])
            }
            Action::Scenario { file, set, options } => {
                let file = derived(file, set, &entry.name)?;
                let mut run = self.peerbar("run");
                run.arg(file).args(options).arg("--runs").arg(runs);
                let mut explain = self.peerbar("explain");
                explain.arg("--run").arg(runs.join("latest"));
                Ok(vec![run, explain])
            }
        }
    }

    fn peerbar(&self, command: &str) -> Command {
        let mut peerbar = Command::new(self.root.join(FOLDER).join("peerbar"));
        peerbar.arg(command);
        peerbar
    }
}

/// Returns the scenario in `file`, with the values of `set`, or the file itself if there are none.
fn derived(file: &Path, set: &toml::Table, name: &str) -> anyhow::Result<PathBuf> {
    if set.is_empty() {
        return Ok(file.to_owned());
    }
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut scenario: toml::Table = text.parse()?;
    for (key, value) in set {
        set_value(&mut scenario, key, value)?;
    }
    let derived = Path::new(RECORDS).join(format!("{name}.toml"));
    fs::write(&derived, toml::to_string(&scenario)?)?;
    Ok(derived)
}

/// Sets the value of a key such as `machine.iommu`. Missing tables are made. The key of an array of
/// tables, such as `nvme.sgl`, is set in each of them.
fn set_value(table: &mut toml::Table, key: &str, value: &toml::Value) -> anyhow::Result<()> {
    let Some((first, rest)) = key.split_once('.') else {
        table.insert(key.to_owned(), value.clone());
        return Ok(());
    };
    let inner = table
        .entry(first)
        .or_insert_with(|| toml::Table::new().into());
    let inner = match inner {
        toml::Value::Array(all) => all.iter_mut().collect(),
        one => vec![one],
    };
    for table in inner {
        let table = table.as_table_mut();
        let table = table.with_context(|| format!("`{first}` is not a table"))?;
        set_value(table, rest, value)?;
    }
    Ok(())
}

/// Takes the lock of the workspace's tests.
fn lock(root: &Path) -> anyhow::Result<File> {
    let path = root.join("target/test.lock");
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let file = file.with_context(|| format!("cannot write {}", path.display()))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).with_context(|| {
        format!(
            "another scripts/test is running here: it holds {}",
            path.display()
        )
    })?;
    Ok(file)
}

fn log_of(name: &str) -> PathBuf {
    Path::new(RECORDS).join(format!("{name}.log"))
}

/// Opens the log of an entry, to append to it.
fn log(name: &str) -> anyhow::Result<File> {
    let path = log_of(name);
    let file = OpenOptions::new().create(true).append(true).open(&path);
    file.with_context(|| format!("cannot write {}", path.display()))
}

fn last_lines(log: &Path) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.get(lines.len().saturating_sub(SHOWN)..);
    last.unwrap_or_default().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_set_in_tables_that_are_there_or_new() {
        let mut scenario: toml::Table = "tools = true\n[machine]\niommu = \"intel\"\ncpus = 2"
            .parse()
            .unwrap();
        set_value(&mut scenario, "machine.iommu", &"amd".into()).unwrap();
        set_value(&mut scenario, "fabric.delay", &1.into()).unwrap();
        let expected = "tools = true\n[machine]\niommu = \"amd\"\ncpus = 2\n[fabric]\ndelay = 1";
        assert_eq!(scenario, expected.parse().unwrap());
        assert!(set_value(&mut scenario, "tools.x", &1.into()).is_err());
        let mut disks: toml::Table = "[[nvme]]\nsgl = false\n[[nvme]]".parse().unwrap();
        set_value(&mut disks, "nvme.sgl", &true.into()).unwrap();
        let expected = "[[nvme]]\nsgl = true\n[[nvme]]\nsgl = true";
        assert_eq!(disks, expected.parse().unwrap());
    }
}
