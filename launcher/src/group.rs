//! A run of several guests: from a scenario to one verdict.

use std::collections::BTreeSet;

use peerbar_lab::exit::Failure;
use peerbar_lab::progress::Progress;
use peerbar_lab::scenario::{GroupGuest, GuestGroup};
use peerbar_lab::signals::Signals;
use peerbar_lab::terminal::{colours, columns, print, say};
use peerbar_lab::{LabGroup, LabOptions};

use crate::keep;
use crate::results::{failure, said};
use crate::run::EndedRun;
use crate::table::table;
use crate::{cli, iommu, report};

/// Runs `group` and prints its results.
pub(crate) fn run(
    options: &cli::Run,
    group: &GuestGroup,
    signals: &'static Signals,
) -> Result<EndedRun, Failure> {
    let mut progress = Progress::default();
    let mut tell = |line: &str| progress.stage(&format!("{}: {line}", group.name));
    let labs = LabOptions::default()
        .own(options.own.or_kernel_tree_here()?)
        .runs_as(options.runs.clone())
        .signals(signals);
    let labs = match options.keep {
        true => labs.access(keep::access()?),
        false => labs,
    };
    let mut labs = labs.start_group(group.clone(), &mut tell)?;
    labs.run_checks(&mut tell)?;
    let is_kept = options.keep && labs.failure().is_none() && labs.has_failed_check();
    let shown = match is_kept {
        true => stay(&mut labs, group, &progress),
        false => 0,
    };
    progress.stage(&format!("{}: ending the guests", group.name));
    let concluded = labs.conclude(|scenario, folder| iommu::complaint(folder, scenario))?;
    drop(progress);
    let way_out = report::write(concluded.folder(), || concluded.seal())?;
    let wanted = shown_checks(group);
    for row in concluded.rows.iter().skip(shown) {
        let lines = match wanted.contains(&row.name) {
            true => said(&row.name, row),
            false => failure(&row.name, row),
        };
        lines.iter().for_each(say);
    }
    print(&format!(
        "{}{} ({}, {:.1} s; all of it is in {})\n{way_out}",
        table(&concluded.rows, colours(), columns()),
        concluded.verdict,
        group.name,
        concluded.seconds,
        concluded.folder().display(),
    ))?;
    Ok(EndedRun {
        outcome: concluded.verdict.outcome,
        folder: concluded.folder().to_owned(),
    })
}

/// Returns the names in the results of the checks that the scenario asks to show.
fn shown_checks(group: &GuestGroup) -> BTreeSet<String> {
    let of_guest = |guest: &GroupGuest| {
        let checks = guest.scenario.checks.iter();
        let named = checks.zip(guest.scenario.check_names());
        let shown = named.filter(|(check, _)| check.is_shown());
        let names = shown.map(|(_, name)| guest.name_of(&name));
        names.collect::<Vec<_>>()
    };
    group.guests.iter().flat_map(of_guest).collect()
}

/// Keeps the guests until a signal comes. The failures of that many checks have been shown.
fn stay(labs: &mut LabGroup, group: &GuestGroup, progress: &Progress) -> usize {
    let rows = labs.rows();
    keep::show(&rows, progress);
    let guests = group.guests.iter().map(|guest| guest.name.as_str());
    progress.lasting(&keep::invitation_to_all(labs.folder(), guests));
    labs.stay();
    rows.len()
}
