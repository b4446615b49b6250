//! The verdict on a run, with the reason.

use std::process::ExitStatus;

use peerbar_report::{KtapError, Verdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

use crate::count::counted;
use crate::exit::RunOutcome;
use crate::folder::QEMU_LOG;
use crate::report::Row;

/// Most failed checks that the reason names.
const NAMED: usize = 3;

/// Verdict on a run, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Verdict")]
pub struct RunVerdict {
    /// The outcome.
    pub outcome: RunOutcome,
    /// The reason, in one line.
    pub reason: String,
}

/// The reason why a run is no longer watched.
#[derive(Debug)]
pub enum Ending {
    /// QEMU ended by itself.
    Ended(ExitStatus),
    /// KVM gave the guest up: QEMU's line.
    GivenUp(String),
    /// A server died; its exit message.
    ServerDied(String),
    /// Another guest, the fabric between guests, or a request of the guest has ended the run: the
    /// description.
    Stopped(String),
    /// A signal came.
    Signal(i32),
    /// The guest did not end in time: its time limit in seconds.
    TimedOut(u64),
    /// Its report was complete, but it did not power off within this number of seconds.
    StayedOn(u64),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(status) => write!(f, "QEMU ended ({status})"),
            Self::GivenUp(line) => write!(
                f,
                "KVM gave the guest up: {line} ({QEMU_LOG} has its registers); --accel tcg does without KVM"
            ),
            Self::ServerDied(message) | Self::Stopped(message) => f.write_str(message),
            Self::Signal(signal) => write!(f, "ended by signal {signal}"),
            Self::TimedOut(seconds) => write!(f, "the guest did not finish within {seconds} s"),
            Self::StayedOn(seconds) => write!(
                f,
                "the guest did not power off within {seconds} s after its last check"
            ),
        }
    }
}

impl Ending {
    /// Returns the outcome of a run that ends like this.
    pub(crate) fn outcome(&self) -> RunOutcome {
        match self {
            Self::Signal(signal) => RunOutcome::Interrupted(*signal),
            Self::GivenUp(_) | Self::Ended(_) => RunOutcome::GuestDied,
            Self::ServerDied(_) | Self::Stopped(_) => RunOutcome::Failed,
            Self::TimedOut(_) | Self::StayedOn(_) => RunOutcome::TimedOut,
        }
    }

    /// Names a server that `failed` as the cause, if QEMU has crashed: behind an IOMMU QEMU 11.1
    /// may abort when a server has gone (docs/src/efa.md), and either end may be seen first. A QEMU
    /// that crashes by itself makes no server fail.
    pub fn caused_by(self, failed: Option<&str>) -> Self {
        match (self, failed) {
            (Self::Ended(status), Some(message)) if !status.success() => {
                Self::ServerDied(message.to_owned())
            }
            (ending, _) => ending,
        }
    }
}

/// Everything that determines the verdict on a run.
pub struct Evidence<'a> {
    /// The reason why it is no longer watched.
    pub ending: &'a Ending,
    /// Number of requested checks, or `None` if any number will do.
    pub asked: Option<usize>,
    /// The results.
    pub rows: &'a [Row],
    /// The error in the report, if there is one.
    pub report: &'a Result<(), KtapError>,
    /// The first line of the console that shows a kernel problem.
    pub trouble: Option<&'a str>,
    /// Complaint about a server that failed, or from the sanitizer.
    pub complaint: Option<&'a str>,
    /// The last line of QEMU's own output.
    pub qemu: &'a str,
}

