//! Lines as Linux' kselftest runner prints them (Linux, tools/testing/selftests/kselftest/runner.sh), which LAVA and KernelCI
//! read.

use std::fmt::Write;

use peerbar_lab::results::{CheckResult, CheckStatus, RunResults};
use peerbar_lab::terminal::printable;

/// All checks of `runs`, numbered through. Checks that were not run are failures, since a reader counts lines.
pub fn kselftest<'a>(runs: impl IntoIterator<Item = &'a RunResults>) -> String {
    let runs: Vec<&RunResults> = runs.into_iter().collect();
    let count: usize = runs
        .iter()
        .map(|run| run.checks.len().saturating_add(run.not_run.len()))
        .sum();
    let mut text = format!("TAP version 13\n1..{count}\n");
    let mut number: usize = 0;
    for run in &runs {
        let collection = match runs.len() {
            1 => "peerbar".to_owned(),
            _ => format!("peerbar/{}", plain(&run.scenario)),
        };
        let mut result = |diagnostics: &[String], ok: bool, name: &str, suffix: &str| {
            number = number.saturating_add(1);
            for line in diagnostics.iter().flat_map(|text| text.lines()) {
                // A string takes whatever is written to it.
                let _ = writeln!(text, "# {}", printable(line.as_bytes()));
            }
            let word = if ok { "ok" } else { "not ok" };
            let name = plain(name);
            let _ = writeln!(
                text,
                "{word} {number} selftests: {collection}: {name}{suffix}"
            );
        };
        for check in &run.checks {
            let (ok, suffix) = ending(check);
            result(&check.diagnostics, ok, &check.name, &suffix);
        }
        for name in &run.not_run {
            let reason = [format!("not run: {}", run.verdict)];
            result(&reason, false, name, "");
        }
    }
    text
}

fn ending(check: &CheckResult) -> (bool, String) {
    let reason = check.skipped.as_deref().unwrap_or_default();
    match check.verdict {
        CheckStatus::Pass => (true, String::new()),
        CheckStatus::Fail => (false, " # exit=1".to_owned()),
        CheckStatus::Skip => (
            true,
            format!(" # SKIP {}", plain(reason)).trim_end().to_owned(),
        ),
    }
}

/// A text without the character that begins a directive.
fn plain(text: &str) -> String {
    text.replace('#', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn checks_are_lines_of_the_runner() {
        let expected = "\
TAP version 13
1..4
ok 1 selftests: peerbar: disk0 to VRAM <and> back
# 4096 bytes at offset 0: \"wrong\" & <late>
not ok 2 selftests: peerbar: copy _1 # exit=1
ok 3 selftests: peerbar: fio # SKIP no fio
# not run: timed out: the guest was not done after 90 s
not ok 4 selftests: peerbar: reset
";
        assert_eq!(kselftest([&samples::run()]), expected);
    }

    #[test]
    fn diagnostics_of_several_lines_are_no_results() {
        let mut run = samples::run();
        run.checks[1].diagnostics = vec!["a\nok 3 - b\r\u{9b}2J".to_owned()];
        let text = kselftest([&run]);
        assert!(text.contains("\n# a\n# ok 3 - b2J\n"), "{text}");
    }

    #[test]
    fn several_runs_are_collections_numbered_through() {
        let run = samples::run();
        let text = kselftest([&run, &run]);
        assert!(text.contains("\n1..8\n"), "{text}");
        assert!(
            text.contains("\nok 5 selftests: peerbar/demo: disk0 to"),
            "{text}"
        );
    }
}
