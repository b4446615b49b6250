//! `peerbar report`: the results of runs in other forms, of one run or joined from shards.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use peerbar_lab::exit::{Failure, RunOutcome};
use peerbar_lab::run_file;
use peerbar_lab::shell_word::quoted;
use peerbar_lab::terminal::{print, printable};
use peerbar_report::PciFunction;
use peerbar_results::{Collection, Explained, ReportFile, ReportedRun, junit, page};

use crate::cli::{self, ReportFormat};
use crate::guest_folder::GuestName;
use crate::{explain, iommu};

/// File for readers of test results.
const JUNIT: &str = "junit.xml";
/// File for people.
const PAGE: &str = "report.html";
/// Most lines of the kernel that are printed below a verdict.
const KERNEL_LINES: usize = 3;
/// File for programs about several runs together.
const REPORT: &str = "report.json";

/// Writes or prints the requested report.
pub(crate) fn report(options: &cli::Report) -> Result<ExitCode, Failure> {
    let folders = match options.runs.as_slice() {
        [] => vec![PathBuf::from("runs/latest")],
        runs => runs.to_vec(),
    };
    let collection = match options.merge {
        true => Collection::merge(&folders),
        false => Collection::read(&folders),
    };
    let collection = explained(collection.map_err(Failure::Usage)?);
    if let Some(output) = &options.output {
        fs::create_dir_all(output)
            .with_context(|| format!("cannot make the folder {}", output.display()))?;
        write_views(&collection, output)?;
        write_file(output, REPORT, &report_json(&collection)?)?;
    }
    let text = match options.format {
        Some(format) => formatted(&collection, format)?,
        None => summary(&collection),
    };
    print(&text)?;
    Ok(match collection.is_passed() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(RunOutcome::Failed.code()),
    })
}

/// Adds the reports to the folder of a run, and then its verdict, with `seal`. Returns the text to
/// print below the verdict, which is empty if the run passed.
///
/// # Errors
/// One of the files cannot be written. Then no report is left, because a report without a verdict
/// could show a run as passed whose command failed.
pub(crate) fn write(
    folder: &Path,
    seal: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    let collection = explained(Collection::read_before_verdict(folder)?);
    write_views(&collection, folder)
        .and_then(|()| seal())
        .inspect_err(|_| remove_views(folder))?;
    Ok(way_out(&collection, folder))
}

/// Returns the text to print below the verdict of the run in `folder`, as [`write()`] did when the
/// run was made.
///
/// # Errors
/// The results cannot be read.
pub(crate) fn way_out_of(folder: &Path) -> anyhow::Result<String> {
    let collection = explained(Collection::read(&[folder.to_owned()])?);
    Ok(way_out(&collection, folder))
}

/// Returns the `collection` with the explanations of its runs.
fn explained(mut collection: Collection) -> Collection {
    collection.runs.iter_mut().for_each(explain);
    collection
}

/// Lists the places to look at after a failed run in `folder`: the messages of the kernel, the
/// commands that explain it, the page.
fn way_out(collection: &Collection, folder: &Path) -> String {
    let failed = collection.runs.first().filter(|_| !collection.is_passed());
    let Some(run) = failed else {
        return String::new();
    };
    let words = run.kernel_words().into_iter().take(KERNEL_LINES);
    let words = words.map(|line| format!("kernel: {}\n", printable(line.as_bytes())));
    let reason = &run.results.verdict.reason;
    let why = commands(reason, !run.explanations.is_empty(), folder);
    let page = format!("page: {}\n", folder.join(PAGE).display());
    words.chain(why).chain([page]).collect()
}

/// Returns the commands that explain the failure of a run, in lines. They name its folder, because
/// another run may be the newest by the time of their use.
fn commands(reason: &str, has_explanations: bool, folder: &Path) -> Vec<String> {
    let is_sanitized = reason.contains(iommu::SANITIZER);
    let commands = [
        (is_sanitized, "iommu --sanitize"),
        (has_explanations, "explain"),
    ];
    let folder = quoted(&folder.to_string_lossy());
    let commands = commands.into_iter().filter(|(is_wanted, _)| *is_wanted);
    commands
        .map(|(_, command)| format!("why: peerbar {command} --run {folder}\n"))
        .collect()
}

