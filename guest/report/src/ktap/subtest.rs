//! The report of a program in the guest: KTAP version 1 or TAP, with subtests below its results.

use super::Verdict;
use super::tap_line::{
    ResultLine, bail_out, ends_with_version, has_failure_behind_text, indent, is_odd_failure,
    is_start, is_version, is_without_version, lines, plan,
};

/// Maximum depth of subtests. Lines with more indentation count as plain output of a program.
const DEEPEST: usize = 16;
/// Limit of the diagnostics that are kept of one result, and of the flaws of a report.
const MOST_DIAGNOSTICS: usize = 40;
/// Limit of the results that are kept of a report.
const MOST_RESULTS: usize = 20_000;
/// Longest name in characters, including the names of the levels above.
const LONGEST_NAME: usize = 300;

/// One result of a program's report, with its subtests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subtest {
    /// Its name.
    pub name: String,
    /// Its outcome. A failure that was expected (`TODO`, `XFAIL`) is not a failure.
    pub verdict: Verdict,
    /// The program's diagnostics about it.
    pub diagnostics: Vec<String>,
    /// Its parts.
    pub subtests: Vec<Subtest>,
}

/// A result that may consist of others.
pub trait Nested: Sized {
    /// Returns its name among its siblings.
    fn name(&self) -> &str;

    /// Returns its parts.
    fn parts(&self) -> &[Self];

    /// Returns every result of `all` without parts, with its name below those of the levels above:
    /// `suite / case`. Names are shortened, so that a long one above many results does not
    /// multiply.
    fn leaves(all: &[Self]) -> Vec<(String, &Self)> {
        let mut leaves = Vec::new();
        for each in all {
            if each.parts().is_empty() {
                leaves.push((shortened(each.name().to_owned()), each));
            }
            for (name, leaf) in Self::leaves(each.parts()) {
                leaves.push((shortened(format!("{} / {name}", each.name())), leaf));
            }
        }
        leaves
    }
}

/// Shortens a name to [`LONGEST_NAME`] characters.
fn shortened(mut name: String) -> String {
    if let Some((end, _)) = name.char_indices().nth(LONGEST_NAME) {
        name.truncate(end);
    }
    name
}

impl Nested for Subtest {
    fn name(&self) -> &str {
        &self.name
    }

    fn parts(&self) -> &[Self] {
        &self.subtests
    }
}

impl Subtest {
    /// Turns its failure and those below it into passes, since the failure was expected.
    fn forgive(&mut self) {
        if self.verdict == Verdict::Fail {
            self.verdict = Verdict::Pass;
        }
        self.subtests.iter_mut().for_each(Self::forgive);
    }

    /// Returns `true` if it or anything below it has failed.
    fn has_failed(&self) -> bool {
        self.verdict == Verdict::Fail || self.subtests.iter().any(Self::has_failed)
    }
}

/// A program's report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramReport {
    /// Its results.
    pub results: Vec<Subtest>,
    /// Mistakes in the report itself: results that are missing, or not in order.
    pub flaws: Vec<String>,
    /// The reason why nothing was run, if the plan line tells one (`1..0 # SKIP reason`).
    pub skipped: Option<String>,
    /// Set if the report does not complete its plan because its last result has no name and skips
    /// the rest. Selftests that end early do this (Linux tools/testing/selftests/kselftest.h,
    /// `ksft_exit_skip`), with status 4.
    pub left_off: Option<LeftOff>,
}

/// The end of a report whose last result skips all that was planned after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOff {
    /// The reason for that.
    pub reason: String,
    /// The complaint about it, if the program's status does not say the same.
    pub flaw: String,
}

impl ProgramReport {
    /// Returns the reports in a program's output, from the first version line on, as one. Returns
    /// `None` if there is no report. A report of TAP before version 13 has no version line; it is
    /// recognized by its plan and its results.
    ///
    /// A report that may have lost a result has a flaw: a missing plan line, or other text before
    /// the version line or a result on the same line.
    pub fn read(output: &str) -> Option<Self> {
        let lines = lines(output);
        let (top, rest) = match lines.iter().position(|line| is_start(line)) {
            Some(at) => (Level::begun_by(lines.get(at)?), at.saturating_add(1)),
            None if is_without_version(&lines) => (Level::announced(0), 0),
            None => return None,
        };
        let mut reader = Reader::new(top);
        let rest = lines.iter().skip(rest);
        rest.for_each(|line| reader.take(line));
        let report = reader.finish();
        // Text about TAP is not a report.
        (report != Self::default()).then_some(report)
    }

