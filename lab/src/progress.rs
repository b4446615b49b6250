//! Progress on stderr: a spinner above a window of the last lines on a terminal, plain lines elsewhere.

use std::collections::VecDeque;
use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::terminal::say;

/// Lines in the window.
const WINDOW: usize = 6;
/// Columns of a line in the window; a longer one is cut.
const COLUMNS: usize = 100;
const TICK: Duration = Duration::from_millis(120);

/// Tells what is going on.
pub struct Progress {
    bar: Option<ProgressBar>,
    window: VecDeque<String>,
}

impl Default for Progress {
    /// Progress that suits what stderr is.
    fn default() -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} ({elapsed}){msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(TICK);
            bar
        });
        Self {
            bar,
            window: VecDeque::new(),
        }
    }
}

impl Progress {
    /// Says what begins now.
    pub fn stage(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => {
                self.window.clear();
                bar.set_message("");
                bar.set_prefix(text.to_owned());
            }
            None => say(format_args!("peerbar: {text}")),
        }
    }

    /// Shows a line that matters only while it is new; on a terminal alone.
    pub fn passing(&mut self, line: &str) {
        let Some(bar) = &self.bar else { return };
        if self.window.len() == WINDOW {
            self.window.pop_front();
        }
        self.window.push_back(line.chars().take(COLUMNS).collect());
        let shown: String = self
            .window
            .iter()
            .map(|line| format!("\n  {line}"))
            .collect();
        bar.set_message(shown);
    }

    /// Shows a line that stays.
    pub fn lasting(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(line)),
            None => say(line),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
