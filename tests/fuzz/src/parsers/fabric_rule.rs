//! A rule for impairments, as the control socket and the command line take it: what is taken is written as what is taken as the same.

use peerbar_fabric::Impairment;

/// Reads `data` as a rule.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(rule) = text.parse::<Impairment>() {
        let again = rule.to_string();
        assert_eq!(again.parse(), Ok(rule), "{again}");
    }
}
