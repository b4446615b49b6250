//! The options of `peerbar report`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Write the results of runs, or join those of shards. Ends with exit code 1 if one did not pass or
/// is missing.
#[derive(Args)]
pub(crate) struct Report {
    /// Folders of runs or matrices, or with --merge folders above them [default: runs/latest].
    #[arg(value_name = "RUN")]
    pub runs: Vec<PathBuf>,
    /// Join all runs and matrices below the folders, and name the missing shards' parts.
    #[arg(long, requires = "output")]
    pub merge: bool,
    /// Folder for junit.xml, report.json and report.html.
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Print this format instead of a summary.
    #[arg(long = "as", value_name = "FORMAT", value_enum)]
    pub format: Option<ReportFormat>,
}

/// A form of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// JUnit XML.
    Junit,
    /// JSON of the schema docs/schema/report-1.json.
    Json,
    /// An HTML page: one file, without network.
    Html,
}
