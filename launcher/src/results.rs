//! Results: kept in the run's folder, shown to people.

use std::path::Path;

use peerbar_report::Verdict as CheckVerdict;
use serde_json::json;

use crate::comparison::comparison;
use crate::table::table;
use peerbar_lab::child::last_line;
use peerbar_lab::console::Console;
use peerbar_lab::folder::Folder;
use peerbar_lab::guest::QEMU_LOG;
use peerbar_lab::report::{Report, Row};
use peerbar_lab::scenario::Scenario;
use peerbar_lab::terminal::{colours, columns, say};
use peerbar_lab::verdict::{Ending, Evidence, Verdict, judge};

/// What a run leaves: the results of its checks.
pub(crate) const RESULTS: &str = "results.json";
/// What a run leaves: what the guest knew of peer-to-peer DMA, an array of [`peerbar_report::Evidence`].
pub(crate) const EVIDENCE: &str = "evidence.json";

/// A run that is over and not yet judged.
pub(crate) struct Ran {
    pub(crate) ending: Ending,
    pub(crate) console: Console,
    pub(crate) report: Report,
    /// About a server that did not end well.
    pub(crate) complaint: Option<String>,
    pub(crate) seconds: f64,
}

/// Keeps the results, the verdict as the last file of a run, and shows what failed. What is returned beside the verdict
/// is still to be printed.
pub(crate) fn conclude(
    run: Ran,
    scenario: &Scenario,
    folder: &Folder,
) -> anyhow::Result<(Verdict, String)> {
    folder.write_json(EVIDENCE, &run.report.evidence())?;
    let (mut rows, rest, end) = run.report.finish();
    for (number, row) in (1..).zip(&mut rows) {
        row.name = scenario.label(number).unwrap_or(&row.name).to_owned();
    }
    let evidence = Evidence {
        ending: &run.ending,
        asked: scenario.checks.len(),
        rows: &rows,
        report: &end,
        trouble: run.console.trouble(),
        complaint: run.complaint.as_deref(),
        qemu: &last_line(&folder.path().join(QEMU_LOG)),
    };
    let verdict = judge(&evidence);
    let results = json!({
        "scenario": scenario.name,
        "verdict": verdict,
        "exit_code": verdict.outcome.code(),
        "seconds": run.seconds,
        "checks": rows,
    });
    folder.write_json(RESULTS, &results)?;
    unfold_checks(&rows, &rest);
    let by_checks =
        matches!(run.ending, Ending::Ended(_)) && end.is_ok() && run.console.trouble().is_none();
    if !by_checks {
        unfold_console(&run.console, folder.path());
    }
    let line = format!("{}: {}", verdict.outcome, verdict.reason);
    let place = folder.path().display();
    let (name, seconds) = (&scenario.name, run.seconds);
    let text = format!(
        "{}{}{line} ({name}, {seconds:.1} s; all of it is in {place})\n",
        table(&rows, colours(), columns()),
        comparison(&scenario.checks, &rows)
    );
    folder.write("verdict", &format!("{line}\n"))?;
    Ok((verdict, text))
}

/// Shows what was said about the checks that did not pass, and what was said last without a result.
fn unfold_checks(rows: &[Row], rest: &[String]) {
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
fn unfold_console(console: &Console, folder: &Path) {
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
