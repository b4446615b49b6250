//! Guests with checks that measure.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use peerbar_flight::monotonic_ns;
use peerbar_lab::artifacts::Artifacts;
use peerbar_lab::exit::Failure;
use peerbar_lab::folder::Folder;
use peerbar_lab::guest::{CONSOLE_LOG, Guest, GuestEvent, Next};
use peerbar_lab::guest_needs::GuestNeeds;
use peerbar_lab::programs::program;
use peerbar_lab::progress::Progress;
use peerbar_lab::report::Row;
use peerbar_lab::scenario::{Machine, Scenario};
use peerbar_lab::verdict::Ending;
use peerbar_lab::{LabOptions, PreparedLab};
use peerbar_report::{Check, Command, Expectation, Line, Verdict};

use super::device_time::Recorded;
use super::fio::{self, FioResult};
use crate::cpu_time::cpu_time;
use crate::report::Report;
use crate::suite::GuestContext;

/// Time limit until a guest is ready.
const START: Duration = Duration::from_secs(60);

/// Number of starts of fio without a load. At the first one QEMU also translates its code; the
/// shortest time counts.
const STARTS: usize = 3;

/// A measurement and its baseline, taken in turn in one guest.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) name: String,
    /// The name of the baseline.
    pub(crate) beside: &'static str,
    pub(crate) checks: [Check; 2],
}

/// A check, and its cost to the host.
pub(crate) struct Done {
    /// The agent's messages.
    pub(crate) row: Row,
    pub(crate) cost: Cost,
    /// The part of the cost that is fio's start, if the check was fio.
    pub(crate) start: Cost,
    /// The devices' records of that time, if they record everything.
    pub(crate) recorded: Recorded,
}

/// The result of a load by fio, and its cost to the host without fio's start.
#[derive(Clone)]
pub(crate) struct Loaded {
    pub(crate) outcome: FioResult,
    pub(crate) cost: Cost,
}

/// The cost of a check to the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    /// Time from the previous result to this one.
    pub(crate) wall: Duration,
    /// Processor time of QEMU, including its guest.
    pub(crate) qemu: Duration,
    /// Processor time of each server, by its name in the scenario.
    pub(crate) servers: BTreeMap<String, Duration>,
}

impl Cost {
    /// Returns the processor time of QEMU and all servers.
    pub(crate) fn of_all(&self) -> Duration {
        self.qemu + self.of_servers()
    }

    /// Returns the cost minus `other`.
    fn without(&self, other: &Self) -> Self {
        let servers = self.servers.iter().map(|(name, time)| {
            let others = other.servers.get(name).copied().unwrap_or_default();
            (name.clone(), time.saturating_sub(others))
        });
        Self {
            wall: self.wall.saturating_sub(other.wall),
            qemu: self.qemu.saturating_sub(other.qemu),
            servers: servers.collect(),
        }
    }

    /// Returns the processor time of all servers.
    pub(crate) fn of_servers(&self) -> Duration {
        self.servers.values().sum()
    }
}

impl Done {
    /// Returns the output of its command.
    pub(crate) fn output(&self) -> String {
        self.row.diagnostics.join("\n")
    }

    /// Returns fio's result, and its cost.
    pub(crate) fn load(&self) -> anyhow::Result<Loaded> {
        Ok(Loaded {
            outcome: FioResult::parse(&self.output())?,
            cost: self.cost.without(&self.start),
        })
    }
}

impl Loaded {
    /// Returns the processor time of QEMU and the servers for each transfer, in nanoseconds.
    pub(crate) fn host_ns(&self) -> f64 {
        self.outcome.share_ns(self.cost.of_all())
    }
}

/// Returns a command of the tools root as a check. The report contains its output.
pub(crate) fn command(run: String) -> Check {
    Check::Command(Command {
        run,
        expected: Expectation {
            show: true,
            ..Expectation::default()
        },
        seconds: None,
    })
}

