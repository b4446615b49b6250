//! The configuration of a kernel for peerbar: fragments on top of an empty configuration.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::io_error;
use crate::{ImageError, KernelConfig};

const SCENARIOS: &str = include_str!("../../kernel/scenarios.config");
const OPTIONAL: &str = include_str!("../../kernel/optional.config");
const DEBUG: &str = include_str!("../../kernel/debug.config");

/// Fragments, in order: a later line replaces an earlier one.
pub(super) struct Fragments {
    /// Options that the tree may not know.
    optional: &'static str,
    /// The origin of each other fragment, and its text.
    wanted: Vec<(PathBuf, String)>,
}

impl Fragments {
    /// Reads the fragments of the lab, those of a debug kernel if `debug` is set, and those in
    /// `files`.
    pub(super) fn read(debug: bool, files: &[PathBuf]) -> Result<Self, ImageError> {
        let own = |name: &str, text: &str| (PathBuf::from(name), text.to_owned());
        let mut wanted = vec![own("scenarios.config", SCENARIOS)];
        if debug {
            wanted.push(own("debug.config", DEBUG));
        }
        for path in files {
            let text = fs::read_to_string(path).map_err(io_error("read", path))?;
            wanted.push((path.clone(), text));
        }
        Ok(Self {
            optional: OPTIONAL,
            wanted,
        })
    }

    /// Returns all fragments as one file.
    pub(super) fn text(&self) -> String {
        let texts = self.wanted.iter().map(|(_, text)| text.as_str());
        let texts: Vec<&str> = [self.optional].into_iter().chain(texts).collect();
        texts.join("\n")
    }

    /// Refuses a configuration that lacks a line of a fragment: kconfig silently drops options with
    /// unmet dependencies.
    pub(super) fn check(&self, config: &Path) -> Result<(), ImageError> {
        let config = KernelConfig::read(config)?;
        let mut dropped = Vec::new();
        for (index, (origin, text)) in self.wanted.iter().enumerate() {
            let later = self.wanted.get(index.saturating_add(1)..).unwrap_or(&[]);
            for (option, value) in text.lines().filter_map(line) {
                let is_replaced = later
                    .iter()
                    .flat_map(|(_, text)| text.lines().filter_map(line))
                    .any(|(other, _)| other == option);
                let found = config.value(option).unwrap_or("n");
                if !is_replaced && found != value {
                    let origin = origin.display();
                    dropped.push(format!(
                        "CONFIG_{option}={value} of {origin} (it is {found})"
                    ));
                }
            }
        }
        if dropped.is_empty() {
            return Ok(());
        }
        Err(ImageError::DroppedOptions {
            options: dropped.join(", "),
        })
    }
}

/// Returns the option and the value of a fragment's line.
fn line(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let unset = line.strip_prefix("# CONFIG_");
    match unset.and_then(|rest| rest.strip_suffix(" is not set")) {
        Some(option) => Some((option, "n")),
        None => line.strip_prefix("CONFIG_")?.split_once('='),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(debug: bool) -> Vec<(String, String)> {
        let fragments = Fragments::read(debug, &[]).unwrap();
        let lines = fragments
            .wanted
            .iter()
            .flat_map(|(_, text)| text.lines().filter_map(line));
        lines
            .map(|(option, value)| (option.to_owned(), value.to_owned()))
            .collect()
    }

    fn config(without: &str, debug: bool) -> tempfile::NamedTempFile {
        let kept = lines(debug)
            .into_iter()
            .filter(|(option, _)| option != without);
        let text: String = kept
            .map(|(option, value)| match value.as_str() {
                "n" => format!("# CONFIG_{option} is not set\n"),
                _ => format!("CONFIG_{option}={value}\n"),
            })
            .collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn dropped_option_is_named_with_its_fragment() {
        for debug in [false, true] {
            let fragments = Fragments::read(debug, &[]).unwrap();
            fragments.check(config("", debug).path()).unwrap();
        }
        let fragments = Fragments::read(true, &[]).unwrap();
        let error = fragments.check(config("KASAN", true).path()).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("CONFIG_KASAN=y of debug.config (it is n)"),
            "{text}"
        );
    }

    #[test]
    fn later_fragment_replaces_an_earlier_one() {
        let own = tempfile::NamedTempFile::new().unwrap();
        fs::write(own.path(), "# CONFIG_XFS_FS is not set\nCONFIG_FOO=m\n").unwrap();
        let fragments = Fragments::read(false, &[own.path().to_owned()]).unwrap();
        let text = fragments.text();
        assert!(text.find("CONFIG_XFS_FS=y") < text.find("# CONFIG_XFS_FS is not set"));
        let config = config("XFS_FS", false);
        assert!(fragments.check(config.path()).is_err());
        let mut text = fs::read_to_string(config.path()).unwrap();
        text += "CONFIG_FOO=m\n";
        fs::write(config.path(), text).unwrap();
        fragments.check(config.path()).unwrap();
    }

    #[test]
    fn lab_fragment_has_no_option_twice() {
        let mut options: Vec<_> = lines(true).into_iter().map(|(option, _)| option).collect();
        let count = options.len();
        options.sort();
        options.dedup();
        assert_eq!(options.len(), count);
    }
}
