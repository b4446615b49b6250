//! A scenario file of one guest or of several: it is parsed, or refused with the wrong line.

use std::path::Path;

use peerbar_lab::guest_needs::GuestNeeds;
use peerbar_lab::scenario::{GuestGroup, Scenario, ScenarioError};

/// Reads `data`.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let path = Path::new("fuzz.toml");
    match read(path, text) {
        Ok(scenarios) => scenarios.iter().for_each(use_all),
        Err(error) => assert!(error.to_string().contains("fuzz.toml"), "{error}"),
    }
}

/// Returns the scenario of each guest.
fn read(path: &Path, text: &str) -> Result<Vec<Scenario>, ScenarioError> {
    match GuestGroup::parse_interactive(path, text)? {
        Some(group) => {
            let guests = group.guests.into_iter();
            Ok(guests.map(|guest| guest.scenario).collect())
        }
        None => Ok(vec![Scenario::parse(path, text.to_owned())?]),
    }
}

fn use_all(scenario: &Scenario) {
    drop((
        scenario.plan(),
        GuestNeeds::of(scenario),
        scenario.guest_files(),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::corpus;

    #[test]
    fn every_seed_is_a_scenario() {
        for (name, seed) in corpus("scenario") {
            let text = String::from_utf8(seed).expect(&name);
            read(Path::new("fuzz.toml"), &text).expect(&name);
        }
    }
}
