//! `peerbar-bench rdma`: RDMA between GPUs' memory, compared with memcpy, guest RAM and the
//! kernel's software RoCE.

mod load;
mod rig;
mod two_guests;

use std::time::Duration;

use peerbar_lab::exit::Failure;

use self::load::{Adapters, Kind, PayloadMemory, Perftest, Request};
use self::rig::{CopyLimit, Rig};
use crate::figure::{Figure, Goal};
use crate::spread::median;
use crate::suite::GuestContext;

/// Bytes of the transfers that are compared with memcpy, and of those whose number counts.
const LARGE: u32 = 1 << 20;
const SMALL: u32 = 64;
/// The least ratios of a write from VRAM to VRAM: one copy in one adapter, two copies between two.
const GOAL: Goal = Goal::RatioAtLeast(0.8);
const GOAL_OF_TWO: Goal = Goal::RatioAtLeast(0.4);

const MEMCPY: &str = "memcpy of the same pieces";
const GUEST_RAM: &str = "the same between buffers in guest RAM";
const RXE: &str = "software RoCE (rxe) in the same guest";

/// A large transfer, compared with memcpy.
struct Large {
    kind: Kind,
    memory: PayloadMemory,
    adapters: Adapters,
}

impl Large {
    fn all() -> impl Iterator<Item = Self> {
        let kinds = [Kind::Write, Kind::Read].into_iter();
        let of_kind = |kind| {
            Adapters::ALL.into_iter().flat_map(move |adapters| {
                PayloadMemory::ALL.into_iter().map(move |memory| Self {
                    kind,
                    memory,
                    adapters,
                })
            })
        };
        kinds.flat_map(of_kind)
    }

    fn name(&self) -> String {
        name(self.kind, "1M", self.adapters, self.memory.word())
    }

    /// Returns the rates in bytes a second of wall time and of processor time, each with that of
    /// memcpy as the baseline.
    fn figures(&self, rounds: &[LargeRound]) -> [Figure; 2] {
        let mib = |rate: f64| rate / f64::from(LARGE);
        let beside = |of: fn(&LargeRound) -> (f64, f64)| -> Vec<(f64, f64)> {
            let pairs = rounds.iter().map(of);
            pairs.map(|(rate, limit)| (mib(rate), mib(limit))).collect()
        };
        let cpu: Vec<f64> = rounds.iter().map(|round| round.cpu_ns).collect();
        let name = self.name();
        let clock = Figure {
            cpu_ns: Some(median(&cpu)),
            ..Figure::of_rounds(
                format!("{name}/over-memcpy"),
                "MiB/s",
                true,
                MEMCPY,
                &beside(|round| (round.rate, round.copied)),
            )
        };
        let is_wanted = self.kind == Kind::Write && self.memory == PayloadMemory::Vram;
        let processor = Figure {
            goal: is_wanted.then_some(match self.adapters {
                Adapters::One => GOAL,
                Adapters::Two => GOAL_OF_TWO,
            }),
            ..Figure::of_rounds(
                format!("{name}/processor-over-memcpy"),
                "MiB/s",
                true,
                MEMCPY,
                &beside(|round| (round.rate_of_processor, round.copied_by_processor)),
            )
        };
        [clock, processor]
    }
}

/// One round, in bytes a second.
struct LargeRound {
    rate: f64,
    copied: f64,
    /// Bytes for each second of the servers' processor time.
    rate_of_processor: f64,
    copied_by_processor: f64,
    /// Processor time of the servers for each request, in nanoseconds.
    cpu_ns: f64,
}

/// A message rate, compared with another way.
enum Small {
    /// From VRAM to VRAM, compared with guest RAM.
    OverRam(Kind, Adapters),
    /// By perftest on one adapter, compared with rxe.
    OverRxe(Kind),
}

impl Small {
    fn all() -> impl Iterator<Item = Self> {
        let kinds = [Kind::Send, Kind::Write].into_iter();
        let over_ram = kinds.clone().flat_map(|kind| {
            let adapters = Adapters::ALL.into_iter();
            adapters.map(move |adapters| Self::OverRam(kind, adapters))
        });
        over_ram.chain(kinds.map(Self::OverRxe))
    }

    fn name(&self) -> String {
        match self {
            Self::OverRam(kind, adapters) => name(*kind, "64", *adapters, "vram/over-guest-ram"),
            Self::OverRxe(kind) => name(*kind, "64", Adapters::One, "perftest/over-rxe"),
        }
    }

    fn beside(&self) -> &'static str {
        match self {
            Self::OverRam(..) => GUEST_RAM,
            Self::OverRxe(_) => RXE,
        }
    }

    /// Returns the messages a second, and those of the baseline.
    fn round(&self, rig: &mut Rig, time: Duration) -> anyhow::Result<(f64, f64)> {
        match *self {
            Self::OverRam(kind, adapters) => {
                let mut rate = |memory| {
                    let request = Request {
                        kind,
                        bytes: SMALL,
                        memory,
                        adapters,
                    };
                    Ok::<_, anyhow::Error>(rig.load(&request, time)?.requests_a_second())
                };
                Ok((rate(PayloadMemory::Vram)?, rate(PayloadMemory::GuestRam)?))
            }
            Self::OverRxe(kind) => {
                let mut rate = |device| {
                    let test = Perftest {
                        kind,
                        bytes: SMALL,
                        messages: load::messages(time),
                    };
                    test.messages_a_second(&rig.command(&test.line(device))?)
                };
                Ok((rate(load::EFA)?, rate(load::RXE)?))
            }
        }
    }
}

