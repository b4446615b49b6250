//! The speed of each way to read, and the time that it takes from the guest's processors and this
//! process.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::time::{ClockId, clock_gettime};

use super::guest_time::GuestTime;
use crate::guest_context::GuestContext;

/// Minimum duration of the measurement of each way.
const MEASURED: Duration = Duration::from_secs(1);
/// Number of rounds of a measurement, unless they take longer than the limit: the check must end on
/// a busy host, too.
const ROUNDS: usize = 5;
const LONGEST: Duration = Duration::from_secs(3);

/// The parameters of a check's measurements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measurement<'a> {
    pub(super) guest: &'a GuestContext,
    /// `true` if comparable figures are wanted, which takes several rounds. Otherwise there is one.
    pub(super) figures: bool,
}

/// The rate of reads by one way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    /// Maximum number of reads in progress.
    depth: u64,
    reads: u64,
    /// Reads per second in the median round.
    median: f64,
    /// Time that the host's processors spent as those of the guest, if the host knows it.
    guest: Option<Duration>,
    /// Processor time of this process by the guest's clock, including its system calls.
    program: Duration,
}

impl Rate {
    /// Measures the rate of reads at this depth, in rounds. Each round returns its number of reads.
    /// Disturbances of single rounds do not count.
    pub(super) fn measure(
        Measurement { guest, figures }: Measurement<'_>,
        depth: u64,
        mut round: impl FnMut() -> anyhow::Result<u64>,
    ) -> anyhow::Result<Self> {
        let (before, program, begun) = (GuestTime::now(guest)?, processor_time()?, Instant::now());
        let (mut reads, mut rates) = (0_u64, Vec::new());
        while rates.is_empty() || (figures && wants_more(rates.len(), begun.elapsed())) {
            let begun = Instant::now();
            let more = round()?;
            rates.push(more as f64 / begun.elapsed().as_secs_f64());
            reads = reads.saturating_add(more);
        }
        let program = processor_time()?.saturating_sub(program);
        Ok(Self {
            depth,
            reads,
            median: median(rates),
            guest: GuestTime::now(guest)?.since(before),
            program,
        })
    }
}

/// Returns `true` if more rounds are needed after these, which have taken that long.
fn wants_more(rounds: usize, elapsed: Duration) -> bool {
    elapsed < MEASURED || rounds < ROUNDS && elapsed < LONGEST
}

/// Returns the median value, or 0 without values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Returns the guest's own load while this process sleeps, as a share of one processor, or `None`
/// if the host does not know it.
pub(super) fn busy_asleep(guest: &GuestContext) -> anyhow::Result<Option<f64>> {
    let (before, begun) = (GuestTime::now(guest)?, Instant::now());
    thread::sleep(MEASURED);
    let elapsed = begun.elapsed().as_secs_f64();
    let busy = GuestTime::now(guest)?.since(before);
    Ok(busy.map(|busy| busy.as_secs_f64() / elapsed))
}

/// Returns the processor time of this process.
fn processor_time() -> anyhow::Result<Duration> {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.try_into().context("a negative processor time")
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = |time: Duration| time.as_secs_f64() * 1e6 / self.reads.max(1) as f64;
        let program = each(self.program);
        let Self { depth, median, .. } = self;
        write!(f, "{median:.0} at depth {depth} (")?;
        match self.guest {
            Some(guest) => write!(f, "{:.1}", each(guest))?,
            None => write!(f, "unknown")?,
        }
        write!(f, ", {program:.1})")
    }
}

/// Rates of reads by Linux' own drivers.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelRates {
    /// By pread(2), one after the other.
    pub(super) pread: Rate,
    /// By io_uring, with as many in progress as the GPU has.
    pub(super) io_uring: Rate,
}

/// The figures of all ways.
pub(super) struct Figures {
    pub(super) by_gpu: Rate,
    pub(super) by_processor: Rate,
    /// `None` if the kernel refuses peer-to-peer DMA.
    pub(super) by_kernel: Option<KernelRates>,
    /// Busy time of the guest's processors without any request, as a share of one processor. The
    /// outer `None`: it was not measured; the inner one: the host does not know it.
    pub(super) asleep: Option<Option<f64>>,
    pub(super) reads_a_doorbell: u64,
    /// The processors' part, according to the counters.
    pub(super) of_processors: String,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            by_gpu,
            by_processor,
            by_kernel,
            asleep,
            reads_a_doorbell,
            of_processors,
        } = self;
        write!(
            f,
            "{of_processors}; reads of 4 KiB a second (microseconds for each: of the guest's processors, of the program by the guest's clock): \
             by the GPU {by_gpu}, {reads_a_doorbell} a doorbell; by a driver in user space {by_processor}"
        )?;
        match by_kernel {
            Some(KernelRates { pread, io_uring }) => {
                write!(f, "; by pread {pread}; by io_uring {io_uring}")?;
            }
            None => write!(f, "; the kernel refuses it peer to peer")?,
        }
        let Some(asleep) = asleep else { return Ok(()) };
        let asleep = asleep.map(|part| format!("{:.1} %", part * 100.0));
        let asleep = asleep.as_deref().unwrap_or("an unknown part");
        write!(f, "; the guest asleep takes {asleep} of a processor")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_shown_with_depth_and_costs() {
        let rate = Rate {
            depth: 32,
            reads: 2000,
            median: 4000.0,
            guest: Some(Duration::from_millis(700)),
            program: Duration::from_millis(50),
        };
        assert_eq!(rate.to_string(), "4000 at depth 32 (350.0, 25.0)");
        let rate = Rate {
            guest: None,
            ..rate
        };
        assert_eq!(rate.to_string(), "4000 at depth 32 (unknown, 25.0)");
    }

    #[test]
    fn median_leaves_one_slow_round_out() {
        assert_eq!(median(vec![900.0, 1000.0, 1.0, 1100.0, 1050.0]), 1000.0);
        assert_eq!(median(Vec::new()), 0.0);
    }
    #[test]
    fn rounds_end_by_number_and_time_together() {
        let seconds = Duration::from_secs_f32;
        assert!(wants_more(100, seconds(0.5)) && wants_more(2, seconds(2.5)));
        assert!(!wants_more(5, seconds(1.5)) && !wants_more(1, seconds(3.5)));
    }
}
