//! The text of a fault rule. An accepted rule is printed as a text with the same meaning.

use peerbar_fault::Rule;

/// Reads `data`.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match text.parse::<Rule>() {
        Ok(rule) => {
            let printed = rule.to_string();
            assert_eq!(printed.parse().as_ref(), Ok(&rule), "{printed:?}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
