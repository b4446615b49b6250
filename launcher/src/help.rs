//! `peerbar completions` and `peerbar man`: the contents of `cli` for shells and for man. The
//! examples of each command are those at the start of its help.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold};

use crate::cli::Cli;
use crate::completion;
use peerbar_lab::exit::Failure;
use peerbar_lab::terminal::print;

/// Prints the completion script for `shell`.
pub(crate) fn completions(shell: Shell) -> Result<ExitCode, Failure> {
    print(&completion::script(shell)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a page for the program and one for each of its commands into `folder`.
pub(crate) fn man(folder: &Path) -> Result<ExitCode, Failure> {
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let mut program = shown(Cli::command());
    program.build();
    for command in with_subcommands(&program) {
        let name = command.get_display_name().unwrap_or(command.get_name());
        let file = folder.join(format!("{name}.1"));
        let text = page(command).context("cannot write a page")?;
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the command without its hidden subcommands.
fn shown(command: Command) -> Command {
    let subcommands: Vec<Command> = command
        .get_subcommands()
        .filter(|subcommand| !subcommand.is_hide_set())
        .cloned()
        .collect();
    let bare = Command::new("peerbar")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .disable_help_subcommand(true);
    let about = command.get_about().cloned().unwrap_or_default();
    let before = command.get_before_help().cloned().unwrap_or_default();
    let after = command.get_after_help().cloned().unwrap_or_default();
    bare.about(about)
        .before_help(before)
        .after_help(after)
        .subcommands(subcommands)
}

fn with_subcommands(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().flat_map(with_subcommands);
    std::iter::once(command).chain(below).collect()
}

/// A page: as `clap_mangen` has it, with the examples before the options.
fn page(command: &Command) -> std::io::Result<Vec<u8>> {
    let man = Man::new(command.clone())
        .source(concat!("peerbar ", env!("CARGO_PKG_VERSION")))
        .manual("peerbar");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    let mut section = Roff::new();
    section.control("SH", ["EXAMPLES"]);
    for example in examples(command) {
        section.control("PP", []);
        section.text([bold(example)] as [Inline; 1]);
    }
    section.to_writer(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    if command.get_after_help().is_some() {
        man.render_extra_section(&mut text)?;
    }
    Ok(text)
}

/// Returns the command lines at the start of a command's help.
fn examples(command: &Command) -> Vec<String> {
    let text = command.get_before_help().map(ToString::to_string);
    let text = text.unwrap_or_default();
    let lines = text.lines().filter_map(|line| {
        let at = line.find("peerbar")?;
        line.get(at..)
    });
    lines.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// Checks that `cli` accepts a command line, up to the part that the shell interprets.
    fn parses(line: &str) -> Result<(), String> {
        let words = line.split_whitespace();
        let words = words.take_while(|word| ![">", "|"].contains(word));
        let parsed = Cli::try_parse_from(words);
        parsed.map(drop).map_err(|error| format!("{line}: {error}"))
    }

    #[test]
    fn every_help_starts_with_examples_that_parse() {
        let mut program = shown(Cli::command());
        program.build();
        let mut seen = 0;
        for command in with_subcommands(&program) {
            let name = command.get_bin_name().unwrap_or("peerbar");
            let help = command.clone().render_help().to_string();
            assert!(help.starts_with("Example"), "{name} --help: {help}");
            let examples = examples(command);
            assert!(!examples.is_empty(), "{name} has no example");
            for line in examples {
                assert_eq!(parses(&line), Ok(()));
                assert!(line.starts_with(name), "{name}: {line}");
                seen += 1;
            }
        }
        assert!(seen >= 10, "{seen}");
    }

    /// Returns the lines of `recipe` that start a `peerbar`, from there on, with the values that a
    /// CI puts into them.
    fn commands(recipe: &str) -> Vec<String> {
        let variables = [
            ("${{ matrix.shard }}", "1"),
            ("$CI_NODE_INDEX", "1"),
            ("$CI_NODE_TOTAL", "3"),
        ];
        let lines = recipe.lines().filter_map(|line| {
            let known = ["peerbar run", "peerbar report", "peerbar matrix"];
            let at = known.into_iter().find_map(|command| line.find(command))?;
            let mut line = line.get(at..)?.to_owned();
            for (variable, value) in variables {
                line = line.replace(variable, value);
            }
            assert!(!line.contains("||"), "a failure would be lost: {line}");
            Some(line)
        });
        lines.collect()
    }

    #[test]
    fn recipes_for_ci_are_yaml_with_commands_that_parse() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/ci");
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        for name in ["github.yml", "gitlab.yml", "lava.yaml"] {
            let recipe = read(name);
            let parsed: serde_json::Value = serde_yaml_ng::from_str(&recipe).unwrap();
            assert!(parsed.is_object(), "{name}");
            let commands = commands(&recipe);
            assert!(commands.len() >= 2, "{name}: {commands:?}");
            for line in commands {
                assert_eq!(parses(&line), Ok(()), "{name}");
            }
        }
        let commands = commands(&read("tuxmake.sh"));
        let parsed: Vec<_> = commands.iter().map(|line| parses(line)).collect();
        assert_eq!(parsed, [Ok(())], "{commands:?}");
        let nextest: toml::Table = toml::from_str(&read("nextest.toml")).unwrap();
        assert!(nextest.contains_key("profile"));
    }

    #[test]
    fn page_has_examples_options_and_no_hidden_command() {
        let folder = tempfile::tempdir().unwrap();
        man(&folder.path().join("man1")).unwrap();
        let page = |name: &str| fs::read_to_string(folder.path().join("man1").join(name)).unwrap();
        let run = page("peerbar-run.1");
        assert!(run.contains(".SH EXAMPLES\n"), "{run}");
        assert!(run.contains("peerbar run my.toml"), "{run}");
        assert!(run.contains("dry\\-run"), "{run}");
        assert!(page("peerbar.1").contains("peerbar\\-matrix"));
        let names: Vec<String> = fs::read_dir(folder.path().join("man1"))
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(!names.iter().any(|name| name.contains("die")), "{names:?}");
    }
}