impl GuestContext<'_> {
    /// Boots a guest of `scenario` and measures all `pairs` in turn, `rounds` times. Returns the
    /// rounds of each pair.
    pub(crate) fn in_turn(
        &mut self,
        scenario: Scenario,
        pairs: &[Pair],
        rounds: usize,
    ) -> Result<Vec<Vec<[Done; 2]>>, Failure> {
        let mut checks = Vec::new();
        for pair in std::iter::repeat_n(pairs, rounds).flatten() {
            let [straight, around] = &pair.checks;
            checks.push((pair.name.clone(), straight.clone()));
            checks.push((format!("{}: {}", pair.name, pair.beside), around.clone()));
        }
        let mut done = self.run(scenario, checks)?.into_iter();
        let mut measured: Vec<_> = pairs.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for of_pair in &mut measured {
                let both = done.next().zip(done.next());
                let (straight, around) = both.context("a measurement was left out")?;
                of_pair.push([straight, around]);
            }
        }
        Ok(measured)
    }

    /// Boots a guest of `scenario`, whose only check prints fio's version. Starts fio without a
    /// load, and then runs `checks`, each with the name that the user sees. All of them must pass.
    pub(crate) fn run(
        &mut self,
        mut scenario: Scenario,
        checks: Vec<(String, Check)>,
    ) -> Result<Vec<Done>, Failure> {
        let mut names = vec!["fio is loaded".to_owned()];
        let start = ("fio starts".to_owned(), command(fio::START.to_owned()));
        let checks = std::iter::repeat_n(start, STARTS).chain(checks);
        for (name, check) in checks {
            names.push(name);
            scenario.checks.push(check);
        }
        let run = self.lab_options().prepare(scenario.clone())?;
        add_versions(&mut self.report, &run.artifacts, &scenario.machine);
        let mut rows = measured(run, &scenario, &names)?.into_iter();
        let (version, ..) = rows.next().context("the guest has no fio")?;
        let starts = rows.by_ref().take(STARTS).map(|(_, cost, _)| cost);
        let start = starts.min_by_key(Cost::of_all);
        let start = start.context("fio did not start")?;
        let versions = &mut self.report.versions;
        versions.insert("fio".to_owned(), version.diagnostics.join("\n"));
        let done = rows.map(|(row, cost, recorded)| Done {
            row,
            cost,
            start: start.clone(),
            recorded,
        });
        Ok(done.collect())
    }

    /// Adds the parts of a guest of `scenario` to the report.
    pub(super) fn note_versions(&mut self, scenario: &Scenario) -> Result<(), Failure> {
        let agent = program("peerbar-agent")?;
        let needs = GuestNeeds::of(scenario);
        let artifacts = Artifacts::prepare(self.options, &needs, &agent, self.signals)?;
        add_versions(&mut self.report, &artifacts, &scenario.machine);
        Ok(())
    }

    /// Returns the options of this suite's labs: their folder, and the signals that interrupt them.
    pub(super) fn lab_options(&self) -> LabOptions {
        LabOptions::default()
            .own(self.options.clone())
            .runs(self.folder.path())
            .signals(self.signals)
    }
}

/// Boots the guest of `scenario`, and returns the results of its checks, which have these `names`.
fn measured(
    run: PreparedLab,
    scenario: &Scenario,
    names: &[String],
) -> Result<Vec<(Row, Cost, Recorded)>, Failure> {
    let folder = run.folder.clone();
    let mut progress = Progress::default();
    progress.stage(&format!("{}: a guest boots", scenario.name));
    let mut lab = run.boot()?;
    let seen = follow(&mut lab.guest, scenario, names, &mut progress, &folder)?;
    let (_, report, complaint) = lab.guest.stop()?;
    if let Some(complaint) = complaint {
        return Err(anyhow!(complaint).into());
    }
    let recorded = Recorded::read(scenario, folder.path())?;
    let (rows, ..) = report.finish();
    let rows = rows.into_iter().map(passed).zip(seen);
    let rows = rows.map(|(row, (cost, span))| Ok((row?, cost, recorded.during(&span))));
    Ok(rows.collect::<anyhow::Result<_>>()?)
}