    /// Returns `true` if `output` has a version line, with which a report begins.
    pub fn begins_in(output: &str) -> bool {
        lines(output).iter().any(|line| is_start(line))
    }

    /// Returns the reason why the program has not passed, if so.
    pub fn complaint(&self) -> Option<String> {
        let failed = self.results.iter().filter(|result| result.has_failed());
        let failed: Vec<&Subtest> = failed.collect();
        let names = Subtest::leaves(&self.results);
        let names: Vec<String> = names
            .into_iter()
            .filter(|(_, leaf)| leaf.verdict == Verdict::Fail)
            .map(|(name, _)| name)
            .collect();
        let mut complaints = Vec::new();
        if !failed.is_empty() {
            let names = match names.as_slice() {
                // The results above them have failed, but none of their parts.
                [] => failed.iter().map(|result| result.name.clone()).collect(),
                _ => names,
            };
            complaints.push(format!("not ok: {}", names.join(", ")));
        }
        complaints.extend_from_slice(&self.flaws);
        complaints.extend(self.left_off.iter().map(|end| end.flaw.clone()));
        (!complaints.is_empty()).then(|| complaints.join("; "))
    }

    /// Returns the reason why nothing was run, if so: the report was skipped as a whole, or each of
    /// its results was.
    pub fn skipped(&self) -> Option<String> {
        if self.skipped.is_some() {
            return self.skipped.clone();
        }
        let leaves = Subtest::leaves(&self.results);
        let mut reasons = leaves.iter().map(|(_, leaf)| match &leaf.verdict {
            Verdict::Skip(reason) => Some(reason.clone()),
            Verdict::Pass | Verdict::Fail => None,
        });
        let first = reasons.next()??;
        reasons.all(|reason| reason.is_some()).then_some(first)
    }
}

/// Results of one indentation, while the result above them is not complete.
#[derive(Debug)]
struct Level {
    indent: usize,
    start: Start,
    planned: Option<usize>,
    results: Vec<Subtest>,
    diagnostics: Vec<String>,
}

/// The beginning of a level.
#[derive(Debug)]
enum Start {
    /// Without an announcement.
    Sudden,
    /// With a version line or `# Subtest`, which requires a plan.
    Announced,
    /// With a version line behind other text, in this line. Text about TAP looks the same, so this
    /// alone is not a report.
    BehindText(String),
}

/// Follows reports, with a level for each open indentation. There is always one.
#[derive(Debug)]
struct Reader {
    /// Results of the reports before the present one: a script may run several programs.
    earlier: Vec<Subtest>,
    top: Level,
    nested: Vec<Level>,
    count: usize,
    flaws: Vec<String>,
    skipped: Option<String>,
    /// Indentation of the details that are being read.
    yaml: Option<usize>,
}

impl Reader {
    fn new(top: Level) -> Self {
        Self {
            earlier: Vec::new(),
            top,
            nested: Vec::new(),
            count: 0,
            flaws: Vec::new(),
            skipped: None,
            yaml: None,
        }
    }

    fn flaw(&mut self, flaw: String) {
        if self.flaws.len() < MOST_DIAGNOSTICS {
            self.flaws.push(flaw);
        }
    }

    fn take(&mut self, line: &str) {
        let (indent, text) = (indent(line), line.trim());
        if text.is_empty() || self.is_detail(indent, text) {
            return;
        }
        if let Some(result) = ResultLine::parse(text) {
            self.result(indent, result);
        } else if let Some((planned, skipped)) = plan(text) {
            self.open(indent);
            self.plan(planned);
            if self.nested.is_empty() && skipped.is_some() {
                self.skipped = skipped;
            }
        } else if let Some(reason) = bail_out(text) {
            self.flaw(format!("it bailed out: {reason}"));
        } else if self.is_next_report(indent, text) {
            self.end_report();
            self.top = Level::begun_by(line);
        } else if is_version(text) || text.starts_with("# Subtest:") {
            self.open(indent);
            self.level().start = Start::Announced;
        } else if let Some(comment) = text.strip_prefix('#') {
            let level = self.level();
            if level.diagnostics.len() < MOST_DIAGNOSTICS {
                level.diagnostics.push(comment.trim_start().to_owned());
            }
        } else if let Some(flaw) = odd_line(text) {
            self.flaw(flaw);
        }
    }

