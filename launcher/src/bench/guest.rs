//! `peerbar bench guest`: fio in a guest, on our controller and on QEMU's own in turn.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use peerbar_bench::{Beside, Figure, Goal, Report, median};
use serde_json::json;
use tempfile::TempDir;

use super::fio::{Load, Outcome, Pattern};
use super::lab::{self, Done};
use crate::cli::{BenchExtent, Own};
use crate::exit::Failure;
use crate::folder::Folder;
use crate::scenario::Scenario;
use crate::signals::Signals;

/// What both disks hold.
const DISK_MIB: usize = 256;
/// Memory that is a file system, if the host has it.
const SHARED_MEMORY: &str = "/dev/shm";
/// Measures, and adds figures to `report`.
pub(super) fn measure(
    extent: &BenchExtent,
    own: &Own,
    report: &mut Report,
    folder: &Folder,
    signals: &Signals,
) -> Result<(), Failure> {
    let cases = cases(extent);
    if cases.is_empty() {
        return Ok(());
    }
    let images = images()?;
    let rounds = if extent.quick { 1 } else { 3 };
    let seconds = if extent.quick { 1 } else { 3 };
    let mut scenario = scenario(&images)?;
    let mut names = vec!["fio starts".to_owned()];
    for _ in 0..rounds {
        for load in &cases {
            for (whose, disk) in [("ours", "{ours:disk}"), ("QEMU's", "{theirs:disk}")] {
                names.push(format!("{}: {whose}", load.name()));
                scenario
                    .checks
                    .push(lab::command(load.line(disk, seconds, None)));
            }
        }
    }
    let artifacts = lab::prepare(&scenario, own, signals)?;
    let done = lab::run(&scenario, &artifacts, folder, signals, &names)?;
    super::add_versions(report, &artifacts);
    let (first, rest) = done.split_first().context("the guest did nothing")?;
    report.versions.insert("fio".to_owned(), first.output());
    for (index, load) in cases.iter().enumerate() {
        let pairs = rest.chunks(2).skip(index).step_by(cases.len());
        let pairs = pairs.map(pair).collect::<anyhow::Result<Vec<_>>>()?;
        report.figures.extend(figures(load, &pairs));
    }
    Ok(())
}

/// Our controller and QEMU's, each below a root port of its own, each with an image of its own.
fn scenario(images: &TempDir) -> Result<Scenario, Failure> {
    let disk = |name: &str| [json!({ "file": images.path().join(name).display().to_string() })];
    let file = json!({
        "name": "bench-guest",
        "timeout": "3m",
        "tools": true,
        "nvme": [
            { "name": "ours", "namespaces": disk("ours") },
            { "name": "theirs", "model": "qemu", "namespaces": disk("theirs") },
        ],
        "check": [{ "kind": "command", "run": "fio --version", "show": true }],
    });
    let text = toml::to_string(&file).context("cannot write a scenario")?;
    Ok(Scenario::parse(Path::new("bench-guest.toml"), text)?)
}

/// Two images of the same size, in memory where there is a file system for it, all of them written.
fn images() -> anyhow::Result<TempDir> {
    let folder = TempDir::new_in(SHARED_MEMORY)
        .or_else(|_| TempDir::new())
        .context("cannot make a folder for images")?;
    for name in ["ours", "theirs"] {
        let path = folder.path().join(name);
        let write = |mut file: File| {
            let piece = vec![0x5a; 1 << 20];
            (0..DISK_MIB).try_for_each(|_| file.write_all(&piece))
        };
        File::create_new(&path)
            .and_then(write)
            .with_context(|| format!("cannot write the image {}", path.display()))?;
    }
    Ok(folder)
}

fn cases(extent: &BenchExtent) -> Vec<Load> {
    let random = [Pattern::RandomRead, Pattern::RandomWrite];
    let (patterns, jobs, depths): (&[_], &[_], &[_]) = if extent.quick {
        (&random[..1], &[1], &[1, 32])
    } else {
        (&random, &[1, 2], &[1, 32, 128])
    };
    let mut cases = Vec::new();
    for &pattern in patterns {
        for &jobs in jobs {
            cases.extend(depths.iter().map(|&depth| Load {
                pattern,
                kib: 4,
                jobs,
                depth,
            }));
        }
    }
    let sequential = [Pattern::Read, Pattern::Write].map(|pattern| Load {
        pattern,
        kib: 1024,
        jobs: 1,
        depth: 8,
    });
    if !extent.quick {
        cases.extend(sequential);
    }
    cases.retain(|load| name(load).contains(&extent.only));
    cases
}