/// Adds the parts of a guest to the report, and how it was started on `machine`.
pub(crate) fn add_versions(report: &mut Report, artifacts: &Artifacts, machine: &Machine) {
    let boot = artifacts.boot(machine);
    let versions = [
        ("peerbar", env!("CARGO_PKG_VERSION").to_owned()),
        ("qemu", artifacts.qemu.version.to_string()),
        ("guest kernel", artifacts.guest.release.clone()),
        ("accelerator", boot.accel.argument().to_owned()),
        ("firmware", boot.firmware.word().to_owned()),
    ];
    for (name, version) in versions {
        report.versions.insert(name.to_owned(), version);
    }
}

fn passed(row: Row) -> anyhow::Result<Row> {
    match &row.verdict {
        Verdict::Pass => Ok(row),
        _ => bail!("{} did not work: {}", row.name, row.diagnostics.join("\n")),
    }
}

/// Follows the results. Returns the cost of each check to the host, and the time at which it ran
/// ([`monotonic_ns`]).
fn follow(
    guest: &mut Guest<'_>,
    scenario: &Scenario,
    names: &[String],
    progress: &mut Progress,
    folder: &Folder,
) -> Result<Vec<(Cost, RangeInclusive<u64>)>, Failure> {
    let mut last = (spent(guest)?, monotonic_ns());
    let mut seen = Vec::new();
    let followed = guest.follow(START, |guest, event| {
        let GuestEvent::Report(lines) = event else {
            return Ok(Next::Follow);
        };
        let mut goes_on = false;
        for line in lines {
            match line {
                Line::Ready(_) => last = (spent(guest)?, monotonic_ns()),
                Line::Result { .. } => {
                    let (cost, now) = (spent(guest)?, monotonic_ns());
                    seen.push((cost.without(&last.0), last.1..=now));
                    last = (cost, now);
                }
                _ => continue,
            }
            goes_on = true;
            if let Some(name) = names.get(seen.len()) {
                progress.stage(name);
            }
        }
        Ok::<_, Failure>(match goes_on {
            true if seen.len() >= scenario.checks.len() => Next::Done(()),
            true => Next::FollowFor(scenario.timeout),
            false => Next::Follow,
        })
    })?;
    followed.map_err(|ending| {
        let next = names.get(seen.len()).map_or("the end", String::as_str);
        ended(&ending, &format!("`{next}`"), folder)
    })?;
    Ok(seen)
}

/// Returns the failure of a guest that ended before `awaited`.
pub(super) fn ended(ending: &Ending, awaited: &str, folder: &Folder) -> Failure {
    let why = match ending {
        Ending::Signal(signal) => return Failure::Interrupted(*signal),
        Ending::TimedOut(seconds) => format!("the guest reported nothing for {seconds} s"),
        ending => ending.to_string(),
    };
    let console = folder.path().join(CONSOLE_LOG);
    anyhow!("before {awaited}: {why}; see {}", console.display()).into()
}

/// Returns the cost of the guest since its start.
fn spent(guest: &Guest<'_>) -> anyhow::Result<Cost> {
    let mut servers = BTreeMap::new();
    for (name, process) in guest.servers() {
        servers.insert(name.to_owned(), cpu_time(process)?);
    }
    Ok(Cost {
        wall: guest.started().elapsed(),
        qemu: cpu_time(guest.qemu())?,
        servers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_costs_what_was_spent_since_the_one_before() {
        let spent = |wall, qemu, disk| Cost {
            wall: Duration::from_secs(wall),
            qemu: Duration::from_secs(qemu),
            servers: BTreeMap::from([
                ("disk0".to_owned(), Duration::from_secs(disk)),
                ("disk1".to_owned(), Duration::from_secs(1)),
            ]),
        };
        let cost = spent(14, 8, 4).without(&spent(10, 5, 2));
        assert_eq!((cost.wall.as_secs(), cost.qemu.as_secs()), (4, 3));
        assert_eq!(cost.servers["disk0"].as_secs(), 2);
        assert_eq!(
            (cost.of_servers().as_secs(), cost.of_all().as_secs()),
            (2, 5)
        );
    }
}