/// Judges a run. Only a run without any problem has passed. The reason of any other names all its
/// problems: its ending, the failed checks, and the complaints of the kernel.
pub fn judge(evidence: &Evidence<'_>) -> RunVerdict {
    let (outcome, reason) = match (evidence.ending, evidence.report) {
        (ending @ Ending::Ended(_), Err(error)) => {
            let qemu = format!("{error}; {}", death(ending, None, evidence.qemu));
            let said = evidence.trouble.map_or(qemu, |_| error.to_string());
            (RunOutcome::GuestDied, Some(said))
        }
        (Ending::Ended(_), Ok(())) => (RunOutcome::Failed, None),
        (ending, _) => (ending.outcome(), Some(ending.to_string())),
    };
    let mut reasons: Vec<String> = reason.into_iter().collect();
    let all = evidence.asked.unwrap_or_default();
    reasons.extend(unsuccessful(evidence.rows, all, "checks"));
    reasons.extend(evidence.trouble.map(died_of));
    if let (Ending::Ended(status), Ok(())) = (evidence.ending, evidence.report) {
        reasons.extend(flaws(evidence, *status));
    }
    if reasons.is_empty() {
        return RunVerdict {
            outcome: RunOutcome::Passed,
            reason: all_passed(evidence.rows.len()),
        };
    }
    RunVerdict {
        outcome,
        reason: reasons.join("; "),
    }
}

/// Returns the reason why the guest ended before its report did, or `None` if it did not.
pub(crate) fn cut_off(evidence: &Evidence<'_>) -> Option<String> {
    match (evidence.ending, evidence.report) {
        (ending @ Ending::TimedOut(_), _) => Some(ending.to_string()),
        (ending @ Ending::Ended(_), Err(_)) => Some(death(ending, evidence.trouble, evidence.qemu)),
        _ => None,
    }
}

/// Returns the reason why a guest ended: `trouble`, a line of its console, or else its `ending`
/// with the last line that `qemu` printed.
pub(crate) fn death(ending: &Ending, trouble: Option<&str>, qemu: &str) -> String {
    trouble.map_or_else(|| format!("{ending}: {qemu}"), died_of)
}

impl fmt::Display for RunVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.outcome, self.reason)
    }
}

/// Returns the message about a guest that died of `trouble`, a line of its console. QEMU's
/// translator may keep a stale translation of a breakpoint with which Linux patches its code
/// (docs/src/reliability.md, Known problems).
fn died_of(trouble: &str) -> String {
    let hint = match trouble.contains("Oops: int3") {
        true => "; with --accel tcg-multi that may be a race in QEMU, which --accel tcg avoids",
        false => "",
    };
    format!("the console says: {trouble}{hint}")
}

fn all_passed(checks: usize) -> String {
    match checks {
        0 => "no check was asked for, and nothing failed".to_owned(),
        1 => "the only check passed".to_owned(),
        _ => format!("all {checks} checks passed"),
    }
}

/// Returns the number of failed checks among `all`, or among the rows if those are more, with their
/// names, or `None` if no row has failed. `checks` is the word for them.
pub(crate) fn unsuccessful(rows: &[Row], all: usize, checks: &str) -> Option<String> {
    let lacking = rows.iter().filter(|row| row.verdict != Verdict::Pass);
    let lacking: Vec<&Row> = lacking.collect();
    let (first, more) = lacking.split_at(lacking.len().min(NAMED));
    if first.is_empty() {
        return None;
    }
    let name = |row: &&Row| {
        // The names are a list with commas.
        let name = match row.name.contains(',') {
            true => format!("`{}`", row.name),
            false => row.name.clone(),
        };
        match row.verdict {
            Verdict::Skip(_) => format!("{name} (skipped)"),
            _ => name,
        }
    };
    let names: Vec<String> = first.iter().map(name).collect();
    let more = match more.len() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    Some(format!(
        "{} of {} {checks} did not pass: {}{more}",
        lacking.len(),
        all.max(rows.len()),
        names.join(", ")
    ))
}

