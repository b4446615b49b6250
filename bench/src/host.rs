//! The controller's server driven from the host, without a guest.

use hdrhistogram::Histogram;

use crate::figure::{Figure, Goal, Latency};
use crate::limits::{Calls, Copies, empty_ring, ping_pong};
use crate::loaded_queue::Direction;
use crate::setup::{Round, Session, Setup};
use crate::spread::{latencies, median, quantile_us};
use crate::{Error, Options, Progress, Report};

/// What the disks hold, beyond the caches of most processors.
const DISK_BYTES: u64 = 128 << 20;
/// The largest sum of all buffers of a measurement: 64 commands of 128 KiB.
const BUFFER_BYTES: usize = 8 << 20;
/// Bytes of the two kinds of transfers.
const SMALL: usize = 4 << 10;
const LARGE: usize = 128 << 10;
/// What SPDK's NVMe/vfio-user target is known for, in 4 KiB reads a second of one core.
const NULL_GOAL: f64 = 4e6;

/// What the names of figures of the tail have at their end.
const TAIL: &str = "/p99";
/// And those that stand beside a copy, too.
const TAIL_AND_COPY: &str = "/p99/and-copy";

/// One line of what is measured.
#[derive(Clone, Copy, Debug)]
struct Case {
    backend: &'static str,
    direction: Direction,
    bytes: usize,
    queues: u16,
    depth: u16,
}

impl Case {
    fn name(&self) -> String {
        let direction = match self.direction {
            Direction::Read => "read",
            Direction::Write => "write",
        };
        let (backend, kib) = (self.backend, self.bytes >> 10);
        let (queues, depth) = (self.queues, self.depth);
        format!("host/{backend}/{direction}-{kib}k/{queues}-queues/depth-{depth}")
    }

    /// The name of the last of its figures, with which those of the others begin.
    fn last_name(&self) -> String {
        let tail = match (self.depth, self.copies_to_host()) {
            (1, true) => TAIL_AND_COPY,
            (1, false) => TAIL,
            _ => "",
        };
        self.name() + tail
    }

    /// Whether a transfer of it is a copy of a namespace's memory.
    fn copies_to_host(&self) -> bool {
        self.backend == "ram" && self.direction == Direction::Read
    }

    fn goal(&self) -> Option<Goal> {
        match (self.backend, self.direction) {
            ("null", Direction::Read) if self.depth >= 32 => Some(Goal::ValueAtLeast(NULL_GOAL)),
            ("ram", Direction::Read) if self.depth >= 32 => Some(Goal::RatioAtLeast(0.8)),
            _ => None,
        }
    }
}

/// All cases: every depth on one queue, more queues at one depth, and large transfers.
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
                backend,
                direction,
                bytes,
                queues,
                depth,
            }));
        }
    }
    cases.retain(|case| match case.backend {
        "null" => case.bytes != LARGE,
        "file" => !quick || (case.queues, case.depth) == (1, 32),
        _ => true,
    });
    cases
}

/// Measures rates, latencies and bandwidth, and adds them to `report`; `progress` gets each step, and may end it.
///
/// # Errors
/// If the server does not start or does not do what it should, wrong data included.
pub(crate) fn measure(
    options: &Options,
    report: &mut Report,
    progress: &mut Progress<'_>,
) -> Result<(), Error> {
    let disk = usize::try_from(DISK_BYTES).unwrap_or(usize::MAX);
    let mut bare = Bare {
        copies: Copies::new(disk, BUFFER_BYTES)?,
        calls: Calls::new(DISK_BYTES)?,
    };
    let wanted = |case: &Case| case.last_name().contains(&options.only);
    for case in cases(options.quick).into_iter().filter(wanted) {
        progress(&case.name())?;
        let setup = Setup {
            under: &options.under,
            program: &options.server,
            options: &options.words,
            backend: case.backend,
            devices: 1,
            namespaces: 1,
            namespace_bytes: DISK_BYTES,
            queues: case.queues,
            depth: case.depth,
            bytes: case.bytes,
            pieces: None,
        };
        let mut session = Session::start(&setup)?;
        let doorbells = session.doorbells().to_owned();
        report.settings.insert("doorbells".to_owned(), doorbells);
        report
            .figures
            .extend(one(&case, options, &mut session, &mut bare)?);
        if case.backend != "null" {
            session.check()?;
        }
    }
    Ok(())
}

/// What the machine does at best.
struct Bare {
    copies: Copies,
    calls: Calls,
}

/// The rounds of a case, the machine's limit and ours in turn.
fn one(
    case: &Case,
    options: &Options,
    session: &mut Session,
    bare: &mut Bare,
) -> Result<Vec<Figure>, Error> {
    let mut rounds = Vec::new();
    let mut limits = Vec::new();
    let mut trips = Vec::new();
    let mut copies = Vec::new();
    for _ in 0..options.rounds() {
        limits.push(limit(case, options, bare)?);
        if case.depth == 1 {
            trips.push(p99(&ping_pong(options.time())?));
            if case.copies_to_host() {
                let times = bare.copies.times(case.bytes, options.time())?;
                copies.push(p99(&times));
            }
        }
        rounds.push(session.round(case.direction, options.time())?);
    }
    let mut figures = vec![rate(case, &rounds, &limits)];
    figures.extend(tails(case, &rounds, &trips, &copies));
    Ok(figures)
}

/// What the machine does at best in transfers of this kind, a second.
fn limit(case: &Case, options: &Options, bare: &mut Bare) -> Result<f64, Error> {
    match case.backend {
        "null" => empty_ring(case.depth, options.time()),
        "file" => bare.calls.rate(case.direction, case.bytes, options.time()),
        _ => {
            let buffers = usize::from(case.queues) * usize::from(case.depth);
            let fitting = buffers.min(BUFFER_BYTES / case.bytes);
            bare.copies
                .rate(case.direction, case.bytes, fitting, options.time())
        }
    }
}

fn rate(case: &Case, rounds: &[Round], limits: &[f64]) -> Figure {
    let large = case.bytes == LARGE;
    let mib = f64::from(u32::try_from(case.bytes).unwrap_or(u32::MAX)) / f64::from(1 << 20);
    let scale = if large { mib } else { 1.0 };
    let pairs = rounds.iter().zip(limits);
    let pairs: Vec<_> = pairs
        .map(|(round, limit)| (round.rate * scale, limit * scale))
        .collect();
    let cpu: Vec<f64> = rounds.iter().map(|round| round.cpu_ns).collect();
    let beside = match (case.backend, large) {
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

/// The tail at depth 1, beside that of the round trips of a word between two threads, and beside the sum of that and the
/// tail of single copies; each is one number for each round, or none.
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
