//! Words of people and of guests: placeholders, sizes, time limits, kernel releases, lines of a
//! trace.

use peerbar_report::{Size, Timeout, TraceLine, fill_in};
use peerbar_rule::{Release, Vendor};

/// Reads `data` as each of them.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(size) = text.parse::<Size>() {
        assert_eq!(size.to_string().parse(), Ok(size));
    }
    if let Ok(timeout) = text.parse::<Timeout>() {
        assert!((1..=86400).contains(&timeout.seconds()));
    }
    if let Some(release) = Release::parse(text) {
        assert_eq!(Release::parse(&format!("{release:#}")), Some(release));
    }
    if let Some(line) = TraceLine::parse(text) {
        let printed = line.to_string();
        let again = TraceLine::parse(&printed).map(|line| line.to_string());
        assert_eq!(again, Some(printed));
    }
    let _ = Vendor::from_id(text);
    let filled = fill_in(text, |key| Ok::<_, ()>(format!("<{key}>"))).expect("nothing is refused");
    if !text.contains(['{', '}']) {
        assert_eq!(filled, text);
    }
}