/// Returns the problems of a run whose report is complete, apart from its checks and the console.
fn flaws(evidence: &Evidence<'_>, status: ExitStatus) -> impl Iterator<Item = String> {
    let rows = evidence.rows.len();
    let qemu = (!status.success()).then(|| format!("QEMU ended with {status}"));
    let asked = evidence.asked.filter(|asked| rows != *asked || rows == 0);
    let asked = asked.map(|asked| {
        let reported = counted(rows, "check");
        format!("the agent reports {reported} of {asked}")
    });
    let complaint = evidence.complaint.map(str::to_owned);
    [complaint, qemu, asked].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use peerbar_report::Measure;

    use super::*;

    const PASS: Verdict = Verdict::Pass;
    const WELL: Evidence<'_> = Evidence {
        ending: &Ending::StayedOn(0),
        asked: Some(1),
        rows: &[],
        report: &Ok(()),
        trouble: None,
        complaint: None,
        qemu: "without a message",
    };

    fn rows(verdicts: &[Verdict]) -> Vec<Row> {
        let row = |verdict: &Verdict| Row {
            name: "copy".to_owned(),
            verdict: verdict.clone(),
            measure: Measure::default(),
            diagnostics: Vec::new(),
            subtests: Vec::new(),
        };
        verdicts.iter().map(row).collect()
    }

    fn ended(status: i32) -> Ending {
        Ending::Ended(ExitStatus::from_raw(status))
    }

    #[test]
    fn a_run_passes_only_if_every_check_does() {
        let judged = |asked, verdicts: &[Verdict]| {
            let (ending, rows) = (ended(0), rows(verdicts));
            judge(&Evidence {
                ending: &ending,
                asked: Some(asked),
                rows: &rows,
                ..WELL
            })
            .outcome
        };
        assert_eq!(judged(2, &[PASS, PASS]), RunOutcome::Passed);
        assert_eq!(judged(0, &[]), RunOutcome::Failed);
        assert_eq!(judged(3, &[PASS, PASS]), RunOutcome::Failed);
        assert_eq!(judged(2, &[PASS, Verdict::Fail]), RunOutcome::Failed);
        assert_eq!(
            judged(2, &[PASS, Verdict::Skip("no fio".to_owned())]),
            RunOutcome::Failed
        );
    }

    #[test]
    fn run_by_requests_passes_with_any_number_of_checks() {
        let judged = |rows: &[Row]| {
            judge(&Evidence {
                ending: &ended(0),
                asked: None,
                rows,
                ..WELL
            })
            .to_string()
        };
        let none = "passed: no check was asked for, and nothing failed";
        assert_eq!(judged(&[]), none);
        assert_eq!(judged(&rows(&[PASS, PASS])), "passed: all 2 checks passed");
        let failed = judged(&rows(&[PASS, Verdict::Fail]));
        assert_eq!(failed, "failed: 1 of 2 checks did not pass: copy");
        let skip = Verdict::Skip("no fio".to_owned());
        let skipped = judged(&rows(&[PASS, Verdict::Fail, skip]));
        let expected = "failed: 2 of 3 checks did not pass: copy, copy (skipped)";
        assert_eq!(skipped, expected);
    }

    #[test]
    fn run_with_any_flaw_does_not_pass() {
        let rows = rows(&[PASS]);
        let judged = |status, evidence: Evidence<'_>| {
            judge(&Evidence {
                ending: &ended(status),
                rows: &rows,
                ..evidence
            })
            .reason
        };
        assert_eq!(judged(0, WELL), "the only check passed");
        assert_eq!(judged(256, WELL), "QEMU ended with exit status: 1");
        let trouble = Some("WARNING: x");
        assert_eq!(
            judged(0, Evidence { trouble, ..WELL }),
            "the console says: WARNING: x"
        );
        let words = "server disk0 ended (exit status: 101): panicked";
        let complaint = Some(words);
        assert_eq!(judged(0, Evidence { complaint, ..WELL }), words);
    }

    #[test]
    fn reason_names_all_that_is_wrong() {
        let all = rows(&[
            Verdict::Fail,
            PASS,
            Verdict::Fail,
            Verdict::Fail,
            Verdict::Fail,
        ]);
        let judged = |ending: &Ending| {
            let verdict = judge(&Evidence {
                ending,
                asked: Some(6),
                rows: &all,
                trouble: Some("WARNING: x"),
                complaint: Some("server disk0 failed"),
                ..WELL
            });
            verdict.to_string()
        };
        let checks =
            "4 of 6 checks did not pass: copy, copy, copy and 1 more; the console says: WARNING: x";
        assert_eq!(
            judged(&ended(256)),
            format!(
                "failed: {checks}; server disk0 failed; QEMU ended with exit status: 1; the agent reports 5 checks of 6"
            )
        );
        assert_eq!(
            judged(&Ending::TimedOut(9)),
            format!("timed out: the guest did not finish within 9 s; {checks}")
        );
    }

    #[test]
    fn reason_names_the_kernel_message() {
        let report = &Err(KtapError::Incomplete {
            seen: 3,
            planned: 10,
        });
        let trouble = Some("Kernel panic - not syncing");
        let verdict = judge(&Evidence {
            ending: &ended(0),
            report,
            trouble,
            ..WELL
        });
        let reason =
            "the report ends after 3 of 10 results; the console says: Kernel panic - not syncing";
        assert_eq!(
            (verdict.outcome, verdict.reason.as_str()),
            (RunOutcome::GuestDied, reason)
        );
    }

    #[test]
    fn stale_breakpoint_may_be_a_race_in_qemu() {
        let line = "[    4.972829] Oops: int3: 0000 [#1] SMP NOPTI";
        let text = "; with --accel tcg-multi that may be a race in QEMU, which --accel tcg avoids";
        assert_eq!(died_of(line), format!("the console says: {line}{text}"));
        assert!(!died_of("Oops: invalid opcode: 0000").contains("QEMU"));
    }

    #[test]
    fn guest_that_kvm_gave_up_has_died_of_it() {
        let verdict = judge(&Evidence {
            ending: &Ending::GivenUp("KVM internal error. Suberror: 3".to_owned()),
            ..WELL
        });
        let reason = "KVM gave the guest up: KVM internal error. Suberror: 3 (qemu.log has its registers); \
                      --accel tcg does without KVM";
        assert_eq!(
            (verdict.outcome, verdict.reason.as_str()),
            (RunOutcome::GuestDied, reason)
        );
    }

    #[test]
    fn failed_server_explains_a_qemu_crash() {
        const ABORT: i32 = 6;
        let report = &Err(KtapError::Incomplete {
            seen: 0,
            planned: 1,
        });
        let judged = |status, failed| {
            let verdict = judge(&Evidence {
                ending: &ended(status).caused_by(failed),
                report,
                qemu: "error.c:62: Assertion",
                ..WELL
            });
            (verdict.outcome, verdict.reason)
        };
        let failed = "server disk0 ended (signal: 9 (SIGKILL)): without a message";
        assert_eq!(
            judged(ABORT, Some(failed)),
            (RunOutcome::Failed, failed.to_owned())
        );
        let crashed = "the report ends after 0 of 1 results; QEMU ended (signal: 6 (SIGABRT)): error.c:62: Assertion";
        assert_eq!(
            judged(ABORT, None),
            (RunOutcome::GuestDied, crashed.to_owned())
        );
        assert_eq!(judged(0, Some(failed)).0, RunOutcome::GuestDied);
    }

    #[test]
    fn end_from_outside_is_no_verdict_on_checks() {
        let rows = rows(&[PASS]);
        let judged = |ending: Ending| {
            judge(&Evidence {
                ending: &ending,
                rows: &rows,
                ..WELL
            })
            .outcome
        };
        assert_eq!(judged(Ending::Signal(2)), RunOutcome::Interrupted(2));
        assert_eq!(judged(Ending::TimedOut(60)), RunOutcome::TimedOut);
        assert_eq!(judged(Ending::StayedOn(10)), RunOutcome::TimedOut);
        assert_eq!(
            judged(Ending::ServerDied("server disk0 ended".to_owned())),
            RunOutcome::Failed
        );
    }
}
