//! `peerbar list`: the scenarios that can be run, and the kinds of checks that they can have.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use peerbar_lab::exit::Failure;
use peerbar_lab::scenario::{ScenarioFile, in_folder, shipped};
use peerbar_lab::table::hanging;
use peerbar_lab::terminal::{columns, print};
use peerbar_report::{COMMON_KEYS, KINDS, Kind, way_out_or};
use serde_json::{Value, json};

use crate::cli::List;

/// Width of the names.
const NAME: usize = 19;
/// Width of the names of keys.
const KEY: usize = 10;
/// Indentation of the lines below a name.
const INDENT: &str = "    ";

/// Prints the kind that is asked for with its keys, or the scenario with its file, or all with a line for each.
pub(crate) fn list(options: &List) -> Result<ExitCode, Failure> {
    let name = options.name.as_deref();
    let is_wanted = |known: &str| name.is_none_or(|name| name == known);
    let kinds: Vec<&Kind> = KINDS.iter().filter(|kind| is_wanted(kind.name)).collect();
    let files = |files: Vec<ScenarioFile>| -> Vec<ScenarioFile> {
        let wanted = files.into_iter().filter(|file| is_wanted(&file.name));
        wanted.collect()
    };
    let (shipped, own) = (files(shipped()), files(in_folder(Path::new("."))));
    let shown = match name {
        Some(name) if kinds.is_empty() && shipped.is_empty() && own.is_empty() => {
            return Err(unknown(name));
        }
        _ if options.json => data(&shipped, &own, &kinds)?,
        Some(_) => own
            .iter()
            .chain(&shipped)
            .map(|file| explained(file, columns()))
            .chain(kinds.into_iter().map(|kind| section(kind, columns())))
            .collect(),
        None => text(&shipped, &own, &kinds, columns().map(usize::from)),
    };
    print(&shown)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a scenario's name, purpose and file.
fn explained(file: &ScenarioFile, columns: Option<u16>) -> String {
    let ScenarioFile { name, path, about } = file;
    let about = hanging(INDENT, about, columns);
    format!("{name}\n{about}{INDENT}File: {}\n", path.display())
}

/// Returns a kind's name, its purpose, its keys, and those of every kind.
fn section(kind: &Kind, columns: Option<u16>) -> String {
    let keys = kind.keys().chain(&COMMON_KEYS).map(|key| {
        let default = key.default;
        let default = default.map_or_else(String::new, |value| format!(" [default: {value}]"));
        let head = format!("{INDENT}{:<KEY$} ", key.name);
        hanging(&head, &format!("{}{default}", key.about), columns)
    });
    let keys: String = keys.collect();
    let about = kind.about();
    let about = about.lines().filter(|line| !line.is_empty());
    let about = about.map(|line| match line.strip_prefix("- ") {
        Some(item) => hanging(&format!("{INDENT}- "), item, columns),
        None => hanging(INDENT, line, columns),
    });
    format!("{}\n{}{keys}", kind.name, about.collect::<String>())
}

fn unknown(name: &str) -> Failure {
    let files = [shipped(), in_folder(Path::new("."))].concat();
    let known = files.iter().map(|file| file.name.as_str());
    let known = known.chain(KINDS.iter().map(|kind| kind.name));
    let way_out = way_out_or(name, known, || "`peerbar list` names all".to_owned());
    Failure::Usage(anyhow!(
        "no scenario and no kind of check is named `{name}`: {way_out}"
    ))
}

/// Returns a line of at most `columns` for each; `peerbar list NAME` has the rest.
fn text(
    shipped: &[ScenarioFile],
    own: &[ScenarioFile],
    kinds: &[&Kind],
    columns: Option<usize>,
) -> String {
    let line = |name: &str, about: &str| {
        let line = format!("  {name:<NAME$} {}", gist(about));
        cut(line.trim_end(), columns) + "\n"
    };
    let scenarios = |files: &[ScenarioFile]| -> String {
        files
            .iter()
            .map(|file| line(&file.name, &file.about))
            .collect()
    };
    let kinds: String = kinds
        .iter()
        .map(|kind| line(kind.name, &kind.about()))
        .collect();
    let parts = [
        (
            "Scenarios of this folder (peerbar run FILE)",
            scenarios(own),
        ),
        (
            "Scenarios of peerbar (peerbar run NAME)",
            scenarios(shipped),
        ),
        ("Kinds of checks (peerbar list KIND has the keys)", kinds),
    ];
    let parts = parts.into_iter().filter(|(_, lines)| !lines.is_empty());
    let parts: Vec<String> = parts
        .map(|(title, lines)| format!("{title}:\n{lines}"))
        .collect();
    parts.join("\n")
}

/// Returns the first clause of a description.
fn gist(about: &str) -> &str {
    let ends = [": ", ". ", ":\n", ".\n"].map(|end| about.find(end));
    let end = ends.into_iter().flatten().min().unwrap_or(about.len());
    about.get(..end).unwrap_or(about).trim_end_matches('.')
}

/// Returns a line of at most `columns`, whole words of it.
fn cut(line: &str, columns: Option<usize>) -> String {
    let Some(columns) = columns.filter(|columns| line.chars().count() > *columns) else {
        return line.to_owned();
    };
    let start: String = line.chars().take(columns.saturating_sub(1)).collect();
    let words = start.rsplit_once(' ').map_or(&*start, |(words, _)| words);
    format!("{}…", words.trim_end_matches([',', ' ']))
}

fn data(shipped: &[ScenarioFile], own: &[ScenarioFile], kinds: &[&Kind]) -> anyhow::Result<String> {
    let scenarios = |files: &[ScenarioFile], is_shipped: bool| -> Vec<Value> {
        let value = |file: &ScenarioFile| json!({ "name": file.name, "path": file.path, "about": file.about, "shipped": is_shipped });
        files.iter().map(value).collect()
    };
    let kinds = kinds.iter().map(|kind| {
        let keys = kind.keys().chain(&COMMON_KEYS);
        let keys =
            keys.map(|key| json!({ "name": key.name, "about": key.about, "default": key.default }));
        json!({ "kind": kind.name, "about": kind.about(), "keys": keys.collect::<Vec<Value>>() })
    });
    let scenarios = [scenarios(own, false), scenarios(shipped, true)].concat();
    let all = json!({
        "scenarios": scenarios,
        "checks": kinds.collect::<Vec<Value>>(),
    });
    Ok(serde_json::to_string_pretty(&all).context("cannot write JSON")? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demo() -> ScenarioFile {
        ScenarioFile {
            name: "demo".to_owned(),
            path: "/x/demo.toml".into(),
            about: "Disk to disk.".to_owned(),
        }
    }

    #[test]
    fn lines_have_name_and_purpose_below_their_titles() {
        let kinds: Vec<&Kind> = KINDS.iter().take(1).collect();
        let shown = text(&[demo()], &[], &kinds, Some(80));
        let expected = "Scenarios of peerbar (peerbar run NAME):\n  demo                Disk to disk\n\n\
                        Kinds of checks (peerbar list KIND has the keys):\n  provider            ";
        assert!(shown.starts_with(expected), "{shown}");
        assert!(!shown.contains("this folder"), "{shown}");
    }

    #[test]
    fn each_has_one_line_that_fits() {
        assert_eq!(
            gist("Links that take time: a GPU. And more."),
            "Links that take time"
        );
        let line = "  gpu       Disk to GPU, with no host memory";
        assert_eq!(cut(line, Some(24)), "  gpu       Disk to…");
        assert_eq!(cut(line, None), line);
        let kinds: Vec<&Kind> = KINDS.iter().collect();
        let all = text(&shipped(), &[], &kinds, Some(80));
        assert!(all.lines().all(|line| line.chars().count() <= 80), "{all}");
    }

    #[test]
    fn scenario_is_explained_by_its_purpose_and_its_file() {
        let expected = "demo\n    Disk to disk.\n    File: /x/demo.toml\n";
        assert_eq!(explained(&demo(), None), expected);
    }

    #[test]
    fn kind_is_explained_with_its_keys() {
        let lines = |columns| -> Vec<String> {
            let shown = KINDS.iter().map(|kind| section(kind, columns));
            let shown: String = shown.collect();
            shown.lines().map(str::to_owned).collect()
        };
        assert!(
            lines(Some(80))
                .iter()
                .all(|line| line.chars().count() <= 80)
        );
        let plain = "controller-reset\n    Resets the controller through sysfs, and checks that it is live again afterwards and still has its p2pmem.\n    \
                     device     Name of an `[[nvme]]`.\n    \
                     name       Name of the check in the table of results. Must be unique. [default: made from the kind and its keys]\n    \
                     timeout    Time limit, such as `\"90s\"`: less than the scenario's `timeout`. \
                     [default: half of the scenario's, at most 60s]\n";
        let reset = KINDS.iter().find(|kind| kind.name == "controller-reset");
        assert_eq!(section(reset.unwrap(), None), plain);
    }

    #[test]
    fn unknown_name_has_the_one_that_was_meant() {
        let said = unknown("gpu-fle").to_string();
        assert!(
            said.ends_with("`gpu-fle`: did you mean `gpu-file`?"),
            "{said}"
        );
        let said = unknown("zzzzzzzz").to_string();
        assert!(said.ends_with("`peerbar list` names all"), "{said}");
    }

    #[test]
    fn json_has_scenarios_and_the_keys_of_each_kind() {
        let kinds: Vec<&Kind> = KINDS.iter().collect();
        let all: Value = serde_json::from_str(&data(&[demo()], &[], &kinds).unwrap()).unwrap();
        assert_eq!(all["scenarios"][0]["path"], "/x/demo.toml");
        assert_eq!(all["scenarios"][0]["shipped"], true);
        let kinds = all["checks"].as_array().unwrap();
        assert_eq!(kinds.len(), KINDS.len());
        assert!(kinds.iter().all(|kind| kind["keys"].is_array()));
        let copy = kinds.iter().find(|kind| kind["kind"] == "copy").unwrap();
        assert_eq!(copy["keys"][0]["default"], Value::Null);
    }
}
