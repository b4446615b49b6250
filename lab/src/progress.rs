//! Progress on stderr: a spinner above a window of the last lines on a terminal, plain lines
//! elsewhere.

use std::collections::VecDeque;
use std::iter;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use peerbar_images::LiveLines;

use crate::terminal::say;

/// Lines in the window.
const WINDOW: usize = 6;
/// Columns of a line in the window; a longer one is cut.
const COLUMNS: usize = 100;
const TICK: Duration = Duration::from_millis(120);
/// Characters of the spinner, one after the other.
const SPINNER: [char; 8] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠇'];

/// Displays the progress of the work.
pub struct Progress(Option<Spinner>);

/// Keeps the display up to date until it is dropped.
struct Spinner {
    display: Arc<Mutex<Display>>,
    /// Its end ends the ticker.
    stop: Option<Sender<()>>,
    ticker: Option<JoinHandle<()>>,
}

/// Contents of the terminal.
struct Display {
    lines: LiveLines,
    content: Content,
    began: Instant,
}

#[derive(Default)]
struct Content {
    stage: String,
    window: VecDeque<String>,
}

impl Default for Progress {
    /// Returns progress that suits stderr: a terminal or not.
    fn default() -> Self {
        Self(LiveLines::on_terminal().map(Spinner::start))
    }
}

impl Progress {
    /// Shows the stage that begins now.
    pub fn stage(&mut self, text: &str) {
        match &self.0 {
            Some(spinner) => {
                let mut display = spinner.display.lock();
                display.content = Content {
                    stage: text.to_owned(),
                    window: VecDeque::new(),
                };
                display.show();
            }
            None => say(format_args!("peerbar: {text}")),
        }
    }

    /// Shows a line that matters only while it is new; only on a terminal.
    pub fn passing(&mut self, line: &str) {
        let Some(spinner) = &self.0 else { return };
        let window = &mut spinner.display.lock().content.window;
        if window.len() == WINDOW {
            window.pop_front();
        }
        window.push_back(line.chars().take(COLUMNS).collect());
    }

    /// Shows a line that stays.
    pub fn lasting(&self, line: &str) {
        match &self.0 {
            Some(spinner) => {
                let mut display = spinner.display.lock();
                display.lines.clear();
                say(line);
                display.show();
            }
            None => say(line),
        }
    }
}

impl Spinner {
    fn start(lines: LiveLines) -> Self {
        let display = Arc::new(Mutex::new(Display {
            lines,
            content: Content::default(),
            began: Instant::now(),
        }));
        let (stop, stopped) = mpsc::channel::<()>();
        let ticking = Arc::clone(&display);
        let ticker = thread::spawn(move || {
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                ticking.lock().show();
            }
        });
        Self {
            display,
            stop: Some(stop),
            ticker: Some(ticker),
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The lines are removed once nothing shows them again.
        if let Some(ticker) = self.ticker.take() {
            let _ = ticker.join();
        }
    }
}

impl Display {
    fn show(&mut self) {
        let lines = self.content.lines(self.began.elapsed());
        self.lines.show(&lines);
    }
}

impl Content {
    fn lines(&self, elapsed: Duration) -> Vec<String> {
        let ticks = elapsed.as_millis() / TICK.as_millis();
        let turn = usize::try_from(ticks % SPINNER.len() as u128).unwrap_or(0);
        let spinner = SPINNER.get(turn).unwrap_or(&' ');
        let time = match elapsed.as_secs() {
            seconds @ 0..60 => format!("{seconds}s"),
            seconds => format!("{}m {}s", seconds / 60, seconds % 60),
        };
        let first = format!("{spinner} {} ({time})", self.stage);
        let window = self.window.iter().map(|line| format!("  {line}"));
        iter::once(first).chain(window).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinner_turns_above_the_window() {
        let content = Content {
            stage: "booting".to_owned(),
            window: ["one".to_owned(), "two".to_owned()].into(),
        };
        let lines = |millis| content.lines(Duration::from_millis(millis));
        assert_eq!(lines(0), ["⠋ booting (0s)", "  one", "  two"]);
        assert_eq!(lines(130)[0], "⠙ booting (0s)");
        assert_eq!(lines(8 * 120)[0], "⠋ booting (0s)");
        assert_eq!(lines(125_000)[0], "⠙ booting (2m 5s)");
    }
}
