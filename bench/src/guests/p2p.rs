//! `peerbar-bench p2p`: transfers between devices, compared with transfers through guest RAM and
//! through QEMU.

use std::path::Path;
use std::time::Duration;

use peerbar_flight::{self as flight, Level};
use peerbar_lab::exit::Failure;
use peerbar_lab::scenario::Scenario;
use peerbar_lab::size::Size;
use peerbar_report::{Buffer, Calls, Check, Copy, GpuFile, Measure, Medium, Route};

use super::context::{Done, Pair};
use super::device_time::DeviceRoute;
use crate::figure::{Figure, Goal};
use crate::suite::GuestContext;

/// Two disks, one with a CMB, and a GPU below one switch; and a disk elsewhere, which reaches the
/// others' memory only through QEMU.
const SCENARIO: &str = r#"
name = "bench-p2p"
timeout = "3m"
tools = true
machine = { memory = "1G" }
switch = [{ name = "switch0" }]
nvme = [
    { name = "disk0", below = "switch0", cmb = "64M", namespaces = [{ ram = "256M" }] },
    { name = "disk1", below = "switch0", namespaces = [{ ram = "256M" }] },
    { name = "far", namespaces = [{ ram = "256M" }] },
]
gpu = [{ name = "gpu0", below = "switch0", vram = "256M" }]
check = [{ kind = "command", run = "fio --version", show = true }]
"#;

/// Rounds that do not count: the first access to memory of disks and GPU waits until the host
/// provides it.
const WARM_UP: usize = 1;

/// A measurement, and its figures.
struct Case {
    pair: Pair,
    figures: Vec<Wanted>,
}

/// A figure, and its goal.
struct Wanted {
    name: String,
    metric: Metric,
    goal: Option<Goal>,
}

