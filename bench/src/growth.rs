//! What a transfer costs when there is more of everything.

use crate::figure::{Figure, Goal};
use crate::loaded_queue::Direction;
use crate::scattered_pages::MOST;
use crate::setup::{Round, Session, Setup};
use crate::spread::median;
use crate::{Error, Options, Progress, Report};

/// What all disks of a measurement hold together.
const DISK_BYTES: u64 = 128 << 20;
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
    of: fn(usize) -> Shape,
}

/// What differs between the measurements of all dimensions.
#[derive(Clone, Copy, Debug)]
struct Shape {
    devices: u16,
    namespaces: u32,
    queues: u16,
    pieces: Option<usize>,
}

const ONE: Shape = Shape {
    devices: 1,
    namespaces: 1,
    queues: 1,
    pieces: None,
};

const DIMENSIONS: [Dimension; 4] = [
    Dimension {
        name: "namespaces",
        counts: [1, 16, 256],
        of: |count| Shape {
            namespaces: u32::try_from(count).unwrap_or(1),
            ..ONE
        },
    },
    Dimension {
        name: "queues",
        counts: [1, 16, 64],
        of: |count| Shape {
            queues: u16::try_from(count).unwrap_or(1),
            ..ONE
        },
    },
    Dimension {
        name: "mappings",
        counts: [16, 4096, MOST + 1],
        of: |count| Shape {
            pieces: Some(count.min(MOST)),
            ..ONE
        },
    },
    Dimension {
        name: "devices",
        counts: [1, 4, 16],
        of: |count| Shape {
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

/// Measures 4 KiB random reads, and adds to `report` what each costs with more of everything; `progress` gets
/// each step, and may end it.
///
/// # Errors
/// If a server does not start or does not do what it should, wrong data included.
pub(crate) fn measure(
    options: &Options,
    report: &mut Report,
    progress: &mut Progress<'_>,
) -> Result<(), Error> {
    for dimension in DIMENSIONS {
        let counts = dimension.counts.iter();
        if !counts
            .map(|count| dimension.figure(*count))
            .any(|name| name.contains(&options.only))
        {
            continue;
        }
        progress(&format!("growth/{}", dimension.name))?;
        report.figures.extend(grow(&dimension, options)?);
    }
    Ok(())
}

/// One round with each number in turn, again and again.
fn grow(dimension: &Dimension, options: &Options) -> Result<Vec<Figure>, Error> {
    let sessions = dimension.counts.iter().map(|count| {
        let session = start(options, (dimension.of)(*count))?;
        Ok((*count, session, Vec::new()))
    });
    let mut sessions = sessions.collect::<Result<Vec<_>, Error>>()?;
    for _ in 0..options.rounds() {
        for (_, session, rounds) in &mut sessions {
            rounds.push(session.round(Direction::Read, options.time())?);
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

fn start(options: &Options, shape: Shape) -> Result<Session, Error> {
    let disks = u64::from(shape.devices) * u64::from(shape.namespaces);
    Session::start(&Setup {
        under: &options.under,
        program: &options.server,
        options: &options.words,
        backend: "ram",
        devices: shape.devices,
        namespaces: shape.namespaces,
        namespace_bytes: DISK_BYTES / disks,
        queues: shape.queues,
        depth: DEPTH,
        bytes: 4096,
        pieces: shape.pieces,
    })
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
                let shape = (dimension.of)(count);
                let disks = u64::from(shape.devices) * u64::from(shape.namespaces);
                assert!(DISK_BYTES / disks >= 1 << 19);
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
