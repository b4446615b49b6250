//! One measured figure and its baseline.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::spread::median;

/// The baseline of a figure, measured in the same run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Beside {
    /// Its name.
    pub what: String,
    /// Its value, in the figure's unit.
    pub value: f64,
}

/// The goal of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Goal {
    /// The ratio must be at least this.
    RatioAtLeast(f64),
    /// The ratio must be at most this.
    RatioAtMost(f64),
    /// The value itself must be at least this.
    ValueAtLeast(f64),
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// Half of all take no longer.
    pub p50: f64,
    /// 99 of 100 take no longer.
    pub p99: f64,
    /// 999 of 1000 take no longer.
    pub p999: f64,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// Its name, the same in every run. Slashes separate its parts.
    pub name: String,
    /// Its unit, such as `IOPS`.
    pub unit: String,
    /// `true` if more is better.
    pub more_is_better: bool,
    /// The median of all rounds.
    pub value: f64,
    /// The result of the machine or of another program.
    pub beside: Beside,
    /// The median over all rounds of value / beside, each pair measured together.
    pub ratio: f64,
    /// The goal, if there is one.
    pub goal: Option<Goal>,
    /// The latency of single transfers, if it was measured.
    pub latency_us: Option<Latency>,
    /// Processor time of the host for each transfer in nanoseconds, if it was measured.
    pub cpu_ns: Option<f64>,
}

impl Figure {
    /// Makes a figure of several rounds, each a value and its baseline, measured together.
    pub(crate) fn of_rounds(
        name: impl Into<String>,
        unit: &str,
        more_is_better: bool,
        beside: &str,
        rounds: &[(f64, f64)],
    ) -> Self {
        let of = |pick: fn(&(f64, f64)) -> f64| {
            let values: Vec<f64> = rounds.iter().map(pick).collect();
            median(&values)
        };
        Self {
            name: name.into(),
            unit: unit.to_owned(),
            more_is_better,
            value: of(|(value, _)| *value),
            beside: Beside {
                what: beside.to_owned(),
                value: of(|(_, beside)| *beside),
            },
            ratio: of(|(value, beside)| value / beside),
            goal: None,
            latency_us: None,
            cpu_ns: None,
        }
    }

    /// Returns `true` if all of it are numbers. Some are not if nothing was transferred, or in no
    /// time.
    pub(crate) fn is_number(&self) -> bool {
        let latency = self.latency_us.iter();
        let latencies = latency.flat_map(|latency| [latency.p50, latency.p99, latency.p999]);
        let mut all = [self.value, self.beside.value, self.ratio]
            .into_iter()
            .chain(self.cpu_ns)
            .chain(latencies);
        all.all(f64::is_finite)
    }

    /// Returns `true` if the goal is reached, or `None` without a goal.
    pub(crate) fn reaches_goal(&self) -> Option<bool> {
        Some(match self.goal? {
            Goal::RatioAtLeast(least) => self.ratio >= least,
            Goal::RatioAtMost(most) => self.ratio <= most,
            Goal::ValueAtLeast(least) => self.value >= least,
        })
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RatioAtLeast(ratio) => write!(f, ">= {ratio:.2}"),
            Self::RatioAtMost(ratio) => write!(f, "<= {ratio:.2}"),
            Self::ValueAtLeast(value) => write!(f, ">= {}", readable(*value)),
        }
    }
}

/// Returns a number with three significant digits, and a letter for thousands or millions.
pub(crate) fn readable(value: f64) -> String {
    let (scaled, letter) = match value.abs() {
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    match scaled.abs() {
        size if size >= 100.0 => format!("{scaled:.0}{letter}"),
        size if size >= 10.0 => format!("{scaled:.1}{letter}"),
        _ => format!("{scaled:.2}{letter}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let cases = [
            (4_123_456.0, "4.12M"),
            (123_456.0, "123k"),
            (9_999.0, "9999"),
            (12.34, "12.3"),
            (0.5, "0.50"),
        ];
        for (value, text) in cases {
            assert_eq!(readable(value), text);
        }
    }

    #[test]
    fn each_round_has_a_ratio_of_its_own() {
        let rounds = [(10.0, 20.0), (40.0, 50.0), (90.0, 100.0)];
        let figure = Figure::of_rounds("x", "IOPS", true, "y", &rounds);
        assert_eq!((figure.value, figure.beside.value), (40.0, 50.0));
        assert_eq!(figure.ratio, 0.8);
    }

    #[test]
    fn what_was_not_measured_is_no_number() {
        let figure = |rounds: &[(f64, f64)]| Figure::of_rounds("x", "IOPS", true, "y", rounds);
        assert!(figure(&[(1.0, 2.0)]).is_number());
        assert!(!figure(&[(1.0, 0.0)]).is_number());
        assert!(!figure(&[]).is_number());
        let cpu_ns = Some(f64::NAN);
        let figure = figure(&[(1.0, 2.0)]);
        assert!(!Figure { cpu_ns, ..figure }.is_number());
    }

    #[test]
    fn a_goal_is_about_the_ratio_or_the_value() {
        let mut figure = Figure::of_rounds("x", "IOPS", true, "y", &[(3e6, 4e6)]);
        assert_eq!(figure.reaches_goal(), None);
        for (goal, reached) in [
            (Goal::RatioAtLeast(0.8), false),
            (Goal::RatioAtMost(0.8), true),
            (Goal::ValueAtLeast(3e6), true),
        ] {
            figure.goal = Some(goal);
            assert_eq!(figure.reaches_goal(), Some(reached), "{goal}");
        }
    }
}
