//! Output for people: results on stdout, progress and errors on stderr.

use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write, stderr, stdout};

use anyhow::Context;

/// Writes a line to stderr, without control characters, as a guest may have written part of it. A reader or a terminal that is gone
/// is no error.
pub fn say(line: impl Display) {
    let _ = writeln!(stderr(), "{}", without_control(&line.to_string()));
}

/// Lines without control characters but tabs.
fn without_control(lines: &str) -> String {
    let is_harmless =
        |character: &char| ['\t', '\n'].contains(character) || !character.is_control();
    lines.chars().filter(is_harmless).collect()
}

/// Lines without control characters but tabs and those of colours (ECMA-48, 8.3.117: `ESC [`, parameters, `m`).
fn coloured(lines: &str) -> String {
    const START: &str = "\x1b[";
    let mut parts = lines.split(START);
    let mut harmless = without_control(parts.next().unwrap_or_default());
    for part in parts {
        let is_parameter = |character: char| character.is_ascii_digit() || character == ';';
        if part.trim_start_matches(is_parameter).starts_with('m') {
            harmless.push_str(START);
        }
        harmless.push_str(&without_control(part));
    }
    harmless
}

/// A guest's line without control characters, by which it could steer the terminal.
pub fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim_end()
        .chars()
        .filter(|&character| character == '\t' || !character.is_control())
        .collect()
}

/// Whether results may be coloured: on a terminal, unless the user says otherwise (no-color.org).
pub fn colours() -> bool {
    stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Width of the terminal that results go to; none elsewhere, or if it does not know.
pub fn columns() -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(stdout()).ok()?;
    (size.ws_col > 0).then_some(size.ws_col)
}

/// Prints a result, without control sequences but colours: a server or a guest may have written part of it. A reader that has seen
/// enough of it is no failure.
pub fn print(text: &str) -> anyhow::Result<()> {
    match stdout().write_all(coloured(text).as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_what_steers_no_terminal() {
        assert_eq!(without_control("a\x1b[2J\tb\r\n\u{9b}c"), "a[2J\tb\nc");
    }

    #[test]
    fn results_keep_colours_and_what_steers_no_terminal() {
        let red = "\x1b[1;31mfail\x1b[m, \x1b[0mpass\n";
        assert_eq!(coloured(red), red);
        let title = "\x1b]0;title\x07\x1b[2J\x1b[3\x1b[31m\x1bm\u{9b}31m\r\n";
        assert_eq!(coloured(title), "]0;title2J3\x1b[31mm31m\n");
    }
}
