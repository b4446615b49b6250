//! The grammar of one line.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Evidence, Measure, steers};

const VERSION: &str = "KTAP version 1";
const MEASURE: &str = "measure ";
const READY: &str = "ready ";
const KILL: &str = "kill ";
const COUNTERS: &str = "counters ";
const EVIDENCE: &str = "evidence ";
const OUTPUT: &str = "output ";
/// Start of every line of a subtest (KTAP, "Test case result lines").
const INDENT: &str = "  ";
const SKIP: &str = "SKIP";

/// One line of a report.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// `KTAP version 1`.
    Version,
    /// `1..N`: the number of checks.
    Plan(u32),
    /// `# ready T`: all devices are there, T milliseconds after the guest's kernel started.
    Ready(u64),
    /// `# kill NAME`: a check asks the launcher to kill the server of this device.
    Kill(String),
    /// `# counters N`: a check asks for the devices' counters, by its request number N. The answer is [`crate::Counters`].
    Counters(u64),
    /// `# measure {json}`: figures of the check whose result comes next.
    Measure(Measure),
    /// `# evidence {json}`: the guest's evidence about peer-to-peer DMA.
    Evidence(Evidence),
    /// `# output text`: output of a command or a program while it runs.
    Output(String),
    /// `# text`: about the check whose result comes next.
    Diagnostic(String),
    /// An indented line: of the subtests of the check whose result comes next.
    /// [`crate::ProgramReport`] reads them.
    Nested(String),
    /// `ok N - name`, `not ok N - name` or `ok N - name # SKIP reason`.
    Result {
        /// Number of the check, from 1.
        number: u32,
        /// Name of the check.
        name: String,
        /// Its outcome.
        verdict: Verdict,
    },
    /// Anything else.
    Unknown(String),
}

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passed.
    Pass,
    /// It failed; the diagnostics before it tell the reason.
    Fail,
    /// It could not be run, for this reason.
    Skip(String),
}

impl Verdict {
    /// Returns its word in results and messages.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Skip(_) => "skip",
        }
    }
}

impl Line {
    /// Parses one line, without its newline. Every text is a valid line. The result can be shown on
    /// a terminal: control characters are replaced by blanks.
    pub fn parse(text: &str) -> Line {
        let text = printable(text);
        let text = text.as_ref();
        if text == VERSION {
            return Line::Version;
        }
        if text.starts_with(INDENT) {
            return Line::Nested(text.to_owned());
        }
        if let Some(comment) = text.strip_prefix('#') {
            return parse_comment(comment.strip_prefix(' ').unwrap_or(comment));
        }
        if let Some(count) = text
            .strip_prefix("1..")
            .and_then(|count| count.parse().ok())
        {
            return Line::Plan(count);
        }
        parse_result(text).unwrap_or_else(|| Line::Unknown(text.to_owned()))
    }
}

/// Returns the name that a reader finds in the result of a check of this name.
pub fn reported_name(name: &str) -> String {
    let result = Line::Result {
        number: 1,
        name: name.to_owned(),
        verdict: Verdict::Pass,
    };
    match Line::parse(&result.to_string()) {
        Line::Result { name, .. } => name,
        _ => name.to_owned(),
    }
}

fn parse_comment(text: &str) -> Line {
    if let Some(measure) = text.strip_prefix(MEASURE).and_then(read_json) {
        return Line::Measure(measure);
    }
    if let Some(uptime) = text
        .strip_prefix(READY)
        .and_then(|uptime| uptime.parse().ok())
    {
        return Line::Ready(uptime);
    }
    if let Some(name) = text.strip_prefix(KILL).filter(|name| is_one_word(name)) {
        return Line::Kill(name.to_owned());
    }
    if let Some(request) = text
        .strip_prefix(COUNTERS)
        .and_then(|request| request.parse().ok())
    {
        return Line::Counters(request);
    }
    if let Some(evidence) = text.strip_prefix(EVIDENCE).and_then(read_json) {
        return Line::Evidence(evidence);
    }
    match text.strip_prefix(OUTPUT) {
        Some(text) => Line::Output(text.to_owned()),
        None => Line::Diagnostic(text.to_owned()),
    }
}