fn name(load: &Load) -> String {
    format!("guest/{}", load.name())
}

/// What a load came to, and what each transfer cost the host.
struct Side {
    outcome: Outcome,
    cpu_ns: f64,
}

fn pair(done: &[Done]) -> anyhow::Result<[Side; 2]> {
    let [ours, theirs] = done else {
        anyhow::bail!("a measurement without its counterpart");
    };
    let side = |done: &Done| {
        let outcome = Outcome::parse(&done.output())?;
        let cpu_ns = outcome.share_ns(done.qemu + done.servers);
        anyhow::Ok(Side { outcome, cpu_ns })
    };
    Ok([side(ours)?, side(theirs)?])
}

/// Rate and cost of a load, ours beside QEMU's.
fn figures(load: &Load, pairs: &[[Side; 2]]) -> [Figure; 2] {
    let rate = match load.depth {
        1 => Some(Goal::RatioAtLeast(1.0)),
        32 => Some(Goal::RatioAtLeast(1.5)),
        _ => None,
    };
    let figure = |name: String, unit: &str, more_is_better, of: &dyn Fn(&Side) -> f64, goal| {
        let ours: Vec<f64> = pairs.iter().map(|[ours, _]| of(ours)).collect();
        let theirs: Vec<f64> = pairs.iter().map(|[_, theirs]| of(theirs)).collect();
        let both = ours.iter().zip(&theirs);
        let ratios: Vec<f64> = both.map(|(ours, theirs)| ours / theirs).collect();
        Figure {
            name,
            unit: unit.to_owned(),
            more_is_better,
            value: median(&ours),
            beside: Beside {
                what: "QEMU's own NVMe".to_owned(),
                value: median(&theirs),
            },
            ratio: median(&ratios),
            goal,
            latency_us: pairs.first().map(|[ours, _]| ours.outcome.latency),
            cpu_ns: None,
        }
    };
    let (iops, cpu) = (|side: &Side| side.outcome.iops, |side: &Side| side.cpu_ns);
    let cheaper = Some(Goal::RatioAtMost(1.0));
    [
        figure(name(load), "IOPS", true, &iops, rate),
        figure(name(load) + "/host-cpu", "ns", false, &cpu, cheaper),
    ]
}

#[cfg(test)]
mod tests {
    use peerbar_bench::Latency;

    use super::*;
    use crate::scenario::Model;

    fn side(iops: f64, cpu_ns: f64) -> Side {
        let latency = Latency {
            p50: 1.0,
            p99: 2.0,
            p999: 3.0,
        };
        Side {
            outcome: Outcome {
                iops,
                transfers: 10.0,
                latency,
            },
            cpu_ns,
        }
    }

    #[test]
    fn ours_is_set_beside_qemu_s_of_the_same_round() {
        let load = Load {
            pattern: Pattern::RandomRead,
            kib: 4,
            jobs: 1,
            depth: 32,
        };
        let pairs = [
            [side(30.0, 1.0), side(10.0, 2.0)],
            [side(40.0, 1.0), side(20.0, 4.0)],
            [side(10.0, 1.0), side(10.0, 1.0)],
        ];
        let [rate, cost] = figures(&load, &pairs);
        assert_eq!(
            (rate.value, rate.beside.value, rate.ratio),
            (30.0, 10.0, 2.0)
        );
        assert_eq!(rate.reaches_goal(), Some(true));
        assert_eq!((cost.ratio, cost.more_is_better), (0.5, false));
        assert_eq!(cost.name, "guest/randread-4k/1-jobs/depth-32/host-cpu");
    }

    #[test]
    fn the_scenario_makes_sense() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["ours", "theirs"] {
            std::fs::write(folder.path().join(name), [0; 4096]).unwrap();
        }
        let models: Vec<Model> = scenario(&folder)
            .unwrap()
            .nvmes
            .iter()
            .map(|nvme| nvme.model)
            .collect();
        assert_eq!(models, [Model::Peerbar, Model::Qemu]);
    }
}
