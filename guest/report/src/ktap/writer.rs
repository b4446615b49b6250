//! The agent's side of the report.

use std::io::{self, Write};

use super::tap_line::BAIL_OUT;
use super::{LINE_LIMIT, Line, Subtest, Verdict};
use crate::{Evidence, Measure};

/// Writes a report: [`KtapWriter::begin`] once, then diagnostics and one [`KtapWriter::result`] for each check.
///
/// Every line is flushed at once, since the guest may die before the next one.
#[derive(Debug)]
pub struct KtapWriter<W> {
    out: W,
    results: u32,
}

impl<W: Write> KtapWriter<W> {
    /// Makes a report that is written to `out`.
    pub fn new(out: W) -> Self {
        KtapWriter { out, results: 0 }
    }

    /// Writes the version line, and the plan line if the number of results, `checks`, is known.
    pub fn begin(&mut self, checks: Option<u32>) -> io::Result<()> {
        self.line(&Line::Version)?;
        checks.map_or(Ok(()), |checks| self.line(&Line::Plan(checks)))
    }

    /// Ends a report that began without its plan line.
    pub fn end(&mut self) -> io::Result<()> {
        self.line(&Line::Plan(self.results))
    }

    /// Reports that all devices are there, `uptime_ms` milliseconds after the guest's kernel
    /// started.
    pub fn ready(&mut self, uptime_ms: u64) -> io::Result<()> {
        self.line(&Line::Ready(uptime_ms))
    }

    /// Writes a piece of evidence.
    pub fn evidence(&mut self, evidence: &Evidence) -> io::Result<()> {
        self.line(&Line::Evidence(evidence.clone()))
    }

    /// Writes each line of `text` as a diagnostic of the check whose result comes next.
    pub fn diagnostic(&mut self, text: &str) -> io::Result<()> {
        for line in text.lines() {
            self.line(&diagnostic_line(line))?;
        }
        Ok(())
    }

    /// Writes the subtests, the figures and the result of the next check. Results are numbered from 1.
    pub fn result(&mut self, name: &str, verdict: &Verdict, measure: &Measure) -> io::Result<()> {
        self.nested(&measure.subtests, 1)?;
        self.line(&Line::Measure(measure.clone()))?;
        self.verdict(name, verdict)
    }

    /// Writes the result of the next check, which has no figures. Results are numbered from 1.
    pub fn verdict(&mut self, name: &str, verdict: &Verdict) -> io::Result<()> {
        self.results = self.results.saturating_add(1);
        self.line(&Line::Result {
            number: self.results,
            name: name.to_owned(),
            verdict: verdict.clone(),
        })
    }

    /// Ends a report early, for this reason (TAP 13, "Bail out!").
    pub fn bail_out(&mut self, reason: &str) -> io::Result<()> {
        self.line(&Line::Unknown(format!("{BAIL_OUT} {reason}")))
    }

    /// Writes subtests as a separate report, indented to this depth.
    fn nested(&mut self, subtests: &[Subtest], depth: usize) -> io::Result<()> {
        let Ok(count) = u32::try_from(subtests.len()) else {
            return Ok(());
        };
        if count == 0 {
            return Ok(());
        }
        self.indented(&Line::Version, depth)?;
        self.indented(&Line::Plan(count), depth)?;
        for (number, subtest) in (1..).zip(subtests) {
            self.nested(&subtest.subtests, depth.saturating_add(1))?;
            for text in &subtest.diagnostics {
                self.indented(&Line::Diagnostic(text.clone()), depth)?;
            }
            let result = Line::Result {
                number,
                name: subtest.name.clone(),
                verdict: subtest.verdict.clone(),
            };
            self.indented(&result, depth)?;
        }
        Ok(())
    }

    fn indented(&mut self, line: &Line, depth: usize) -> io::Result<()> {
        self.line(&Line::Nested(format!("{}{line}", "  ".repeat(depth))))
    }

    fn line(&mut self, line: &Line) -> io::Result<()> {
        let mut text = line.to_string();
        cut(&mut text, LINE_LIMIT - 1);
        text.push('\n');
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }
}

