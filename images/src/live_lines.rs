//! Lines at the end of a terminal that newer ones replace.

use std::env;
use std::io::{IsTerminal, Write, stderr};

use rustix::termios::tcgetwinsize;

/// Columns of a terminal that does not say how many it has.
const COLUMNS: usize = 80;

/// Lines at the end of standard error, a terminal. They are removed when this is dropped.
#[derive(Debug)]
pub struct LiveLines {
    /// Number of lines. The cursor is at the end of the last one.
    shown: usize,
}

impl LiveLines {
    /// Starts without lines. Returns `None` if standard error is not a terminal.
    pub fn on_terminal() -> Option<Self> {
        stderr().is_terminal().then_some(Self { shown: 0 })
    }

    /// Shows these lines in place of the previous ones, each cut to the width.
    pub fn show(&mut self, lines: &[String]) {
        let size = tcgetwinsize(stderr()).ok();
        let columns = size.map(|size| usize::from(size.ws_col));
        let columns = columns.filter(|columns| *columns > 0).unwrap_or(COLUMNS);
        self.draw(
            &lines
                .iter()
                .map(|line| cut(line, columns))
                .collect::<Vec<_>>(),
        );
    }

    /// Removes the lines, so that others can be written.
    pub fn clear(&mut self) {
        if self.shown > 0 {
            self.draw(&[]);
        }
    }

    fn draw(&mut self, lines: &[&str]) {
        let text = replacement(self.shown, lines);
        self.shown = lines.len();
        // One call, so that no incomplete text is visible. A failure is ignored: a closed standard
        // error shows nothing.
        let _ = stderr().write_all(text.as_bytes());
    }
}

impl Drop for LiveLines {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Returns `true` if the user may want colours (no-color.org).
pub(crate) fn are_colours_wanted() -> bool {
    env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Returns the text that replaces `shown` lines on a terminal (ECMA-48, CUU and ED).
fn replacement(shown: usize, lines: &[&str]) -> String {
    let up = match shown {
        0 | 1 => String::new(),
        _ => format!("\x1b[{}A", shown - 1),
    };
    format!("\r{up}\x1b[J{}", lines.join("\r\n"))
}

/// Returns as many characters of `line` as fit. Escape sequences take no column.
fn cut(line: &str, columns: usize) -> &str {
    let (mut used, mut is_sequence) = (0, false);
    for (at, character) in line.char_indices() {
        match character {
            '\x1b' => is_sequence = true,
            _ if is_sequence => is_sequence = !character.is_ascii_alphabetic(),
            _ if used == columns => return line.get(..at).unwrap_or(line),
            _ => used += 1,
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_replace_those_before_from_their_start() {
        assert_eq!(replacement(0, &["a", "b"]), "\r\x1b[Ja\r\nb");
        assert_eq!(replacement(1, &["a"]), "\r\x1b[Ja");
        assert_eq!(replacement(3, &[]), "\r\x1b[2A\x1b[J");
    }

    #[test]
    fn line_is_cut_where_the_terminal_ends() {
        assert_eq!(cut("äbc", 2), "äb");
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("\x1b[32mab\x1b[0mc", 3), "\x1b[32mab\x1b[0mc");
        assert_eq!(cut("\x1b[32mab\x1b[0mcd", 3), "\x1b[32mab\x1b[0mc");
    }
}
