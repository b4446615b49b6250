//! Output for people: results on stdout, progress and errors on stderr.

use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write, stderr, stdout};

use anyhow::Context;
use peerbar_report::steers;

use crate::table::is_style;

/// Writes a line to stderr, without control characters, because a guest may have written part of
/// it. A closed reader or terminal is no error.
pub fn say(line: impl Display) {
    let _ = writeln!(stderr(), "{}", without_control(&line.to_string()));
}

/// Returns lines without control characters except tabs.
fn without_control(lines: &str) -> String {
    let is_harmless = |character: &char| ['\t', '\n'].contains(character) || !steers(*character);
    lines.chars().filter(is_harmless).collect()
}

/// Returns lines without control characters except tabs, and the sequences with which tables make
/// coloured and bold text (SGR, ECMA-48, 8.3.117).
fn coloured(lines: &str) -> String {
    const START: &str = "\x1b[";
    let mut parts = lines.split(START);
    let mut harmless = without_control(parts.next().unwrap_or_default());
    for part in parts {
        if part
            .split_once('m')
            .is_some_and(|(parameters, _)| is_style(parameters))
        {
            harmless.push_str(START);
        }
        harmless.push_str(&without_control(part));
    }
    harmless
}

/// Returns a guest's line without control characters, with which it could control the terminal.
pub fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim_end()
        .chars()
        .filter(|&character| character == '\t' || !steers(character))
        .collect()
}

/// Returns `true` if results may be coloured: on a terminal, unless the user forbids it
/// (no-color.org).
pub fn colours() -> bool {
    stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Returns the width of the terminal for results, or `None` without a terminal or if it does not
/// know its width.
pub fn columns() -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(stdout()).ok()?;
    (size.ws_col > 0).then_some(size.ws_col)
}

/// Prints a result, without control sequences except colours: a server or a guest may have written
/// part of it. A reader that closes early is no failure.
pub fn print(text: &str) -> anyhow::Result<()> {
    match stdout().write_all(coloured(text).as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Cell, Style, Table};

    #[test]
    fn lines_keep_what_steers_no_terminal() {
        assert_eq!(without_control("a\x1b[2J\tb\r\n\u{9b}c"), "a[2J\tb\nc");
        let name = "a\u{202e}gnp.exe\u{2069}";
        assert_eq!(without_control(name), "agnp.exe");
        assert_eq!(printable(name.as_bytes()), "agnp.exe");
        assert_eq!(coloured(name), "agnp.exe");
    }

    #[test]
    fn results_keep_colours_and_what_steers_no_terminal() {
        let styles = [
            Style::Bold,
            Style::Green,
            Style::Yellow,
            Style::Red,
            Style::BoldRed,
        ];
        let mut table = Table::new(["check", "verdict"]);
        for style in styles {
            table.add([Cell::from("copy"), Cell::styled("pass", style)]);
        }
        for shown in [table.framed(), table.bare()] {
            assert!(shown.contains("\x1b[1;91mpass\x1b[0m"), "{shown}");
            assert_eq!(coloured(&shown), shown);
        }
        let title = "\x1b]0;title\x07\x1b[2J\x1b[3\x1b[1m\x1bm\u{9b}1m\x1b[8m\r\n";
        assert_eq!(coloured(title), "]0;title2J3\x1b[1mm1m8m\n");
    }
}
