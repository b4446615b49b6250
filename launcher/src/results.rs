//! The results of a run, shown to people.

use std::fmt::Display;
use std::path::Path;

use peerbar_report::Verdict;

use crate::comparison::comparison;
use crate::report;
use crate::table::table;
use peerbar_lab::finished_run::Concluded;
use peerbar_lab::folder::Folder;
use peerbar_lab::report::Row;
use peerbar_lab::scenario::Scenario;
use peerbar_lab::terminal::{colours, columns, say};
use peerbar_lab::verdict::{Ending, RunVerdict};

/// Writes the reports and the verdict of a run, and shows the failures after the first `shown` ones.
/// Returns the verdict, and a text that the caller must still print.
pub(crate) fn conclude(
    run: Concluded,
    shown: usize,
    scenario: &Scenario,
    folder: &Folder,
) -> anyhow::Result<(RunVerdict, String)> {
    let way_out = report::write(folder.path(), || run.seal(folder))?;
    for row in run.rows.iter().skip(shown) {
        failure(&row.name, row).iter().for_each(say);
    }
    show_rest(&run.rest);
    let is_by_checks = matches!(run.ending, Ending::Ended(_))
        && run.report.is_ok()
        && run.console.trouble().is_none();
    if !is_by_checks {
        show_console(&run.console.tail(), folder.path());
    }
    let (name, path) = (&scenario.name, folder.path().display());
    let text = format!(
        "{}{}{} ({name}, {:.1} s; all of it is in {path})\n{way_out}",
        table(&run.rows, colours(), columns()),
        comparison(&scenario.checks, &run.rows),
        run.verdict,
        run.seconds,
    );
    Ok((run.verdict, text))
}

/// Returns the output of the check `name`, in lines; nothing if it passed.
pub(crate) fn failure(name: &str, row: &Row) -> Vec<String> {
    if row.verdict == Verdict::Pass {
        return Vec::new();
    }
    said(name, row)
}

/// Returns the output of the check `name` in lines, for any result.
pub(crate) fn said(name: &str, row: &Row) -> Vec<String> {
    let mut lines = vec![format!("{name}:")];
    if let Verdict::Skip(reason) = &row.verdict {
        lines.push(format!("  skipped: {reason}"));
    }
    lines.extend(row.diagnostics.iter().map(|line| format!("  {line}")));
    lines
}

/// Shows the last output without a result.
fn show_rest(rest: &[String]) {
    if !rest.is_empty() {
        say(format_args!("the agent's last words:"));
        rest.iter().for_each(|line| say(format_args!("  {line}")));
    }
}

/// Shows `tail`, the last lines of the console in the run's `folder`.
pub(crate) fn show_console<T: Display>(tail: &[T], folder: &Path) {
    if !tail.is_empty() {
        let file = folder.join("console.log");
        say(format_args!(
            "the last {} of the console, the rest is in {}:",
            match tail.len() {
                1 => "line".to_owned(),
                many => format!("{many} lines"),
            },
            file.display()
        ));
        tail.iter().for_each(|line| say(format_args!("  {line}")));
    }
}

#[cfg(test)]
mod tests {
    use peerbar_report::Measure;

    use super::*;

    #[test]
    fn check_that_did_not_pass_is_printed_with_its_reason() {
        let row = |verdict| Row {
            name: "copy".to_owned(),
            verdict,
            measure: Measure::default(),
            diagnostics: vec!["why".to_owned()],
            subtests: Vec::new(),
        };
        let message = |verdict| failure("mine", &row(verdict));
        assert!(message(Verdict::Pass).is_empty());
        assert_eq!(message(Verdict::Fail), ["mine:", "  why"]);
        let skipped = message(Verdict::Skip("no fio".to_owned()));
        assert_eq!(skipped, ["mine:", "  skipped: no fio", "  why"]);
    }
}
