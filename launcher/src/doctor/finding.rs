//! The result of a probe.

use peerbar_lab::table::hanging;
use serde::Serialize;

/// One line of the doctor's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// Name of the probe.
    pub(super) probe: &'static str,
    /// The state.
    pub(super) state: State,
    /// Description of the state.
    pub(super) found: String,
    /// A way to mend it.
    pub(super) mend: Option<String>,
}

/// State of a part of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// Without a problem.
    Ok,
    /// Things work, but slower or with less.
    Limited,
    /// A run fails.
    Failed,
}

impl Finding {
    pub(super) fn ok(probe: &'static str, found: impl Into<String>) -> Self {
        Self {
            probe,
            state: State::Ok,
            found: found.into(),
            mend: None,
        }
    }

    pub(super) fn limited(
        probe: &'static str,
        found: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self {
            state: State::Limited,
            mend: Some(mend.into()),
            ..Self::ok(probe, found)
        }
    }

    pub(super) fn failed(
        probe: &'static str,
        found: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self {
            state: State::Failed,
            ..Self::limited(probe, found, mend)
        }
    }

    /// Returns a line for people, in several where it is wider than `columns`. That of a failure
    /// ends with the way to mend it.
    pub(super) fn line(&self, columns: Option<u16>) -> String {
        let word = match self.state {
            State::Ok => "ok",
            State::Limited => "limited",
            State::Failed => "FAILED",
        };
        let mend = match &self.mend {
            Some(mend) => format!(": {mend}"),
            None => String::new(),
        };
        let head = format!("{word:<8} {:<14} ", self.probe);
        hanging(&head, &format!("{}{mend}", self.found), columns)
    }
}
