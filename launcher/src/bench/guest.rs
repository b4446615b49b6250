//! `peerbar bench guest`: fio in a guest, on our controller and on QEMU's own in turn.

use peerbar_bench::{Figure, Goal, Report};

use super::fio::{Load, Pattern};
use super::versus::{self, Extent, Side};
use crate::cli::{BenchExtent, Own};
use crate::exit::Failure;
use crate::folder::Folder;
use crate::signals::Signals;

/// What ours is measured by.
const THEIRS: &str = "QEMU's own NVMe";

/// Measures, and adds figures to `report`.
pub(super) fn measure(
    extent: &BenchExtent,
    own: &Own,
    report: &mut Report,
    folder: &Folder,
    signals: &Signals,
) -> Result<(), Failure> {
    let loads = cases(extent);
    if loads.is_empty() {
        return Ok(());
    }
    let (rounds, seconds) = if extent.quick { (1, 1) } else { (3, 3) };
    let times = Extent { rounds, seconds };
    let measured = versus::run(&loads, times, "none", own, report, folder, signals)?;
    for (load, pairs) in loads.iter().zip(&measured) {
        report.figures.extend(figures(load, pairs));
    }
    Ok(())
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

/// Rate and cost of a load, ours beside QEMU's.
fn figures(load: &Load, pairs: &[[Side; 2]]) -> [Figure; 2] {
    let rate = match load.depth {
        1 => Some(Goal::RatioAtLeast(1.0)),
        32 => Some(Goal::RatioAtLeast(1.5)),
        _ => None,
    };
    let rounds = |of: &dyn Fn(&Side) -> f64| {
        let values = pairs.iter().map(|[ours, theirs]| (of(ours), of(theirs)));
        values.collect::<Vec<_>>()
    };
    let iops = rounds(&|side| side.outcome.iops);
    let cpu = rounds(&|side| side.outcome.share_ns(side.qemu + side.servers));
    let cost = name(load) + "/host-cpu";
    [
        Figure {
            goal: rate,
            latency_us: pairs.first().map(|[ours, _]| ours.outcome.latency),
            ..Figure::of_rounds(name(load), "IOPS", true, THEIRS, &iops)
        },
        Figure {
            goal: Some(Goal::RatioAtMost(1.0)),
            ..Figure::of_rounds(cost, "ns", false, THEIRS, &cpu)
        },
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use peerbar_bench::Latency;

    use super::*;
    use crate::bench::fio::Outcome;

    /// What made so many transfers a second, and took so many seconds of a processor for all.
    fn side(iops: f64, seconds: u64) -> Side {
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
            qemu: Duration::ZERO,
            servers: Duration::from_secs(seconds),
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
            [side(30.0, 1), side(10.0, 2)],
            [side(40.0, 1), side(20.0, 4)],
            [side(10.0, 1), side(10.0, 1)],
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
}
