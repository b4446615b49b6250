//! Transfers between devices, driven from the host: straight, beside memcpy and beside the paths around.

mod chain;
mod copy_engine;
mod messages;
mod paths;
mod switch_setup;

use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::figure::{Figure, Goal};
use crate::jobs::{Period, exact};
use crate::limits::{Copied, Copies};
use crate::loaded_queue::Direction;
use crate::spread::median;
use crate::{Error, Options, Progress, Report};
use paths::{Buffers, Done, Flow, TransferPath, TransferPaths};
use switch_setup::{DISK_BYTES, SwitchSetup};

/// A transfer of 8 MiB is eight commands.
const COMMAND_BYTES: usize = 1 << 20;
/// What is on its way at a time, and how many commands at most.
const OUTSTANDING_BYTES: usize = 16 << 20;
const OUTSTANDING: u16 = 32;

/// Rounds here for each round of other suites: workers and driver outnumber the processors of small machines, and how they share
/// them lasts for tens of milliseconds.
const PARTS: u32 = 3;

/// Sizes of transfers, and what they are called.
const SIZES: [(&str, usize); 4] = [
    ("4K", 4 << 10),
    ("64K", 64 << 10),
    ("1M", 1 << 20),
    ("8M", 8 << 20),
];
const QUICK: [&str; 2] = ["4K", "1M"];

/// What a figure sets beside a transfer that goes straight.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Beside {
    Memcpy,
    Bounce,
    Messages,
    /// The bounce, in bytes moved.
    Traffic,
    /// Memcpy by as many threads at once as devices copy, in time on a processor, which other work on the machine disturbs
    /// less.
    Processor,
}

impl Beside {
    const ALL: [Self; 5] = [
        Self::Memcpy,
        Self::Processor,
        Self::Bounce,
        Self::Messages,
        Self::Traffic,
    ];

    fn name(self, flow: Flow, size: &str) -> String {
        let what = match self {
            Self::Memcpy => "over-memcpy",
            Self::Bounce => "over-bounce",
            Self::Messages => "over-messages",
            Self::Traffic => "traffic",
            Self::Processor => "cpu-over-memcpy",
        };
        format!("peers/{}/{size}/{what}", flow.name())
    }

    fn what(self) -> &'static str {
        match self {
            Self::Memcpy => "memcpy of the same pieces",
            Self::Processor => "memcpy by as many threads",
            Self::Bounce | Self::Traffic => "bounced through guest RAM",
            Self::Messages => "by messages to our client",
        }
    }

    /// The two values of a round: of the straight way, and what is beside it.
    fn pair(self, round: &Round) -> (f64, f64) {
        let mib = f64::from(1 << 20);
        let straight = round.straight.rate / mib;
        match self {
            Self::Memcpy => (straight, round.copied.rate / mib),
            Self::Processor => (round.straight.cpu_ns / 1e3, round.copied.cpu_ns / 1e3),
            Self::Bounce => (straight, round.bounced.rate / mib),
            Self::Messages => (straight, round.messages.rate / mib),
            Self::Traffic => (round.straight.moved, round.bounced.moved),
        }
    }

    /// The goals: those of rates are about 1 MiB.
    fn goal(self, flow: Flow, size: &str) -> Option<Goal> {
        match (self, flow, size) {
            (Self::Memcpy, _, "1M") => Some(Goal::RatioAtLeast(0.8)),
            (Self::Processor, _, "1M") => Some(Goal::RatioAtMost(1.25)),
            (Self::Messages, _, "1M") => Some(Goal::RatioAtLeast(20.0)),
            // Through a CMB as many bytes are moved as through guest RAM, but not there.
            (Self::Traffic, Flow::DiskToVram, _) => Some(Goal::RatioAtMost(0.5)),
            _ => None,
        }
    }
}

/// One round: all in turn.
struct Round {
    /// A bare loop that copies as often as the devices do: bytes a second, and time on a processor for each transfer.
    copied: Copied,
    straight: Done,
    bounced: Done,
    messages: Done,
}

/// Measures transfers from disk to VRAM and from disk to CMB to disk, and adds them to `report`; `progress` gets each
/// step, and may end it.
///
/// # Errors
/// If a server does not start or does not do what it should, wrong data included, or if the devices' records tell of another
/// way than the one that was to be measured.
pub(crate) fn measure(
    options: &Options,
    report: &mut Report,
    progress: &mut Progress<'_>,
) -> Result<(), Error> {
    let disk = usize::try_from(DISK_BYTES).unwrap_or(usize::MAX);
    let mut copies = Copies::new(disk, OUTSTANDING_BYTES)?;
    let sizes = SIZES.into_iter();
    for (size, bytes) in sizes.filter(|(size, _)| !options.quick || QUICK.contains(size)) {
        let wanted = |flow: &Flow| {
            let mut names = Beside::ALL
                .into_iter()
                .map(|beside| beside.name(*flow, size));
            names.any(|name| name.contains(&options.only))
        };
        let flows: Vec<Flow> = Flow::ALL.into_iter().filter(wanted).collect();
        if flows.is_empty() {
            continue;
        }
        progress(&format!("peers/{size}"))?;
        let buffers = buffers(bytes);
        let mut setup = SwitchSetup::start(options, buffers.ram_bytes())?;
        paths::fill(&mut setup, buffers)?;
        for flow in flows {
            progress(&format!("peers/{}/{size}", flow.name()))?;
            let mut run = FlowRun {
                paths: flow.paths(&mut setup, buffers)?,
                setup: &mut setup,
                copies: &mut copies,
                flow,
                buffers,
                time: options.time() / PARTS,
                rng: Rng::with_seed(4),
            };
            run.check()?;
            let rounds = (0..options.rounds() * PARTS).map(|_| run.round());
            let rounds = rounds.collect::<Result<Vec<_>, Error>>()?;
            report.figures.extend(figures(flow, size, &rounds));
        }
    }
    Ok(())
}

