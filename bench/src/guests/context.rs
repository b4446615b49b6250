//! Guests whose checks are measurements.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow, bail};
use peerbar_flight::monotonic_ns;
use peerbar_lab::artifacts::Artifacts;
use peerbar_lab::exit::Failure;
use peerbar_lab::folder::Folder;
use peerbar_lab::guest::{Guest, GuestEvent, Next};
use peerbar_lab::guest_needs::GuestNeeds;
use peerbar_lab::programs::program;
use peerbar_lab::progress::Progress;
use peerbar_lab::qemu::Sockets;
use peerbar_lab::report::Row;
use peerbar_lab::scenario::{Machine, Scenario};
use peerbar_lab::socket_folder::SocketFolder;
use peerbar_lab::verdict::Ending;
use peerbar_report::{Check, Command, Expectation, Line, Verdict};

use super::device_time::Recorded;
use super::fio::{self, FioResult};
use crate::cpu_time::cpu_time;
use crate::report::Report;
use crate::suite::GuestContext;

/// How long a guest may take until it is ready.
const START: Duration = Duration::from_secs(60);

/// How often fio is started for nothing. The first time QEMU translates its code, too; the cheapest time counts.
const STARTS: usize = 3;

/// A measurement and its counterpart, taken in turn in one guest.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) name: String,
    /// What the counterpart is.
    pub(crate) beside: &'static str,
    pub(crate) checks: [Check; 2],
}

/// A check, and what it cost the host.
pub(crate) struct Done {
    /// The messages of the agent.
    pub(crate) row: Row,
    pub(crate) cost: Cost,
    /// The part of it that starting fio costs, if it was fio.
    pub(crate) start: Cost,
    /// What the devices recorded meanwhile, if they record everything.
    pub(crate) recorded: Recorded,
}

/// What a load of fio's came to, and what it cost the host, fio's start left out.
#[derive(Clone)]
pub(crate) struct Loaded {
    pub(crate) outcome: FioResult,
    pub(crate) cost: Cost,
}

/// What a check cost the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    /// From the result before it to its own.
    pub(crate) wall: Duration,
    /// What QEMU, its guest included, had of the processors.
    pub(crate) qemu: Duration,
    /// What each server had of them, by its name in the scenario.
    pub(crate) servers: BTreeMap<String, Duration>,
}

impl Cost {
    /// What QEMU and all servers had of the processors.
    pub(crate) fn of_all(&self) -> Duration {
        self.qemu + self.of_servers()
    }

    /// What is left of it without another.
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

    /// What all servers had of the processors.
    pub(crate) fn of_servers(&self) -> Duration {
        self.servers.values().sum()
    }
}

impl Done {
    /// What its command printed.
    pub(crate) fn output(&self) -> String {
        self.row.diagnostics.join("\n")
    }

    /// What fio measured, and what that cost.
    pub(crate) fn load(&self) -> anyhow::Result<Loaded> {
        Ok(Loaded {
            outcome: FioResult::parse(&self.output())?,
            cost: self.cost.without(&self.start),
        })
    }
}

impl Loaded {
    /// Nanoseconds that QEMU and the servers had of the processors for each transfer.
    pub(crate) fn host_ns(&self) -> f64 {
        self.outcome.share_ns(self.cost.of_all())
    }
}

/// A command of the tools root as a check; what it prints is in the report.
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
    /// Boots a guest of `scenario` and measures all `pairs` in turn, as often as `rounds` says: for each pair its rounds.
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

    /// Boots a guest of `scenario`, whose only check prints fio's version, starts fio for nothing, and runs `checks` after
    /// that, each with the name that the user sees. All of them must pass.
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
        let artifacts = self.prepare(&scenario)?;
        add_versions(&mut self.report, &artifacts, &scenario.machine);
        let mut rows = self.boot(&scenario, &artifacts, &names)?.into_iter();
        let (version, ..) = rows.next().context("fio is not there")?;
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

    /// Notes what a guest of `scenario` is made of.
    pub(super) fn note_versions(&mut self, scenario: &Scenario) -> Result<(), Failure> {
        let artifacts = self.prepare(scenario)?;
        add_versions(&mut self.report, &artifacts, &scenario.machine);
        Ok(())
    }

    /// What a guest of `scenario` boots from.
    fn prepare(&self, scenario: &Scenario) -> Result<Artifacts, Failure> {
        let agent = program("peerbar-agent")?;
        Artifacts::prepare(
            self.options,
            &GuestNeeds::of(scenario),
            &agent,
            self.signals,
        )
    }

    fn boot(
        &self,
        scenario: &Scenario,
        artifacts: &Artifacts,
        names: &[String],
    ) -> Result<Vec<(Row, Cost, Recorded)>, Failure> {
        let folder = Folder::create(self.folder.path(), &scenario.name, SystemTime::now())?;
        let temporary = SocketFolder::create()?;
        let sockets = Sockets::in_folder(temporary.path());
        let boot = artifacts.boot(&scenario.machine);
        let mut progress = Progress::default();
        progress.stage(&format!("{}: a guest boots", scenario.name));
        let mut guest = Guest::start(artifacts, &boot, scenario, &sockets, &folder, self.signals)?;
        let seen = follow(&mut guest, scenario, names, &mut progress, &folder)?;
        let (_, report, complaint) = guest.stop()?;
        if let Some(complaint) = complaint {
            return Err(anyhow!(complaint).into());
        }
        let recorded = Recorded::read(scenario, folder.path())?;
        let (rows, ..) = report.finish();
        let rows = rows.into_iter().map(passed).zip(seen);
        let rows = rows.map(|(row, (cost, span))| Ok((row?, cost, recorded.during(&span))));
        Ok(rows.collect::<anyhow::Result<_>>()?)
    }
}

/// Notes what a guest was made of, and by what it started on `machine`.
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

/// What each check costs the host, as the results come in, and from when to when it ran ([`monotonic_ns`]).
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
        let before = seen.len();
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
            if let Some(name) = names.get(seen.len()) {
                progress.stage(name);
            }
        }
        Ok::<_, Failure>(match seen.len() {
            all if all >= scenario.checks.len() => Next::Done(()),
            some if some > before => Next::FollowFor(scenario.timeout),
            _ => Next::Follow,
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
    match ending {
        Ending::Signal(signal) => Failure::Interrupted(*signal),
        ending => anyhow!(
            "before {awaited}: {ending}; see {}",
            folder.path().display()
        )
        .into(),
    }
}

/// What the guest has cost since it was started.
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
