//! A scenario file: read, or refused with the line that is wrong.

use std::path::Path;

use peerbar_lab::scenario::Scenario;

/// Reads `data`.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let path = Path::new("fuzz.toml");
    match Scenario::parse(path, text.to_owned()) {
        Ok(scenario) => drop((scenario.plan(), scenario.needs(), scenario.guest_files())),
        Err(error) => assert!(error.to_string().contains("fuzz.toml"), "{error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::corpus;

    #[test]
    fn every_seed_is_a_scenario() {
        for (name, seed) in corpus("scenario") {
            let text = String::from_utf8(seed).expect(&name);
            Scenario::parse(Path::new("fuzz.toml"), text).expect(&name);
        }
    }
}
