//! `peerbar bench p2p`: transfers between devices, beside the ways around: through guest RAM, and through QEMU.

use std::path::Path;
use std::time::Duration;

use peerbar_bench::{Figure, Goal};
use peerbar_report::{Buffer, Calls, Check, Copy, GpuFile, Measure, Medium, Route};

use super::fio::{Load, Pattern};
use super::lab::{self, Done, Lab, Pair};
use crate::exit::Failure;
use crate::scenario::Scenario;
use crate::size::Size;

/// Two disks, one with a CMB, and a GPU below one switch; and a disk elsewhere, which has to ask QEMU for what the others
/// reach by themselves.
const ROUTES: &str = r#"
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

/// Our controller and QEMU's, each with a CMB. QEMU's keeps no record of its DMA, so what asks for records cannot be
/// in one guest with it.
const CMBS: &str = r#"
name = "bench-cmbs"
timeout = "3m"
tools = true
nvme = [
    { name = "ours", cmb = "64M", namespaces = [{ ram = "256M" }] },
    { name = "theirs", model = "qemu", cmb = "64M", namespaces = [{ ram = "256M" }] },
]
check = [{ kind = "command", run = "fio --version", show = true }]
"#;

/// What is measured, and the figures that come of it.
struct Case {
    pair: Pair,
    figures: Vec<Wanted>,
}

/// A figure, and what is wanted of it.
struct Wanted {
    name: String,
    looked_at: LookedAt,
    goal: Option<Goal>,
}

#[derive(Clone, Copy)]
enum LookedAt {
    /// Bytes moved a second, by the agent's own clock.
    Throughput,
    /// Bytes that all devices together moved by DMA.
    Traffic,
    /// Bytes moved a second, as fio says.
    Fio(Load),
    /// Time that QEMU and the servers had of the processors for each transfer of fio's.
    HostCpu,
}

/// Measures, and adds figures to the report.
pub(super) fn measure(lab: &mut Lab<'_>) -> Result<(), Failure> {
    let rounds = if lab.extent.quick { 1 } else { 3 };
    let only = &lab.extent.only;
    let wanted = |case: &Case| case.figures.iter().any(|figure| figure.name.contains(only));
    for (text, mut cases) in [(ROUTES, routes(lab.extent.quick)), (CMBS, cmbs())] {
        cases.retain(wanted);
        if cases.is_empty() {
            continue;
        }
        let scenario = Scenario::parse(Path::new("bench-p2p.toml"), text.to_owned())?;
        let pairs: Vec<Pair> = cases.iter().map(|case| case.pair.clone()).collect();
        let measured = lab.in_turn(scenario, &pairs, rounds)?;
        for (case, rounds) in cases.iter().zip(&measured) {
            lab.report.figures.extend(case.figures(rounds)?);
        }
    }
    Ok(())
}

impl Case {
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
        let values = rounds.iter().map(|[straight, around]| {
            Ok((
                self.looked_at.value(straight)?,
                self.looked_at.value(around)?,
            ))
        });
        let values = values.collect::<anyhow::Result<Vec<_>>>()?;
        let (unit, more_is_better) = self.looked_at.unit();
        Ok(Figure {
            goal: self.goal,
            ..Figure::of_rounds(&self.name, unit, more_is_better, beside, &values)
        })
    }
}

impl LookedAt {
    fn value(self, done: &Done) -> anyhow::Result<f64> {
        let measure = &done.row.measure;
        Ok(match self {
            Self::Throughput => mib(measure.bytes) / measure.seconds,
            Self::Traffic => mib(traffic(measure)),
            Self::Fio(load) => done.load()?.outcome.iops * f64::from(load.kib) / 1024.0,
            Self::HostCpu => done.load()?.host_ns(),
        })
    }

    /// What its values are in, and whether more is better.
    fn unit(self) -> (&'static str, bool) {
        match self {
            Self::Throughput | Self::Fio(_) => ("MiB/s", true),
            Self::Traffic => ("MiB", false),
            Self::HostCpu => ("ns", false),
        }
    }
}

/// Bytes that moved on the fabric: those of all routes.
fn traffic(measure: &Measure) -> u64 {
    measure.routes.values().sum()
}

fn mib(bytes: u64) -> f64 {
    Duration::from_micros(bytes).as_secs_f64() * 1e6 / f64::from(1 << 20)
}

