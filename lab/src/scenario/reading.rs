//! Scenarios from text.

use std::path::Path;

use peerbar_report::{Check, CheckTable};
use toml::Spanned;
use toml::de::DeTable;

use super::catalogue::{self, file_text};
use super::contents::Scenario;
use super::error::{Problem, ScenarioError};
use super::file::File;
use super::{group, validate};

pub(super) const DEMO: &str = include_str!("../../../scenarios/demo.toml");

impl Scenario {
    /// Path of the built-in scenario below the project, as its messages name it.
    pub const DEMO_PATH: &str = "scenarios/demo.toml";

    /// A scenario to begin with, which has every key; inactive ones follow a `#`.
    pub const TEMPLATE: &str = include_str!("template.toml");

    /// Reads a scenario file, or the shipped one of a bare name. Paths of images in it are relative
    /// to its folder.
    pub fn load(path: &Path) -> Result<Self, ScenarioError> {
        let path = &catalogue::resolve(path);
        Self::parse(path, file_text(path)?)
    }

    /// Returns the built-in demo.
    pub fn demo() -> Result<Self, ScenarioError> {
        Self::parse(Path::new(Self::DEMO_PATH), DEMO.to_owned())
    }

    /// Reads a scenario's text, which messages say to be from `path`.
    pub fn parse(path: &Path, text: String) -> Result<Self, ScenarioError> {
        Self::read(path, text, false)
    }

    /// Does the work of [`Scenario::load`] for a [`crate::Lab`]: it needs no checks, because
    /// requests can follow.
    pub fn load_interactive(path: &Path) -> Result<Self, ScenarioError> {
        let path = &catalogue::resolve(path);
        Self::parse_interactive(path, file_text(path)?)
    }

    /// Does the work of [`Scenario::parse`] for a [`crate::Lab`]: it needs no checks, because
    /// requests can follow.
    pub fn parse_interactive(path: &Path, text: impl Into<String>) -> Result<Self, ScenarioError> {
        Self::read(path, text.into(), true)
    }

    /// Reads the lines of a `[[check]]` table for the devices of this scenario.
    pub fn check(&self, lines: &str) -> Result<Check, ScenarioError> {
        const HEADER: &str = "[[check]]\n";
        let text = format!("{HEADER}{lines}\n");
        let located = |problem: Problem| {
            let (line, message) = problem.without_header(HEADER.len()).with_line(lines);
            ScenarioError::Check { line, message }
        };
        let read = || -> Result<Check, Problem> {
            let document = DeTable::parse(&text)?;
            let tables = CheckTable::all(document.get_ref())?;
            let table = tables.into_iter().next();
            let table = table.ok_or_else(|| Problem::new(0..0, "no check"))?;
            Ok(table.read(&self.inventory())?)
        };
        read().map_err(located)
    }

    fn read(path: &Path, text: String, interactive: bool) -> Result<Self, ScenarioError> {
        let read = || -> Result<Self, Problem> {
            let document = DeTable::parse(&text)?;
            group::refuse(document.get_ref())?;
            Self::of_document(document, path, interactive)
        };
        let scenario = read().map_err(|problem| problem.locate(path.to_owned(), text.as_str()))?;
        Ok(Self { text, ..scenario })
    }

    /// Reads a document from `path`; the text is not set.
    pub(super) fn of_document(
        document: Spanned<DeTable<'_>>,
        path: &Path,
        interactive: bool,
    ) -> Result<Self, Problem> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let file = File::read(&document)?;
        let checks = CheckTable::all(document.get_ref())?;
        let mut scenario = validate::scenario(file, checks, folder, interactive)?;
        scenario.path = path.to_owned();
        Ok(scenario)
    }
}
