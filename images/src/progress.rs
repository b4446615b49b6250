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
        let share = done.saturating_mul(BAR as u64).checked_div(*steps);
        let full = usize::try_from(share.unwrap_or(0)).map_or(BAR, |full| full.min(BAR));
        let (full, rest) = ("█".repeat(full), "░".repeat(BAR - full));
        let (colour, end) = match has_colours {
            true => ("\x1b[32m", "\x1b[0m"),
            false => ("", ""),
        };
        format!("{what:12} {colour}{full}{end}{rest} {done}/{steps} {step}")
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
