//! Runs and watches a command or a program, and compares it with the expectations.

use std::time::Duration;

use anyhow::{bail, ensure};
use peerbar_report::{Buffer, Expectation, Measure, ProgramReport, line_pattern};

use super::CheckOutcome;
use super::owner::OpenedMemory;
use crate::counters::TrafficWatch;
use crate::guest_context::GuestContext;
use crate::kmsg::Expected;
use crate::tools::{OUTPUT_LIMIT, Ran};
use crate::watchdog;

/// The exit status of a selftest that skips all or the rest of its tests (Linux
/// tools/testing/selftests/kselftest.h).
const KSFT_SKIP: i32 = 4;
/// Number of output lines shown after a failure.
const SHOWN: usize = 60;

/// A command or a program to run.
pub(super) struct Work<'a> {
    /// Its name in messages: `the command`.
    pub(super) what: &'a str,
    /// Its words, for messages.
    pub(super) shown: &'a str,
    /// The expectations.
    pub(super) expected: &'a Expectation,
    /// See [`peerbar_report::Described::seconds`].
    pub(super) seconds: Option<u32>,
}

/// Runs it by `start`, which gets its time limit, and judges it.
pub(super) fn run(
    guest: &GuestContext,
    work: &Work<'_>,
    measure: &mut Measure,
    start: impl FnOnce(Duration) -> anyhow::Result<Ran>,
) -> anyhow::Result<CheckOutcome> {
    let limit = guest.limit(work.seconds);
    let provider = match &work.expected.through {
        Some(Buffer::P2pmem(provider)) => Some((provider, OpenedMemory::record(guest)?)),
        Some(Buffer::GuestRam) | None => None,
    };
    let mut watch = TrafficWatch::new(guest);
    let ran = watch.watch(|| start(limit))?;
    watch.write_to(measure);
    measure.status = Some(ran.code());
    let (failures, queues) = match work.expected.through {
        Some(_) => (
            watch.traffic()?.failures(),
            watch.traffic()?.ram_bytes_without_purpose(),
        ),
        None => (0, 0),
    };
    let mut report = ProgramReport::read(&ran.output).filter(|_| !work.expected.judged_by_caller);
    let skipped = report
        .as_mut()
        .and_then(|report| skipped(report, &ran, work.expected));
    let complaint = match &report {
        Some(report) => complaint(report, &ran),
        None if ran.has_late_report && !work.expected.judged_by_caller => Some(late_report()),
        None => None,
    };
    measure.subtests = report.map_or_else(Vec::new, |report| report.results);
    if let (Some(reason), None) = (skipped, &complaint) {
        return Ok(CheckOutcome::Skipped(reason));
    }
    let judged = judge(work, &ran, complaint.as_deref(), limit)
        .and_then(|()| judge_route(work, measure, queues, failures))
        .and_then(|()| match &provider {
            Some((provider, opened)) => opened.judge(work.what, provider, &measure.flows),
            None => Ok(()),
        });
    if let Err(error) = judged {
        bail!(
            "{error:#}; it ran: {}\n{}",
            work.shown,
            last_lines(&ran.output)
        );
    }
    Ok(if work.expected.show {
        CheckOutcome::Said(ran.output)
    } else {
        CheckOutcome::Passed
    })
}

/// Returns the kernel messages that are allowed, and those that are required.
pub(super) fn log(expected: &Expectation) -> Expected<'_> {
    Expected {
        texts: &expected.kernel,
        ..Expected::default()
    }
}

/// Returns the complaint about a report that is not read.
fn late_report() -> String {
    format!(
        "results after the first {OUTPUT_LIMIT} bytes of output, which are not read: print less before them"
    )
}

/// Returns the reason why no test of a report, or no further one, was run, if its program ended
/// with the status for that. Removes the excuse from the report.
fn skipped(report: &mut ProgramReport, ran: &Ran, expected: &Expectation) -> Option<String> {
    let has_left_off = ran.code() == KSFT_SKIP;
    if ran.timed_out || !(has_left_off || ran.code() == expected.status) {
        return None;
    }
    let left_off = report.left_off.take_if(|_| has_left_off);
    left_off.map(|end| end.reason).or_else(|| report.skipped())
}

