//! Scenario files that are ready to run: those that come with peerbar, and those of a folder.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use peerbar_report::similar;
use toml::Table;

use super::error::ScenarioError;
use crate::programs::program;
use crate::size::Size;

/// The scenario that is always among those that come with peerbar.
const ALWAYS: &str = "scenarios/demo.toml";
/// Largest size of a scenario file.
pub(super) const LARGEST: u64 = 1 << 20;
/// Keys of the top level. Each scenario has one of them in addition to its name.
const TABLES: [&str; 5] = ["nvme", "gpu", "nic", "machine", "check"];

/// A scenario file, and its purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioFile {
    /// Its name for `peerbar run`: a bare name if it comes with peerbar, else the file's name.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// The first sentence of the comment at its head; empty if there is no comment.
    pub about: String,
}

/// Returns the scenarios that come with peerbar, by name; nothing if they are not installed.
pub fn shipped() -> Vec<ScenarioFile> {
    let demo = program(ALWAYS).ok();
    let folder = demo.as_deref().and_then(Path::parent);
    let mut files = folder.map(in_folder).unwrap_or_default();
    for file in &mut files {
        let stem = Path::new(&file.name).file_stem().unwrap_or_default();
        file.name = stem.to_string_lossy().into_owned();
    }
    files
}

/// Returns the scenarios of `folder`, by name. Other TOML files and unreadable ones are left out.
pub fn in_folder(folder: &Path) -> Vec<ScenarioFile> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<ScenarioFile> = entries
        .filter_map(|entry| scenario_file(&entry.path()))
        .collect();
    files.sort_by(|one, other| one.name.cmp(&other.name));
    files
}

/// Returns the file that `path` names. A bare name that is not a file's means a shipped scenario,
/// also where a folder has that name.
pub(super) fn resolve(path: &Path) -> PathBuf {
    let is_bare = path.components().count() == 1 && path.extension().is_none();
    let shipped = || {
        let file = path.with_extension("toml");
        program(&format!("scenarios/{}", file.display())).ok()
    };
    let found = (is_bare && (!path.exists() || path.is_dir()))
        .then(shipped)
        .flatten();
    found.unwrap_or_else(|| path.to_owned())
}

/// Returns the error about a scenario that is neither a file nor shipped.
pub(super) fn missing(path: &Path) -> ScenarioError {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let mut files = in_folder(folder.unwrap_or(Path::new(".")));
    if folder.is_none() {
        files.extend(shipped());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let way_out = match similar(&name, files.iter().map(|file| file.name.as_str())) {
        Some(similar) => format!("did you mean `{}`?", path.with_file_name(similar).display()),
        None => {
            "`peerbar list` names all scenarios, and `peerbar init FILE.toml` writes one".to_owned()
        }
    };
    ScenarioError::Missing {
        path: path.to_owned(),
        way_out,
    }
}

fn scenario_file(path: &Path) -> Option<ScenarioFile> {
    let is_toml = path
        .extension()
        .is_some_and(|extension| extension == "toml");
    if !is_toml || fs::metadata(path).ok()?.len() > LARGEST {
        return None;
    }
    let text = fs::read_to_string(path).ok()?;
    let table: Table = text.parse().ok()?;
    let has_name = table.get("name").is_some_and(|name| name.is_str());
    let is_scenario = has_name && TABLES.into_iter().any(|key| table.contains_key(key));
    is_scenario.then(|| ScenarioFile {
        name: path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        path: path.to_owned(),
        about: about(&text),
    })
}

/// Returns the first sentence of the comment at the head of a file.
fn about(text: &str) -> String {
    let comment = text.lines().map_while(|line| line.strip_prefix('#'));
    let words: Vec<&str> = comment.flat_map(str::split_whitespace).collect();
    let text = words.join(" ");
    match text.split_once(". ") {
        Some((sentence, _)) => format!("{sentence}."),
        None => text,
    }
}

/// Reads the text of a scenario file.
pub(super) fn file_text(path: &Path) -> Result<String, ScenarioError> {
    read_text(path).map_err(|source| {
        let path = path.to_owned();
        let reason = match source.kind() {
            ErrorKind::NotFound => return missing(&path),
            ErrorKind::IsADirectory => "it is a folder: name a file".to_owned(),
            ErrorKind::InvalidData => "it is not UTF-8".to_owned(),
            ErrorKind::FileTooLarge => format!("it is larger than {}", Size(LARGEST)),
            _ => source.to_string(),
        };
        ScenarioError::Unreadable { path, reason }
    })
}

/// Reads a file, or a pipe, whose text is not larger than a scenario may be.
fn read_text(path: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    let most = LARGEST.saturating_add(1);
    let length = File::open(path)?.take(most).read_to_end(&mut text)?;
    if length as u64 == most {
        return Err(ErrorKind::FileTooLarge.into());
    }
    String::from_utf8(text).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_is_the_first_sentence_of_the_head() {
        let text = "# Two disks,\n# one switch. And more.\n# Else.\nname = \"x\" # not this. \n";
        assert_eq!(about(text), "Two disks, one switch.");
        assert_eq!(about("name = \"x\"\n# late\n"), "");
    }

    #[test]
    fn folder_lists_scenarios_and_no_other_toml() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("b.toml", "# B.\nname = \"b\"\n[[nvme]]\n");
        write("a.toml", "name = \"a\"\n[machine]\n");
        write("Cargo.toml", "[package]\nname = \"p\"\n");
        write("broken.toml", "name = \n");
        write("c.txt", "name = \"c\"\n[machine]\n");
        let files = in_folder(folder.path());
        let listed: Vec<(&str, &str)> = files
            .iter()
            .map(|f| (f.name.as_str(), f.about.as_str()))
            .collect();
        assert_eq!(listed, [("a.toml", ""), ("b.toml", "B.")]);
    }

    #[test]
    fn every_scenario_of_the_project_says_what_it_shows() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
        let files = in_folder(&folder);
        assert!(files.len() >= 21, "{}", files.len());
        for file in files {
            assert!(file.about.len() > 20, "{}: {}", file.name, file.about);
        }
    }
}
