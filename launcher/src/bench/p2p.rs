//! `peerbar bench p2p`: transfers between devices, beside the ways around: through guest RAM, and through QEMU.

use std::path::Path;
use std::time::Duration;

use peerbar_bench::{Figure, Goal};
use peerbar_report::{Buffer, Calls, Check, Copy, GpuFile, Measure, Medium, Route};

use super::fio::{Load, Outcome, Pattern};
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

/// What is measured, and what is looked at.
struct Case {
    pair: Pair,
    looked_at: LookedAt,
    goal: Option<Goal>,
}

enum LookedAt {
    /// Bytes moved a second, by the agent's own clock.
    Throughput,
    /// Bytes that all devices together moved by DMA.
    Traffic,
    /// Bytes moved a second, as fio says.
    Fio(Load),
}

/// Measures, and adds figures to the report.
pub(super) fn measure(lab: &mut Lab<'_>) -> Result<(), Failure> {
    let rounds = if lab.extent.quick { 1 } else { 3 };
    for (text, mut cases) in [(ROUTES, routes(lab.extent.quick)), (CMBS, cmbs())] {
        cases.retain(|case| case.pair.name.contains(&lab.extent.only));
        if cases.is_empty() {
            continue;
        }
        let scenario = Scenario::parse(Path::new("bench-p2p.toml"), text.to_owned())?;
        let pairs: Vec<Pair> = cases.iter().map(|case| case.pair.clone()).collect();
        let measured = lab.in_turn(scenario, &pairs, rounds)?;
        for (case, rounds) in cases.iter().zip(&measured) {
            lab.report.figures.push(case.figure(rounds)?);
        }
    }
    Ok(())
}

impl Case {
    fn values(&self, [straight, around]: &[Done; 2]) -> anyhow::Result<(f64, f64)> {
        anyhow::ensure!(
            self.pair.beside != MESSAGES
                || around.row.measure.routes.contains_key(&Route::Upstream),
            "{}: nothing of it went through QEMU",
            self.pair.name
        );
        Ok((self.value(straight)?, self.value(around)?))
    }

    fn value(&self, done: &Done) -> anyhow::Result<f64> {
        let measure = &done.row.measure;
        Ok(match self.looked_at {
            LookedAt::Throughput => mib(measure.bytes) / measure.seconds,
            LookedAt::Traffic => mib(traffic(measure)),
            LookedAt::Fio(load) => {
                let outcome = Outcome::parse(&done.output())?;
                outcome.iops * f64::from(load.kib) / 1024.0
            }
        })
    }

    fn figure(&self, rounds: &[[Done; 2]]) -> anyhow::Result<Figure> {
        let values = rounds.iter().map(|pair| self.values(pair));
        let values = values.collect::<anyhow::Result<Vec<_>>>()?;
        let Pair { name, beside, .. } = &self.pair;
        let (unit, more_is_better) = match self.looked_at {
            LookedAt::Traffic => ("MiB", false),
            LookedAt::Throughput | LookedAt::Fio(_) => ("MiB/s", true),
        };
        Ok(Figure {
            goal: self.goal,
            ..Figure::of_rounds(name, unit, more_is_better, beside, &values)
        })
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
fn to_vram(size: u64) -> [Case; 3] {
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
    let case = |what: &str, beside, around, looked_at, goal| Case {
        pair: Pair {
            name: format!("p2p/vram/{}/{what}", Size(size)),
            beside,
            checks: [check("disk1", false), around],
        },
        looked_at,
        goal,
    };
    [
        case(
            "over-bounce",
            BOUNCE,
            check("disk1", true),
            LookedAt::Throughput,
            None,
        ),
        case(
            "traffic",
            BOUNCE,
            check("disk1", true),
            LookedAt::Traffic,
            half(),
        ),
        case(
            "over-messages",
            MESSAGES,
            check("far", false),
            LookedAt::Throughput,
            twenty(size),
        ),
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
    let case = |what: &str, beside, around, goal| Case {
        pair: Pair {
            name: format!("p2p/cmb/{}/{what}", Size(size)),
            beside,
            checks: [check("disk0", "disk1", cmb()), around],
        },
        looked_at: LookedAt::Throughput,
        goal,
    };
    let bounced = check("disk0", "disk1", Buffer::GuestRam);
    [
        case("over-bounce", "through guest RAM", bounced, None),
        case(
            "over-messages",
            MESSAGES,
            check("far", "far", cmb()),
            twenty(size),
        ),
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
    Case {
        pair: Pair {
            name: format!("p2p/own-cmb/{kib}K/depth-{depth}"),
            beside: "QEMU's own NVMe, into its CMB",
            checks: [check("ours"), check("theirs")],
        },
        looked_at: LookedAt::Fio(load),
        goal: None,
    }
}

const BOUNCE: &str = "bounced through guest RAM";
const MESSAGES: &str = "by messages through QEMU";

fn half() -> Option<Goal> {
    Some(Goal::RatioAtMost(0.5))
}

/// The issue's goal is about 1 MiB.
fn twenty(size: u64) -> Option<Goal> {
    (size == 1 << 20).then_some(Goal::RatioAtLeast(20.0))
}

/// Where on the disks transfers of a size are made: about 32 MiB of them, 64 at most.
fn offsets(size: u64) -> Vec<u64> {
    let count = ((32 << 20) / size).clamp(8, 64);
    (0..count).map(|number| number * size).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use peerbar_report::Verdict;

    use super::*;
    use crate::bench::lab::Cost;
    use crate::report::Row;

    #[test]
    fn every_case_has_a_name_of_its_own() {
        let cases: Vec<Case> = routes(false).into_iter().chain(cmbs()).collect();
        let names: std::collections::HashSet<&String> =
            cases.iter().map(|case| &case.pair.name).collect();
        assert_eq!(names.len(), cases.len());
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
        };
        let rounds = [[done(0.5, 0), done(1.0, 3 << 20)]];
        let [over_bounce, traffic, _] = to_vram(1 << 20);
        let faster = over_bounce.figure(&rounds).unwrap();
        assert_eq!((faster.value, faster.beside.value), (16.0, 8.0));
        let less = traffic.figure(&rounds).unwrap();
        assert_eq!((less.value, less.beside.value), (1.0, 4.0));
        assert_eq!(less.reaches_goal(), Some(true));
    }
}