    /// Returns `true` if a line is part of details in YAML, which are indented below their result
    /// (TAP 14, "YAML Diagnostics").
    fn is_detail(&mut self, indent: usize, text: &str) -> bool {
        let outer = self.level().indent;
        match self.yaml {
            None if text == "---" && indent > outer => {
                self.yaml = Some(indent);
                true
            }
            None => false,
            Some(start) if indent >= start => {
                self.yaml = self.yaml.filter(|_| text != "...");
                true
            }
            Some(_) => {
                self.end_details();
                false
            }
        }
    }

    /// Ends details. Results within details that do not end would be lost.
    fn end_details(&mut self) {
        if self.yaml.take().is_some() {
            self.flaw("details that begin with `---` have no end (`...`)".to_owned());
        }
    }

    fn is_next_report(&self, indent: usize, text: &str) -> bool {
        match is_version(text) {
            true => indent <= self.top.indent,
            false => ends_with_version(text) && self.top.flaw("it").is_none(),
        }
    }

    fn plan(&mut self, planned: usize) {
        let earlier = self.level().planned.replace(planned);
        if let Some(earlier) = earlier.filter(|earlier| *earlier != planned) {
            let earlier = results(earlier);
            self.flaw(format!("it planned {earlier}, and later {planned}"));
        }
    }

    /// Returns the innermost open level.
    fn level(&mut self) -> &mut Level {
        self.nested.last_mut().unwrap_or(&mut self.top)
    }

    /// Opens a level if `indent` is deeper than that of the innermost.
    fn open(&mut self, indent: usize) {
        if indent > self.level().indent && self.nested.len() < DEEPEST {
            self.nested.push(Level::at(indent, Start::Sudden));
        }
    }

    fn result(&mut self, indent: usize, result: ResultLine) {
        self.count = self.count.saturating_add(1);
        if self.count > MOST_RESULTS {
            if self.count == MOST_RESULTS.saturating_add(1) {
                self.flaw(format!("it has more than {MOST_RESULTS} results"));
            }
            return;
        }
        self.open(indent);
        let name = shortened(result.name);
        let mut subtests = Vec::new();
        let mut diagnostics = Vec::new();
        let outer = self.nested.iter().rposition(|level| level.indent <= indent);
        let deeper = outer.map_or(0, |at| at.saturating_add(1));
        for level in self.nested.split_off(deeper).into_iter().rev() {
            if let Some(flaw) = level.flaw(&format!("`{name}`")) {
                self.flaw(flaw);
            }
            // A deeper level below no result becomes a level without a name.
            subtests.splice(..0, level.results);
            diagnostics.splice(..0, level.diagnostics);
        }
        if result.is_failure_expected {
            subtests.iter_mut().for_each(Subtest::forgive);
        }
        let level = self.level();
        let due = level.results.len().saturating_add(1);
        diagnostics.splice(..0, std::mem::take(&mut level.diagnostics));
        level.results.push(Subtest {
            name: name.clone(),
            verdict: result.verdict,
            diagnostics,
            subtests,
        });
        if let Some(number) = result.number.filter(|number| *number != due) {
            self.flaw(format!(
                "result {number} ({name}) is in the place of result {due}"
            ));
        }
    }

    /// Judges the open levels as a whole report.
    fn end_report(&mut self) {
        self.end_details();
        while let Some(level) = self.nested.pop() {
            let names: Vec<&str> = level.results.iter().map(|r| r.name.as_str()).collect();
            let after = match names.is_empty() {
                true => String::new(),
                false => format!(", after: {}", shortened(names.join(", "))),
            };
            self.flaw(format!("it ends within a subtest{after}"));
        }
        if let Some(flaw) = self.top.flaw("it") {
            self.flaw(flaw);
        }
        let is_empty = self.top.results.is_empty();
        match &self.top.start {
            Start::BehindText(_) if is_empty && self.top.planned.is_none() => {}
            Start::BehindText(line) => self.flaw(behind_text(line)),
            Start::Sudden | Start::Announced => {
                if is_empty && self.skipped.is_none() && self.flaws.is_empty() {
                    self.flaw("its report has no result".to_owned());
                }
            }
        }
        self.earlier.append(&mut self.top.results);
    }

