//! A logger that writes lines on standard error, filtered by `RUST_LOG`.

use std::env;
use std::fmt::{self, Write as _};
use std::io::{IsTerminal, Write, stderr};
use std::time::SystemTime;

use log::{Level, LevelFilter, Log, Metadata, Record};

/// Writes `[TIME LEVEL TARGET] MESSAGE`, in colours on a terminal.
#[derive(Debug)]
pub(crate) struct StderrLogger {
    filter: Filter,
    has_colours: bool,
}

impl StderrLogger {
    /// Makes a logger with the filter of `RUST_LOG`, or with this one if that is not set.
    pub(crate) fn from_env(filter: &str) -> Self {
        let filter = env::var("RUST_LOG").unwrap_or_else(|_| filter.to_owned());
        let (filter, ignored) = Filter::parse(&filter);
        for part in ignored {
            // No logger is set yet.
            let _ = writeln!(
                stderr(),
                "RUST_LOG: `{part}` is ignored: expected LEVEL, TARGET or TARGET=LEVEL"
            );
        }
        let is_coloured = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self {
            filter,
            has_colours: is_coloured && stderr().is_terminal(),
        }
    }

    /// Returns the highest level that is logged for any target.
    pub(crate) fn most(&self) -> LevelFilter {
        let levels = self.filter.0.iter().map(|(_, level)| *level);
        levels.max().unwrap_or(LevelFilter::Off)
    }

    fn line(&self, time: SystemTime, record: &Record<'_>) -> Result<String, fmt::Error> {
        let style = match record.level() {
            _ if !self.has_colours => None,
            Level::Error => Some("1;31"),
            Level::Warn => Some("33"),
            Level::Info => Some("32"),
            Level::Debug => Some("34"),
            Level::Trace => Some("36"),
        };
        let time = humantime::format_rfc3339_seconds(time);
        let mut line = format!("[{time} ");
        match style {
            Some(code) => write!(line, "\x1b[{code}m{:<5}\x1b[0m", record.level())?,
            None => write!(line, "{:<5}", record.level())?,
        }
        writeln!(line, " {}] {}", record.target(), record.args())?;
        Ok(line)
    }
}

impl Log for StderrLogger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= self.filter.level(metadata.target())
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        // One call for the whole line, so that lines of several processes do not mix. A failure is
        // ignored: a user who has closed standard error wants no log.
        if let Ok(line) = self.line(SystemTime::now(), record) {
            let _ = stderr().write_all(line.as_bytes());
        }
    }

    fn flush(&self) {}
}

/// Levels by the start of a target, the longest last. The empty start matches all.
#[derive(Debug, PartialEq, Eq)]
struct Filter(Vec<(String, LevelFilter)>);

impl Filter {
    /// Parses a filter such as `warn,peerbar_dma=debug,peerbar_efa`. Also returns the invalid
    /// parts. Without any part, errors are logged.
    fn parse(text: &str) -> (Self, Vec<&str>) {
        let (mut levels, mut ignored) = (Vec::new(), Vec::new());
        let parts = text.split(',').map(str::trim);
        for part in parts.filter(|part| !part.is_empty()) {
            let (target, level) = match part.split_once('=') {
                Some((target, "")) => (target, Some(LevelFilter::max())),
                Some((target, level)) => (target, level.trim().parse().ok()),
                None => match part.parse() {
                    Ok(level) => ("", Some(level)),
                    Err(_) => (part, Some(LevelFilter::max())),
                },
            };
            match level {
                Some(level) => levels.push((target.to_owned(), level)),
                None => ignored.push(part),
            }
        }
        if levels.is_empty() {
            levels.push((String::new(), LevelFilter::Error));
        }
        levels.sort_by_key(|(target, _)| target.len());
        (Self(levels), ignored)
    }

    fn level(&self, target: &str) -> LevelFilter {
        let mut levels = self.0.iter().rev();
        let level = levels.find(|(start, _)| target.starts_with(start.as_str()));
        level.map_or(LevelFilter::Off, |(_, level)| *level)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn longest_target_decides() {
        let (filter, ignored) = Filter::parse("warn, a::b=trace,a=off,c, d=");
        assert_eq!(ignored, [""; 0]);
        let levels = ["a", "a::b::x", "ax", "b", "c", "d::e"].map(|target| filter.level(target));
        let expected = [
            LevelFilter::Off,
            LevelFilter::Trace,
            LevelFilter::Off,
            LevelFilter::Warn,
            LevelFilter::Trace,
            LevelFilter::Trace,
        ];
        assert_eq!(levels, expected);
    }

    #[test]
    fn what_no_part_names_is_off_and_no_part_logs_errors() {
        let (filter, _) = Filter::parse("a=debug");
        assert_eq!(filter.level("b"), LevelFilter::Off);
        let (filter, ignored) = Filter::parse("a=loud");
        assert_eq!(ignored, ["a=loud"]);
        assert_eq!(filter.level("b"), LevelFilter::Error);
    }

    #[test]
    fn line_has_time_level_and_target() {
        let line = |has_colours| {
            let logger = StderrLogger {
                filter: Filter::parse("info").0,
                has_colours,
            };
            let mut record = Record::builder();
            let record = record.level(Level::Warn).target("peerbar_nvme");
            let time = UNIX_EPOCH + Duration::from_secs(1_795_231_718);
            logger
                .line(time, &record.args(format_args!("text")).build())
                .unwrap()
        };
        assert_eq!(
            line(false),
            "[2026-11-21T03:28:38Z WARN  peerbar_nvme] text\n"
        );
        assert!(line(true).contains("\x1b[33mWARN \x1b[0m peerbar_nvme] text"));
    }
}
