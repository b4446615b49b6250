//! How fast each way to read is, and what it costs this process, the kernel's work for it included.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::time::{ClockId, clock_gettime};

/// Reads by one way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    reads: u64,
    time: Duration,
    /// Processor time of this process, with its system calls.
    busy: Duration,
}

impl Rate {
    /// That of `work`, which returns how many reads it has done.
    pub(super) fn measure(work: impl FnOnce() -> anyhow::Result<u64>) -> anyhow::Result<Self> {
        let before = processor_time()?;
        let begun = Instant::now();
        let reads = work()?;
        let time = begun.elapsed();
        Ok(Self {
            reads,
            time,
            busy: processor_time()?.saturating_sub(before),
        })
    }

    /// How many times the work fits into `time`.
    pub(super) fn fitting(&self, time: Duration) -> u16 {
        let times = time.as_nanos() / self.time.as_nanos().max(1);
        u16::try_from(times).unwrap_or(u16::MAX)
    }
}

/// How long this process has had processors.
fn processor_time() -> anyhow::Result<Duration> {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.try_into().context("a negative processor time")
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.reads as f64 / self.time.as_secs_f64();
        let cost = self.busy.as_secs_f64() * 1e6 / self.reads as f64;
        write!(f, "{rate:.0} ({cost:.1} us)")
    }
}

/// Reads by the ways of Linux' own drivers.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelRates {
    /// By pread(2), one after the other.
    pub(super) pread: Rate,
    /// By io_uring, as many at a time as the GPU has.
    pub(super) io_uring: Rate,
}

/// All ways.
pub(super) struct Figures {
    pub(super) by_gpu: Rate,
    pub(super) by_processor: Rate,
    /// None where the kernel refuses peer-to-peer DMA.
    pub(super) by_kernel: Option<KernelRates>,
    pub(super) reads_a_doorbell: u64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            by_gpu,
            by_processor,
            by_kernel,
            reads_a_doorbell,
        } = self;
        write!(
            f,
            "reads of 4 KiB a second (the program's processor time for each): by the GPU {by_gpu}, {reads_a_doorbell} a doorbell; \
             by a driver in user space {by_processor}"
        )?;
        match by_kernel {
            Some(KernelRates { pread, io_uring }) => {
                write!(f, "; by pread {pread}, by io_uring {io_uring}")
            }
            None => write!(f, "; the kernel refuses it peer to peer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_told_with_its_cost() {
        let rate = Rate {
            reads: 2000,
            time: Duration::from_millis(500),
            busy: Duration::from_millis(700),
        };
        assert_eq!(rate.to_string(), "4000 (350.0 us)");
        assert_eq!(rate.fitting(Duration::from_secs(2)), 4);
        assert_eq!(Rate::default().fitting(Duration::from_secs(1)), u16::MAX);
    }
}
