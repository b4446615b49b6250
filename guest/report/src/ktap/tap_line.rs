//! Lines of the reports of programs: TAP and KTAP version 1.

use super::Verdict;
use super::line::{printable, split_directive};

/// The words of a result that has failed.
const FAILURE: &str = "not ok";
/// The words that end a report early.
pub(super) const BAIL_OUT: &str = "Bail out!";
/// The words that begin a directive, besides those that begin with `SKIP`.
const DIRECTIVES: [&str; 4] = ["TODO", "XFAIL", "TIMEOUT", "ERROR"];
/// Directives of an expected failure.
const EXPECTED: [&str; 2] = ["TODO", "XFAIL"];
/// Directives of a failure.
const FAILED: [&str; 2] = ["TIMEOUT", "ERROR"];

/// A line `ok 1 - name # DIRECTIVE reason`.
pub(super) struct ResultLine {
    /// Its number, if it has one. A number that is too large counts as the largest.
    pub(super) number: Option<usize>,
    pub(super) name: String,
    pub(super) verdict: Verdict,
    /// `true` if it and all results below it may fail (`TODO`, `XFAIL`).
    pub(super) is_failure_expected: bool,
}

impl ResultLine {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (ok, rest) = match text.strip_prefix(FAILURE) {
            Some(rest) => (false, rest),
            None => (true, text.strip_prefix("ok")?),
        };
        if !rest.is_empty() && !rest.starts_with(char::is_whitespace) {
            return None;
        }
        let rest = rest.trim_start();
        let (first, others) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let is_number = !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit());
        let (number, description) = match is_number {
            true => (
                Some(first.parse().unwrap_or(usize::MAX)),
                others.trim_start(),
            ),
            false => (None, rest),
        };
        let description = description.strip_prefix("- ").unwrap_or(description);
        let (name, directive) = match known_directive(description) {
            Some((name, directive)) => (unescaped(name), directive),
            // Other words after a `#`, such as a time, do not belong to the name.
            None => (split_directive(description).0, ""),
        };
        let word = directive.split_whitespace().next().unwrap_or_default();
        Some(Self {
            number,
            name,
            verdict: verdict(ok, directive),
            is_failure_expected: EXPECTED.iter().any(|each| word.eq_ignore_ascii_case(each)),
        })
    }
}

/// Splits at the first `#` before a directive's word. A name may contain a `#`, as in `issue #12`.
fn known_directive(description: &str) -> Option<(&str, &str)> {
    description.match_indices('#').find_map(|(at, _)| {
        let (name, directive) = description.split_at_checked(at)?;
        let directive = directive.strip_prefix('#')?.trim_start();
        let word = directive.split_whitespace().next()?.to_ascii_uppercase();
        let is_known = word.starts_with("SKIP") || DIRECTIVES.contains(&word.as_str());
        let is_apart = name.is_empty() || name.ends_with(char::is_whitespace);
        (is_known && is_apart).then_some((name, directive))
    })
}

/// Returns a name without the backslashes before `#` and before a backslash (TAP 14, "Escaping").
fn unescaped(name: &str) -> String {
    let parts: Vec<String> = name
        .trim_end()
        .split("\\\\")
        .map(|part| part.replace("\\#", "#"))
        .collect();
    parts.join("\\")
}

/// Returns the verdict. TAP and KTAP agree on `SKIP` and `TODO`; KTAP adds `XFAIL`, and `TIMEOUT`
/// and `ERROR`, which fail even on a line that is ok.
fn verdict(ok: bool, directive: &str) -> Verdict {
    let (word, reason) = directive
        .split_once(char::is_whitespace)
        .unwrap_or((directive, ""));
    match word.to_ascii_uppercase().as_str() {
        // TAP 13 has "SKIPPED:", too.
        word if word.starts_with("SKIP") => Verdict::Skip(reason.trim().to_owned()),
        word if EXPECTED.contains(&word) => Verdict::Pass,
        // In capitals, so that text about an error may follow a name.
        _ if FAILED.contains(&word) => Verdict::Fail,
        _ if ok => Verdict::Pass,
        _ => Verdict::Fail,
    }
}

/// Returns the number of `1..N`, and the reason of `# SKIP reason` behind it.
pub(super) fn plan(text: &str) -> Option<(usize, Option<String>)> {
    let rest = text.strip_prefix("1..")?;
    let (count, directive) = rest.split_once('#').unwrap_or((rest, ""));
    let skipped = match verdict(true, directive.trim_start()) {
        Verdict::Skip(reason) => Some(reason),
        Verdict::Pass | Verdict::Fail => None,
    };
    Some((count.trim().parse().ok()?, skipped))
}