    fn finish(mut self) -> ProgramReport {
        let left_off = self.top.left_off().filter(|_| self.nested.is_empty());
        if left_off.is_some() {
            self.top.planned = Some(self.top.results.len());
        }
        self.end_report();
        ProgramReport {
            results: self.earlier,
            flaws: self.flaws,
            skipped: self.skipped,
            left_off,
        }
    }
}

impl Level {
    fn at(indent: usize, start: Start) -> Self {
        Self {
            indent,
            start,
            planned: None,
            results: Vec::new(),
            diagnostics: Vec::new(),
        }
    }

    fn announced(indent: usize) -> Self {
        Self::at(indent, Start::Announced)
    }

    /// Returns the top level of a report that begins with the version line in `line`.
    fn begun_by(line: &str) -> Self {
        match is_version(line) {
            true => Self::announced(indent(line)),
            false => Self::at(indent(line), Start::BehindText(line.trim().to_owned())),
        }
    }

    /// Returns the flaw of the level of `name`: no plan line, or a number of results that differs
    /// from it.
    fn flaw(&self, name: &str) -> Option<String> {
        let seen = self.results.len();
        match (self.planned, &self.start) {
            (Some(planned), _) if planned != seen => Some(format!(
                "{name} planned {} and has {seen}",
                results(planned)
            )),
            (None, Start::Announced | Start::BehindText(_)) if seen > 0 => Some(format!(
                "{name} has no plan line (`1..N`), so results may be missing"
            )),
            _ => None,
        }
    }

    fn left_off(&self) -> Option<LeftOff> {
        let last = self.results.last().filter(|last| last.name.is_empty())?;
        match (&last.verdict, self.flaw("it")) {
            (Verdict::Skip(reason), Some(flaw)) => Some(LeftOff {
                reason: reason.clone(),
                flaw,
            }),
            _ => None,
        }
    }
}

fn results(count: usize) -> String {
    match count {
        1 => "1 result".to_owned(),
        count => format!("{count} results"),
    }
}

/// Returns the flaw of a line that resembles a failure or the end of a report, but is neither.
fn odd_line(text: &str) -> Option<String> {
    let is_behind_text = has_failure_behind_text(text);
    let is_odd = || {
        is_odd_failure(text)
            .then(|| format!("invalid result line: `{}`", shortened(text.to_owned())))
    };
    is_behind_text.then(|| behind_text(text)).or_else(is_odd)
}

