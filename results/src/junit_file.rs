//! The elements of a JUnit file (github.com/testmoapp/junitxml describes them).

use std::collections::BTreeSet;
use std::io;

use peerbar_report::steers;
use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesText, Event};

/// Cases that belong together.
#[derive(Debug, Default)]
pub(crate) struct Suite {
    pub(crate) name: String,
    /// The time at which it began.
    pub(crate) timestamp: Option<String>,
    /// Its duration.
    pub(crate) seconds: Option<f64>,
    /// Further facts, by key.
    pub(crate) properties: Vec<(&'static str, String)>,
    pub(crate) cases: Vec<Case>,
    /// Its output.
    pub(crate) output: String,
}

impl Suite {
    fn count(&self, is_counted: impl Fn(&Outcome) -> bool) -> usize {
        let outcomes = self.cases.iter().map(|case| &case.outcome);
        outcomes.filter(|outcome| is_counted(outcome)).count()
    }
}

/// One test.
#[derive(Debug)]
pub(crate) struct Case {
    class: String,
    name: String,
    seconds: Option<f64>,
    outcome: Outcome,
}

impl Case {
    /// Makes a case without a time.
    pub(crate) fn new(class: &str, name: &str, outcome: Outcome) -> Self {
        Self {
            class: class.to_owned(),
            name: name.to_owned(),
            seconds: None,
            outcome,
        }
    }

    /// Sets its duration.
    pub(crate) fn lasting(mut self, seconds: f64) -> Self {
        self.seconds = Some(seconds);
        self
    }
}

/// The outcome of a case.
#[derive(Debug)]
pub(crate) enum Outcome {
    Success,
    /// With the reason.
    Skipped(String),
    Trouble {
        kind: Trouble,
        /// A word for the failure.
        what: String,
        /// All details. The first line is the message.
        text: String,
    },
}

/// The kind of a failure: the case found an error, or could not be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    Failure,
    Error,
}

/// Returns the file.
pub(crate) fn write(name: &str, suites: &[Suite]) -> io::Result<String> {
    let mut bytes = Vec::new();
    let mut file = Writer::new_with_indent(&mut bytes, b' ', 4);
    file.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
    let counts = counts(|is_counted| suites.iter().map(|suite| suite.count(is_counted)).sum());
    let [tests, skipped, failures, errors] = &counts;
    file.create_element("testsuites")
        .with_attribute(("name", plain(name).as_str()))
        .with_attribute(("tests", tests.as_str()))
        .with_attribute(("skipped", skipped.as_str()))
        .with_attribute(("failures", failures.as_str()))
        .with_attribute(("errors", errors.as_str()))
        .write_inner_content(|file| suites.iter().try_for_each(|suite| write_suite(file, suite)))?;
    bytes.push(b'\n');
    String::from_utf8(bytes).map_err(io::Error::other)
}

/// Returns the number of all cases, and of those that were skipped, failed, or had an error.
fn counts(count: impl Fn(fn(&Outcome) -> bool) -> usize) -> [String; 4] {
    let are: [fn(&Outcome) -> bool; 4] = [
        |_| true,
        |outcome| matches!(outcome, Outcome::Skipped(_)),
        |outcome| matches!(outcome, Outcome::Trouble { kind, .. } if *kind == Trouble::Failure),
        |outcome| matches!(outcome, Outcome::Trouble { kind, .. } if *kind == Trouble::Error),
    ];
    are.map(|is_counted| count(is_counted).to_string())
}