/// Returns `true` if a line is `KTAP version 1` or `TAP version 13`, in any letter case and with
/// any continuation.
pub(super) fn is_version(text: &str) -> bool {
    let mut words = text.split_whitespace();
    let [kind, version, number] = [(); 3].map(|()| words.next().unwrap_or_default());
    let is_kind = ["KTAP", "TAP"]
        .iter()
        .any(|known| kind.eq_ignore_ascii_case(known));
    is_kind && version.eq_ignore_ascii_case("version") && number.parse::<u32>().is_ok()
}

/// Returns `true` if `lines` are a report of TAP before version 13, which has no version line: a
/// plan, and a numbered result or the reason to skip all.
pub(super) fn is_without_version(lines: &[String]) -> bool {
    let is_numbered =
        |line: &String| ResultLine::parse(line).is_some_and(|result| result.number.is_some());
    let has_result = lines.iter().any(is_numbered);
    let mut plans = lines.iter().filter_map(|line| plan(line));
    plans.any(|(_, skipped)| has_result || skipped.is_some())
}

/// Returns the lines of `output` as a terminal shows them, with a line for each of those that a
/// carriage return writes over one another.
pub(super) fn lines(output: &str) -> Vec<String> {
    let ends = [
        '\n', '\r', '\u{b}', '\u{c}', '\u{85}', '\u{2028}', '\u{2029}',
    ];
    output.split(ends).map(plain).collect()
}

/// Returns a line without colours and without the kernel's time stamp (dmesg(1)).
fn plain(line: &str) -> String {
    let mut parts = line.split('\x1b');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // ECMA-48, 5.4: parameters, and the letter that ends them.
        let end = part.strip_prefix('[').and_then(|rest| {
            let end = rest.find(|letter: char| ('@'..='~').contains(&letter))?;
            rest.get(end.saturating_add(1)..)
        });
        text.push_str(end.unwrap_or(part));
    }
    let text = printable(&text).into_owned();
    without_stamp(&text).map(str::to_owned).unwrap_or(text)
}

/// Returns the text after the kernel's time stamp, such as `[ 12.345678] `.
fn without_stamp(line: &str) -> Option<&str> {
    let (stamp, rest) = line.strip_prefix('[')?.split_once(']')?;
    let (seconds, fraction) = stamp.trim_start().split_once('.')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(seconds) && is_number(fraction)).then(|| rest.strip_prefix(' ').unwrap_or(rest))
}

/// Returns `true` if a line ends with a version line, but behind other text. Comments may mention
/// versions.
pub(super) fn ends_with_version(line: &str) -> bool {
    let version = line.rsplit_once("TAP version ");
    let is_comment = line.trim_start().starts_with('#');
    version.is_some_and(|(_, number)| number.trim_end().parse::<u32>().is_ok()) && !is_comment
}

/// Returns `true` for a version line, also behind other text.
pub(super) fn is_start(line: &str) -> bool {
    is_version(line) || ends_with_version(line)
}

/// Returns the reason of a line that ends the report early, `Bail out! reason`.
pub(super) fn bail_out(text: &str) -> Option<&str> {
    let (words, reason) = text.split_at_checked(BAIL_OUT.len())?;
    words
        .eq_ignore_ascii_case(BAIL_OUT)
        .then_some(reason.trim())
}

/// Returns `true` if a line has a failure or an early end, but behind other text:
/// `... not ok 2 - name`. The plan detects a lost success.
pub(super) fn has_failure_behind_text(text: &str) -> bool {
    let is_failure = |after: &str| {
        let word = after.trim_start();
        let is_apart = after.len() > word.len();
        is_apart && word.starts_with(|first: char| first.is_ascii_digit() || first == '-')
    };
    text.split(FAILURE).skip(1).any(is_failure) || text.contains(BAIL_OUT)
}

/// Returns `true` if a line begins as a failure and continues differently, such as `not ok: name`.
/// `not okay` does not.
pub(super) fn is_odd_failure(text: &str) -> bool {
    let rest = text.strip_prefix(FAILURE);
    rest.is_some_and(|rest| rest.starts_with(|first: char| !first.is_alphanumeric()))
}

pub(super) fn indent(line: &str) -> usize {
    line.len().saturating_sub(line.trim_start().len())
}