/// Returns the complaint about a report and the program that has printed it. A report that was cut
/// may have had failures later.
fn complaint(report: &ProgramReport, ran: &Ran) -> Option<String> {
    let cut = || {
        format!("more than {OUTPUT_LIMIT} bytes, so not all of its results are known: print less")
    };
    report.complaint().or_else(|| (!ran.is_whole).then(cut))
}

/// Judges everything except the route. `complaint` is the objection that follows from its own
/// report.
fn judge(
    work: &Work<'_>,
    ran: &Ran,
    complaint: Option<&str>,
    limit: Duration,
) -> anyhow::Result<()> {
    let Work { what, expected, .. } = work;
    ensure!(
        !ran.timed_out,
        "{what} was killed, because it {}",
        match expected.judged_by_caller {
            true => watchdog::too_slow_request(limit),
            false => watchdog::too_slow(limit, work.seconds),
        }
    );
    if let Some(complaint) = complaint {
        bail!("{what} reports: {complaint}");
    }
    ensure!(
        expected.judged_by_caller || ran.code() == expected.status,
        "{what} ended with status {}, not {}",
        ran.code(),
        expected.status
    );
    for text in &expected.expect {
        ensure!(ran.output.contains(text), "{what} did not print {text:?}");
    }
    for pattern in &expected.matches {
        ensure!(
            line_pattern(pattern)?.is_match(&ran.output),
            "{what} printed nothing that matches {pattern:?}"
        );
    }
    Ok(())
}

/// Checks that all data that it moved took the route of [`Expectation::through`], and that no
/// transfer failed and was repeated. `queues` is the number of bytes in guest RAM that may be no
/// data.
fn judge_route(
    work: &Work<'_>,
    measure: &Measure,
    queues: u64,
    failures: u64,
) -> anyhow::Result<()> {
    let (right, wrong) = match &work.expected.through {
        Some(Buffer::P2pmem(_)) => (measure.peer_bytes, measure.ram_bytes.saturating_sub(queues)),
        Some(Buffer::GuestRam) => (measure.ram_bytes, measure.peer_bytes),
        None => return Ok(()),
    };
    let what = work.what;
    ensure!(
        right > 0 && wrong == 0,
        "{what} moved {} bytes peer to peer and {} through guest RAM",
        measure.peer_bytes,
        measure.ram_bytes
    );
    ensure!(
        failures == 0,
        "{failures} DMA requests of the devices failed while {what} ran; the servers' logs say which"
    );
    Ok(())
}

