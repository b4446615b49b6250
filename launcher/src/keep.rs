//! `peerbar run --keep`: a guest that stays after a failed check, for `peerbar shell --attach` and the like.

use std::path::Path;

use anyhow::Context;
use peerbar_lab::exit::Failure;
use peerbar_lab::guest::Guest;
use peerbar_lab::guest_access::GuestAccess;
use peerbar_lab::progress::Progress;
use peerbar_lab::report::Row;
use peerbar_lab::scenario::Scenario;
use peerbar_lab::terminal::columns;
use peerbar_report::{HostFolder, Line, Request, Verdict};

use crate::results::failure;
use crate::table::table;

/// The state of a guest after its last check, if the launcher decides about it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// The guest ends by itself.
    #[default]
    Never,
    /// The guest waits for a decision, once it is ready and has run its checks.
    Undecided {
        /// Set once it is ready. A guest that never becomes ready ends by itself.
        is_ready: bool,
    },
    /// It stays until a signal comes. The number is that of failed checks already shown.
    Kept(usize),
    /// It has been asked to end. The number is the same.
    Ending(usize),
}

/// Lets programs into the guest of `scenario`, which see the current folder.
pub(crate) fn prepare(scenario: &mut Scenario) -> Result<(), Failure> {
    scenario.give_access(access()?);
    Ok(())
}

/// Returns read access to the current folder.
pub(crate) fn access() -> Result<GuestAccess, Failure> {
    let folder = std::env::current_dir().context("cannot tell the current folder")?;
    Ok(GuestAccess {
        folder,
        permission: HostFolder::ReadOnly,
    })
}

impl Keeping {
    /// For a guest that is kept if a check fails, or for one that is not.
    pub(crate) fn new(wanted: bool) -> Self {
        match wanted {
            true => Self::Undecided { is_ready: false },
            false => Self::Never,
        }
    }

    /// Takes lines of the report; decides after the last check, and says so if the guest is kept.
    pub(crate) fn take(
        &mut self,
        lines: &[Line],
        guest: &mut Guest<'_>,
        scenario: &Scenario,
        folder: &Path,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let Self::Undecided { is_ready } = self else {
            return Ok(());
        };
        *is_ready |= lines.iter().any(|line| matches!(line, Line::Ready(_)));
        let rows = guest.report.rows();
        if !*is_ready || rows.len() < scenario.checks.len() {
            return Ok(());
        }
        if rows.iter().all(|row| row.verdict != Verdict::Fail) {
            return self.end(guest);
        }
        let named = rows.iter().zip(1..).map(|(row, number)| Row {
            name: scenario.label(number).unwrap_or(&row.name).to_owned(),
            ..row.clone()
        });
        show(&named.collect::<Vec<_>>(), progress);
        progress.lasting(&invitation(folder));
        *self = Self::Kept(rows.len());
        Ok(())
    }

    /// Returns `true` if the guest is kept.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self, Self::Kept(_))
    }

    /// Returns `true` if the guest was asked to end.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self, Self::Ending(_))
    }

    /// Returns the number of failed checks that have already been shown.
    pub(crate) fn shown(&self) -> usize {
        match self {
            Self::Kept(shown) | Self::Ending(shown) => *shown,
            Self::Never | Self::Undecided { .. } => 0,
        }
    }

    /// Asks the guest to end.
    pub(crate) fn end(&mut self, guest: &mut Guest<'_>) -> anyhow::Result<()> {
        *self = Self::Ending(self.shown());
        guest.request(&Request::End)
    }
}

/// Shows the failures, and the table of all checks.
pub(crate) fn show(rows: &[Row], progress: &Progress) {
    let failures = rows.iter().flat_map(|row| failure(&row.name, row));
    failures.for_each(|line| progress.lasting(&line));
    progress.lasting(table(rows, false, columns()).trim_end());
}

/// Explains how to enter the guest of the run in `folder`, and how to end it.
fn invitation(folder: &Path) -> String {
    let folder = folder.display().to_string();
    let lines = ways_in(&folder);
    format!(
        "peerbar: a check failed, so the guest is kept\n{lines}{}",
        way_out()
    )
}

/// Explains how to enter each of the guests of the run in `folder`, and how to end them.
pub(crate) fn invitation_to_all<'a>(
    folder: &Path,
    guests: impl Iterator<Item = &'a str>,
) -> String {
    let folder = folder.display();
    let lines = guests.map(|guest| ways_in(&format!("{folder} --guest {guest}")));
    let lines: String = lines.collect();
    format!(
        "peerbar: a check failed, so the guests are kept\n{lines}{}",
        way_out()
    )
}

fn ways_in(run: &str) -> String {
    format!(
        "  enter it:     peerbar shell --attach {run}\n  run in it:    peerbar exec --attach {run} -- PROGRAM\n  by ssh:       peerbar ssh-config --attach {run}\n"
    )
}

fn way_out() -> String {
    format!(
        "  end it:       Ctrl-C here, or kill {}",
        std::process::id()
    )
}