/// Adds the explanations to a run, if there are any.
fn explain(run: &mut ReportedRun) {
    let folders = match GuestName::default().folders(&run.folder) {
        Ok(folders) => folders,
        Err(error) => return log::warn!("{} is not explained: {error}", run.folder.display()),
    };
    for (guest, folder) in folders {
        let guest = guest.as_deref();
        match explain::of_run(&folder) {
            Ok((functions, explanations)) => {
                run.functions.extend(
                    functions
                        .into_iter()
                        .map(|function| function_of(guest, function)),
                );
                let explanations = explanations.into_iter();
                run.explanations
                    .extend(explanations.map(|explained| titled(guest, explained)));
            }
            Err(error) => log::warn!("{} is not explained: {error}", folder.display()),
        }
        let faults = iommu::faults(&folder).into_iter();
        run.faults
            .extend(faults.map(|explained| titled(guest, explained)));
    }
}

/// A function of a guest of several: two machines have the same addresses.
fn function_of(guest: Option<&str>, mut function: PciFunction) -> PciFunction {
    if let Some(guest) = guest {
        function.address = format!("{guest} {}", function.address);
        function.parent = format!("{guest} {}", function.parent);
    }
    function
}

/// Adds the guest's name to an explanation, in a run of several guests.
fn titled(guest: Option<&str>, mut explained: Explained) -> Explained {
    if let Some(guest) = guest {
        explained.title = format!("{guest}: {}", explained.title);
    }
    explained
}

fn write_views(collection: &Collection, folder: &Path) -> anyhow::Result<()> {
    write_file(folder, JUNIT, &junit(collection)?)?;
    write_file(folder, PAGE, &page(collection))
}

fn remove_views(folder: &Path) {
    for name in [JUNIT, PAGE] {
        match fs::remove_file(folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                log::warn!("{name} of a run without a verdict is left: {error}");
            }
            _ => {}
        }
    }
}

fn write_file(folder: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = folder.join(name);
    let written = run_file::replace(&path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {}", path.display()))
}

fn report_json(collection: &Collection) -> anyhow::Result<String> {
    let report = serde_json::to_string_pretty(&ReportFile::of(collection));
    Ok(report.context("cannot write JSON")? + "\n")
}

fn formatted(collection: &Collection, format: ReportFormat) -> anyhow::Result<String> {
    Ok(match format {
        ReportFormat::Junit => junit(collection)?,
        ReportFormat::Json => report_json(collection)?,
        ReportFormat::Html => page(collection),
    })
}

/// Returns a line for each run and matrix, and for each missing one.
fn summary(collection: &Collection) -> String {
    let run = |(name, reported): (String, &ReportedRun)| {
        let run = &reported.results;
        let passed = run.checks.iter().filter(|check| check.passed()).count();
        let all = run.checks.len().saturating_add(run.not_run.len());
        // The latest run may be another one than the user expects.
        let started = run.started.to_minutes();
        format!(
            "{name}: {}, {passed} of {all} checks passed ({started})\n",
            run.verdict
        )
    };
    let runs = collection.run_names().into_iter();
    let runs = runs.zip(&collection.runs).map(run);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_kept_with_its_verdict_only() {
        let folder = tempfile::tempdir().unwrap();
        let matrix = r#"{"format": 1, "exit_code": 0, "matrix": {"device": "disk", "versions": {"peerbar": "", "qemu": "", "kernel": "", "packages": null},
            "seconds": 1.0, "caveat": null, "flaws": [], "cells": []}}"#;
        fs::write(folder.path().join("matrix.json"), matrix).unwrap();
        let files = || [JUNIT, PAGE].map(|name| folder.path().join(name).exists());
        let full = || Err(anyhow::anyhow!("No space left on device"));
        let error = write(folder.path(), full).unwrap_err();
        assert_eq!(error.to_string(), "No space left on device");
        assert_eq!(files(), [false; 2]);
        write(folder.path(), || Ok(())).unwrap();
        assert_eq!(files(), [true; 2]);
    }

    #[test]
    fn commands_name_the_folder_of_their_run() {
        let folder = Path::new("runs/20261129-a b");
        let told = |reason: &str, has_explanations| commands(reason, has_explanations, folder);
        let explain = "why: peerbar explain --run 'runs/20261129-a b'\n";
        let sanitize = "why: peerbar iommu --sanitize --run 'runs/20261129-a b'\n";
        assert_eq!(told("1 of 2 checks did not pass: x", true), [explain]);
        assert!(told("1 of 2 checks did not pass: x", false).is_empty());
        let found = "1 of 2 checks did not pass: x; the sanitizer has found: y";
        assert_eq!(told(found, true), [sanitize, explain]);
        assert_eq!(told(found, false), [sanitize]);
    }
}
