//! The results, as KTAP version 1.

use std::fmt;
use std::time::Duration;

use anyhow::{bail, ensure};

/// Results, each with its name, and the reason of a failure.
#[derive(Debug, Default)]
pub(crate) struct Report {
    results: Vec<(String, Result<(), String>)>,
    /// Payload bytes of the work requests that succeeded.
    payload: u64,
    /// The time that they took, one after the other.
    elapsed: Duration,
}

impl Report {
    /// Adds a result.
    pub(crate) fn add(&mut self, name: impl Into<String>, result: anyhow::Result<()>) {
        let result = result.map_err(|error| format!("{error:#}"));
        self.results.push((name.into(), result));
    }

    /// Counts a request's payload, and the time that it took.
    pub(crate) fn count(&mut self, bytes: u64, elapsed: Duration) {
        self.payload = self.payload.saturating_add(bytes);
        self.elapsed = self.elapsed.saturating_add(elapsed);
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
        let seconds = self.elapsed.as_secs_f64();
        writeln!(f, "# payload {} in {seconds:.6} s", self.payload)
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
    fn report_is_ktap_with_reasons_and_payload() {
        let mut report = Report::default();
        assert!(report.has_failed());
        report.add("one", Ok(()));
        report.count(64, Duration::from_millis(2));
        assert!(!report.has_failed());
        report.add("two", Err(anyhow::anyhow!("a\nb")));
        assert!(report.has_failed());
        let text =
            "KTAP version 1\n1..2\nok 1 one\n# a; b\nnot ok 2 two\n# payload 64 in 0.002000 s\n";
        assert_eq!(report.to_string(), text);
    }
}