fn behind_text(line: &str) -> String {
    let line = shortened(line.to_owned());
    format!("other text is before it on the same line: `{line}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directive_follows_a_name_with_a_number_sign() {
        let parse = |text: &str| {
            let line = ResultLine::parse(text).unwrap();
            (line.name, line.verdict)
        };
        let skip = Verdict::Skip("no b".to_owned());
        for (text, name, verdict) in [
            (
                "not ok 1 - issue #12 # TODO known",
                "issue #12",
                Verdict::Pass,
            ),
            ("ok 2 - a #3 # SKIP no b", "a #3", skip.clone()),
            ("ok 3 - # skip no b", "", skip),
            ("not ok 4 - issue #12 is open", "issue", Verdict::Fail),
            ("not ok 5 - a\\# TODO", "a# TODO", Verdict::Fail),
            ("not ok 6 - a#TODO", "a", Verdict::Fail),
            ("ok 7 - \\\\# a \\# b # todo", "\\# a # b", Verdict::Pass),
        ] {
            assert_eq!(parse(text), (name.to_owned(), verdict), "{text}");
        }
    }

    fn read(text: &str) -> ProgramReport {
        ProgramReport::read(text).unwrap()
    }

    /// The example of Linux, Documentation/dev-tools/ktap.rst.
    const NESTED: &str = "starting\nKTAP version 1\n1..3\n  KTAP version 1\n  1..1\n    KTAP version 1\n    1..2\n    \
        ok 1 case_1\n    # expected 3, got 4\n    not ok 2 case_2\n  not ok 1 - inner\nnot ok 1 outer\n  KTAP version 1\n  1..1\n  \
        ok 1 a # SKIP no b\nok 2 - second\nok 3 third # XFAIL known\n# Totals: pass:1\n";

    #[test]
    fn long_name_above_many_results_does_not_multiply() {
        let case = "    ok\n".repeat(MOST_RESULTS);
        let text = format!(
            "  KTAP version 1\n{case}  ok 1 {}\nok 1 - x\n",
            "n".repeat(60_000)
        );
        let report = read(&text);
        let too_many = format!("it has more than {MOST_RESULTS} results");
        assert_eq!(report.flaws[0], too_many);
        assert!(report.flaws.concat().len() < 1000);
        let over = read(&format!(
            "KTAP version 1\n  ok 1 - a\nok 1 - {}\n",
            "n".repeat(60_000)
        ));
        let leaves = Subtest::leaves(&over.results);
        let lengths = leaves.iter().map(|(name, _)| name.len());
        assert_eq!(lengths.collect::<Vec<_>>(), [LONGEST_NAME]);
    }

    #[test]
    fn subtests_are_below_the_result_that_follows_them() {
        let report = read(NESTED);
        assert_eq!(report.flaws, [""; 0]);
        let names: Vec<&str> = report.results.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, ["outer", "second", "third"]);
        let leaves = Subtest::leaves(&report.results);
        let leaves: Vec<(&str, &str)> = leaves
            .iter()
            .map(|(name, leaf)| (name.as_str(), leaf.verdict.word()))
            .collect();
        assert_eq!(
            leaves,
            [
                ("outer / inner / case_1", "pass"),
                ("outer / inner / case_2", "fail"),
                ("second / a", "skip"),
                ("third", "pass"),
            ]
        );
        assert_eq!(
            report.results[0].subtests[0].subtests[1].diagnostics,
            ["expected 3, got 4"]
        );
        assert_eq!(
            report.complaint().unwrap(),
            "not ok: outer / inner / case_2"
        );
        assert_eq!(report.skipped(), None);
    }

    #[test]
    fn report_that_keeps_not_to_its_plan_is_complained_of() {
        for (text, message) in [
            ("1..2\nok 1 a\n", "it planned 2 results and has 1"),
            (
                "1..2\nok 1 a\nok 3 b\n",
                "result 3 (b) is in the place of result 2",
            ),
            (
                "ok 1 a\n",
                "it has no plan line (`1..N`), so results may be missing",
            ),
            ("1..1\nnot ok\t1 - a\n", "not ok: a"),
            (
                "1..1\nok 1 - a\n---\nnot ok 2 - b\n",
                "not ok: b; it planned 1 result and has 2",
            ),
            (
                "1..1\nok 1 - a\n  ---\n  message: x\nnot ok 2 - b\n",
                "not ok: b; details that begin with `---` have no end (`...`); it planned 1 result and has 2",
            ),
            (
                "1..1\nok 1 - a\n.. not ok 2 - b\n",
                "other text is before it on the same line: `.. not ok 2 - b`",
            ),
            (
                "1..2\nok 1 - a\n.. ok 2 - b\n",
                "it planned 2 results and has 1",
            ),
            (
                "1..2\nok 1 - a\n1..1\n",
                "it planned 2 results, and later 1",
            ),
            (
                "1..1\n  1..2\n  ok 1 x\nok 1 suite\n",
                "`suite` planned 2 results and has 1",
            ),
            (
                "1..1\n  ok 1 x\n",
                "it ends within a subtest, after: x; it planned 1 result and has 0",
            ),
            (
                "1..1\nok 1 a\nBail out! no disk\n",
                "it bailed out: no disk",
            ),
            ("words\n", "its report has no result"),
            ("1..0\n", "its report has no result"),
            (
                "1..1\nok 1 - a\nTAP version 13\n",
                "its report has no result",
            ),
            (
                "1..1\nok 1 - a\nrun 2: TAP version 13\n1..1\nok 1 - b\n",
                "other text is before it on the same line: `run 2: TAP version 13`",
            ),
            (
                "1..1\rok 1 - a\rnot ok 2 - b\r",
                "not ok: b; it planned 1 result and has 2",
            ),
            (
                "1..1\nnot ok 1 - a\r100 percent\nok 1 - a\n",
                "not ok: a; result 1 (a) is in the place of result 2; it planned 1 result and has 2",
            ),
            (
                "1..1\nok 1 - a\u{c}not ok 2 - b\n",
                "not ok: b; it planned 1 result and has 2",
            ),
            (
                "1..1\nok 1 - a\n.. Bail out! no disk\n",
                "other text is before it on the same line: `.. Bail out! no disk`",
            ),
            ("1..1\nok 1 - a\nbail out!\n", "it bailed out: "),
            (
                "1..1\nok 1 - a\n.. not ok - b\n",
                "other text is before it on the same line: `.. not ok - b`",
            ),
            (
                "1..1\nok 1 - a\nnot ok: 2 b\n",
                "invalid result line: `not ok: 2 b`",
            ),
            (
                "1..1\nok 99999999999999999999999 - a\n",
                "result 18446744073709551615 (a) is in the place of result 1",
            ),
            ("1..1\nok 1 a # TIMEOUT 45 seconds\n", "not ok: a"),
            ("1..1\nok 1 a # ERROR bad exit\n", "not ok: a"),
            (
                "1..1\n  ---\n    not ok 1 x\nok 1 suite\n",
                "details that begin with `---` have no end (`...`)",
            ),
            (
                "1..1\n  # Subtest: suite\n  ok 1 x\nok 1 suite\n",
                "`suite` has no plan line (`1..N`), so results may be missing",
            ),
            (
                "1..1\nok 1 a\nTAP version 13\n1..2\nok 1 b\n",
                "it planned 2 results and has 1",
            ),
            (
                "1..2\nok 1 a\nTAP version 13\n1..1\nok 1 b\n",
                "it planned 2 results and has 1",
            ),
            (
                "1..1\nok 1 a\nTAP version 13\n1..1\nnot ok 1 b\n",
                "not ok: b",
            ),
            (
                "1..3\nok 1 a\nok 2 # SKIP no device\n",
                "it planned 3 results and has 2",
            ),
            ("1..1\nnot ok 1 suite\n", "not ok: suite"),
            ("1..1\n  ok 1 x\nnot ok 1 suite\n", "not ok: suite"),
        ] {
            let report = read(&format!("TAP version 13\n{text}"));
            assert_eq!(report.complaint().as_deref(), Some(message), "{text}");
        }
    }

    #[test]
    fn version_line_behind_other_text_is_complained_of() {
        let complaint = |text: &str| read(text).complaint();
        let behind = "loading... TAP version 13\n1..1\nok 1 - a\n";
        let message = "other text is before it on the same line: `loading... TAP version 13`";
        assert_eq!(complaint(behind).as_deref(), Some(message));
        let two = "x KTAP version 1\n1..1\nnot ok 1 - a\nKTAP version 1\n1..1\nok 1 - b\n";
        let message = "not ok: a; other text is before it on the same line: `x KTAP version 1`";
        assert_eq!(complaint(two).as_deref(), Some(message));
        assert_eq!(
            ProgramReport::read("it prints TAP version 13, not more\n"),
            None
        );
    }

    #[test]
    fn reports_of_terminals_kernels_and_others_are_read() {
        for text in [
            "\x1b[1mTAP version 13\x1b[0m\n1..1\n\x1b[32mok\x1b[0m 1 - a\n",
            "TAP version 13\r\n1..1\r\n10%\r100%\rok 1 - a\r\n",
            "[    1.230000] KTAP version 1\n[    1.24] 1..1\n[    1.25]     KTAP version 1\n[    1.26]     1..1\n[    1.27]     ok 1 x\n[    1.28] ok 1 - a\n",
            "TAP version 13\n1..1\nok 1 - a\n  ---\n  message: 'not ok 3 before'\n  ...\n",
            "reporting in TAP version 13\nTAP version 13\n1..1\nok 1 - a\n",
            "TAP version 13\n1..1\nok 1 - a\nGET / status ok 200 - cached\n",
            "TAP version 13\nok 1 - a\n1..1\n1..1\n",
            "TAP version 13\n1..1\nok 1 - a # error messages are shown\n",
            "TAP Version 13\n1..1\nok 1 - a\nthat was TAP version 13\n",
            "1..2\nok 1 - a\nok 2 - b\n",
            "loading\nok 1 - a\nok 2 - b\n1..2\n",
            "TAP version 13\n1..1\nok 1 - a\nTAP version 13\n1..2\nok 1 - b\nok 2 - c\n",
            "TAP version 13\n1..1\n    not ok 1 - x\n    1..1\nnot ok 1 - a # TODO later\n",
        ] {
            assert_eq!(read(text).complaint(), None, "{text}");
        }
        let skipped = |line: &str| read(&format!("TAP version 13\n1..1\n{line}\n")).skipped();
        assert_eq!(skipped("ok 1 b # Skipped: no hw").as_deref(), Some("no hw"));
        assert_eq!(skipped("ok 1 b # SKIP\tno hw").as_deref(), Some("no hw"));
        assert_eq!(
            ProgramReport::read("# reports are in TAP version 13\n"),
            None
        );
    }

    #[test]
    fn words_about_results_are_no_results() {
        for words in [
            "this is not ok",
            "smoke 1 - x",
            "it is ok 3 times",
            "# not ok 2 - b",
        ] {
            let report = read(&format!("TAP version 13\n1..1\nok 1 - a\n{words}\n"));
            assert_eq!(report.complaint(), None, "{words}");
        }
    }

    #[test]
    fn tap_is_read_where_it_differs_from_ktap() {
        let text = "TAP version 14\n# Subtest: suite\n    ok 1 - x\n    1..1\nok - suite\nnot ok 2 later # todo not yet\nok\n1..3\n";
        let report = read(text);
        assert_eq!(report.complaint(), None);
        assert_eq!(report.results.len(), 3);
        assert_eq!(report.results[0].subtests[0].name, "x");
    }

    #[test]
    fn what_is_skipped_as_a_whole_says_why() {
        let skipped = |text: &str| read(&format!("TAP version 13\n{text}")).skipped();
        assert_eq!(skipped("1..0 # SKIP no GPU\n").unwrap(), "no GPU");
        assert_eq!(skipped("1..1\nok 1 x # SKIP no GPU\n").unwrap(), "no GPU");
        assert_eq!(skipped("ok 1 x # SKIP no GPU\nok 2 y\n"), None);
        assert_eq!(skipped("1..0\n"), None);
    }

    #[test]
    fn rest_that_a_selftest_skips_is_left_off() {
        let left_off = |text: &str| read(&format!("TAP version 13\n{text}")).left_off;
        let end = left_off("1..3\nok 1 a\nok 2 # SKIP no device\n# Totals: skip:1\n").unwrap();
        assert_eq!(end.reason, "no device");
        for whole in [
            "1..2\nok 1 a\nok 2 # SKIP no device\n",
            "1..3\nok 1 a\nok 2 b # SKIP no device\n",
            "1..3\nok 1 # SKIP no device\nok 2 b\n",
        ] {
            assert_eq!(left_off(whole), None, "{whole}");
        }
    }

    #[test]
    fn report_of_early_tap_has_a_plan_and_numbers() {
        for (text, message) in [
            ("1..2\nok 1\nnot ok 2 - b\n", "not ok: b"),
            ("1..2\nok 1 - a\n", "it planned 2 results and has 1"),
            (
                "loading TAP version 13 (bats)\n1..1\nnot ok 1 - a\n",
                "not ok: a",
            ),
        ] {
            assert_eq!(read(text).complaint().as_deref(), Some(message), "{text}");
        }
        assert_eq!(read("1..0 # SKIP no GPU\n").skipped().unwrap(), "no GPU");
    }

    #[test]
    fn output_without_a_version_line_is_no_report() {
        for text in [
            "",
            "ok 1 - x\n",
            "okay\n1..2\n",
            "1..2 ok\nok 1\n",
            "pages 1..2\nok 1\n",
            "1..2\nok\n",
            &"1..2\n".repeat(50_000),
        ] {
            assert_eq!(ProgramReport::read(text), None);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_output_is_read(text in "[ #.\n1-9a-zA-Z]{0,200}") {
            if let Some(report) = ProgramReport::read(&format!("KTAP version 1\n{text}")) {
                let _ = report.complaint();
            }
        }
    }
}