/// Parses JSON and makes its strings printable: an escape sequence may stand for a control
/// character.
fn read_json<T: DeserializeOwned>(json: &str) -> Option<T> {
    let mut value = serde_json::from_str(json).ok()?;
    make_printable(&mut value);
    serde_json::from_value(value).ok()
}

fn make_printable(value: &mut Value) {
    match value {
        Value::String(text) => *text = printable(text).into_owned(),
        Value::Array(values) => values.iter_mut().for_each(make_printable),
        Value::Object(fields) => fields.values_mut().for_each(make_printable),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn is_one_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(char::is_whitespace)
}

fn parse_result(text: &str) -> Option<Line> {
    let (passed, rest) = match text.strip_prefix("not ok ") {
        Some(rest) => (false, rest),
        None => (true, text.strip_prefix("ok ")?),
    };
    let (number, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let number = number.parse().ok()?;
    let description = rest.strip_prefix("- ").unwrap_or(rest);
    let (name, directive) = split_directive(description);
    let skip = directive.and_then(|directive| directive.trim_start().strip_prefix(SKIP));
    let verdict = match (passed, skip) {
        (true, Some(reason)) => Verdict::Skip(reason.trim_start().to_owned()),
        (true, None) => Verdict::Pass,
        (false, _) => Verdict::Fail,
    };
    Some(Line::Result {
        number,
        name,
        verdict,
    })
}

/// Splits at the first `#` without a backslash before it, and removes the backslashes from the part
/// before it.
pub(super) fn split_directive(description: &str) -> (String, Option<&str>) {
    let mut name = String::new();
    let mut rest = description;
    let next = |rest: &'_ str| rest.find(['\\', '#']);
    while let Some((before, from)) = next(rest).and_then(|at| rest.split_at_checked(at)) {
        name.push_str(before);
        let Some(after) = from.strip_prefix('\\') else {
            return (name.trim_end().to_owned(), from.strip_prefix('#'));
        };
        let escaped = ['#', '\\']
            .into_iter()
            .find_map(|letter| Some((letter, after.strip_prefix(letter)?)));
        let (taken, left) = escaped.unwrap_or(('\\', after));
        name.push(taken);
        rest = left;
    }
    name.push_str(rest);
    (name.trim_end().to_owned(), None)
}

/// Returns `text` as one line: without control characters, without surrounding blanks.
fn one_line(text: &str) -> String {
    printable(text).trim().to_owned()
}

/// Returns `text` with blanks in place of control characters.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    let is_unprintable = |c: char| steers(c) && c != '\t';
    match text.contains(is_unprintable) {
        true => text.replace(is_unprintable, " ").into(),
        false => text.into(),
    }
}

fn json(value: &impl Serialize) -> Result<String, fmt::Error> {
    serde_json::to_string(value).map_err(|_| fmt::Error)
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::Version => f.write_str(VERSION),
            Line::Plan(count) => write!(f, "1..{count}"),
            Line::Ready(uptime) => write!(f, "# {READY}{uptime}"),
            Line::Kill(name) => write!(f, "# {KILL}{name}"),
            Line::Counters(request) => write!(f, "# {COUNTERS}{request}"),
            Line::Measure(measure) => write!(f, "# {MEASURE}{}", json(measure)?),
            Line::Evidence(evidence) => write!(f, "# {EVIDENCE}{}", json(evidence)?),
            Line::Output(text) => write!(f, "# {OUTPUT}{text}"),
            Line::Diagnostic(text) => write!(f, "# {text}"),
            Line::Result {
                number,
                name,
                verdict,
            } => {
                let status = if *verdict == Verdict::Fail {
                    "not ok"
                } else {
                    "ok"
                };
                let name = one_line(name).replace('\\', "\\\\").replace('#', "\\#");
                write!(f, "{status} {number} - {name}")?;
                match verdict {
                    Verdict::Skip(reason) => write!(f, " # {SKIP} {}", one_line(reason)),
                    Verdict::Pass | Verdict::Fail => Ok(()),
                }
            }
            Line::Nested(text) | Line::Unknown(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::KernelDecision;

    fn result(number: u32, name: &str, verdict: Verdict) -> Line {
        Line::Result {
            number,
            name: name.to_owned(),
            verdict,
        }
    }

    #[test]
    fn lines_read_as_the_kernel_documents_them() {
        assert_eq!(Line::parse("KTAP version 1"), Line::Version);
        assert_eq!(Line::parse("1..12"), Line::Plan(12));
        assert_eq!(Line::parse("# ready 2718"), Line::Ready(2718));
        assert_eq!(Line::parse("# kill gpu0"), Line::Kill("gpu0".into()));
        assert_eq!(Line::parse("# counters 12"), Line::Counters(12));
        assert_eq!(Line::parse("# output  a"), Line::Output(" a".into()));
        assert_eq!(Line::parse("  ok 1 a"), Line::Nested("  ok 1 a".into()));
        assert_eq!(
            Line::parse("# counters of a disk"),
            Line::Diagnostic("counters of a disk".into())
        );
        assert_eq!(
            Line::parse("# kill two words"),
            Line::Diagnostic("kill two words".into())
        );
        assert_eq!(
            Line::parse("# ready soon"),
            Line::Diagnostic("ready soon".into())
        );
        assert_eq!(
            Line::parse("ok 1 a name"),
            result(1, "a name", Verdict::Pass)
        );
        assert_eq!(
            Line::parse("not ok 2 - a name"),
            result(2, "a name", Verdict::Fail)
        );
        assert_eq!(
            Line::parse("ok 3 - a # SKIP no b"),
            result(3, "a", Verdict::Skip("no b".into()))
        );
        assert_eq!(Line::parse("ok 4"), result(4, "", Verdict::Pass));
        assert_eq!(Line::parse("okay 4"), Line::Unknown("okay 4".into()));
        assert_eq!(
            Line::parse("ok x - name"),
            Line::Unknown("ok x - name".into())
        );
    }

    #[test]
    fn a_name_cannot_forge_a_directive_or_a_line() {
        let line = result(1, "run \\# SKIP it\nnot ok 2 - x", Verdict::Fail);
        assert_eq!(
            line.to_string(),
            r"not ok 1 - run \\\# SKIP it not ok 2 - x"
        );
        let Line::Result { name, .. } = Line::parse(&line.to_string()) else {
            panic!("{line}")
        };
        assert_eq!(name, "run \\# SKIP it not ok 2 - x");
    }

    #[test]
    fn control_characters_behind_escapes_are_blanks() {
        let evidence = Line::parse(r##"# evidence {"unwatched":"\u009b2J\u001b[2J\u0085"}"##);
        let blanks = " 2J [2J ".to_owned();
        assert_eq!(evidence, Line::Evidence(Evidence::Unwatched(blanks)));
        assert_eq!(Line::parse(&evidence.to_string()), evidence);
    }

    #[test]
    fn evidence_survives_the_wire() {
        let text = r##"# evidence {"decision":{"provider":"0000:01:00.0","client":"0000:02:00.0","map_type":2}}"##;
        let line = Line::parse(text);
        let decision = KernelDecision {
            provider: "0000:01:00.0".to_owned(),
            client: "0000:02:00.0".to_owned(),
            map_type: 2,
        };
        assert_eq!(line, Line::Evidence(Evidence::Decision(decision)));
        assert_eq!(line.to_string(), text);
        let broken = "evidence {\"decision\":7}";
        assert_eq!(
            Line::parse(&format!("# {broken}")),
            Line::Diagnostic(broken.to_owned())
        );
    }

    proptest! {
        #[test]
        fn every_text_is_a_line(text in any::<String>()) {
            let line = Line::parse(&text);
            prop_assert!(!line.to_string().contains(|c: char| c.is_control() && c != '\t'));
        }

        #[test]
        fn results_survive_the_wire(
            number in any::<u32>(),
            name in "[ -~äß€]{0,40}",
            reason in "[ -~]{0,20}",
            kind in 0..3u8,
        ) {
            let verdict = match kind {
                0 => Verdict::Pass,
                1 => Verdict::Fail,
                _ => Verdict::Skip(reason.trim().to_owned()),
            };
            let line = result(number, name.trim(), verdict);
            prop_assert_eq!(Line::parse(&line.to_string()), line);
        }
    }
}
