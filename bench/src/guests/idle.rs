//! `peerbar-bench idle`: what the servers of a guest cost that does nothing.

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use peerbar_lab::exit::Failure;
use peerbar_lab::scenario::Scenario;

use super::context::{self, Cost, Done};
use super::fio::{Load, Pattern};
use crate::figure::{Figure, Goal};
use crate::suite::GuestContext;

/// Two disks for each way of polling that lets a worker sleep.
const SCENARIO: &str = r#"
name = "bench-idle"
timeout = "3m"
tools = true
nvme = [
    { name = "adaptive0", poll = "adaptive", workers = 2, namespaces = [{ ram = "64M" }] },
    { name = "adaptive1", poll = "adaptive", namespaces = [{ ram = "64M" }] },
    { name = "never0", poll = "never", workers = 2, namespaces = [{ ram = "64M" }] },
    { name = "never1", poll = "never", namespaces = [{ ram = "64M" }] },
]
check = [{ kind = "command", run = "fio --version", show = true }]
"#;
const DISKS: &str = "{adaptive0:disk}:{adaptive1:disk}:{never0:disk}:{never1:disk}";
/// What the disks of each way of polling are named after.
const MODES: [&str; 2] = ["adaptive", "never"];
/// How much of a processor all servers of one way may take.
const GOAL: f64 = 0.01;
/// What devices may move while nothing is asked of them: the agent reads their counters before and after.
const QUIET_BYTES: u64 = 64 << 10;

/// Loads all disks, so that no worker has slept from the start, and then lets the guest sleep; adds to the report what
/// that cost.
pub(crate) fn measure(context: &mut GuestContext<'_>) -> Result<(), Failure> {
    if !names().any(|name| context.wants(&name)) {
        return Ok(());
    }
    let seconds = if context.extent.quick { 4 } else { 30 };
    let load = Load {
        pattern: Pattern::RandomRead,
        kib: 4,
        jobs: 1,
        depth: 32,
    };
    let scenario = Scenario::parse(Path::new("bench-idle.toml"), SCENARIO.to_owned())?;
    let checks = [load.line(DISKS, 1), format!("sleep {seconds}")];
    let checks = ["all disks at work", "a guest that sleeps"]
        .into_iter()
        .zip(checks);
    let checks = checks.map(|(name, line)| (name.to_owned(), context::command(line)));
    let done = context.run(scenario, checks.collect())?;
    let cost = slept(&done, Duration::from_secs(seconds))?;
    context.report.figures.extend(figures(cost));
    Ok(())
}

/// What the sleep cost, once it is sure that the disks had worked before and did nothing meanwhile.
fn slept(done: &[Done], least: Duration) -> anyhow::Result<&Cost> {
    let [worked, slept] = done else {
        anyhow::bail!("a measurement was left out");
    };
    worked.load()?;
    ensure!(
        worked.cost.servers.values().all(|time| !time.is_zero()),
        "a disk that was loaded had nothing to do: {:?}",
        worked.cost.servers
    );
    let moved: u64 = slept.row.measure.routes.values().sum();
    ensure!(
        moved <= QUIET_BYTES,
        "the guest was not idle: its disks moved {moved} bytes"
    );
    ensure!(
        slept.cost.wall >= least,
        "the guest slept {:?} only, not {least:?}",
        slept.cost.wall
    );
    Ok(&slept.cost)
}

fn names() -> impl Iterator<Item = String> {
    let modes = MODES.into_iter().chain(["qemu"]);
    modes.map(|mode| format!("idle/{mode}"))
}

/// Time on processors for each second: of the servers of each way of polling, and of QEMU.
fn figures(cost: &Cost) -> Vec<Figure> {
    let of_mode = |mode: &str| -> Duration {
        let servers = cost.servers.iter();
        let servers = servers.filter(|(name, _)| name.starts_with(mode));
        servers.map(|(_, time)| *time).sum()
    };
    let figure = |name: String, time: Duration, goal| {
        let wall = cost.wall.as_secs_f64();
        let share = time.as_secs_f64() * 1e3 / wall;
        Figure {
            goal,
            ..Figure::of_rounds(name, "ms/s", false, "a processor", &[(share, 1e3)])
        }
    };
    let goals = [Some(GOAL), Some(GOAL), None];
    let times = MODES.map(of_mode).into_iter().chain([cost.qemu]);
    let parts = names().zip(times).zip(goals);
    parts
        .map(|((name, time), goal)| figure(name, time, goal.map(Goal::RatioAtMost)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use peerbar_report::{Measure, Route, Verdict};

    use super::*;
    use crate::guests::device_time::Recorded;
    use peerbar_lab::report::Row;

    fn done(output: &str, moved: u64, servers: [u64; 2]) -> Done {
        let [adaptive, never] = servers.map(Duration::from_millis);
        Done {
            row: Row {
                name: String::new(),
                verdict: Verdict::Pass,
                measure: Measure {
                    routes: BTreeMap::from([(Route::GuestRam, moved)]),
                    ..Measure::default()
                },
                diagnostics: vec![output.to_owned()],
                subtests: Vec::new(),
            },
            cost: Cost {
                wall: Duration::from_secs(4),
                qemu: Duration::from_secs(1),
                servers: BTreeMap::from([
                    ("adaptive0".to_owned(), adaptive),
                    ("adaptive1".to_owned(), adaptive),
                    ("never0".to_owned(), never),
                ]),
            },
            start: Cost::default(),
            recorded: Recorded::default(),
        }
    }

    const FIO: &str = r#"{"jobs":[{"read":{"iops":1,"total_ios":1,"clat_ns":{"percentile":{"50.000000":1,"99.000000":1,"99.900000":1}}},"write":{"iops":0,"total_ios":0,"clat_ns":{}}}]}"#;

    #[test]
    fn a_server_that_spins_misses_the_goal() {
        let figures = figures(&done("", 0, [2, 400]).cost);
        let rows: Vec<_> = figures
            .iter()
            .map(|figure| (figure.name.as_str(), figure.value, figure.reaches_goal()))
            .collect();
        let expected = [
            ("idle/adaptive", 1.0, Some(true)),
            ("idle/never", 100.0, Some(false)),
            ("idle/qemu", 250.0, None),
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn a_guest_that_was_not_idle_shows_nothing() {
        let least = Duration::from_secs(4);
        let judged = |worked: [u64; 2], moved, least| {
            let done = [done(FIO, 1 << 20, worked), done("", moved, [1, 1])];
            slept(&done, least)
                .map(|_| ())
                .map_err(|error| error.to_string())
        };
        assert_eq!(judged([5, 5], 4096, least), Ok(()));
        for (worked, moved, least, why) in [
            ([5, 0], 4096, least, "nothing to do"),
            ([5, 5], 1 << 20, least, "was not idle"),
            ([5, 5], 4096, least * 2, "slept 4s only"),
        ] {
            let error = judged(worked, moved, least).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
