//! The progress of long work, on standard error: a bar on a terminal; elsewhere a line for every
//! tenth, if the work takes long.

use std::fs::File;
use std::io::{self, Read, Write, stderr};
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::ImageError;
use crate::error::io_error;
use crate::live_lines::{LiveLines, are_colours_wanted};

/// Characters of a bar.
const BAR: usize = 20;
/// Steps that follow each other faster are not all shown.
const SHORTEST: Duration = Duration::from_millis(50);

/// Without a terminal a share is printed when it has grown by this much, in percent.
const PLAIN_STEP: u128 = 10;
/// Without a terminal two shares are printed at least this far apart.
const PLAIN_PAUSE: Duration = Duration::from_secs(10);

/// The progress of one piece of work, which may have several parts.
pub struct Progress(Mutex<State>);

struct State {
    /// The lines, or `None` without a terminal.
    lines: Option<LiveLines>,
    part: Part,
    /// The time at which the part was last shown.
    shown: Option<Instant>,
    /// The share that was last printed, in percent, without a terminal.
    said: u128,
}

/// The unit in which a part of the work is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes, shown with their rate.
    Bytes,
    /// Packages.
    Packages,
    /// Object files.
    Objects,
}

/// A part of the work, and its progress.
struct Part {
    /// Empty before the first one.
    what: String,
    unit: Unit,
    /// The units to do, if their number is known.
    total: Option<u64>,
    done: u64,
    /// The step in progress.
    step: String,
    began: Instant,
}

impl Progress {
    /// Announces work of unknown length.
    pub(crate) fn start(what: &str) -> Self {
        say(what);
        Self::of("", Unit::Bytes)
    }

    /// Starts `what` without progress.
    pub fn of(what: &str, unit: Unit) -> Self {
        Self(Mutex::new(State {
            lines: LiveLines::on_terminal(),
            part: Part::new(what, unit, None),
            shown: None,
            said: 0,
        }))
    }

    /// Prints a line that stays, above the bar.
    pub(crate) fn say(&self, line: &str) {
        let mut state = self.0.lock();
        if let Some(lines) = &mut state.lines {
            lines.clear();
        }
        say(line);
        if state.lines.is_some() {
            state.show();
        }
    }

    /// Begins a part of `total` units, if their number is known.
    pub(crate) fn part(&self, what: &str, unit: Unit, total: Option<u64>) {
        let mut state = self.0.lock();
        state.part = Part::new(what, unit, total);
        state.said = 0;
        // Work is not reported before it has taken long.
        state.shown = Some(Instant::now());
        if state.lines.is_some() {
            state.show();
        }
    }

    /// Sets the number of units to do.
    pub fn expect(&self, total: u64) {
        self.0.lock().part.total = Some(total);
    }

    /// Adds units that have been done.
    pub fn add(&self, units: u64) {
        let mut state = self.0.lock();
        state.part.done = state.part.done.saturating_add(units);
        state.show_if_due();
    }

    /// Shows that the step `what` is in progress, and adds `units` of the earlier steps.
    pub(crate) fn step(&self, what: &str, units: u64) {
        let mut state = self.0.lock();
        what.clone_into(&mut state.part.step);
        state.part.done = state.part.done.saturating_add(units);
        state.show_if_due();
    }
}

impl State {
    fn show_if_due(&mut self) {
        let pause = match self.lines {
            Some(_) => SHORTEST,
            None => PLAIN_PAUSE,
        };
        let since = self.shown.unwrap_or(self.part.began);
        if since.elapsed() >= pause {
            self.show();
        }
    }

    fn show(&mut self) {
        let elapsed = self.part.began.elapsed();
        let is_empty = self.part.what.is_empty() && self.part.step.is_empty();
        if let Some(lines) = self.lines.as_mut().filter(|_| !is_empty) {
            self.shown = Some(Instant::now());
            lines.show(&[self.part.line(elapsed, are_colours_wanted())]);
        } else if let Some(share) = self.part.share() {
            if share >= self.said + PLAIN_STEP {
                self.shown = Some(Instant::now());
                self.said = share - share % PLAIN_STEP;
                say(&self.part.plain_line(share));
            }
        }
    }
}

impl Part {
    fn new(what: &str, unit: Unit, total: Option<u64>) -> Self {
        Self {
            what: what.to_owned(),
            unit,
            total,
            done: 0,
            step: String::new(),
            began: Instant::now(),
        }
    }

    /// Returns the share that is done, in percent. A total may be an estimate, and a folder may
    /// grow while it is copied.
    fn share(&self) -> Option<u128> {
        let total = self.total.filter(|total| *total > 0)?;
        Some(u128::from(self.done.min(total)) * 100 / u128::from(total))
    }

    fn line(&self, elapsed: Duration, has_colours: bool) -> String {
        let Self { what, step, .. } = self;
        if what.is_empty() {
            return format!("  {step}");
        }
        let mut done = self.amount();
        if self.unit == Unit::Bytes {
            let millis = elapsed.as_millis().max(1);
            let rate = u128::from(self.done).saturating_mul(1000) / millis;
            let rate = rounded(u64::try_from(rate).unwrap_or(u64::MAX));
            done += &format!("  {rate}/s");
        }
        let line = match (self.share(), self.total) {
            (Some(share), Some(total)) => {
                let bar = bar(self.done.min(total), total, has_colours);
                format!("{bar} {share:3}%  {done}  {what} {step}")
            }
            _ => format!("{what}  {done}  {step}"),
        };
        line.trim_end().to_owned()
    }