fn buffers(bytes: usize) -> Buffers {
    let bytes = bytes.min(COMMAND_BYTES);
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
    paths: TransferPaths,
    flow: Flow,
    buffers: Buffers,
    time: Duration,
    rng: Rng,
}

impl FlowRun<'_> {
    fn check(&mut self) -> Result<(), Error> {
        let TransferPaths {
            straight,
            bounced,
            messages,
        } = &mut self.paths;
        // None finds on the disk that is written what another one has brought there.
        let mut first = 0;
        for path in [straight, bounced, messages] {
            path.check(self.setup, first)?;
            first += u64::from(self.buffers.count);
        }
        Ok(())
    }

    /// Transfers by a bare loop that copies as often as the devices do. Two devices copy at once, and processors that do so
    /// take longer for each copy, since they share the way to memory: so long do two loops at once.
    fn copied(&mut self) -> Result<Copied, Error> {
        let Buffers { count, bytes } = self.buffers;
        let (count, time) = (count.into(), self.time);
        let copied = self.copies.rate(Direction::Read, bytes, count, time)?;
        if self.flow == Flow::DiskToVram {
            return Ok(copied);
        }
        let both = self.copies.rates_at_once(bytes, count, time)?;
        Ok(Copied {
            rate: copied.rate / 2.0,
            cpu_ns: both.iter().map(|copied| copied.cpu_ns).sum(),
        })
    }

    fn round(&mut self) -> Result<Round, Error> {
        let copied = self.copied()?;
        let extent = self.buffers.extent();
        let mut run = |path: &mut TransferPath| {
            let mut period = Period::new(self.time);
            let mut next = || {
                let goes_on = period.goes_on(Instant::now());
                extent.random(&mut self.rng).filter(|_| goes_on)
            };
            path.run(self.setup, &mut next)
        };
        Ok(Round {
            copied: Copied {
                rate: copied.rate * exact(extent.bytes),
                ..copied
            },
            straight: run(&mut self.paths.straight)?,
            bounced: run(&mut self.paths.bounced)?,
            messages: run(&mut self.paths.messages)?,
        })
    }
}

fn figures(flow: Flow, size: &str, rounds: &[Round]) -> [Figure; 5] {
    let cpu: Vec<f64> = rounds.iter().map(|round| round.straight.cpu_ns).collect();
    Beside::ALL.map(|beside| {
        let pairs: Vec<(f64, f64)> = rounds.iter().map(|round| beside.pair(round)).collect();
        let (unit, more_is_better) = match beside {
            Beside::Traffic => ("bytes a byte", false),
            Beside::Processor => ("us", false),
            _ => ("MiB/s", true),
        };
        let name = beside.name(flow, size);
        Figure {
            goal: beside.goal(flow, size),
            cpu_ns: Some(median(&cpu)),
            ..Figure::of_rounds(name, unit, more_is_better, beside.what(), &pairs)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(rate: f64, moved: f64) -> Done {
        Done {
            rate,
            moved,
            cpu_ns: 1.0,
        }
    }

    #[test]
    fn every_figure_stands_beside_what_its_name_says() {
        let mib = f64::from(1 << 20);
        let round = Round {
            copied: Copied {
                rate: 100.0 * mib,
                cpu_ns: 2.0,
            },
            straight: done(90.0 * mib, 1.0),
            bounced: done(45.0 * mib, 2.0),
            messages: done(3.0 * mib, 1.0),
        };
        let figures = figures(Flow::DiskToVram, "1M", &[round]);
        let told = figures.each_ref().map(|figure| {
            let reached = figure.reaches_goal();
            (figure.name.as_str(), figure.ratio, reached)
        });
        let expected = [
            ("peers/vram/1M/over-memcpy", 0.9, Some(true)),
            ("peers/vram/1M/cpu-over-memcpy", 0.5, Some(true)),
            ("peers/vram/1M/over-bounce", 2.0, None),
            ("peers/vram/1M/over-messages", 30.0, Some(true)),
            ("peers/vram/1M/traffic", 0.5, Some(true)),
        ];
        assert_eq!(told, expected);
        assert_eq!(figures[0].value, 90.0);
    }

    #[test]
    fn what_is_outstanding_fits_the_memories() {
        for (_, bytes) in SIZES {
            let Buffers { count, bytes } = buffers(bytes);
            assert!(count > 0 && usize::from(count) * bytes <= OUTSTANDING_BYTES);
        }
    }
}