fn name(kind: Kind, size: &str, adapters: Adapters, rest: &str) -> String {
    format!("rdma/{}-{size}/{}/{rest}", kind.word(), adapters.word())
}

/// Measures, and adds figures to the report.
pub(crate) fn measure(context: &mut GuestContext<'_>) -> Result<(), Failure> {
    let large = Large::all().filter(|case| context.wants(&case.name()));
    let large: Vec<Large> = large.collect();
    let small = Small::all().filter(|case| context.wants(&case.name()));
    let small: Vec<Small> = small.collect();
    if !large.is_empty() || !small.is_empty() {
        one_guest(context, &large, &small)?;
    }
    two_guests::measure(context)
}

/// Returns the number and the length of the measurements. The first use in a guest is slow, so one
/// more round warms it up.
fn rounds(context: &GuestContext<'_>) -> (usize, Duration) {
    match context.extent.quick {
        true => (1, Duration::from_secs(1)),
        false => (5, Duration::from_secs(2)),
    }
}

fn one_guest(
    context: &mut GuestContext<'_>,
    large: &[Large],
    small: &[Small],
) -> Result<(), Failure> {
    let (rounds, time) = rounds(context);
    let mut limit = CopyLimit::new(LARGE)?;
    context.stage("rdma: a guest boots")?;
    let mut rig = Rig::start(
        context,
        small.iter().any(|case| matches!(case, Small::OverRxe(_))),
    )?;
    let mut of_large: Vec<Vec<LargeRound>> = large.iter().map(|_| Vec::new()).collect();
    let mut of_small: Vec<Vec<(f64, f64)>> = small.iter().map(|_| Vec::new()).collect();
    for round in 0..=rounds {
        for (case, measured) in large.iter().zip(&mut of_large) {
            context.stage(&case.name())?;
            let done = large_round(case, &mut rig, &mut limit, time)?;
            measured.extend((round > 0).then_some(done));
        }
        for (case, measured) in small.iter().zip(&mut of_small) {
            context.stage(&case.name())?;
            let done = case.round(&mut rig, time)?;
            measured.extend((round > 0).then_some(done));
        }
    }
    rig.end()?;
    let figures = &mut context.report.figures;
    for (case, measured) in large.iter().zip(&of_large) {
        figures.extend(case.figures(measured));
    }
    for (case, measured) in small.iter().zip(&of_small) {
        let (name, beside) = (case.name(), case.beside());
        let figure = Figure::of_rounds(name, "messages/s", true, beside, measured);
        figures.push(figure);
    }
    Ok(())
}

fn large_round(
    case: &Large,
    rig: &mut Rig,
    limit: &mut CopyLimit,
    time: Duration,
) -> anyhow::Result<LargeRound> {
    let Large {
        kind,
        memory,
        adapters,
    } = *case;
    let done = rig.load(
        &Request {
            kind,
            bytes: LARGE,
            memory,
            adapters,
        },
        time,
    )?;
    let copied = limit.measure()?;
    let bytes = done.requests() * f64::from(LARGE);
    let servers = done.servers.as_secs_f64();
    Ok(LargeRound {
        rate: bytes / done.rate.seconds,
        copied: copied.rate,
        rate_of_processor: bytes / servers,
        copied_by_processor: copied.rate_of_processor,
        cpu_ns: servers * 1e9 / done.requests(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_figure_has_a_name_of_its_own() {
        let large = Large::all().flat_map(|case| case.figures(&[]));
        let names = large.map(|figure| figure.name);
        let names = names.chain(Small::all().map(|case| case.name()));
        let mut seen = HashSet::new();
        for name in names.chain(two_guests::names()) {
            assert!(seen.insert(name.clone()), "{name} twice");
        }
        assert_eq!(seen.len(), 2 * 8 + 6 + 2);
    }

    #[test]
    fn goal_is_about_writes_from_vram_to_vram() {
        let round = LargeRound {
            rate: f64::from(400 * LARGE),
            copied: f64::from(800 * LARGE),
            rate_of_processor: f64::from(900 * LARGE),
            copied_by_processor: f64::from(1000 * LARGE),
            cpu_ns: 5.0,
        };
        let rounds = [round];
        let figures: Vec<Figure> = Large::all()
            .flat_map(|case| case.figures(&rounds))
            .collect();
        let with_goal = figures.iter().filter(|figure| figure.goal.is_some());
        let names: Vec<&str> = with_goal.map(|figure| figure.name.as_str()).collect();
        let expected = ["one-adapter", "two-adapters"]
            .map(|adapters| format!("rdma/write-1M/{adapters}/vram/processor-over-memcpy"));
        assert_eq!(names, expected);
        let [clock, processor, ..] = figures.as_slice() else {
            panic!("{figures:?}")
        };
        assert_eq!(
            (clock.value, clock.ratio, clock.cpu_ns),
            (400.0, 0.5, Some(5.0))
        );
        assert_eq!(
            (processor.ratio, processor.reaches_goal()),
            (0.9, Some(true))
        );
    }
}
