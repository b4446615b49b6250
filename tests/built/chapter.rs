//! Follows a chapter of the book as a reader does: writes its files, runs its commands and looks
//! for the output that it shows.
//!
//! - A code block below a line that is only `` `PATH`: `` is that file.
//! - A block of the language `console` has commands after `$ `, each with its output below. A line
//!   of `...` stands for omitted lines, `…` for a part of a line. Each of the other lines must be
//!   there, in the same order.
//! - Each command must succeed, except those of a block `console,fails`, which must all fail.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::PEERBAR;

const BOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src");

/// A step of the reader.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Writes a file.
    Write { path: String, text: String },
    /// Types a command.
    Type {
        command: String,
        shown: Vec<String>,
        fails: bool,
    },
}

/// Follows the chapter `name` in `folder`. Returns the number of its commands.
pub(crate) fn follow(name: &str, folder: &Path) -> anyhow::Result<usize> {
    let text = fs::read_to_string(Path::new(BOOK).join(name))?;
    let mut typed = 0;
    for step in steps(&text) {
        match step {
            Step::Write { path, text } => write(&folder.join(path), &text)?,
            Step::Type {
                command,
                shown,
                fails,
            } => {
                typed += 1;
                let printed = run(&command, fails, folder)?;
                looks_as_shown(&shown, &printed)
                    .with_context(|| format!("`{command}` printed:\n{printed}"))?;
            }
        }
    }
    Ok(typed)
}

fn steps(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut before = "";
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            if language.split(',').next() == Some("console") {
                steps.extend(typed(&block, language.ends_with(",fails")));
            } else if let Some(path) = before.strip_prefix('`').and_then(|b| b.strip_suffix("`:")) {
                let (path, text) = (path.to_owned(), block.join("\n") + "\n");
                steps.push(Step::Write { path, text });
            }
        } else if !line.is_empty() {
            before = line;
            continue;
        }
        if !line.is_empty() {
            before = "";
        }
    }
    steps
}

fn typed(block: &[&str], fails: bool) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in block {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step::Type {
                command: command.to_owned(),
                shown: Vec::new(),
                fails,
            });
        } else if let Some(Step::Type { shown, .. }) = steps.last_mut() {
            shown.push((*line).to_owned());
        }
    }
    steps
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text).with_context(|| path.display().to_string())
}

/// Runs the command. Returns its output on both streams.
fn run(command: &str, fails: bool, folder: &Path) -> anyhow::Result<String> {
    let programs = PEERBAR.parent().context("no folder")?;
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("sh")
        .args(["-c", &format!("exec 2>&1; {command}")])
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", programs.display()))
        .output()?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success() != fails,
        "`{command}` ended with {}:\n{printed}",
        output.status
    );
    Ok(printed)
}

fn looks_as_shown(shown: &[String], printed: &str) -> anyhow::Result<()> {
    let mut lines = printed.lines();
    for wanted in shown.iter().filter(|line| *line != "...") {
        ensure!(
            lines.any(|line| looks_as(wanted.trim_end(), line.trim_end())),
            "there is no line, or not in this order: {wanted}"
        );
    }
    Ok(())
}

/// Returns `true` if `line` matches `wanted`, in which `…` stands for anything.
fn looks_as(wanted: &str, line: &str) -> bool {
    let mut parts = wanted.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else {
        return false;
    };
    let mut is_open = false;
    for part in parts {
        is_open = part.is_empty();
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.is_empty() || is_open
}

#[test]
fn chapter_is_read_as_files_and_commands() {
    let text = "# Title\n\n`a/b.c`:\n\n```c\nint x;\n```\n\nSee `a.c`:\n\n```toml\nno = 1\n```\n\n```console\n$ make\ncc …\n...\n\
        $ true\n```\n\n```console,fails\n$ false\n```\n";
    let typed = |command: &str, shown: &[&str], fails| Step::Type {
        command: command.to_owned(),
        shown: shown.iter().map(|line| (*line).to_owned()).collect(),
        fails,
    };
    let file = Step::Write {
        path: "a/b.c".to_owned(),
        text: "int x;\n".to_owned(),
    };
    let expected = [
        file,
        typed("make", &["cc …", "..."], false),
        typed("true", &[], false),
        typed("false", &[], true),
    ];
    assert_eq!(steps(text), expected);
}

#[test]
fn shown_lines_must_be_printed_in_their_order() {
    let shown = |lines: &[&str], printed: &str| {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        looks_as_shown(&lines, printed).is_ok()
    };
    assert!(shown(&["a", "...", "c … s)"], "a\nb\nc (1.2 s)\n"));
    assert!(shown(&["a …"], "a b"));
    assert!(!shown(&["c", "a"], "a\nc\n"));
    assert!(!shown(&["a"], "ab"));
    assert!(!shown(&["a…b"], "a bc"));
}
