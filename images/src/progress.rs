//! How far a long piece of work is, on standard error: a bar on a terminal, plain lines elsewhere.

use std::io::{Write, stderr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::live_lines::{LiveLines, are_colours_wanted};

/// Characters of a bar.
const BAR: usize = 30;
/// Steps that follow each other faster are not all shown.
const SHORTEST: Duration = Duration::from_millis(50);

/// The progress of one piece of work.
pub(crate) struct Progress(Option<Mutex<Bar>>);

/// What is on the terminal.
struct Bar {
    lines: LiveLines,
    part: Part,
    shown: Option<Instant>,
}

/// A part of the work, and how far it is.
#[derive(Default)]
struct Part {
    /// Empty before the first one.
    what: String,
    steps: u64,
    done: u64,
    /// The step that is under way.
    step: String,
}

impl Progress {
    /// Announces work of unknown length.
    pub(crate) fn start(what: &str) -> Self {
        say(what);
        Self(LiveLines::on_terminal().map(|lines| {
            Mutex::new(Bar {
                lines,
                part: Part::default(),
                shown: None,
            })
        }))
    }

    /// A line that stays, above the bar.
    pub(crate) fn say(&self, line: &str) {
        let Some(bar) = &self.0 else {
            return say(line);
        };
        let mut bar = bar.lock();
        bar.lines.clear();
        say(line);
        bar.show();
    }

    /// Begins a part of `steps` steps. The plain form says it in a line of its own.
    pub(crate) fn part(&self, what: &str, steps: u64) {
        let Some(bar) = &self.0 else {
            return say(&format!("{what} {steps} packages"));
        };
        let mut bar = bar.lock();
        bar.part = Part {
            what: what.to_owned(),
            steps,
            ..Part::default()
        };
        bar.show();
    }

    /// One step is under way.
    pub(crate) fn step(&self, what: &str) {
        let Some(bar) = &self.0 else { return };
        let mut bar = bar.lock();
        what.clone_into(&mut bar.part.step);
        bar.part.done += 1;
        if bar.shown.is_none_or(|shown| shown.elapsed() >= SHORTEST) {
            bar.show();
        }
    }
}

/// How much of a number of bytes has been moved, and how fast: a line on a terminal that is replaced, nothing elsewhere.
pub struct ByteProgress {
    lines: Option<LiveLines>,
    what: String,
    /// Bytes in all, if that is known.
    total: Option<u64>,
    done: u64,
    began: Instant,
    shown: Option<Instant>,
}

impl ByteProgress {
    /// Nothing of `what` has been moved yet.
    pub fn start(what: &str) -> Self {
        Self {
            lines: LiveLines::on_terminal(),
            what: what.to_owned(),
            total: None,
            done: 0,
            began: Instant::now(),
            shown: None,
        }
    }

    /// So many bytes are to be moved.
    pub fn expect(&mut self, total: u64) {
        self.total = Some(total);
    }

    /// So many bytes more have been moved.
    pub fn add(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.done = self.done.saturating_add(bytes);
        if self.shown.is_none_or(|shown| shown.elapsed() >= SHORTEST) {
            self.shown = Some(Instant::now());
            let line = self.line(self.began.elapsed(), are_colours_wanted());
            if let Some(lines) = &mut self.lines {
                lines.show(&[line]);
            }
        }
    }

    fn line(&self, elapsed: Duration, has_colours: bool) -> String {
        let done = rounded(self.done);
        let millis = elapsed.as_millis().max(1);
        let rate = u128::from(self.done).saturating_mul(1000) / millis;
        let rate = rounded(u64::try_from(rate).unwrap_or(u64::MAX));
        let Some(total) = self.total.filter(|total| *total > 0) else {
            return format!("{}  {done}  {rate}/s", self.what);
        };
        // What a folder holds may grow while it is copied.
        let share = u128::from(self.done.min(total)) * 100 / u128::from(total);
        let bar = bar(self.done.min(total), total, has_colours);
        let total = rounded(total);
        format!(
            "{bar} {share:3}%  {done} of {total}  {rate}/s  {}",
            self.what
        )
    }
}

/// A number of bytes with one decimal, as `1.5 GiB`.
fn rounded(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    while unit + 1 < UNITS.len() && bytes >> (10 * (unit + 2)) > 0 {
        unit += 1;
    }
    if bytes < 1 << 10 {
        return format!("{bytes} bytes");
    }
    let tenths = (u128::from(bytes) * 10) >> (10 * (unit + 1));
    let name = UNITS.get(unit).unwrap_or(&"KiB");
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

/// A bar that is as full as `done` of `steps` tells.
fn bar(done: u64, steps: u64, has_colours: bool) -> String {
    let share = done.saturating_mul(BAR as u64).checked_div(steps);
    let full = usize::try_from(share.unwrap_or(0)).map_or(BAR, |full| full.min(BAR));
    let (full, rest) = ("█".repeat(full), "░".repeat(BAR - full));
    let (colour, end) = match has_colours {
        true => ("\x1b[32m", "\x1b[0m"),
        false => ("", ""),
    };
    format!("{colour}{full}{end}{rest}")
}

impl Bar {
    fn show(&mut self) {
        self.shown = Some(Instant::now());
        self.lines.show(&[self.part.line(are_colours_wanted())]);
    }
}

impl Part {
    fn line(&self, has_colours: bool) -> String {
        let Self {
            what,
            steps,
            done,
            step,
        } = self;
        if what.is_empty() {
            return format!("  {step}");
        }
        let bar = bar(*done, *steps, has_colours);
        format!("{what:12} {bar} {done}/{steps} {step}")
    }
}

/// Prints a line on standard error, and ignores that it may be closed.
pub(crate) fn say(line: &str) {
    let _ = writeln!(stderr(), "peerbar: {line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(steps: u64, done: u64, has_colours: bool) -> String {
        let part = Part {
            what: "unpacking".to_owned(),
            steps,
            done,
            step: "libc6".to_owned(),
        };
        part.line(has_colours)
    }

    #[test]
    fn bytes_have_a_share_and_a_rate() {
        let mut progress = ByteProgress::start("cp big");
        let second = Duration::from_secs(1);
        progress.add(3 << 19);
        assert_eq!(progress.line(second, false), "cp big  1.5 MiB  1.5 MiB/s");
        progress.expect(3 << 20);
        let line = progress.line(second * 2, false);
        let expected = format!(
            "{}{}  50%  1.5 MiB of 3.0 MiB  768.0 KiB/s  cp big",
            "█".repeat(15),
            "░".repeat(15)
        );
        assert_eq!(line, expected);
        // More than was expected, and nothing at all.
        progress.add(8 << 20);
        assert!(progress.line(second, false).contains(" 100%  9.5 MiB of"));
        progress.expect(0);
        assert!(!progress.line(Duration::ZERO, true).contains('%'));
    }

    #[test]
    fn bytes_are_rounded_down_to_a_tenth() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1.0 KiB"),
            ((1 << 20) - 1, "1023.9 KiB"),
            (5 << 29, "2.5 GiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(rounded(bytes), text);
        }
    }

    #[test]
    fn bar_is_as_full_as_the_part_is_done() {
        let expected = format!(
            "unpacking    {}{} 1/3 libc6",
            "█".repeat(10),
            "░".repeat(20)
        );
        assert_eq!(line(3, 1, false), expected);
        assert!(line(3, 1, true).contains("█\x1b[0m░"));
        for (steps, done) in [(3, 3), (3, 9), (1, u64::MAX)] {
            assert!(line(steps, done, false).contains(&"█".repeat(BAR)));
        }
        assert!(line(0, 0, false).contains(&"░".repeat(BAR)));
    }
}
