//! The reply to the first VERSION, by which the shared connection begins.

use serde_json::{Map, Value};

use crate::checker::Checker;
use crate::outcome::Outcome;
use crate::session::{PROPOSED, Session};
use crate::test::{Group, specified};
use crate::wire::u16_at;

pub(super) const GROUP: Group = Group {
    name: "version",
    tests: &[
        (
            "answer",
            specified(
                "Connection Initiation",
                "the server replies with a compatible version and the capabilities that it supports",
            ),
            answer,
        ),
        (
            "major",
            specified(
                "VERSION",
                "the major version in the reply is the same as proposed",
            ),
            major,
        ),
        (
            "minor",
            specified(
                "VERSION",
                "the minor version in the reply is equal to or less than the proposed one",
            ),
            minor,
        ),
        (
            "data",
            specified(
                "VERSION",
                "the version data is JSON in UTF-8 with a terminating NUL, and its capabilities are an object",
            ),
            data,
        ),
        (
            "types",
            specified(
                "VERSION",
                "sizes and counts are numbers, twin_socket is an object, write_multiple a boolean",
            ),
            types,
        ),
        (
            "subset",
            specified(
                "VERSION",
                "the capabilities in the reply are a subset of those proposed",
            ),
            subset,
        ),
    ],
};

/// Capabilities whose value is a number that is not 0.
const NUMBERS: [&str; 4] = [
    "max_msg_fds",
    "max_data_xfer_size",
    "max_dma_maps",
    "pgsizes",
];

fn answer(checker: &mut Checker) -> Outcome {
    checker.session().map(drop)
}

fn major(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let is_same = u16_at(&session.version, 0) == Some(0);
    session.expect_of_version(is_same, "the major version 0")
}

fn minor(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let is_possible = u16_at(&session.version, 2) == Some(0);
    session.expect_of_version(is_possible, "the minor version 0, which was proposed")
}

fn data(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let is_object = capabilities(&session.version).is_some();
    session.expect_of_version(is_object, "nothing, or JSON with the object capabilities")
}

fn types(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    for (name, value) in capabilities(&session.version).unwrap_or_default() {
        let is_right = match name.as_str() {
            name if NUMBERS.contains(&name) => value.as_u64().is_some_and(|number| number > 0),
            "twin_socket" => value.is_object(),
            "write_multiple" => value.is_boolean(),
            _ => true,
        };
        session.expect_of_version(is_right, &format!("another type of {name}"))?;
    }
    Ok(())
}

fn subset(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    for (name, _) in capabilities(&session.version).unwrap_or_default() {
        let is_proposed = PROPOSED.contains(&format!("\"{name}\""));
        let expected = format!("no capability {name}, which was not proposed");
        session.expect_of_version(is_proposed, &expected)?;
    }
    Ok(())
}

/// Returns the capabilities in a reply to VERSION, or `None` if its data is malformed.
pub(super) fn capabilities(version: &[u8]) -> Option<Map<String, Value>> {
    let data = version.get(4..)?;
    let Some((nul, json)) = data.split_last() else {
        return Some(Map::new());
    };
    if *nul != 0 {
        return None;
    }
    if json.is_empty() {
        return Some(Map::new());
    }
    let data: Map<String, Value> = serde_json::from_slice(json).ok()?;
    match data.get("capabilities") {
        None => Some(Map::new()),
        Some(Value::Object(capabilities)) => Some(capabilities.clone()),
        Some(_) => None,
    }
}

impl Session {
    /// Fails with the exchange of VERSION unless it is as it must be.
    fn expect_of_version(&self, is_right: bool, expected: &str) -> Outcome {
        match is_right {
            true => Ok(()),
            false => Err(self.violation_of_version(expected)),
        }
    }
}
