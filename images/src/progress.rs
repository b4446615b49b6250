//! How far a long piece of work is, on standard error: a bar on a terminal, plain lines elsewhere.

use std::io::{Write, stderr};

use indicatif::{ProgressBar, ProgressStyle};

/// The progress of one piece of work. `NO_COLOR` is honoured by the bar itself.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Announces work of unknown length.
    pub(crate) fn start(what: &str) -> Self {
        let bar = ProgressBar::new_spinner();
        bar.set_style(ProgressStyle::default_spinner());
        let progress = Self { bar };
        progress.say(what);
        progress
    }

    /// A line that stays, above the bar.
    pub(crate) fn say(&self, line: &str) {
        self.bar.suspend(|| say(line));
    }

    /// Begins a part of `steps` steps. The plain form says it in a line of its own.
    pub(crate) fn part(&self, what: &str, steps: u64) {
        self.bar.set_style(
            ProgressStyle::with_template("{prefix:12} {bar:30.green} {pos}/{len} {wide_msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        self.bar.set_length(steps);
        self.bar.set_position(0);
        self.bar.set_prefix(what.to_owned());
        if self.bar.is_hidden() {
            self.say(&format!("{what} {steps} packages"));
        }
    }

    /// One step is under way.
    pub(crate) fn step(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.inc(1);
    }
}

/// Prints a line on standard error, and ignores that it may be closed.
pub(crate) fn say(line: &str) {
    let _ = writeln!(stderr(), "peerbar: {line}");
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
