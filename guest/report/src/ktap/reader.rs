//! The launcher's side of the report.

use thiserror::Error;

use super::{LINE_LIMIT, Line};

/// Reads a report from chunks of bytes that may end anywhere.
///
/// The guest is not trusted: any bytes are read, and errors in them are reported by
/// [`KtapReader::finish`].
#[derive(Debug, Default)]
pub struct KtapReader {
    pending: Vec<u8>,
    /// `true` if the line in `pending` was too long, and the rest of it must be dropped.
    dropping: bool,
    version: bool,
    /// `true` if the plan line follows the results.
    plan_last: bool,
    planned: Option<u32>,
    results: u32,
    violation: Option<KtapError>,
}

/// A mistake in a report.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KtapError {
    /// The first line is not a version line.
    #[error("the report starts with {0:?}, not with a version line")]
    NotKtap(String),
    /// A line is longer than any that the agent writes.
    #[error("a line of the report is longer than {LINE_LIMIT} bytes")]
    LineTooLong,
    /// A result does not have the next number.
    #[error("the report has result {seen} in the place of result {expected}")]
    OutOfOrder {
        /// The next number.
        expected: u32,
        /// The number that was read.
        seen: u32,
    },
    /// There are more results than the plan line says, or two plan lines.
    #[error("the report does not keep to its plan line")]
    AgainstPlan,
    /// It ends before the plan line.
    #[error("the report ends before its plan line")]
    NoPlan,
    /// It ends before the last result.
    #[error("the report ends after {seen} of {planned} results")]
    Incomplete {
        /// Results that were read.
        seen: u32,
        /// Results that the plan line announces.
        planned: u32,
    },
}

impl KtapReader {
    /// Makes a reader at the start of a report.
    pub fn new() -> Self {
        KtapReader::default()
    }

    /// Makes a reader at the start of a report whose plan line follows the results.
    pub fn with_plan_last() -> Self {
        KtapReader {
            plan_last: true,
            ..KtapReader::default()
        }
    }