fn routes(quick: bool) -> Vec<Case> {
    let sizes: &[u64] = if quick {
        &[4 << 10, 1 << 20]
    } else {
        &[4 << 10, 64 << 10, 1 << 20, 8 << 20]
    };
    let mut cases: Vec<Case> = sizes.iter().flat_map(|size| to_vram(*size)).collect();
    cases.extend(sizes.iter().flat_map(|size| through_cmb(*size)));
    cases
}

fn cmbs() -> Vec<Case> {
    [(4, 32), (128, 8)]
        .map(|(kib, depth)| own_cmb(kib, depth))
        .into()
}

/// From a disk to the GPU's memory and back.
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
        })
    };
    let case = |beside, around, figures| Case {
        pair: Pair {
            name: format!("p2p/vram/{}", Size(size)),
            beside,
            checks: [check("disk1", false), around],
        },
        figures,
    };
    let wanted = |what: &str, looked_at, goal| Wanted {
        name: format!("p2p/vram/{}/{what}", Size(size)),
        looked_at,
        goal,
    };
    let half = Some(Goal::RatioAtMost(0.5));
    let over_bounce = vec![
        wanted("over-bounce", LookedAt::Throughput, None),
        wanted("traffic", LookedAt::Traffic, half),
    ];
    let over_messages = vec![wanted("over-messages", LookedAt::Throughput, None)];
    [
        case(BOUNCE, check("disk1", true), over_bounce),
        case(MESSAGES, check("far", false), over_messages),
    ]
}

/// From a disk into a CMB, and from there to a disk.
fn through_cmb(size: u64) -> [Case; 2] {
    let check = |from: &str, to: &str, through| {
        Check::Copy(Copy {
            from: from.to_owned(),
            to: to.to_owned(),
            through,
            sizes: vec![size],
            offsets: offsets(size),
            threads: 1,
        })
    };
    let cmb = || Buffer::P2pmem("disk0".to_owned());
    let case = |what: &str, beside, around| Case {
        pair: Pair {
            name: format!("p2p/cmb/{}", Size(size)),
            beside,
            checks: [check("disk0", "disk1", cmb()), around],
        },
        figures: vec![Wanted {
            name: format!("p2p/cmb/{}/{what}", Size(size)),
            looked_at: LookedAt::Throughput,
            goal: None,
        }],
    };
    let bounced = check("disk0", "disk1", Buffer::GuestRam);
    [
        case("over-bounce", "through guest RAM", bounced),
        case("over-messages", MESSAGES, check("far", "far", cmb())),
    ]
}

/// From a disk into its own CMB, ours beside QEMU's.
fn own_cmb(kib: u32, depth: u32) -> Case {
    let load = Load {
        pattern: Pattern::RandomRead,
        kib,
        jobs: 1,
        depth,
    };
    let check = |name: &str| {
        let (disk, memory) = (
            format!("{{{name}:disk}}"),
            format!("mmapshared:{{{name}:p2pmem}}"),
        );
        lab::command(load.line(&disk, 2, Some(&memory)))
    };
    let name = format!("p2p/own-cmb/{kib}K/depth-{depth}");
    let wanted = |what, looked_at| Wanted {
        name: format!("{name}{what}"),
        looked_at,
        goal: None,
    };
    let figures = vec![
        wanted("", LookedAt::Fio(load)),
        wanted("/host-cpu", LookedAt::HostCpu),
    ];
    Case {
        pair: Pair {
            name,
            beside: "QEMU's own NVMe, into its CMB",
            checks: [check("ours"), check("theirs")],
        },
        figures,
    }
}

const BOUNCE: &str = "bounced through guest RAM";
const MESSAGES: &str = "by messages through QEMU";

/// Where on the disks transfers of a size are made: about 32 MiB of them, 64 at most.
fn offsets(size: u64) -> Vec<u64> {
    let count = ((32 << 20) / size).clamp(8, 64);
    (0..count).map(|number| number * size).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use peerbar_report::Verdict;

    use super::*;
    use crate::bench::lab::Cost;
    use crate::report::Row;

    #[test]
    fn every_figure_has_a_name_of_its_own() {
        let mut names = HashSet::new();
        for case in routes(false).into_iter().chain(cmbs()) {
            for Wanted { name, .. } in case.figures {
                assert!(names.insert(name.clone()), "{name} twice");
            }
        }
    }

    #[test]
    fn the_scenarios_make_sense() {
        for text in [ROUTES, CMBS] {
            let parsed = Scenario::parse(Path::new("x.toml"), text.to_owned());
            assert!(parsed.unwrap().tools);
        }
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
            },
            cost: Cost::default(),
            start: Cost::default(),
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