/// Returns the end of the output, indented.
fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    let start = lines.len().saturating_sub(SHOWN);
    lines
        .iter()
        .skip(start)
        .map(|line| format!("  {line}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn work(expected: &Expectation) -> Work<'_> {
        Work {
            what: "the command",
            shown: "true",
            expected,
            seconds: None,
        }
    }

    fn ran(code: i32, output: &str, timed_out: bool) -> Ran {
        Ran {
            status: ExitStatus::from_raw(code << 8),
            timed_out,
            output: output.into(),
            is_whole: true,
            has_late_report: false,
        }
    }

    #[test]
    fn report_that_was_cut_does_not_pass() {
        let mut cut = ran(0, "TAP version 13\nok 1 first\n1..1\n", false);
        let report = ProgramReport::read(&cut.output).unwrap();
        assert_eq!(complaint(&report, &cut), None);
        cut.is_whole = false;
        let said = complaint(&report, &cut).unwrap();
        assert!(said.contains("more than 262144 bytes"), "{said}");
    }

    #[test]
    fn report_is_skipped_if_its_status_says_the_same() {
        let all = "TAP version 13\n1..1\nok 1 a # SKIP no disk\n";
        let rest = "TAP version 13\n1..3\nok 1 a\nok 2 # SKIP no GPU\n";
        let expected = Expectation::default();
        for (code, output, reason, is_flawed) in [
            (0, all, Some("no disk"), false),
            (KSFT_SKIP, all, Some("no disk"), false),
            (1, all, None, false),
            (139, all, None, false),
            (KSFT_SKIP, rest, Some("no GPU"), false),
            (0, rest, None, true),
            (1, rest, None, true),
        ] {
            let mut report = ProgramReport::read(output).unwrap();
            let skipped = skipped(&mut report, &ran(code, output, false), &expected);
            assert_eq!(skipped.as_deref(), reason, "{code}: {output}");
            assert_eq!(report.complaint().is_some(), is_flawed, "{code}: {output}");
        }
        let mut report = ProgramReport::read(all).unwrap();
        assert_eq!(skipped(&mut report, &ran(0, all, true), &expected), None);
    }

    #[test]
    fn status_texts_and_patterns_are_compared() {
        let expected = Expectation {
            status: 1,
            expect: vec!["good".into()],
            matches: vec!["^[0-9]+ bytes$".into()],
            ..Expectation::default()
        };
        let judged = |ran| judge(&work(&expected), &ran, None, LIMIT);
        assert!(judged(ran(1, "all good\n12 bytes\n", false)).is_ok());
        let error = |ran| judged(ran).unwrap_err().to_string();
        assert_eq!(
            error(ran(0, "good", false)),
            "the command ended with status 0, not 1"
        );
        assert_eq!(
            error(ran(1, "bad", false)),
            "the command did not print \"good\""
        );
        assert_eq!(
            error(ran(1, "good\nno bytes\n", false)),
            "the command printed nothing that matches \"^[0-9]+ bytes$\""
        );
    }

    #[test]
    fn report_of_its_own_fails_it_whatever_its_status() {
        let expected = Expectation::default();
        let judged = judge(
            &work(&expected),
            &ran(0, "", false),
            Some("not ok: x"),
            LIMIT,
        );
        let error = judged.unwrap_err().to_string();
        assert_eq!(error, "the command reports: not ok: x");
    }

    #[test]
    fn time_limit_is_named_with_its_remedy() {
        let error = |seconds| {
            let expected = Expectation::default();
            let work = Work {
                seconds,
                ..work(&expected)
            };
            let judged = judge(&work, &ran(137, "", true), None, LIMIT);
            judged.unwrap_err().to_string()
        };
        let message = "the command was killed, because it did not end within 30 s: give the check a longer `timeout`";
        assert_eq!(error(Some(30)), message);
        assert!(error(None).contains("half of the scenario's"));
    }

    #[test]
    fn data_on_another_route_fails() {
        let judged = |through, peer_bytes, ram_bytes, failures| {
            let expected = Expectation {
                through,
                ..Expectation::default()
            };
            let measure = Measure {
                peer_bytes,
                ram_bytes,
                ..Measure::default()
            };
            judge_route(&work(&expected), &measure, 0, failures).is_ok()
        };
        let p2pmem = || Some(Buffer::P2pmem("left".into()));
        assert!(judged(p2pmem(), 4096, 0, 0));
        assert!(!judged(p2pmem(), 4096, 0, 1));
        assert!(!judged(p2pmem(), 4096, 512, 0));
        assert!(!judged(p2pmem(), 0, 0, 0));
        assert!(judged(Some(Buffer::GuestRam), 0, 4096, 0));
        assert!(!judged(Some(Buffer::GuestRam), 4096, 4096, 0));
        assert!(judged(None, 4096, 512, 0));
    }

    #[test]
    fn the_end_of_a_long_output_is_shown() {
        let output: String = (0..100).map(|line| format!("{line}\n")).collect();
        let shown = last_lines(&output);
        assert!(
            shown.starts_with("  40\n") && shown.ends_with("  99\n"),
            "{shown}"
        );
    }
}
