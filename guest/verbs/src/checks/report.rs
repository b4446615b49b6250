//! The results, as KTAP version 1.

use std::fmt;

use anyhow::{bail, ensure};

/// Takes a result with its name.
pub(crate) type AddResult<'a> = &'a mut dyn FnMut(&str, anyhow::Result<()>);

/// Results, each with its name, and the reason of a failure.
#[derive(Debug, Default)]
pub(crate) struct Report {
    results: Vec<(String, Result<(), String>)>,
}

impl Report {
    /// Adds a result.
    pub(crate) fn add(&mut self, name: impl Into<String>, result: anyhow::Result<()>) {
        let result = result.map_err(|error| format!("{error:#}"));
        self.results.push((name.into(), result));
    }

    /// Returns `true` if there is a failure, or no result.
    pub(crate) fn has_failed(&self) -> bool {
        self.results.is_empty() || self.results.iter().any(|(_, result)| result.is_err())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "KTAP version 1\n1..{}", self.results.len())?;
        for (number, (name, result)) in (1..).zip(&self.results) {
            match result {
                Ok(()) => writeln!(f, "ok {number} {name}")?,
                Err(reason) => {
                    let reason = reason.replace('\n', "; ");
                    writeln!(f, "# {reason}\nnot ok {number} {name}")?;
                }
            }
        }
        Ok(())
    }
}

/// Fails unless something was refused, with this error number.
pub(crate) fn refused<T, E: Into<anyhow::Error>>(
    asked: Result<T, E>,
    wanted: i32,
) -> anyhow::Result<()> {
    let Err(error) = asked.map_err(Into::into) else {
        bail!("it was taken");
    };
    let known = error.downcast_ref::<peerbar_verbs::Error>();
    ensure!(
        known.and_then(peerbar_verbs::Error::number) == Some(wanted),
        "the reason is not error {wanted}, but: {error:#}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_ktap_with_reasons() {
        let mut report = Report::default();
        assert!(report.has_failed());
        report.add("one", Ok(()));
        assert!(!report.has_failed());
        report.add("two", Err(anyhow::anyhow!("a\nb")));
        assert!(report.has_failed());
        let text = "KTAP version 1\n1..2\nok 1 one\n# a; b\nnot ok 2 two\n";
        assert_eq!(report.to_string(), text);
    }
}
