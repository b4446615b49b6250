//! The outcome of an entry, and the table of all outcomes.

use std::fmt;
use std::time::Duration;

/// The outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// It failed: the exit status, or the reason why it could not start.
    Failed(String),
    /// It had not ended in time.
    TimedOut(Duration),
    /// It requires root.
    Skipped,
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => formatter.write_str("passed"),
            Self::Failed(reason) => write!(formatter, "FAILED: {reason}"),
            Self::TimedOut(limit) => {
                write!(formatter, "FAILED: not done after {} s", limit.as_secs())
            }
            Self::Skipped => formatter.write_str("skipped: needs root"),
        }
    }
}

/// The table's row for an entry.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
    /// The time from its start to its end.
    pub(crate) wall: Duration,
    /// Processor time of the command and all processes that it started and waited for.
    pub(crate) processor: Duration,
}

/// Returns the table of times, the entries that failed, and the final count.
pub(crate) fn table(rows: &[Row], wall: Duration) -> String {
    let mut lines = vec![
        format!(
            "{:<28} {:>7} {:>9}",
            "where the time went", "wall s", "processor"
        ),
        "-".repeat(46),
    ];
    lines.extend(rows.iter().map(|row| {
        format!(
            "{:<28} {:>7.1} {:>9.1}{}",
            row.name,
            row.wall.as_secs_f64(),
            row.processor.as_secs_f64(),
            match row.outcome {
                Outcome::Passed => String::new(),
                _ => format!("  {}", row.outcome),
            }
        )
    }));
    let processor: Duration = rows.iter().map(|row| row.processor).sum();
    lines.push("-".repeat(46));
    lines.push(format!(
        "{:<28} {:>7.1} {:>9.1}",
        "all",
        wall.as_secs_f64(),
        processor.as_secs_f64()
    ));
    lines.push(String::new());
    let count =
        |wanted: fn(&Outcome) -> bool| rows.iter().filter(|row| wanted(&row.outcome)).count();
    let passed = count(|outcome| *outcome == Outcome::Passed);
    let skipped = count(|outcome| *outcome == Outcome::Skipped);
    let failed = rows.len() - passed - skipped;
    let mut counts = format!("{passed} passed, {failed} failed");
    if skipped > 0 {
        counts += &format!(", {skipped} skipped");
    }
    lines.push(counts);
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_counts_a_time_out_as_a_failure() {
        let row = |name: &str, outcome| Row {
            name: name.to_owned(),
            outcome,
            wall: Duration::from_millis(1500),
            processor: Duration::from_secs(2),
        };
        let rows = [
            row("format", Outcome::Passed),
            row("demo", Outcome::TimedOut(Duration::from_secs(60))),
            row("loop-devices", Outcome::Skipped),
        ];
        let table = table(&rows, Duration::from_secs(3));
        assert!(
            table.ends_with("\n1 passed, 1 failed, 1 skipped\n"),
            "{table}"
        );
        assert!(table.contains(
            "demo                             1.5       2.0  FAILED: not done after 60 s\n"
        ));
    }
}
