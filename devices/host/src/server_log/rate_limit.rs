//! A logger that limits another one.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use log::{Level, Log, Metadata, Record};
use parking_lot::Mutex;

/// Warnings and errors that a line of the code logs in an interval.
pub const BURST: u32 = 10;

/// The interval, which begins with the first message.
pub const INTERVAL: Duration = Duration::from_secs(60);

/// A line of the code: file and number.
type SourceLine = (&'static str, u32);

/// Passes on messages within the limit. `now` is the clock.
pub(crate) struct RateLimit<L> {
    logger: L,
    now: fn() -> Instant,
    budgets: Mutex<HashMap<SourceLine, Budget>>,
}

/// The messages of a line in its current interval.
struct Budget {
    began: Instant,
    logged: u32,
    suppressed: u64,
}

impl<L: Log> RateLimit<L> {
    pub(crate) fn new(logger: L, now: fn() -> Instant) -> Self {
        Self {
            logger,
            now,
            budgets: Mutex::default(),
        }
    }

    /// Returns `None` if a message may not be logged. Otherwise returns the number of earlier
    /// messages that were suppressed and not reported.
    fn permits(&self, source: SourceLine) -> Option<u64> {
        let now = (self.now)();
        let mut budgets = self.budgets.lock();
        let budget = budgets.entry(source).or_insert_with(|| Budget::new(now));
        budget.take(now)
    }

    /// Passes a message on. Replaces its control characters with blanks, because clients can
    /// influence the text.
    fn pass(&self, record: &Record<'_>) {
        let text = record.args().to_string();
        let is_harmful = |c: char| c.is_control() && c != '\n' && c != '\t';
        let text = text.replace(is_harmful, " ");
        self.logger.log(
            &Record::builder()
                .metadata(record.metadata().clone())
                .module_path_static(record.module_path_static())
                .file_static(record.file_static())
                .line(record.line())
                .args(format_args!("{text}"))
                .build(),
        );
    }

    fn report(&self, metadata: &Metadata<'_>, (file, line): SourceLine, suppressed: u64) {
        if suppressed > 0 {
            let mut record = Record::builder();
            let record = record.metadata(metadata.clone());
            self.logger.log(
                &record
                    .args(format_args!(
                        "{file}:{line}: {suppressed} messages suppressed"
                    ))
                    .build(),
            );
        }
    }
}

impl Budget {
    fn new(began: Instant) -> Self {
        Self {
            began,
            logged: 0,
            suppressed: 0,
        }
    }

    fn take(&mut self, now: Instant) -> Option<u64> {
        let mut unreported = 0;
        if now.duration_since(self.began) >= INTERVAL {
            unreported = self.suppressed;
            *self = Self::new(now);
        }
        if self.logged >= BURST {
            self.suppressed += 1;
            return None;
        }
        self.logged += 1;
        Some(unreported)
    }
}

impl<L: Log> Log for RateLimit<L> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.logger.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if record.level() > Level::Warn {
            if self.enabled(record.metadata()) {
                self.pass(record);
            }
            return;
        }
        if !self.enabled(record.metadata()) {
            return;
        }
        let source = (
            record.file_static().unwrap_or("unknown file"),
            record.line().unwrap_or(0),
        );
        if let Some(suppressed) = self.permits(source) {
            self.report(record.metadata(), source, suppressed);
            self.pass(record);
        }
    }

    fn flush(&self) {
        let metadata = Metadata::builder()
            .level(Level::Warn)
            .target(module_path!())
            .build();
        for (source, budget) in &mut *self.budgets.lock() {
            self.report(&metadata, *source, std::mem::take(&mut budget.suppressed));
        }
        self.logger.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::server_log::kept::Kept;

    thread_local! {
        static NOW: Cell<Instant> = Cell::new(Instant::now());
    }

    #[test]
    fn message_of_others_steers_no_terminal() {
        let limit = limit();
        for level in [Level::Warn, Level::Info] {
            let mut record = Record::builder();
            let text = "closed by peer: \x1b]0;x\r\u{9b}2J";
            limit.log(&record.level(level).args(format_args!("{text}")).build());
        }
        assert_eq!(taken(&limit), ["closed by peer:  ]0;x  2J"; 2]);
    }

    fn limit() -> RateLimit<Kept> {
        RateLimit::new(Kept::default(), || NOW.get())
    }

    fn log(limit: &RateLimit<Kept>, level: Level, target: &str, line: u32) {
        let record = Record::builder()
            .level(level)
            .target(target)
            .file_static(Some("f.rs"))
            .line(Some(line))
            .args(format_args!("text"))
            .build();
        limit.log(&record);
    }

    fn warn(limit: &RateLimit<Kept>, count: u32) {
        (0..count).for_each(|_| log(limit, Level::Warn, "t", 7));
    }

    fn taken(limit: &RateLimit<Kept>) -> Vec<String> {
        limit.logger.taken()
    }

    #[test]
    fn line_over_its_limit_reports_the_count_in_the_next_interval() {
        let limit = limit();
        warn(&limit, BURST + 5);
        assert_eq!(taken(&limit), vec!["text"; BURST as usize]);
        NOW.set(NOW.get() + INTERVAL);
        warn(&limit, 2);
        let expected = ["f.rs:7: 5 messages suppressed", "text", "text"];
        assert_eq!(taken(&limit), expected);
    }

    #[test]
    fn other_lines_have_limits_of_their_own() {
        let limit = limit();
        warn(&limit, BURST + 1);
        taken(&limit);
        log(&limit, Level::Error, "t", 8);
        assert_eq!(taken(&limit), ["text"]);
    }

    #[test]
    fn messages_below_a_warning_are_not_limited() {
        let limit = limit();
        (0..50).for_each(|_| log(&limit, Level::Info, "t", 7));
        assert_eq!(taken(&limit).len(), 50);
    }

    #[test]
    fn disabled_messages_do_not_count() {
        let limit = limit();
        (0..50).for_each(|_| log(&limit, Level::Warn, "disabled", 7));
        warn(&limit, 1);
        limit.flush();
        assert_eq!(taken(&limit), ["text"]);
    }

    #[test]
    fn flush_reports_what_is_suppressed_once() {
        let limit = limit();
        warn(&limit, BURST + 3);
        taken(&limit);
        limit.flush();
        limit.flush();
        assert_eq!(taken(&limit), ["f.rs:7: 3 messages suppressed"]);
    }
}
