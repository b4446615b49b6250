//! The launcher's requests to an agent whose plan is interactive.

use serde::{Deserialize, Serialize};

use crate::Check;

/// A request, sent as one line of JSON once the agent is ready and has answered the previous
/// request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Run a check. The answer is its part of the report, up to its result line.
    Check(Box<Check>),
    /// End the report by its plan line, and power off.
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_one_line_and_reads_back() {
        let check = r#"{"check":{"kind":"controller-reset","device":"disk0"}}"#;
        for text in [check, r#""end""#] {
            let request: Request = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
        }
    }
}