/// Cuts `text` to at most `limit` bytes.
fn cut(text: &mut String, limit: usize) {
    let end = (0..=limit.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
}

/// Returns `text` as a diagnostic. A text that would be read back as another kind of comment is
/// indented.
fn diagnostic_line(text: &str) -> Line {
    let text = text.replace(|c: char| c.is_control() && c != '\t', " ");
    match Line::parse(&format!("# {text}")) {
        Line::Diagnostic(_) => Line::Diagnostic(text),
        _ => Line::Diagnostic(format!(" {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProgramReport;

    #[test]
    fn a_report_reads_as_ktap() {
        let mut out = Vec::new();
        let mut report = KtapWriter::new(&mut out);
        report.begin(Some(2)).unwrap();
        report.ready(2700).unwrap();
        report
            .result("first", &Verdict::Pass, &Measure::default())
            .unwrap();
        report.diagnostic("expected 1\nready 5\u{7}").unwrap();
        report
            .result(
                "second",
                &Verdict::Skip("no disk".into()),
                &Measure::default(),
            )
            .unwrap();
        let measure = r##"# measure {"sizes":"","bytes":0,"seconds":0.0,"routes":{},"peer_bytes":0,"ram_bytes":0,"failures":0}"##;
        let expected = format!(
            "KTAP version 1\n1..2\n# ready 2700\n{measure}\nok 1 - first\n# expected 1\n# ready 5 \n\
             {measure}\nok 2 - second # SKIP no disk\n"
        );
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn subtests_are_nested_before_their_result_and_read_back() {
        let printed = "TAP version 13\n  ok 1 x\n  # why\n  not ok 2 y # 3\nnot ok 1 suite\nok 2 z # SKIP no b\n1..2\n";
        let report = ProgramReport::read(printed).unwrap();
        let measure = Measure {
            subtests: report.results.clone(),
            ..Measure::default()
        };
        let mut out = Vec::new();
        KtapWriter::new(&mut out)
            .result("check", &Verdict::Fail, &measure)
            .unwrap();
        let text = String::from_utf8(out).unwrap();
        let (nested, rest) = text.split_once("# measure").unwrap();
        let expected = "  KTAP version 1\n  1..2\n    KTAP version 1\n    1..2\n    ok 1 - x\n    # why\n    not ok 2 - y\n  \
            not ok 1 - suite\n  ok 2 - z # SKIP no b\n";
        assert_eq!(nested, expected);
        assert!(rest.ends_with("not ok 1 - check\n"), "{rest}");
        assert_eq!(ProgramReport::read(nested).unwrap(), report);
    }

    #[test]
    fn report_that_ends_early_is_read_with_the_reason() {
        let mut out = Vec::new();
        let mut report = KtapWriter::new(&mut out);
        report.begin(Some(2)).unwrap();
        report.verdict("first", &Verdict::Pass).unwrap();
        report.bail_out("the server is gone").unwrap();
        let text = String::from_utf8(out).unwrap();
        let expected = "KTAP version 1\n1..2\nok 1 - first\nBail out! the server is gone\n";
        assert_eq!(text, expected);
        let read = ProgramReport::read(&text);
        assert!(
            format!("{read:?}").contains("the server is gone"),
            "{read:?}"
        );
    }

    #[test]
    fn a_diagnostic_stays_a_diagnostic() {
        assert_eq!(
            diagnostic_line("ready 5"),
            Line::Diagnostic(" ready 5".into())
        );
        assert_eq!(
            diagnostic_line("readiness"),
            Line::Diagnostic("readiness".into())
        );
    }

    #[test]
    fn a_long_line_is_cut_at_the_limit() {
        let mut out = Vec::new();
        KtapWriter::new(&mut out)
            .diagnostic(&"ä".repeat(LINE_LIMIT))
            .unwrap();
        assert!(out.len() <= LINE_LIMIT, "{}", out.len());
        assert!(out.ends_with("ä\n".as_bytes()));
    }
}
