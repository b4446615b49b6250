//! The folder that a run leaves: a marker first, one log for each source, the verdict last.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use serde::Serialize;
use serde_json::{Value, json};

/// What a run leaves first: what it was started with.
pub const STARTED: &str = "started.json";
/// Name of the link to the newest run.
const LATEST: &str = "latest";

/// A run's folder.
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes `runs/TIME-scenario` and points `runs/latest` at it.
    pub fn create(runs: &Path, scenario: &str, now: SystemTime) -> anyhow::Result<Self> {
        fs::create_dir_all(runs)
            .with_context(|| format!("cannot make the folder {}", runs.display()))?;
        let since = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let stem = format!("{}-{scenario}", utc(since));
        let name = unused(runs, &stem)
            .with_context(|| format!("cannot make a folder in {}", runs.display()))?;
        point(runs, &name)
            .with_context(|| format!("cannot link {}", runs.join(LATEST).display()))?;
        Ok(Self {
            path: runs.join(name),
        })
    }

    /// Writes the marker of what has started and, as long as there is no verdict beside it, not ended; `scenario` is where
    /// its scenario was, if it has one.
    pub fn begin(&self, scenario: Option<&Path>, versions: Value) -> anyhow::Result<()> {
        let words: Vec<String> = std::env::args_os()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let marker = json!({
            "command": words,
            "process": std::process::id(),
            "scenario": scenario,
            "versions": versions,
        });
        self.write_json(STARTED, &marker)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the new file `name` in it.
    pub fn file(&self, name: &str) -> anyhow::Result<File> {
        let path = self.path.join(name);
        File::create_new(&path).with_context(|| format!("cannot make {}", path.display()))
    }

    /// Writes `text` as the file `name`.
    pub fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.path.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Writes `value` as the JSON file `name`.
    pub fn write_json(&self, name: &str, value: &impl Serialize) -> anyhow::Result<()> {
        let text =
            serde_json::to_string_pretty(value).with_context(|| format!("cannot write {name}"))?;
        self.write(name, &(text + "\n"))
    }
}

/// Makes a folder named `stem`, or `stem-2` and so on where runs begin in the same second.
fn unused(runs: &Path, stem: &str) -> io::Result<String> {
    let mut name = stem.to_owned();
    for number in 2..=1000 {
        match fs::create_dir(runs.join(&name)) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                name = format!("{stem}-{number}")
            }
            result => return result.map(|()| name),
        }
    }
    Err(io::Error::from(ErrorKind::AlreadyExists))
}

/// Replaces the link in one step, since another process may follow it.
fn point(runs: &Path, name: &str) -> io::Result<()> {
    let fresh = runs.join(format!(".{name}.link"));
    symlink(name, &fresh)?;
    fs::rename(&fresh, runs.join(LATEST)).inspect_err(|_| drop(fs::remove_file(&fresh)))
}

/// `20261121T031500Z` for a time since the Unix epoch.
fn utc(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// Year, month and day of a number of days since 1970-01-01 in the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    let mut year = 1970;
    let mut left = days;
    while left >= 365 + leap(year) {
        left -= 365 + leap(year);
        year += 1;
    }
    let lengths = [31, 28 + leap(year), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

fn leap(year: u64) -> u64 {
    u64::from((year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc() {
        let cases = [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (1_795_231_718, "20261121T032838Z"),
            (4_107_542_400, "21000301T000000Z"),
        ];
        for (seconds, text) in cases {
            assert_eq!(utc(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn runs_of_one_second_get_folders_of_their_own() {
        let runs = tempfile::tempdir().unwrap();
        let now = SystemTime::UNIX_EPOCH;
        let first = Folder::create(runs.path(), "demo", now).unwrap();
        let second = Folder::create(runs.path(), "demo", now).unwrap();
        assert_eq!(first.path(), runs.path().join("19700101T000000Z-demo"));
        assert_eq!(second.path(), runs.path().join("19700101T000000Z-demo-2"));
        let latest = fs::read_link(runs.path().join("latest")).unwrap();
        assert_eq!(latest, Path::new("19700101T000000Z-demo-2"));
    }

    #[test]
    fn nothing_is_overwritten() {
        let runs = tempfile::tempdir().unwrap();
        let folder = Folder::create(runs.path(), "demo", SystemTime::UNIX_EPOCH).unwrap();
        folder.file("console.log").unwrap();
        let error = folder.file("console.log").unwrap_err();
        assert!(error.to_string().starts_with("cannot make "), "{error}");
    }
}