    fn plain_line(&self, share: u128) -> String {
        format!("{}: {share}%, {}", self.what, self.amount())
    }

    /// Returns the amount done, and the total.
    fn amount(&self) -> String {
        let total = self.total.filter(|total| *total > 0);
        match (self.unit, total) {
            (Unit::Bytes, Some(total)) => share_of(&rounded(self.done), &rounded(total)),
            (Unit::Bytes, None) => rounded(self.done),
            (unit, Some(total)) => format!("{} of {total} {}", self.done, unit.word()),
            (unit, None) => format!("{} {}", self.done, unit.word()),
        }
    }
}

impl Unit {
    fn word(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Packages => "packages",
            Self::Objects => "objects",
        }
    }
}

/// A file whose bytes count as done when they are read.
pub(crate) struct Counted<'a> {
    file: File,
    progress: &'a Progress,
}

impl<'a> Counted<'a> {
    /// Begins a part of the work, in which the file at `path` is read.
    pub(crate) fn open(
        path: &Path,
        what: &str,
        progress: &'a Progress,
    ) -> Result<Self, ImageError> {
        let file = File::open(path).map_err(io_error("open", path))?;
        let metadata = file.metadata().map_err(io_error("read", path))?;
        progress.part(what, Unit::Bytes, Some(metadata.len()));
        Ok(Self { file, progress })
    }
}

impl Read for Counted<'_> {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(space)?;
        self.progress.add(count as u64);
        Ok(count)
    }
}

/// `1.5 of 3.0 MiB`, or both units if they differ.
fn share_of(done: &str, total: &str) -> String {
    let unit = |text: &str| text.split_once(' ').map(|(_, unit)| unit.to_owned());
    match done.split_once(' ') {
        Some((number, _)) if unit(done) == unit(total) => format!("{number} of {total}"),
        _ => format!("{done} of {total}"),
    }
}

/// Returns a number of bytes with one decimal, such as `1.5 GiB`.
pub(crate) fn rounded(bytes: u64) -> String {
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

/// Returns a bar that is filled to `done` of `steps`.
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

/// Prints a line on standard error, and ignores that it may be closed.
pub(crate) fn say(line: &str) {
    let _ = writeln!(stderr(), "peerbar: {line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(unit: Unit, total: Option<u64>, done: u64) -> Part {
        Part {
            done,
            step: "libc6".to_owned(),
            ..Part::new("unpacking", unit, total)
        }
    }

    #[test]
    fn bytes_have_a_share_and_a_rate() {
        let second = Duration::from_secs(1);
        let mut part = Part::new("cp big", Unit::Bytes, None);
        part.done = 3 << 19;
        assert_eq!(part.line(second, false), "cp big  1.5 MiB  1.5 MiB/s");
        part.total = Some(3 << 20);
        let line = part.line(second * 2, false);
        let expected = format!(
            "{}{}  50%  1.5 of 3.0 MiB  768.0 KiB/s  cp big",
            "█".repeat(10),
            "░".repeat(10)
        );
        assert_eq!(line, expected);
        // More than was expected, and no total.
        part.done = 19 << 19;
        assert!(part.line(second, false).contains(" 100%  9.5 of"));
        part.total = Some(0);
        assert!(!part.line(Duration::ZERO, true).contains('%'));
    }

    #[test]
    fn plain_lines_have_a_share_and_an_amount() {
        let line = |unit, total, done| part(unit, Some(total), done).plain_line(33);
        assert_eq!(
            line(Unit::Packages, 3, 1),
            "unpacking: 33%, 1 of 3 packages"
        );
        let bytes = line(Unit::Bytes, 3 << 20, 1 << 20);
        assert_eq!(bytes, "unpacking: 33%, 1.0 of 3.0 MiB");
        let bytes = line(Unit::Bytes, 3 << 20, 1 << 19);
        assert_eq!(bytes, "unpacking: 33%, 512.0 KiB of 3.0 MiB");
    }

    #[test]
    fn plain_shares_are_said_in_tenths_and_not_in_quick_succession() {
        let mut state = State {
            lines: None,
            part: part(Unit::Objects, Some(100), 0),
            shown: None,
            said: 0,
        };
        let mut said = |done, is_due| {
            state.part.done = done;
            let long_ago = Instant::now().checked_sub(PLAIN_PAUSE * 2);
            state.shown = if is_due {
                long_ago
            } else {
                Some(Instant::now())
            };
            state.show_if_due();
            state.said
        };
        assert_eq!(said(9, true), 0);
        assert_eq!(said(15, false), 0);
        assert_eq!(said(17, true), 10);
        assert_eq!(said(19, true), 10);
        assert_eq!(said(400, true), 100);
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
        let line = |total, done, has_colours| {
            part(Unit::Packages, Some(total), done).line(Duration::ZERO, has_colours)
        };
        let expected = format!(
            "{}{}  25%  1 of 4 packages  unpacking libc6",
            "█".repeat(5),
            "░".repeat(15)
        );
        assert_eq!(line(4, 1, false), expected);
        assert!(line(3, 1, true).contains("█\x1b[0m░"));
        for (total, done) in [(3, 3), (3, 9), (1, u64::MAX)] {
            assert!(line(total, done, false).contains(&"█".repeat(BAR)));
        }
        assert_eq!(line(0, 0, false), "unpacking  0 packages  libc6");
    }
}
