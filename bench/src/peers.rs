//! Transfers between devices, driven from the host, beside memcpy.

mod chain;
mod path;
mod setup;

use std::time::{Duration, Instant};

use fastrand::Rng;
use peerbar_lab::exit::Failure;

use self::path::{Buffers, Done, Flow, TransferPath};
use self::setup::SwitchSetup;
use crate::figure::{Figure, Goal};
use crate::jobs::{Period, exact};
use crate::limits::Copies;
use crate::loaded_queue::Direction;
use crate::setup::DISK_BYTES;
use crate::spread::median;
use crate::suite::HostContext;

/// Bytes of the outstanding commands, and how many there are at most.
const OUTSTANDING_BYTES: usize = 16 << 20;
const OUTSTANDING: u16 = 32;

/// Rounds here for each round of other suites: workers and driver outnumber the processors of small machines, and how they share
/// them lasts for tens of milliseconds.
const PARTS: u32 = 3;

/// Sizes of transfers, and what they are called.
const SIZES: [(&str, usize); 3] = [("4K", 4 << 10), ("64K", 64 << 10), (GOAL_SIZE, 1 << 20)];
/// The size that the goal is about.
const GOAL_SIZE: &str = "1M";
const GOAL: Goal = Goal::RatioAtLeast(0.8);

/// One round: both in turn.
struct Round {
    /// Bytes a second of a bare loop that copies as often as the devices do.
    copied: f64,
    done: Done,
}

/// Measures transfers from disk to VRAM and from disk to CMB to disk, and reports them. An error if the disks' records show
/// another path than the one that is measured.
pub(crate) fn measure(context: &mut HostContext<'_>) -> Result<(), Failure> {
    let disk = usize::try_from(DISK_BYTES).unwrap_or(usize::MAX);
    let mut copies = Copies::new(disk, OUTSTANDING_BYTES)?;
    for (size, bytes) in SIZES {
        let wanted = |flow: &Flow| context.wants(&name(*flow, size));
        let flows: Vec<Flow> = Flow::ALL.into_iter().filter(wanted).collect();
        if flows.is_empty() || (context.extent.quick && size == "64K") {
            continue;
        }
        context.stage(&format!("peers/{size}"))?;
        let buffers = buffers(bytes);
        let mut setup = SwitchSetup::start(context.options, buffers.total_bytes())?;
        path::fill(&mut setup, buffers)?;
        for flow in flows {
            context.stage(&name(flow, size))?;
            let mut run = FlowRun {
                path: flow.path(&mut setup, buffers)?,
                setup: &mut setup,
                copies: &mut copies,
                flow,
                buffers,
                time: context.time() / PARTS,
                rng: Rng::with_seed(4),
            };
            run.path.check(run.setup)?;
            let rounds = (0..context.rounds() * PARTS).map(|_| run.round());
            let rounds = rounds.collect::<anyhow::Result<Vec<_>>>()?;
            context.report.figures.push(figure(flow, size, &rounds));
        }
    }
    Ok(())
}

fn name(flow: Flow, size: &str) -> String {
    format!("peers/{}/{size}/over-memcpy", flow.name())
}

fn buffers(bytes: usize) -> Buffers {
    let count = u16::try_from(OUTSTANDING_BYTES / bytes).unwrap_or(OUTSTANDING);
    Buffers {
        count: count.min(OUTSTANDING),
        bytes,
    }
}

/// What a round needs.
struct FlowRun<'a> {
    setup: &'a mut SwitchSetup,
    copies: &'a mut Copies,
    path: TransferPath,
    flow: Flow,
    buffers: Buffers,
    time: Duration,
    rng: Rng,
}

impl FlowRun<'_> {
    fn round(&mut self) -> anyhow::Result<Round> {
        let Buffers { count, bytes } = self.buffers;
        let copied = self
            .copies
            .rate(Direction::Read, bytes, count.into(), self.time)?;
        let extent = self.buffers.extent();
        let mut period = Period::new(self.time);
        let mut next = || {
            let goes_on = period.goes_on(Instant::now());
            extent.random(&mut self.rng).filter(|_| goes_on)
        };
        Ok(Round {
            copied: copied * exact(extent.bytes) / self.flow.copies(),
            done: self.path.run(self.setup, &mut next)?,
        })
    }
}

fn figure(flow: Flow, size: &str, rounds: &[Round]) -> Figure {
    let mib = f64::from(1 << 20);
    let pairs = rounds.iter();
    let pairs: Vec<_> = pairs
        .map(|Round { copied, done }| (done.rate / mib, copied / mib))
        .collect();
    let cpu: Vec<f64> = rounds.iter().map(|round| round.done.cpu_ns).collect();
    let beside = "memcpy of the same pieces";
    Figure {
        goal: (size == GOAL_SIZE).then_some(GOAL),
        cpu_ns: Some(median(&cpu)),
        ..Figure::of_rounds(name(flow, size), "MiB/s", true, beside, &pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_of_a_flow_stands_beside_memcpy() {
        let mib = f64::from(1 << 20);
        let done = Done {
            rate: 90.0 * mib,
            cpu_ns: 1.0,
        };
        let round = Round {
            copied: 100.0 * mib,
            done,
        };
        let rounds = [round];
        let with_goal = figure(Flow::DiskToVram, "1M", &rounds);
        assert_eq!(with_goal.name, "peers/vram/1M/over-memcpy");
        assert_eq!((with_goal.ratio, with_goal.value), (0.9, 90.0));
        assert_eq!(with_goal.reaches_goal(), Some(true));
        assert_eq!(figure(Flow::DiskToDisk, "4K", &rounds).reaches_goal(), None);
    }

    #[test]
    fn outstanding_buffers_fit_the_memories() {
        for (_, bytes) in SIZES {
            let buffers = buffers(bytes);
            assert!(buffers.count > 0 && buffers.total_bytes() <= OUTSTANDING_BYTES);
        }
    }
}