#[derive(Clone, Copy)]
enum Metric {
    /// Bytes moved a second, by the agent's clock.
    Throughput,
    /// Bytes that all devices together moved by DMA.
    Traffic,
    /// Bytes a second of a command, from when its device takes it to its end, according to the
    /// device's record; by these routes, direct and as the baseline.
    DeviceTime([&'static [DeviceRoute]; 2]),
}

/// Measures, and adds figures to the report.
pub(crate) fn measure(context: &mut GuestContext<'_>) -> Result<(), Failure> {
    let rounds = if context.extent.quick { 1 } else { 3 };
    // In a separate guest: a bounce makes many more records than a direct transfer, and recording
    // must not slow it down.
    let (recorded, others): (Vec<_>, Vec<_>) = routes(context.extent.quick)
        .into_iter()
        .partition(Case::looks_at_records);
    let guests = [(Level::Maps, others), (Level::All, recorded)];
    for (recording, mut cases) in guests {
        cases.retain(|case| {
            let mut figures = case.figures.iter();
            figures.any(|figure| context.wants(&figure.name))
        });
        if cases.is_empty() {
            continue;
        }
        let mut scenario = Scenario::parse(Path::new("bench-p2p.toml"), SCENARIO.to_owned())?;
        scenario.recording = recording;
        let pairs: Vec<Pair> = cases.iter().map(|case| case.pair.clone()).collect();
        let measured = context.in_turn(scenario, &pairs, WARM_UP + rounds)?;
        for (case, rounds) in cases.iter().zip(&measured) {
            let warm = rounds.get(WARM_UP..).unwrap_or_default();
            context.report.figures.extend(case.figures(warm)?);
        }
    }
    Ok(())
}

impl Case {
    /// Returns `true` if the devices must record everything for it.
    fn looks_at_records(&self) -> bool {
        let of_records = |figure: &Wanted| matches!(figure.metric, Metric::DeviceTime(_));
        self.figures.iter().any(of_records)
    }

    fn figures(&self, rounds: &[[Done; 2]]) -> anyhow::Result<Vec<Figure>> {
        let Pair { name, beside, .. } = &self.pair;
        let upstream =
            |[_, around]: &[Done; 2]| around.row.measure.routes.contains_key(&Route::Upstream);
        anyhow::ensure!(
            *beside != MESSAGES || rounds.iter().all(upstream),
            "{name}: nothing of it went through QEMU"
        );
        let figures = self.figures.iter();
        figures
            .map(|wanted| wanted.figure(beside, rounds))
            .collect()
    }
}

impl Wanted {
    fn figure(&self, beside: &str, rounds: &[[Done; 2]]) -> anyhow::Result<Figure> {
        let values = rounds.iter().map(|round| self.metric.values(round));
        let values = values.collect::<anyhow::Result<Vec<_>>>()?;
        let (unit, more_is_better) = self.metric.unit();
        Ok(Figure {
            goal: self.goal,
            ..Figure::of_rounds(&self.name, unit, more_is_better, beside, &values)
        })
    }
}

impl Metric {
    /// Returns the value and the baseline.
    fn values(self, [straight, around]: &[Done; 2]) -> anyhow::Result<(f64, f64)> {
        let both = |of: &dyn Fn(&Done) -> anyhow::Result<f64>| Ok((of(straight)?, of(around)?));
        match self {
            Self::Throughput => {
                both(&|Done { row, .. }| Ok(mib(row.measure.bytes) / row.measure.seconds))
            }
            Self::Traffic => both(&|done| Ok(mib(traffic(&done.row.measure)))),
            Self::DeviceTime([over, by]) => {
                let [over, by] =
                    [(straight, over), (around, by)].map(|(done, ways)| done.recorded.rate(ways));
                Ok((over? / f64::from(MIB), by? / f64::from(MIB)))
            }
        }
    }

    /// Returns the unit of its values, and `true` if more is better.
    fn unit(self) -> (&'static str, bool) {
        match self {
            Self::Throughput | Self::DeviceTime(_) => ("MiB/s", true),
            Self::Traffic => ("MiB", false),
        }
    }
}

/// Returns the bytes that moved on the bus, of all routes.
fn traffic(measure: &Measure) -> u64 {
    measure.routes.values().sum()
}

const MIB: u32 = 1 << 20;

fn mib(bytes: u64) -> f64 {
    Duration::from_micros(bytes).as_secs_f64() * 1e6 / f64::from(MIB)
}

fn routes(quick: bool) -> Vec<Case> {
    let sizes: &[u64] = if quick {
        &[4 << 10, 1 << 20]
    } else {
        &[4 << 10, 64 << 10, 1 << 20, 8 << 20]
    };
    let mut cases: Vec<Case> = sizes.iter().flat_map(|size| to_vram(*size)).collect();
    cases.extend(sizes.iter().map(|size| through_cmb(*size)));
    cases
}

/// Returns transfers from a disk to the GPU's memory and back.
fn to_vram(size: u64) -> [Case; 2] {
    let check = |disk: &str, bounce| {
        Check::GpuFile(GpuFile {
            gpu: "gpu0".to_owned(),
            disks: vec![disk.to_owned()],
            on: Medium::Raw,
            by: Calls::Pread,
            bounce,
            sizes: vec![size],
            offsets: offsets(size),
            threads: 1,
            seconds: None,
        })
    };
    let name = format!("p2p/vram/{}", Size(size));
    let over_bounce = [
        ("over-bounce", Metric::Throughput, None),
        ("traffic", Metric::Traffic, Some(Goal::RatioAtMost(0.5))),
    ];
    let bounced = [check("disk1", false), check("disk1", true)];
    let by_messages = [check("disk1", false), check("far", false)];
    [
        case(&name, (BOUNCE, bounced), &over_bounce),
        case(
            &name,
            (MESSAGES, by_messages),
            &over_messages(size, TO_VRAM),
        ),
    ]
}

/// Returns a transfer from a disk into a CMB, and from there to a disk.
fn through_cmb(size: u64) -> Case {
    let check = |from: &str, to: &str| {
        Check::Copy(Copy {
            from: from.to_owned(),
            to: to.to_owned(),
            through: Buffer::P2pmem("disk0".to_owned()),
            sizes: vec![size],
            offsets: offsets(size),
            threads: 1,
            seconds: None,
        })
    };
    let by_messages = [check("disk0", "disk1"), check("far", "far")];
    case(
        &format!("p2p/cmb/{}", Size(size)),
        (MESSAGES, by_messages),
        &over_messages(size, THROUGH_CMB),
    )
}

/// A figure of a case: the end of its name, its metric and its goal.
type Aspect = (&'static str, Metric, Option<Goal>);

fn case(name: &str, (beside, checks): (&'static str, [Check; 2]), aspects: &[Aspect]) -> Case {
    let figures = aspects.iter().map(|(what, metric, goal)| Wanted {
        name: format!("{name}/{what}"),
        metric: *metric,
        goal: *goal,
    });
    Case {
        pair: Pair {
            name: name.to_owned(),
            beside,
            checks,
        },
        figures: figures.collect(),
    }
}

/// Compares a transfer of that size with one by messages; `ways` as in [`Metric::DeviceTime`].
fn over_messages(size: u64, ways: [&'static [DeviceRoute]; 2]) -> [Aspect; 2] {
    let goal = (size == u64::from(MIB)).then_some(Goal::RatioAtLeast(20.0));
    [
        ("over-messages", Metric::Throughput, None),
        (DEVICE_TIME, Metric::DeviceTime(ways), goal),
    ]
}

const DEVICE_TIME: &str = "device-time-over-messages";

/// The devices that execute a transfer's commands, direct and by messages, and the route of the
/// data. Consecutive checks have none of these in common, so that no command of the next check is
/// attributed to the one before.
const TO_VRAM: [&[DeviceRoute]; 2] = [&[("disk1", flight::Route::Peer)], BY_MESSAGES];
const THROUGH_CMB: [&[DeviceRoute]; 2] = [
    &[
        ("disk0", flight::Route::OwnBar),
        ("disk1", flight::Route::Peer),
    ],
    BY_MESSAGES,
];
const BY_MESSAGES: &[DeviceRoute] = &[("far", flight::Route::Upstream)];

const BOUNCE: &str = "bounced through guest RAM";
const MESSAGES: &str = "by messages through QEMU";

/// Returns the offsets on the disks of transfers of `size`: about 32 MiB of them, 64 at most.
fn offsets(size: u64) -> Vec<u64> {
    let count = ((32 << 20) / size).clamp(8, 64);
    (0..count).map(|number| number * size).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use peerbar_report::Verdict;

    use super::*;
    use crate::guests::context::Cost;
    use crate::guests::device_time::Recorded;
    use peerbar_lab::report::Row;

    #[test]
    fn every_figure_has_a_name_of_its_own() {
        let mut names = HashSet::new();
        for case in routes(false) {
            for Wanted { name, .. } in case.figures {
                assert!(names.insert(name.clone()), "{name} twice");
            }
        }
    }

    #[test]
    fn twenty_times_messages_are_wanted_of_the_devices_at_1_mib() {
        let figures = routes(false).into_iter().flat_map(|case| case.figures);
        let of_devices = figures.filter(|figure| figure.name.ends_with(DEVICE_TIME));
        let (with_goal, without): (Vec<_>, Vec<_>) =
            of_devices.partition(|figure| figure.goal == Some(Goal::RatioAtLeast(20.0)));
        let names: Vec<&str> = with_goal
            .iter()
            .map(|figure| figure.name.as_str())
            .collect();
        let wanted = ["vram", "cmb"].map(|way| format!("p2p/{way}/1M/{DEVICE_TIME}"));
        assert_eq!(names, wanted);
        assert!(without.len() == 6 && without.iter().all(|figure| figure.goal.is_none()));
    }

    #[test]
    fn checks_in_a_row_share_no_way() {
        let recorded = routes(false).into_iter().filter(Case::looks_at_records);
        let ways = recorded.flat_map(|case| {
            let of_devices = case
                .figures
                .into_iter()
                .find_map(|figure| match figure.metric {
                    Metric::DeviceTime(ways) => Some(ways),
                    _ => None,
                });
            of_devices.unwrap()
        });
        let ways: Vec<&[DeviceRoute]> = ways.collect();
        // The last check of a round is followed by the first of the next.
        let next = ways.iter().cycle().skip(1);
        for (ways, next) in ways.iter().zip(next) {
            assert!(
                ways.iter().all(|way| !next.contains(way)),
                "{ways:?} {next:?}"
            );
        }
    }

    #[test]
    fn scenario_parsed_has_tools() {
        let parsed = Scenario::parse(Path::new("x.toml"), SCENARIO.to_owned());
        assert!(parsed.unwrap().tools);
    }

    #[test]
    fn throughput_and_traffic_come_from_the_measure() {
        let done = |seconds, ram_bytes| Done {
            row: Row {
                name: String::new(),
                verdict: Verdict::Pass,
                measure: Measure {
                    bytes: 8 << 20,
                    seconds,
                    routes: BTreeMap::from([(Route::Peer, 1 << 20), (Route::GuestRam, ram_bytes)]),
                    ..Measure::default()
                },
                diagnostics: Vec::new(),
                subtests: Vec::new(),
            },
            cost: Cost::default(),
            start: Cost::default(),
            recorded: Recorded::default(),
        };
        let rounds = [[done(0.5, 0), done(1.0, 3 << 20)]];
        let [over_bounce, over_messages] = to_vram(1 << 20);
        let figures = over_bounce.figures(&rounds).unwrap();
        let [faster, less] = figures.as_slice() else {
            panic!("{figures:?}")
        };
        assert_eq!((faster.value, faster.beside.value), (16.0, 8.0));
        assert_eq!((less.value, less.beside.value), (1.0, 4.0));
        assert_eq!(less.reaches_goal(), Some(true));
        let error = over_messages.figures(&rounds).unwrap_err().to_string();
        assert!(error.contains("nothing of it went through QEMU"), "{error}");
    }
}
