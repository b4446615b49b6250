//! `peerbar-bench guest`: fio in a guest, in turn on our controller and on QEMU's own.

use peerbar_lab::exit::Failure;

use super::context::Loaded;
use super::fio::{Load, Pattern};
use super::versus::{Backing, THEIRS, Versus};
use crate::figure::{Figure, Goal};
use crate::suite::GuestContext;

/// End of the names of figures of processor time.
const COST: &str = "/host-cpu";

/// Measures disks with images and disks without storage, and adds the figures to the report.
pub(crate) fn measure(context: &mut GuestContext<'_>) -> Result<(), Failure> {
    let (rounds, seconds) = if context.extent.quick { (1, 1) } else { (3, 3) };
    for backing in [Backing::Images, Backing::Null] {
        let mut loads = loads(backing, context.extent.quick);
        loads.retain(|load| context.wants(&(name(backing, load) + COST)));
        if loads.is_empty() {
            continue;
        }
        let versus = Versus {
            backing,
            loads: &loads,
            rounds,
            seconds,
        };
        let measured = versus.run(context)?;
        for (load, pairs) in loads.iter().zip(&measured) {
            let figures = figures(name(backing, load), load.depth, pairs);
            context.report.figures.extend(figures);
        }
    }
    Ok(())
}

/// Returns the loads of the disks. Without storage, transfers carry no data, so size and direction
/// do not matter.
fn loads(backing: Backing, quick: bool) -> Vec<Load> {
    use Pattern::{RandomRead, RandomWrite, Read, Write};
    let small = |pattern, jobs, depth| Load {
        pattern,
        kib: 4,
        jobs,
        depth,
    };
    if quick {
        return [1, 32].map(|depth| small(RandomRead, 1, depth)).into();
    }
    let patterns: &[Pattern] = match backing {
        Backing::Images => &[RandomRead, RandomWrite],
        Backing::Null => &[RandomRead],
    };
    let mut loads = Vec::new();
    for &pattern in patterns {
        for jobs in [1, 2] {
            loads.extend([1, 32, 128].map(|depth| small(pattern, jobs, depth)));
        }
    }
    if backing == Backing::Images {
        loads.extend([Read, Write].map(|pattern| Load {
            pattern,
            kib: 1024,
            jobs: 1,
            depth: 8,
        }));
    }
    loads
}

fn name(backing: Backing, load: &Load) -> String {
    match backing {
        Backing::Images => format!("guest/{}", load.name()),
        Backing::Null => format!("guest/null/{}", load.name()),
    }
}

/// Returns the rate and the cost of a load, with QEMU's as the baseline.
fn figures(name: String, depth: u32, pairs: &[[Loaded; 2]]) -> [Figure; 2] {
    let rate = match depth {
        1 => Some(Goal::RatioAtLeast(1.0)),
        32 => Some(Goal::RatioAtLeast(1.5)),
        _ => None,
    };
    let rounds = |of: &dyn Fn(&Loaded) -> f64| {
        let values = pairs.iter().map(|[ours, theirs]| (of(ours), of(theirs)));
        values.collect::<Vec<_>>()
    };
    let iops = rounds(&|side| side.outcome.iops);
    let cpu = rounds(&Loaded::host_ns);
    let cost = name.clone() + COST;
    [
        Figure {
            goal: rate,
            latency_us: pairs.first().map(|[ours, _]| ours.outcome.latency),
            ..Figure::of_rounds(name, "IOPS", true, THEIRS, &iops)
        },
        Figure {
            goal: Some(Goal::RatioAtMost(1.0)),
            ..Figure::of_rounds(cost, "ns", false, THEIRS, &cpu)
        },
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use crate::figure::Latency;

    use super::*;
    use crate::guests::context::Cost;
    use crate::guests::fio::FioResult;

    /// Returns a load of `iops` transfers a second that took `seconds` of processor time.
    fn side(iops: f64, seconds: u64) -> Loaded {
        let latency = Latency {
            p50: 1.0,
            p99: 2.0,
            p999: 3.0,
        };
        Loaded {
            outcome: FioResult {
                iops,
                transfers: 10.0,
                latency,
            },
            cost: Cost {
                qemu: Duration::from_secs(seconds),
                ..Cost::default()
            },
        }
    }

    #[test]
    fn ours_is_set_beside_qemu_s_of_the_same_round() {
        let pairs = [
            [side(30.0, 1), side(10.0, 2)],
            [side(40.0, 1), side(20.0, 4)],
            [side(10.0, 1), side(10.0, 1)],
        ];
        let [rate, cost] = figures("x".to_owned(), 32, &pairs);
        assert_eq!(
            (rate.value, rate.beside.value, rate.ratio),
            (30.0, 10.0, 2.0)
        );
        assert_eq!(rate.reaches_goal(), Some(true));
        assert_eq!((cost.ratio, cost.more_is_better), (0.5, false));
        assert_eq!(cost.name, "x/host-cpu");
    }

    #[test]
    fn every_figure_has_a_name_of_its_own() {
        let mut names = HashSet::new();
        for backing in [Backing::Images, Backing::Null] {
            for load in loads(backing, false) {
                assert!(names.insert(name(backing, &load)), "{load:?} twice");
            }
        }
    }
}
