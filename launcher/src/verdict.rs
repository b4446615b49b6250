//! How a run ended, and why.

use std::process::ExitStatus;

use peerbar_report::{KtapError, Verdict as CheckVerdict};
use serde::Serialize;

use crate::exit::Outcome;
use crate::report::Row;

/// How a run ended, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Verdict {
    /// How.
    pub outcome: Outcome,
    /// Why, in one line.
    pub reason: String,
}

/// Why a run stopped being watched.
pub(crate) enum Ending {
    /// QEMU ended by itself.
    Ended(ExitStatus),
    /// A server died; its last words.
    ServerDied(String),
    /// A signal came.
    Signal(i32),
    /// The guest did not end in time: its whole time in seconds.
    TimedOut(u64),
    /// Its report was complete, but it did not power off in time: so many seconds.
    StayedOn(u64),
}

/// Judges a run. Only a run that is clean in every respect has passed.
pub(crate) fn judge(
    ending: &Ending,
    rows: &[Row],
    report: &Result<(), KtapError>,
    trouble: Option<&str>,
) -> Verdict {
    let (outcome, reason) = match ending {
        Ending::Signal(signal) => (
            Outcome::Interrupted(*signal),
            format!("ended by signal {signal}"),
        ),
        Ending::ServerDied(words) => (Outcome::Failed, words.clone()),
        Ending::TimedOut(seconds) => (
            Outcome::TimedOut,
            format!("the guest was not done after {seconds} s"),
        ),
        Ending::StayedOn(seconds) => (
            Outcome::TimedOut,
            format!("the guest did not power off within {seconds} s after its last check"),
        ),
        Ending::Ended(status) => return judge_ended(*status, rows, report, trouble),
    };
    Verdict { outcome, reason }
}

fn judge_ended(
    status: ExitStatus,
    rows: &[Row],
    report: &Result<(), KtapError>,
    trouble: Option<&str>,
) -> Verdict {
    let passed = rows
        .iter()
        .filter(|row| row.verdict == CheckVerdict::Pass)
        .count();
    let (outcome, reason) = match (report, trouble) {
        (Err(error), Some(trouble)) => (
            Outcome::GuestDied,
            format!("{error}; the console says: {trouble}"),
        ),
        (Err(error), None) => (Outcome::GuestDied, format!("{error} (QEMU: {status})")),
        (Ok(()), Some(trouble)) => (Outcome::Failed, format!("the console says: {trouble}")),
        (Ok(()), None) if !status.success() => {
            (Outcome::Failed, format!("QEMU ended with {status}"))
        }
        (Ok(()), None) if rows.is_empty() => (Outcome::Failed, "no check was run".to_owned()),
        (Ok(()), None) if passed < rows.len() => (
            Outcome::Failed,
            format!(
                "{} of {} checks did not pass",
                rows.len() - passed,
                rows.len()
            ),
        ),
        (Ok(()), None) => (Outcome::Passed, format!("all {passed} checks passed")),
    };
    Verdict { outcome, reason }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use peerbar_report::Measure;

    use super::*;

    fn rows(verdicts: &[CheckVerdict]) -> Vec<Row> {
        let row = |verdict: &CheckVerdict| Row {
            name: "copy".to_owned(),
            verdict: verdict.clone(),
            measure: Measure::default(),
            diagnostics: Vec::new(),
        };
        verdicts.iter().map(row).collect()
    }

    fn outcome(
        status: i32,
        verdicts: &[CheckVerdict],
        report: Result<(), KtapError>,
        trouble: Option<&str>,
    ) -> Outcome {
        let ending = Ending::Ended(ExitStatus::from_raw(status));
        judge(&ending, &rows(verdicts), &report, trouble).outcome
    }

    #[test]
    fn a_run_passes_only_if_all_is_well() {
        let pass = CheckVerdict::Pass;
        let skip = CheckVerdict::Skip("no fio".to_owned());
        assert_eq!(
            outcome(0, &[pass.clone(), pass.clone()], Ok(()), None),
            Outcome::Passed
        );
        assert_eq!(outcome(0, &[], Ok(()), None), Outcome::Failed);
        assert_eq!(
            outcome(0, &[pass.clone(), CheckVerdict::Fail], Ok(()), None),
            Outcome::Failed
        );
        assert_eq!(
            outcome(0, &[pass.clone(), skip], Ok(()), None),
            Outcome::Failed
        );
        assert_eq!(
            outcome(0, std::slice::from_ref(&pass), Ok(()), Some("WARNING: x")),
            Outcome::Failed
        );
        assert_eq!(
            outcome(256, std::slice::from_ref(&pass), Ok(()), None),
            Outcome::Failed
        );
        assert_eq!(
            outcome(0, &[pass], Err(KtapError::NoPlan), None),
            Outcome::GuestDied
        );
    }

    #[test]
    fn the_reason_names_what_the_kernel_said() {
        let incomplete = KtapError::Incomplete {
            seen: 3,
            planned: 10,
        };
        let ending = Ending::Ended(ExitStatus::from_raw(0));
        let verdict = judge(
            &ending,
            &[],
            &Err(incomplete),
            Some("Kernel panic - not syncing"),
        );
        assert_eq!(
            verdict.reason,
            "the report ends after 3 of 10 results; the console says: Kernel panic - not syncing"
        );
    }

    #[test]
    fn what_ends_a_run_from_outside_is_not_a_verdict_on_the_checks() {
        let judged =
            |ending: Ending| judge(&ending, &rows(&[CheckVerdict::Pass]), &Ok(()), None).outcome;
        assert_eq!(judged(Ending::Signal(2)), Outcome::Interrupted(2));
        assert_eq!(judged(Ending::TimedOut(60)), Outcome::TimedOut);
        assert_eq!(judged(Ending::StayedOn(10)), Outcome::TimedOut);
        assert_eq!(
            judged(Ending::ServerDied("server disk0 ended".to_owned())),
            Outcome::Failed
        );
    }
}
