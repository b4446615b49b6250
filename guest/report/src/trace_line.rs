//! The agent's lines between the kernel's trace events, on the port [`crate::TRACE_PORT`].

use std::fmt;

/// The host's clock between two readings of the guest's, all CLOCK_MONOTONIC in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSample {
    /// The guest's clock before the host's was read.
    pub before: u64,
    /// The host's.
    pub host: u64,
    /// The guest's clock after it.
    pub after: u64,
}

/// A line that is not an event of the kernel. It starts with `# `, which no line of the kernel
/// does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceLine {
    /// `# controller nvme0 disk0`: the driver's name for a device of the plan.
    Controller {
        /// The driver's name.
        controller: String,
        /// The plan's name.
        device: String,
    },
    /// `# clock BEFORE HOST AFTER`.
    Clock(ClockSample),
    /// `# missing TEXT`: an event that is not traced, and the reason.
    Missing(String),
    /// `# cut`: the events that follow are not kept, because there are too many.
    Cut,
}

impl TraceLine {
    /// Parses a line without its newline. Returns `None` if it is an event, or neither.
    pub fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line
            .strip_prefix("# ")?
            .split_once(' ')
            .unwrap_or((line.strip_prefix("# ")?, ""));
        let mut words = rest.split(' ');
        match word {
            "controller" => Some(Self::Controller {
                controller: words.next()?.to_owned(),
                device: words.next()?.to_owned(),
            }),
            "clock" => {
                let mut number = || words.next()?.parse().ok();
                Some(Self::Clock(ClockSample {
                    before: number()?,
                    host: number()?,
                    after: number()?,
                }))
            }
            "missing" => Some(Self::Missing(rest.to_owned())),
            "cut" => Some(Self::Cut),
            _ => None,
        }
    }
}

impl fmt::Display for TraceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Controller { controller, device } => {
                write!(f, "# controller {controller} {device}")
            }
            Self::Clock(ClockSample {
                before,
                host,
                after,
            }) => write!(f, "# clock {before} {host} {after}"),
            Self::Missing(what) => write!(f, "# missing {}", what.replace(char::is_control, " ")),
            Self::Cut => f.write_str("# cut"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_read_back_and_events_are_none() {
        let sample = ClockSample {
            before: 1,
            host: u64::MAX,
            after: 3,
        };
        let lines = [
            TraceLine::Controller {
                controller: "nvme0".into(),
                device: "disk0".into(),
            },
            TraceLine::Clock(sample),
            TraceLine::Missing("iommu/map: no such file".into()),
            TraceLine::Cut,
        ];
        for line in lines {
            assert_eq!(TraceLine::parse(&line.to_string()), Some(line));
        }
        for text in [
            "",
            "#",
            "# clock 1 2",
            "# clock a b c",
            "# other",
            "  x-1 [000] map: y",
        ] {
            assert_eq!(TraceLine::parse(text), None, "{text}");
        }
        let two = TraceLine::Missing("a\nb".into()).to_string();
        assert_eq!(two, "# missing a b");
    }
}
