//! The controller's server, driven from the host without a guest.

use std::time::Duration;

use hdrhistogram::Histogram;
use peerbar_lab::exit::Failure;

use crate::figure::{Figure, Goal, Latency};
use crate::limits::{Calls, Copies, empty_ring, ping_pong};
use crate::loaded_queue::Direction;
use crate::setup::{DISK_BYTES, Round, Session, Setup};
use crate::spread::{latencies, median, quantile_us};
use crate::suite::HostContext;

/// The largest total of a measurement's buffers: 64 commands of 128 KiB.
const BUFFER_BYTES: usize = 8 << 20;
/// Sizes of the two kinds of transfers.
const SMALL: usize = 4 << 10;
const LARGE: usize = 128 << 10;
/// The known rate of SPDK's NVMe/vfio-user target, in 4 KiB reads a second of one core.
const NULL_GOAL: f64 = 4e6;

/// End of the names of figures of the tail.
const TAIL: &str = "/p99";
/// The same for those that are compared with a copy, too.
const TAIL_AND_COPY: &str = "/p99/and-copy";

/// One row of the measurements.
#[derive(Clone, Copy, Debug)]
struct Case {
    direction: Direction,
    setup: Setup,
}

impl Case {
    fn name(&self) -> String {
        let direction = match self.direction {
            Direction::Read => "read",
            Direction::Write => "write",
        };
        let Setup {
            backend,
            queues,
            depth,
            bytes,
            ..
        } = self.setup;
        let kib = bytes >> 10;
        format!("host/{backend}/{direction}-{kib}k/{queues}-queues/depth-{depth}")
    }

    /// Returns the name of its last figure. The names of its other figures are prefixes of it.
    fn last_name(&self) -> String {
        let tail = match (self.setup.depth, self.copies_to_host()) {
            (1, true) => TAIL_AND_COPY,
            (1, false) => TAIL,
            _ => "",
        };
        self.name() + tail
    }

    /// Returns `true` if its transfers copy a namespace's memory.
    fn copies_to_host(&self) -> bool {
        self.setup.backend == "ram" && self.direction == Direction::Read
    }

    fn goal(&self) -> Option<Goal> {
        match (self.setup.backend, self.direction) {
            ("null", Direction::Read) if self.setup.depth >= 32 => {
                Some(Goal::ValueAtLeast(NULL_GOAL))
            }
            ("ram", Direction::Read) if self.setup.depth >= 32 => Some(Goal::RatioAtLeast(0.8)),
            _ => None,
        }
    }
}

/// Returns all cases: every depth on one queue, more queues at one depth, and large transfers.
fn cases(quick: bool) -> Vec<Case> {
    let depths: &[u16] = if quick {
        &[1, 32, 256]
    } else {
        &[1, 2, 4, 8, 16, 32, 64, 128, 256]
    };
    let queues: &[u16] = if quick { &[8] } else { &[2, 4, 8] };
    let small = depths.iter().map(|depth| (SMALL, 1, *depth));
    let many = queues.iter().map(|queues| (SMALL, *queues, 32));
    let shapes: Vec<_> = small.chain(many).chain([(LARGE, 1, 32)]).collect();
    let mut cases = Vec::new();
    for backend in ["ram", "null", "file"] {
        for direction in [Direction::Read, Direction::Write] {
            cases.extend(shapes.iter().map(|&(bytes, queues, depth)| Case {
                direction,
                setup: Setup {
                    backend,
                    queues,
                    depth,
                    bytes,
                },
            }));
        }
    }
    cases.retain(|Case { setup, .. }| match setup.backend {
        "null" => setup.bytes != LARGE,
        "file" => !quick || (setup.queues, setup.depth) == (1, 32),
        _ => true,
    });
    cases
}

/// Measures rates, latencies and bandwidth, and reports them.
pub(crate) fn measure(context: &mut HostContext<'_>) -> Result<(), Failure> {
    let disk = usize::try_from(DISK_BYTES).unwrap_or(usize::MAX);
    let mut bare = Bare {
        copies: Copies::new(disk, BUFFER_BYTES)?,
        calls: Calls::new(DISK_BYTES)?,
    };
    for case in cases(context.extent.quick) {
        if !context.wants(&case.last_name()) {
            continue;
        }
        context.stage(&case.name())?;
        let mut session = Session::start(context.options, &case.setup)?;
        let doorbells = session.doorbells().to_owned();
        let settings = &mut context.report.settings;
        settings.insert("doorbells".to_owned(), doorbells);
        let figures = one(&case, context, &mut session, &mut bare)?;
        context.report.figures.extend(figures);
        if case.setup.backend != "null" {
            session.check()?;
        }
    }
    Ok(())
}

/// The limits of the machine.
struct Bare {
    copies: Copies,
    calls: Calls,
}

/// Measures a case, the machine's limit and ours in turn. Returns its figures.
fn one(
    case: &Case,
    context: &HostContext<'_>,
    session: &mut Session,
    bare: &mut Bare,
) -> anyhow::Result<Vec<Figure>> {
    let mut rounds = Vec::new();
    let mut limits = Vec::new();
    let mut trips = Vec::new();
    let mut copies = Vec::new();
    let time = context.time();
    for _ in 0..context.rounds() {
        limits.push(limit(case, time, bare)?);
        if case.setup.depth == 1 {
            trips.push(p99(&ping_pong(time)?));
            if case.copies_to_host() {
                let times = bare.copies.times(case.setup.bytes, time)?;
                copies.push(p99(&times));
            }
        }
        rounds.push(session.round(case.direction, time)?);
    }
    let mut figures = vec![rate(case, &rounds, &limits)];
    figures.extend(tails(case, &rounds, &trips, &copies));
    Ok(figures)
}

