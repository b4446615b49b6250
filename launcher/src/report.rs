//! `peerbar report`: the results of runs in other forms, of one run or joined from shards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use peerbar_lab::exit::{Failure, Outcome};
use peerbar_lab::results::RunResults;
use peerbar_lab::terminal::print;
use peerbar_results::{Collection, KcidbSource, junit, kcidb, kselftest};

use crate::cli::{self, ReportFormat};

/// What a run leaves for the readers of test results.
const JUNIT: &str = "junit.xml";

/// Writes or prints what is asked for.
pub(crate) fn report(options: &cli::Report) -> Result<ExitCode, Failure> {
    let folders = match options.runs.as_slice() {
        [] => vec![PathBuf::from("runs/latest")],
        runs => runs.to_vec(),
    };
    let collection = match options.merge {
        true => Collection::merge(&folders),
        false => Collection::read(&folders),
    };
    let collection = collection.map_err(Failure::Usage)?;
    if let Some(output) = &options.output {
        write_all(&collection, output)?;
    }
    let text = match options.format {
        Some(format) => formatted(&collection, format, options)?,
        None => summary(&collection),
    };
    print(&text)?;
    Ok(match collection.is_passed() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(Outcome::Failed.code()),
    })
}

/// Adds to the folder of a run what is made from its results.
pub(crate) fn write(folder: &Path) -> anyhow::Result<()> {
    write_all(&Collection::read(&[folder.to_owned()])?, folder)
}

fn write_all(collection: &Collection, folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let path = folder.join(JUNIT);
    fs::write(&path, junit(collection)?).with_context(|| format!("cannot write {}", path.display()))
}

fn formatted(
    collection: &Collection,
    format: ReportFormat,
    options: &cli::Report,
) -> anyhow::Result<String> {
    let runs = || collection.runs.iter().map(|run| &run.results);
    Ok(match format {
        ReportFormat::Junit => junit(collection)?,
        ReportFormat::Kselftest => kselftest(runs()),
        ReportFormat::Kcidb => {
            let source = KcidbSource {
                origin: options.kcidb.origin.clone(),
                commit: options.kcidb.commit.clone(),
                repository: options.kcidb.repository.clone(),
            };
            serde_json::to_string_pretty(&kcidb(runs(), &source))? + "\n"
        }
    })
}

/// A line for each run and matrix, and for what is missing.
fn summary(collection: &Collection) -> String {
    let run = |run: &RunResults| {
        let passed = run.checks.iter().filter(|check| check.passed()).count();
        let all = run.checks.len().saturating_add(run.not_run.len());
        format!(
            "{}: {}, {passed} of {all} checks passed\n",
            run.scenario, run.verdict
        )
    };
    let runs = collection
        .runs
        .iter()
        .map(|reported| run(&reported.results));
    let matrices = collection.matrices.iter().map(|matrix| {
        let agree = matrix
            .cells
            .iter()
            .filter(|cell| cell.disagreement.is_none());
        let (agree, all) = (agree.count(), matrix.cells.len());
        format!(
            "matrix of {}: {agree} of {all} cells agree with the rule\n",
            matrix.device
        )
    });
    let missing = collection
        .missing
        .iter()
        .map(|item| format!("missing: {item}\n"));
    runs.chain(matrices).chain(missing).collect()
}