fn write_suite(file: &mut Writer<&mut Vec<u8>>, suite: &Suite) -> io::Result<()> {
    let [tests, skipped, failures, errors] = counts(|is_counted| suite.count(is_counted));
    let mut element = file
        .create_element("testsuite")
        .with_attribute(("name", plain(&suite.name).as_str()))
        .with_attribute(("tests", tests.as_str()))
        .with_attribute(("skipped", skipped.as_str()))
        .with_attribute(("errors", errors.as_str()))
        .with_attribute(("failures", failures.as_str()));
    if let Some(timestamp) = &suite.timestamp {
        element = element.with_attribute(("timestamp", timestamp.as_str()));
    }
    if let Some(seconds) = suite.seconds {
        element = element.with_attribute(("time", time(seconds).as_str()));
    }
    element.write_inner_content(|file| {
        if !suite.properties.is_empty() {
            let properties = file.create_element("properties");
            properties.write_inner_content(|file| {
                suite.properties.iter().try_for_each(|(key, value)| {
                    let property = file.create_element("property");
                    let property = property.with_attribute(("name", *key));
                    let property = property.with_attribute(("value", plain(value).as_str()));
                    property.write_empty().map(drop)
                })
            })?;
        }
        let mut taken = BTreeSet::new();
        for case in &suite.cases {
            let class = plain(&case.class);
            let name = free_name(plain(&case.name), |name| {
                taken.insert((class.clone(), name.to_owned()))
            });
            write_case(file, &class, &name, case)?;
        }
        let output = plain(&suite.output);
        if !output.is_empty() {
            let element = file.create_element("system-out");
            element.write_text_content(BytesText::new(&output))?;
        }
        Ok(())
    })?;
    Ok(())
}

/// Returns the `name` of a case, with a number if another case of its class has that name: readers
/// take cases with the same name for attempts of one test, and a failure together with a pass for a
/// flaky test. A program chooses the names of subtests, and checks that the scenario does not name
/// may share a name.
fn free_name(name: String, mut take: impl FnMut(&str) -> bool) -> String {
    if take(&name) {
        return name;
    }
    let mut numbered = (2_u32..).map(|number| format!("{name} #{number}"));
    numbered.find(|name| take(name)).unwrap_or(name)
}

fn write_case(
    file: &mut Writer<&mut Vec<u8>>,
    class: &str,
    name: &str,
    case: &Case,
) -> io::Result<()> {
    let mut element = file
        .create_element("testcase")
        .with_attribute(("name", name))
        .with_attribute(("classname", class));
    if let Some(seconds) = case.seconds {
        element = element.with_attribute(("time", time(seconds).as_str()));
    }
    match &case.outcome {
        Outcome::Success => element.write_empty()?,
        Outcome::Skipped(reason) => element.write_inner_content(|file| {
            let skipped = file.create_element("skipped");
            let skipped = skipped.with_attribute(("message", plain(reason).as_str()));
            skipped.write_empty().map(drop)
        })?,
        Outcome::Trouble { kind, what, text } => element.write_inner_content(|file| {
            let name = match kind {
                Trouble::Failure => "failure",
                Trouble::Error => "error",
            };
            let message = text.lines().next().unwrap_or_default();
            file.create_element(name)
                .with_attribute(("message", plain(message).as_str()))
                .with_attribute(("type", plain(what).as_str()))
                .write_text_content(BytesText::new(&plain(text)))
                .map(drop)
        })?,
    };
    Ok(())
}

fn time(seconds: f64) -> String {
    format!("{:.3}", seconds.max(0.0))
}

/// Returns the text without characters that XML cannot hold, without a terminal's escape sequences,
/// which a guest's console has, and without characters that reorder text.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            // ECMA-48, 5.4: a control sequence ends with the first of these.
            '\x1b' if characters.as_str().starts_with('[') => {
                characters
                    .by_ref()
                    .skip(1)
                    .find(|it| ('@'..='~').contains(it));
            }
            '\t' | '\n' | '\r' => plain.push(character),
            '\u{fffe}' | '\u{ffff}' => {}
            _ if steers(character) => {}
            _ => plain.push(character),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_keeps_no_escape_sequence_and_no_character_that_xml_forbids() {
        let text = "\u{1b}[1;31mFAIL\u{1b}[0m:\tü <a>\u{0}\u{7}\u{ffff}\u{202e}\nnext\u{1b}[";
        assert_eq!(plain(text), "FAIL:\tü <a>\nnext");
    }

    #[test]
    fn negative_time_is_none() {
        assert_eq!(
            [-1.0, f64::NAN, 0.0015].map(time),
            ["0.000", "0.000", "0.002"]
        );
    }
}