/// Returns the machine's limit for transfers of this kind, a second.
fn limit(case: &Case, time: Duration, bare: &mut Bare) -> anyhow::Result<f64> {
    let Case { direction, setup } = *case;
    match setup.backend {
        "null" => empty_ring(setup.depth, time),
        "file" => bare.calls.rate(direction, setup.bytes, time),
        _ => {
            let buffers = usize::from(setup.queues) * usize::from(setup.depth);
            let fitting = buffers.min(BUFFER_BYTES / setup.bytes);
            bare.copies.rate(direction, setup.bytes, fitting, time)
        }
    }
}

fn rate(case: &Case, rounds: &[Round], limits: &[f64]) -> Figure {
    let Setup { backend, bytes, .. } = case.setup;
    let large = bytes == LARGE;
    let mib = f64::from(u32::try_from(bytes).unwrap_or(u32::MAX)) / f64::from(1 << 20);
    let scale = if large { mib } else { 1.0 };
    let pairs = rounds.iter().zip(limits);
    let pairs: Vec<_> = pairs
        .map(|(round, limit)| (round.rate * scale, limit * scale))
        .collect();
    let cpu: Vec<f64> = rounds.iter().map(|round| round.cpu_ns).collect();
    let beside = match (backend, large) {
        ("null", _) => "an empty ring",
        ("file", _) => "one thread's pread or pwrite",
        (_, true) => "memcpy of the same pieces",
        (_, false) => "a bare loop copying such blocks",
    };
    let unit = if large { "MiB/s" } else { "IOPS" };
    Figure {
        goal: case.goal(),
        latency_us: Some(latency(&merged(rounds))),
        cpu_ns: Some(median(&cpu)),
        ..Figure::of_rounds(case.name(), unit, true, beside, &pairs)
    }
}

fn p99(times: &Histogram<u64>) -> f64 {
    quantile_us(times, 0.99)
}

/// Returns the tail at depth 1, compared with that of a word's round trips between two threads, and
/// with the sum of that and the tail of single copies. Each is one number for each round, or
/// missing.
fn tails(case: &Case, rounds: &[Round], trips: &[f64], copies: &[f64]) -> Vec<Figure> {
    let both = trips.iter().zip(copies).map(|(trip, copy)| trip + copy);
    let both: Vec<f64> = both.collect();
    let (trip, and_copy) = (
        "p99 of a shared-memory ping-pong",
        "that and p99 of a cold copy",
    );
    let goal = Some(Goal::RatioAtMost(2.0));
    let figure = |end: &str, beside: &str, goal, others: &[f64]| {
        let values = rounds.iter().map(|round| p99(&round.latencies));
        let pairs: Vec<_> = values.zip(others.iter().copied()).collect();
        (!pairs.is_empty()).then(|| Figure {
            goal,
            latency_us: Some(latency(&merged(rounds))),
            ..Figure::of_rounds(case.name() + end, "us", false, beside, &pairs)
        })
    };
    let figures = [
        figure(TAIL, trip, goal, trips),
        figure(TAIL_AND_COPY, and_copy, None, &both),
    ];
    figures.into_iter().flatten().collect()
}

fn merged(rounds: &[Round]) -> Histogram<u64> {
    let mut all = latencies();
    for round in rounds {
        // Both have the bounds that `latencies` sets.
        let _ = all.add(&round.latencies);
    }
    all
}

fn latency(histogram: &Histogram<u64>) -> Latency {
    Latency {
        p50: quantile_us(histogram, 0.5),
        p99: quantile_us(histogram, 0.99),
        p999: quantile_us(histogram, 0.999),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(rate: f64, nanoseconds: u64) -> Round {
        let mut histogram = latencies();
        histogram.record(nanoseconds).unwrap();
        Round {
            rate,
            latencies: histogram,
            cpu_ns: 1.0,
        }
    }

    #[test]
    fn every_case_has_a_name_of_its_own() {
        for quick in [false, true] {
            let names: Vec<String> = cases(quick).iter().map(Case::name).collect();
            let different: std::collections::HashSet<&String> = names.iter().collect();
            assert_eq!(different.len(), names.len());
        }
        assert!(cases(true).len() < cases(false).len());
    }

    #[test]
    fn each_round_is_set_beside_the_limit_of_its_own_time() {
        let case = cases(true)[0];
        let rounds = [round(10.0, 1_000), round(40.0, 2_000), round(90.0, 3_000)];
        let figure = rate(&case, &rounds, &[20.0, 50.0, 100.0]);
        assert_eq!((figure.value, figure.beside.value), (40.0, 50.0));
        assert_eq!(figure.ratio, 0.8);
        let figures = tails(&case, &rounds, &[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]);
        let ratios: Vec<f64> = figures.iter().map(|figure| figure.ratio).collect();
        assert_eq!(ratios, [1.0, 0.5]);
        let value = figures[0].value;
        assert!((value - 2.0).abs() < 0.01, "{value}");
        assert_eq!(tails(&case, &rounds, &[1.0; 3], &[]).len(), 1);
        assert!(tails(&case, &rounds, &[], &[]).is_empty());
    }
}