    /// Takes the next bytes and returns the lines that they complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Line> {
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ended) = piece
                .strip_suffix(b"\n")
                .map_or((piece, false), |text| (text, true));
            self.collect(text);
            if ended {
                lines.extend(self.end_of_line());
            }
        }
        lines
    }

    /// Returns `true` if every result that the plan line announces has been read.
    pub fn complete(&self) -> bool {
        self.planned == Some(self.results)
    }

    /// Ends the report.
    ///
    /// # Errors
    /// The first mistake in it, or its missing part.
    pub fn finish(self) -> Result<(), KtapError> {
        match (self.violation, self.planned) {
            (Some(violation), _) => Err(violation),
            (None, None) => Err(KtapError::NoPlan),
            (None, Some(planned)) if self.results < planned => Err(KtapError::Incomplete {
                seen: self.results,
                planned,
            }),
            (None, Some(_)) => Ok(()),
        }
    }

    fn collect(&mut self, text: &[u8]) {
        if self.dropping {
            return;
        }
        if self.pending.len().saturating_add(text.len()) >= LINE_LIMIT {
            self.pending.clear();
            self.dropping = true;
            self.violate(KtapError::LineTooLong);
            return;
        }
        self.pending.extend_from_slice(text);
    }

    fn end_of_line(&mut self) -> Option<Line> {
        let text = std::mem::take(&mut self.pending);
        if std::mem::take(&mut self.dropping) {
            return None;
        }
        let text = String::from_utf8_lossy(&text);
        let line = Line::parse(text.trim_end_matches('\r'));
        self.account(&line);
        Some(line)
    }

    fn account(&mut self, line: &Line) {
        match line {
            Line::Version => self.version = true,
            other if !self.version => self.violate(KtapError::NotKtap(other.to_string())),
            Line::Plan(count) if self.may_plan(*count) => self.planned = Some(*count),
            Line::Plan(_) => self.violate(KtapError::AgainstPlan),
            Line::Result { number, .. } => self.account_result(*number),
            Line::Ready(_)
            | Line::Kill(_)
            | Line::Counters(_)
            | Line::Measure(_)
            | Line::Evidence(_)
            | Line::Output(_)
            | Line::Diagnostic(_)
            | Line::Nested(_)
            | Line::Unknown(_) => {}
        }
    }

    fn may_plan(&self, count: u32) -> bool {
        self.planned.is_none() && (!self.plan_last || count == self.results)
    }

    fn account_result(&mut self, number: u32) {
        let is_planned = self
            .planned
            .map_or(self.plan_last, |planned| number <= planned);
        let expected = self.results.saturating_add(1);
        if number != expected {
            self.violate(KtapError::OutOfOrder {
                expected,
                seen: number,
            });
        } else if !is_planned {
            self.violate(KtapError::AgainstPlan);
        } else {
            self.results = number;
        }
    }

    fn violate(&mut self, error: KtapError) {
        self.violation.get_or_insert(error);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{KtapWriter, Measure, Route, Verdict};

    fn read(text: &str) -> (Vec<Line>, Result<(), KtapError>) {
        let mut reader = KtapReader::new();
        let lines = reader.feed(text.as_bytes());
        (lines, reader.finish())
    }

    #[test]
    fn a_report_is_complete_with_its_last_result() {
        let mut reader = KtapReader::new();
        reader.feed(b"KTAP version 1\n1..2\nok 1 - a\nnot ok 2 - b");
        assert!(!reader.complete());
        let lines = reader.feed(b"\n");
        assert_eq!(
            lines,
            [Line::Result {
                number: 2,
                name: "b".into(),
                verdict: Verdict::Fail
            }]
        );
        assert!(reader.complete());
        assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn plan_last_must_count_the_results() {
        let read = |text: &str| {
            let mut reader = KtapReader::with_plan_last();
            reader.feed(text.as_bytes());
            (reader.complete(), reader.finish())
        };
        let start = "KTAP version 1\nok 1 - a\nok 2 - b\n";
        assert_eq!(read(start), (false, Err(KtapError::NoPlan)));
        assert_eq!(read(&format!("{start}1..2\n")), (true, Ok(())));
        let against = (false, Err(KtapError::AgainstPlan));
        assert_eq!(read(&format!("{start}1..3\n")), against);
        let late = read(&format!("{start}1..2\nok 3 - c\n"));
        assert_eq!(late.1, Err(KtapError::AgainstPlan));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            ("", KtapError::NoPlan),
            (
                "hello\nKTAP version 1\n1..0\n",
                KtapError::NotKtap("hello".into()),
            ),
            ("KTAP version 1\n", KtapError::NoPlan),
            (
                "KTAP version 1\n1..2\nok 1 - a\n",
                KtapError::Incomplete {
                    seen: 1,
                    planned: 2,
                },
            ),
            (
                "KTAP version 1\n1..2\nok 2 - a\n",
                KtapError::OutOfOrder {
                    expected: 1,
                    seen: 2,
                },
            ),
            (
                "KTAP version 1\n1..1\nok 1 - a\nok 2 - b\n",
                KtapError::AgainstPlan,
            ),
            (
                "KTAP version 1\n1..1\n1..2\nok 1 - a\n",
                KtapError::AgainstPlan,
            ),
            ("KTAP version 1\nok 1 - a\n1..1\n", KtapError::AgainstPlan),
        ];
        for (text, error) in cases {
            assert_eq!(read(text).1, Err(error), "{text:?}");
        }
    }

    #[test]
    fn endless_line_takes_no_memory_and_the_next_is_read() {
        let mut reader = KtapReader::new();
        for _ in 0..64 {
            reader.feed(&vec![b'x'; LINE_LIMIT / 2]);
        }
        assert!(reader.pending.len() < LINE_LIMIT);
        assert_eq!(reader.feed(b"\nKTAP version 1\n"), [Line::Version]);
        assert_eq!(reader.finish(), Err(KtapError::LineTooLong));
    }

    fn measures() -> impl Strategy<Value = Measure> {
        let routes = proptest::collection::btree_map(
            prop_oneof![
                Just(Route::OwnBar),
                Just(Route::Peer),
                Just(Route::GuestRam),
                Just(Route::Upstream)
            ],
            any::<u64>(),
            0..4,
        );
        (
            "[ -~äß€]{0,8}",
            any::<u64>(),
            0.0..1e9f64,
            routes,
            any::<u64>(),
            any::<u64>(),
            any::<u64>(),
        )
            .prop_map(
                |(sizes, bytes, seconds, routes, peer_bytes, ram_bytes, failures)| Measure {
                    status: None,
                    probe: None,
                    flows: Vec::new(),
                    mapped_not_counted: Vec::new(),
                    subtests: Vec::new(),
                    sizes,
                    bytes,
                    seconds,
                    routes,
                    peer_bytes,
                    ram_bytes,
                    failures,
                },
            )
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(chunks in proptest::collection::vec(any::<Vec<u8>>(), 0..8)) {
            let mut reader = KtapReader::new();
            for chunk in &chunks {
                reader.feed(chunk);
            }
            let complete = reader.complete();
            let lacking = matches!(reader.finish(), Err(KtapError::NoPlan | KtapError::Incomplete { .. }));
            prop_assert!(!(complete && lacking));
        }

        #[test]
        fn what_is_written_is_read_whatever_the_chunks(
            checks in proptest::collection::vec(("[ -~]{0,20}", any::<bool>(), measures()), 0..6),
            chunk in 1..50usize,
        ) {
            let mut bytes = Vec::new();
            let mut writer = KtapWriter::new(&mut bytes);
            let planned = u32::try_from(checks.len()).unwrap();
            writer.begin(Some(planned)).unwrap();
            let mut expected = vec![Line::Version, Line::Plan(planned)];
            for (number, (name, passed, measure)) in (1..).zip(&checks) {
                let verdict = if *passed { Verdict::Pass } else { Verdict::Fail };
                writer.result(name, &verdict, measure).unwrap();
                expected.push(Line::Measure(measure.clone()));
                expected.push(Line::Result { number, name: name.trim().to_owned(), verdict });
            }
            let mut reader = KtapReader::new();
            let lines: Vec<Line> = bytes.chunks(chunk).flat_map(|chunk| reader.feed(chunk)).collect();
            prop_assert_eq!(lines, expected);
            prop_assert!(reader.complete());
            prop_assert_eq!(reader.finish(), Ok(()));
        }
    }
}
