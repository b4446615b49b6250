//! The words that a shell offers while a command line is typed: scenarios, kinds of checks, checks and devices, as far as they are known
//! without a guest.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::anyhow;
use clap::CommandFactory;
use clap_complete::engine::ValueCompleter;
use clap_complete::env::Shells;
use clap_complete::{
    ArgValueCandidates, ArgValueCompleter, CompleteEnv, CompletionCandidate, PathCompleter, Shell,
};
use peerbar_lab::exit::Failure;
use peerbar_lab::finished_run::SCENARIO;
use peerbar_lab::scenario::{GuestGroup, Scenario, ScenarioFile, in_folder, shipped};
use peerbar_report::KINDS;

use crate::cli::Cli;
use crate::runnable::Runnable;

/// The variable by which a shell's script asks for words.
const VARIABLE: &str = "PEERBAR_COMPLETE";
/// Set if the shell puts words into the command line unchanged, as bash does. Others quote them.
static TAKES_WORDS_AS_TYPED: AtomicBool = AtomicBool::new(false);
/// Words of a command line that are looked at, at most: each is perhaps a scenario that is read.
const MOST_WORDS: usize = 32;

/// Answers the script of a shell, and ends this process then. Must be called before anything is printed.
pub(crate) fn answer() {
    let is_bash = env::var_os(VARIABLE).is_some_and(|shell| shell == "bash");
    TAKES_WORDS_AS_TYPED.store(is_bash, Ordering::Relaxed);
    CompleteEnv::with_factory(Cli::command)
        .var(VARIABLE)
        .complete();
}

/// Returns the script that has `shell` ask for words.
///
/// # Errors
/// The shell is not known.
pub(crate) fn script(shell: Shell) -> Result<String, Failure> {
    let shells = Shells::builtins();
    let name = shell.to_string();
    let completer = shells
        .completer(&name)
        .ok_or_else(|| anyhow!("no script is known for {name}"))?;
    let mut script = Vec::new();
    completer
        .write_registration(VARIABLE, "peerbar", "peerbar", "peerbar", &mut script)
        .map_err(anyhow::Error::from)?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// Scenario files, and the names of shipped scenarios.
pub(crate) fn scenarios() -> ArgValueCompleter {
    let is_toml = |path: &Path| path.extension() == Some(OsStr::new("toml"));
    ArgValueCompleter::new(move |typed: &OsStr| {
        let mut all = PathCompleter::file().filter(is_toml).complete(typed);
        let start = typed.to_string_lossy();
        let shipped = shipped().into_iter();
        let shipped = shipped.filter(|file| file.name.starts_with(&*start));
        all.extend(shipped.map(of_file));
        all
    })
}

/// Kinds of checks and scenarios, as `peerbar list` takes them.
pub(crate) fn listed() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let files = shipped().into_iter().chain(in_folder(Path::new(".")));
        let kinds = KINDS.iter();
        let kinds = kinds.map(|kind| candidate(kind.name, &kind.about().replace('\n', " ")));
        files.map(of_file).chain(kinds).collect()
    })
}

/// Returns the checks of the scenarios on the command line, else of the demo.
pub(crate) fn checks() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let typed = env::args_os().skip(1).take(MOST_WORDS);
        let named = typed.filter_map(|word| Runnable::load_interactive(Path::new(&word)).ok());
        let mut scenarios: Vec<Runnable> = named.collect();
        if scenarios.is_empty() {
            scenarios.extend(Scenario::demo().ok().map(Runnable::of_one));
        }
        let names = scenarios.iter().flat_map(|scenario| match scenario {
            Runnable::Single(scenario) => scenario.check_names(),
            Runnable::Group(group) => group.check_names(),
        });
        names
            .map(|name| CompletionCandidate::new(typed_word(&name)))
            .collect()
    })
}

/// Returns the devices of the run that `--run` names, else of the latest.
pub(crate) fn devices() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let mut typed = env::args_os().skip_while(|word| word != "--run").skip(1);
        let run = typed.next().map_or("runs/latest".into(), PathBuf::from);
        let names = devices_of(&run.join(SCENARIO)).unwrap_or_default();
        names.into_iter().map(CompletionCandidate::new).collect()
    })
}

/// Returns the names of the devices in the scenario at `path`.
fn devices_of(path: &Path) -> Option<Vec<String>> {
    let text = fs::read_to_string(path).ok()?;
    let scenarios = match GuestGroup::parse_interactive(path, text.as_str()).ok()? {
        Some(group) => group
            .guests
            .into_iter()
            .map(|guest| guest.scenario)
            .collect(),
        None => vec![Scenario::parse_interactive(path, text).ok()?],
    };
    let devices = scenarios.iter().flat_map(Scenario::devices);
    Some(devices.map(|device| device.name().to_owned()).collect())
}

/// Returns a word as it must be typed for the shell to take it as one.
fn typed_word(word: &str) -> String {
    if !TAKES_WORDS_AS_TYPED.load(Ordering::Relaxed) {
        return word.to_owned();
    }
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_./,:+@%".contains(letter);
    let letters = word.chars().map(|letter| match is_plain(letter) {
        true => letter.to_string(),
        false => format!("\\{letter}"),
    });
    letters.collect()
}

fn of_file(file: ScenarioFile) -> CompletionCandidate {
    candidate(&file.name, &file.about)
}

fn candidate(name: &str, about: &str) -> CompletionCandidate {
    CompletionCandidate::new(name).help(Some(about.to_owned().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_a_run_are_offered() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(SCENARIO);
        let disk = |guest: &str, name: &str| {
            format!("[[nvme]]\n{guest}name = \"{name}\"\nnamespaces = [{{ ram = \"1M\" }}]\n")
        };
        let text = format!("name = \"x\"\n{}{}", disk("", "d0"), disk("", "d1"));
        fs::write(&file, text).unwrap();
        assert_eq!(devices_of(&file).unwrap(), ["d0", "d1"]);
        let text = format!(
            "name = \"x\"\n[[guest]]\nname = \"a\"\n{}",
            disk("guest = \"a\"\n", "d0")
        );
        fs::write(&file, text).unwrap();
        assert_eq!(devices_of(&file).unwrap(), ["d0"]);
        assert_eq!(devices_of(&folder.path().join("none")), None);
    }

    #[test]
    fn scenario_files_and_no_others_are_offered() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["mine.toml", "mine.txt"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let typed = folder.path().join("m");
        let offered = scenarios().complete(typed.as_os_str());
        let names: Vec<_> = offered.iter().map(|one| one.get_value()).collect();
        assert_eq!(names, [folder.path().join("mine.toml").as_os_str()]);
    }

    #[test]
    fn script_asks_this_program() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell).unwrap();
            assert!(script.contains(VARIABLE), "{script}");
        }
    }
}
