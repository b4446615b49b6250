//! A report for programs: `report.json`, and the JSON schemas of it and of a run's results.

use peerbar_lab::results::RunResults;
use schemars::{JsonSchema, Schema, schema_for};
use serde::{Deserialize, Serialize};

use crate::collection::Collection;
use crate::matrix::MatrixResults;

/// Version of the file; it changes when readers would have to change.
pub const REPORT_FORMAT: u32 = 1;

/// Runs and matrices together, and the missing results.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReportFile {
    /// Version of this format: 1.
    pub format: u32,
    /// `true` if everything passed and nothing is missing.
    pub passed: bool,
    /// The runs, in the order of their start.
    pub runs: Vec<RunResults>,
    /// The matrices.
    pub matrices: Vec<MatrixResults>,
    /// Results that shards should have but lack, one line each.
    pub missing: Vec<String>,
}

impl ReportFile {
    /// Returns the file of `collection`.
    pub fn of(collection: &Collection) -> Self {
        let runs = collection.runs.iter();
        Self {
            format: REPORT_FORMAT,
            passed: collection.is_passed(),
            runs: runs.map(|run| run.results.clone()).collect(),
            matrices: collection.matrices.clone(),
            missing: collection.missing.clone(),
        }
    }
}

/// Returns the schema of a run's `results.json`: `docs/schema/run-1.json`.
pub fn run_schema() -> Schema {
    schema_for!(RunResults)
}

/// Returns the schema of `report.json`: `docs/schema/report-1.json`.
pub fn report_schema() -> Schema {
    schema_for!(ReportFile)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::{env, fs};

    use serde_json::{Value, json};

    use super::*;
    use crate::collection::ReportedRun;
    use crate::samples;
    use crate::schema_check::misfits;

    /// Compares a published schema with the structs; `UPDATE_BOOK=1` writes it.
    fn published(name: &str, schema: &Schema) -> Value {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../docs/schema")
            .join(name);
        let expected = serde_json::to_string_pretty(schema).unwrap() + "\n";
        if env::var_os("UPDATE_BOOK").is_some() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &expected).unwrap();
        }
        let written = fs::read_to_string(&path).unwrap_or_default();
        let message = "is out of date: run this test with UPDATE_BOOK=1, and raise the format if a reader must change";
        assert!(written == expected, "{} {message}", path.display());
        serde_json::from_str(&written).unwrap()
    }

    #[test]
    fn schema_of_a_run_is_published_and_holds() {
        let schema = published("run-1.json", &run_schema());
        let mut run = serde_json::to_value(samples::run()).unwrap();
        assert_eq!(misfits(&schema, &run), [""; 0]);
        run["checks"][0]["verdict"] = json!("perhaps");
        assert_ne!(misfits(&schema, &run), [""; 0]);
    }

    #[test]
    fn schema_of_a_report_is_published_and_holds() {
        let schema = published("report-1.json", &report_schema());
        let collection = Collection {
            runs: vec![ReportedRun::of(samples::run())],
            matrices: vec![samples::matrix()],
            missing: vec!["scenarios: gpu".to_owned()],
        };
        let report = serde_json::to_value(ReportFile::of(&collection)).unwrap();
        assert_eq!(misfits(&schema, &report), [""; 0]);
        assert_eq!(report["passed"], json!(false));
    }
}
