//! The figures of each command, as those of strace's `-c`.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use peerbar_lab::table::Table;
use peerbar_vfio_user::decode::command_name;
use serde_json::{Value, json};

use super::in_flight::Reply;
use crate::iommu::text::ago;

/// The longest duration that is told apart, in nanoseconds.
const LONGEST: u64 = 3_600_000_000_000;
/// Significant digits of a duration.
const DIGITS: u8 = 3;

/// The figures by the name of the command. Unknown commands share one entry.
#[derive(Default)]
pub(super) struct Summary(BTreeMap<&'static str, Figures>);

#[derive(Default)]
struct Figures {
    count: u64,
    errors: u64,
    unanswered: u64,
    longest: u64,
    durations: Option<Histogram<u64>>,
}

impl Figures {
    fn add_duration(&mut self, nanos: u64) {
        self.longest = self.longest.max(nanos);
        if self.durations.is_none() {
            // Fails only for bounds that are no range.
            self.durations = Histogram::new_with_bounds(1, LONGEST, DIGITS).ok();
        }
        if let Some(durations) = &mut self.durations {
            durations.saturating_record(nanos);
        }
    }

    /// Returns the median of the durations in nanoseconds.
    fn median(&self) -> Option<u64> {
        let durations = self.durations.as_ref()?;
        Some(durations.value_at_quantile(0.5).min(self.longest))
    }
}

impl Summary {
    fn of(&mut self, command: u16) -> &mut Figures {
        let name = command_name(command).unwrap_or("unknown");
        self.0.entry(name).or_default()
    }

    /// Counts a request.
    pub(super) fn request(&mut self, command: u16) {
        let figures = self.of(command);
        figures.count = figures.count.saturating_add(1);
    }

    /// Counts a reply, under the command of its request.
    pub(super) fn reply(&mut self, reply: &Reply) {
        let Some((request, duration)) = reply.request.as_ref().zip(reply.duration()) else {
            return;
        };
        let figures = self.of(request.command);
        figures.add_duration(duration);
        if reply.outcome.is_err() {
            figures.errors = figures.errors.saturating_add(1);
        }
    }

    /// Counts a request that was never answered.
    pub(super) fn unanswered(&mut self, command: u16) {
        let figures = self.of(command);
        figures.unanswered = figures.unanswered.saturating_add(1);
    }

    /// Returns the rows, the most frequent command first.
    fn rows(&self) -> Vec<(&'static str, &Figures)> {
        let rows = self.0.iter().map(|(name, figures)| (*name, figures));
        let mut rows: Vec<_> = rows.collect();
        rows.sort_by_key(|(_, figures)| std::cmp::Reverse(figures.count));
        rows
    }

    /// Returns a table, or a line if there was no message.
    pub(super) fn text(&self) -> String {
        if self.0.is_empty() {
            return "no requests\n".to_owned();
        }
        let header = [
            "command",
            "count",
            "errors",
            "unanswered",
            "median",
            "longest",
        ];
        let mut table = Table::new(header).flush_right(1..header.len());
        for (name, figures) in self.rows() {
            let time = |nanos: Option<u64>| nanos.map_or("-".to_owned(), |nanos| ago(nanos, 0));
            let median = figures.median();
            table.add([
                name.to_owned(),
                figures.count.to_string(),
                figures.errors.to_string(),
                figures.unanswered.to_string(),
                time(median),
                time(median.map(|_| figures.longest)),
            ]);
        }
        table.bare()
    }

    /// Returns a list of objects.
    pub(super) fn json(&self) -> Value {
        let rows = self.rows().into_iter();
        let rows = rows.map(|(name, figures)| {
            json!({
                "command": name,
                "count": figures.count,
                "errors": figures.errors,
                "unanswered": figures.unanswered,
                "median_ns": figures.median(),
                "longest_ns": figures.median().map(|_| figures.longest),
            })
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_listed_by_their_number() {
        let mut summary = Summary::default();
        for (command, nanos) in [
            (9, 1000),
            (9, 3_000_000),
            (9, 2000),
            (2, 500),
            (999, 7),
            (998, 7),
        ] {
            summary.request(command);
            summary.of(command).add_duration(nanos);
        }
        summary.request(13);
        summary.unanswered(13);
        summary.of(9).errors = 1;
        let expected = "
 command       count  errors  unanswered  median  longest
 REGION_READ       3       1           0  2.0 us   3.0 ms
 unknown           2       0           0    7 ns     7 ns
 DEVICE_RESET      1       0           1       -        -
 DMA_MAP           1       0           0  500 ns   500 ns
";
        assert_eq!(format!("\n{}", summary.text()), expected);
        let json = summary.json();
        assert_eq!(json[0]["command"], "REGION_READ");
        assert_eq!(json[0]["longest_ns"], 3_000_000);
        assert_eq!(json[2]["median_ns"], Value::Null);
    }
}
