//! A rule for impairments, from the control socket or the command line. An accepted rule is printed
//! as a text that is accepted as the same rule.

use peerbar_fabric::Impairment;

/// Reads `data` as a rule.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(rule) = text.parse::<Impairment>() {
        let again = rule.to_string();
        assert_eq!(again.parse(), Ok(rule), "{again}");
    }
}
