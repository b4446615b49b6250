//! The results of a run, shown to people.

use std::path::Path;

use peerbar_report::Verdict as CheckVerdict;

use crate::comparison::comparison;
use crate::report;
use crate::table::table;
use peerbar_lab::console::Console;
use peerbar_lab::finished_run::FinishedRun;
use peerbar_lab::folder::Folder;
use peerbar_lab::report::Row;
use peerbar_lab::scenario::Scenario;
use peerbar_lab::terminal::{colours, columns, say};
use peerbar_lab::verdict::{Ending, Verdict};

/// Keeps the results of a run, and shows what failed. What is returned beside the verdict is still to be printed.
pub(crate) fn conclude(
    run: FinishedRun,
    scenario: &Scenario,
    folder: &Folder,
) -> anyhow::Result<(Verdict, String)> {
    let run = run.conclude(scenario, folder)?;
    report::write(folder.path())?;
    run.seal(folder)?;
    show_failed_checks(&run.rows, &run.rest);
    let is_by_checks = matches!(run.ending, Ending::Ended(_))
        && run.report.is_ok()
        && run.console.trouble().is_none();
    if !is_by_checks {
        show_console(&run.console, folder.path());
    }
    let (name, place) = (&scenario.name, folder.path().display());
    let text = format!(
        "{}{}{} ({name}, {:.1} s; all of it is in {place})\n",
        table(&run.rows, colours(), columns()),
        comparison(&scenario.checks, &run.rows),
        run.verdict,
        run.seconds,
    );
    Ok((run.verdict, text))
}

/// Shows what was said about the checks that did not pass, and what was said last without a result.
fn show_failed_checks(rows: &[Row], rest: &[String]) {
    for row in rows.iter().filter(|row| row.verdict != CheckVerdict::Pass) {
        say(format_args!("{}:", row.name));
        if let CheckVerdict::Skip(reason) = &row.verdict {
            say(format_args!("  skipped: {reason}"));
        }
        row.diagnostics
            .iter()
            .for_each(|line| say(format_args!("  {line}")));
    }
    if !rest.is_empty() {
        say(format_args!("the agent's last words:"));
        rest.iter().for_each(|line| say(format_args!("  {line}")));
    }
}

/// Shows the end of the console, where the verdict is about more than the checks.
fn show_console(console: &Console, folder: &Path) {
    let tail = console.tail();
    if !tail.is_empty() {
        let file = folder.join("console.log");
        say(format_args!(
            "the last {} lines of the console, the rest is in {}:",
            tail.len(),
            file.display()
        ));
        tail.iter().for_each(|line| say(format_args!("  {line}")));
    }
}
