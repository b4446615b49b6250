//! The start of a run: the first file of its folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::run_file;

/// Name of the file.
pub const STARTED: &str = "started.json";

/// The start of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Started {
    /// The words of the command line.
    pub command: Vec<String>,
    /// The process.
    pub process: u32,
    /// Original path of its scenario; none for a matrix. JSON has no names that are not UTF-8, so
    /// these are only printed for people.
    #[serde(serialize_with = "readable")]
    pub scenario: Option<PathBuf>,
    /// The series that it belongs to, as [`crate::run_series::RunSeries::id`].
    #[serde(default)]
    pub series: Option<String>,
    /// Versions of its parts.
    pub versions: Versions,
}

fn readable<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    let path = path.as_ref().map(|path| path.to_string_lossy());
    path.serialize(serializer)
}

/// Versions of the parts of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Versions {
    /// Of peerbar.
    pub peerbar: String,
    /// Of QEMU.
    pub qemu: String,
    /// Of the guest's kernel: `uname -r`.
    pub kernel: String,
    /// Of the Debian packages of QEMU, kernel and tools; none if all of these are the user's.
    pub packages: Option<BTreeMap<String, String>>,
}

impl Started {
    /// Returns the start of this process, which is now.
    pub(crate) fn now(scenario: Option<&Path>, versions: Versions) -> Self {
        let words = std::env::args_os();
        Self {
            command: words
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
            process: std::process::id(),
            scenario: scenario.map(Path::to_owned),
            series: None,
            versions,
        }
    }

    /// Reads it in a run's `folder`.
    ///
    /// # Errors
    /// It is not there, or of another version of peerbar.
    pub fn read(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(STARTED);
        let text =
            run_file::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text)
            .with_context(|| format!("{} is not of this version of peerbar", path.display()))
    }
}
