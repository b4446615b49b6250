//! What a transfer costs when there is more of everything.

use peerbar_lab::exit::Failure;

use crate::figure::{Figure, Goal};
use crate::loaded_queue::Direction;
use crate::scattered_pages::MOST;
use crate::setup::{Round, Session, Setup};
use crate::spread::median;
use crate::suite::HostContext;

/// Commands outstanding on each queue, however many queues there are: with fewer, each doorbell and each interrupt would
/// serve fewer of them, and that is another question.
const DEPTH: u16 = 16;
/// How much more a transfer may cost with the most than with the least.
const GOAL: f64 = 1.5;

/// What there is more and more of.
#[derive(Clone, Copy, Debug)]
struct Dimension {
    name: &'static str,
    /// How many, the first of which the others are measured by.
    counts: [usize; 3],
    /// What a number of them is.
    of: fn(usize) -> Setup,
}

const ONE: Setup = Setup {
    depth: DEPTH,
    ..Setup::ONE
};

const DIMENSIONS: [Dimension; 4] = [
    Dimension {
        name: "namespaces",
        counts: [1, 16, 256],
        of: |count| Setup {
            namespaces: u32::try_from(count).unwrap_or(1),
            ..ONE
        },
    },
    Dimension {
        name: "queues",
        counts: [1, 16, 64],
        of: |count| Setup {
            queues: u16::try_from(count).unwrap_or(1),
            ..ONE
        },
    },
    Dimension {
        name: "mappings",
        counts: [16, 4096, MOST + 1],
        of: |count| Setup {
            pieces: Some(count.min(MOST)),
            ..ONE
        },
    },
    Dimension {
        name: "devices",
        counts: [1, 4, 16],
        of: |count| Setup {
            devices: u16::try_from(count).unwrap_or(1),
            ..ONE
        },
    },
];

impl Dimension {
    fn figure(&self, count: usize) -> String {
        format!("growth/{}/{count}", self.name)
    }
}

/// Measures 4 KiB random reads, and reports what each costs with more of everything.
pub(crate) fn measure(context: &mut HostContext<'_>) -> Result<(), Failure> {
    for dimension in DIMENSIONS {
        let names = dimension.counts.map(|count| dimension.figure(count));
        if names.iter().any(|name| context.wants(name)) {
            context.stage(&format!("growth/{}", dimension.name))?;
            let figures = grow(&dimension, context)?;
            context.report.figures.extend(figures);
        }
    }
    Ok(())
}

/// One round with each number in turn, again and again.
fn grow(dimension: &Dimension, context: &HostContext<'_>) -> Result<Vec<Figure>, Failure> {
    let sessions = dimension.counts.iter().map(|count| {
        let session = Session::start(context.options, &(dimension.of)(*count))?;
        Ok((*count, session, Vec::new()))
    });
    let mut sessions = sessions.collect::<Result<Vec<_>, Failure>>()?;
    for _ in 0..context.rounds() {
        for (_, session, rounds) in &mut sessions {
            rounds.push(session.round(Direction::Read, context.time())?);
        }
    }
    for (_, session, _) in &mut sessions {
        session.check()?;
    }
    let Some((first, _, least)) = sessions.first() else {
        return Ok(Vec::new());
    };
    let beside = format!("{first} of them");
    let more = sessions.iter().skip(1);
    let figures = more.map(|(count, _, rounds)| {
        let name = dimension.figure(*count);
        figure(name, &beside, rounds, least)
    });
    Ok(figures.collect())
}

/// Time for each transfer, beside that of the least.
fn figure(name: String, beside: &str, rounds: &[Round], least: &[Round]) -> Figure {
    let cost = |round: &Round| 1e9 / round.rate;
    let pairs = rounds.iter().zip(least);
    let pairs: Vec<_> = pairs
        .map(|(more, least)| (cost(more), cost(least)))
        .collect();
    let cpu: Vec<f64> = rounds.iter().map(|round| round.cpu_ns).collect();
    Figure {
        goal: Some(Goal::RatioAtMost(GOAL)),
        cpu_ns: Some(median(&cpu)),
        ..Figure::of_rounds(name, "ns", false, beside, &pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spread::latencies;

    #[test]
    fn every_disk_holds_many_transfers() {
        for dimension in DIMENSIONS {
            for count in dimension.counts {
                assert!((dimension.of)(count).namespace_bytes() >= 1 << 19);
            }
        }
    }

    #[test]
    fn the_cost_is_the_time_of_a_transfer() {
        let round = |rate| Round {
            rate,
            latencies: latencies(),
            cpu_ns: 100.0,
        };
        let (least, most) = ([round(1e6), round(2e6)], [round(5e5), round(1e6)]);
        let figure = figure("x".to_owned(), "1 of them", &most, &least);
        assert_eq!((figure.value, figure.ratio), (1500.0, 2.0));
        assert_eq!(figure.reaches_goal(), Some(false));
    }
}
