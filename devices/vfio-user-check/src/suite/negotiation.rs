//! VERSION in other forms, each on a connection of its own. After each of these tests the next
//! client must be served, too.

use crate::checker::Checker;
use crate::outcome::Outcome;
use crate::session::{PROPOSED, Session, device_info, request_text};
use crate::suite::version::capabilities;
use crate::test::{Group, specified};
use crate::wire::{self, command, u16_at};

pub(super) const GROUP: Group = Group {
    name: "negotiation",
    tests: &[
        (
            "without-data",
            specified("VERSION", "version data is optional"),
            without_data,
        ),
        (
            "without-capabilities",
            specified(
                "VERSION",
                "the capabilities in the version data are optional",
            ),
            without_capabilities,
        ),
        (
            "higher-minor",
            specified(
                "VERSION",
                "the minor version in the reply is equal to or less than the proposed one, here 9",
            ),
            higher_minor,
        ),
        (
            "subset",
            specified(
                "VERSION",
                "the capabilities in the reply are a subset of those proposed, here an unknown one and pgsizes",
            ),
            subset,
        ),
        (
            "twin-socket",
            specified(
                "VERSION",
                "twin_socket is set up only with supported true, and with the index of a descriptor in the message",
            ),
            twin_socket,
        ),
        (
            "unknown-major",
            specified(
                "Connection Initiation",
                "the server closes the connection if it cannot support the advertised version",
            ),
            unknown_major,
        ),
        (
            "not-json",
            specified(
                "Security Considerations",
                "input is validated: version data that is not JSON is no reason to end",
            ),
            not_json,
        ),
        (
            "deep-json",
            specified(
                "Security Considerations",
                "input is validated: version data that nests without end is no reason to end",
            ),
            deep_json,
        ),
        (
            "other-types",
            specified(
                "Security Considerations",
                "input is validated: capabilities of other types are no reason to end",
            ),
            other_types,
        ),
        (
            "short",
            specified(
                "Security Considerations",
                "input is validated: a VERSION without its numbers is refused",
            ),
            short,
        ),
        (
            "twice",
            specified(
                "VERSION",
                "VERSION is the initial message: a server survives a second one",
            ),
            twice,
        ),
        (
            "missing",
            specified(
                "VERSION",
                "the client must send VERSION first: a server survives one that does not",
            ),
            missing,
        ),
    ],
};

/// Bytes of a proposal that a diagnostic shows.
const SHOWN: usize = 300;

/// Proposes a version on a new connection. Returns the payload of the reply.
fn propose(checker: &mut Checker, proposal: &[u8]) -> Outcome<Vec<u8>> {
    let session = checker.fresh()?;
    let reply = session.success(command::VERSION, proposal)?;
    let is_same = u16_at(&reply.payload, 0) == Some(0);
    session.expect(is_same, "the major version 0")?;
    Ok(reply.payload)
}

/// Proposes a version, which may be refused.
fn survives(checker: &mut Checker, proposal: &[u8]) -> Outcome {
    let session = checker.fresh()?;
    send(session, proposal)?;
    session.answered_or_hung_up()
}

/// Proposes a version, which must be refused.
fn refused(checker: &mut Checker, proposal: &[u8]) -> Outcome {
    let session = checker.fresh()?;
    send(session, proposal)?;
    session.refused_or_hung_up()
}

fn send(session: &mut Session, proposal: &[u8]) -> Outcome {
    let start = proposal.get(..SHOWN).unwrap_or(proposal);
    let text = request_text(command::VERSION, start, 0);
    session.send(text, &wire::message(1, command::VERSION, 0, proposal))
}

fn without_data(checker: &mut Checker) -> Outcome {
    propose(checker, &[0; 4]).map(drop)
}

fn without_capabilities(checker: &mut Checker) -> Outcome {
    for json in ["{}", r#"{"capabilities":{}}"#] {
        propose(checker, &wire::version(0, 0, json))?;
    }
    Ok(())
}

fn higher_minor(checker: &mut Checker) -> Outcome {
    let reply = propose(checker, &wire::version(0, 9, PROPOSED))?;
    let minor = u16_at(&reply, 2);
    let is_possible = minor.is_some_and(|minor| minor <= 9);
    checker
        .current()?
        .expect(is_possible, "a minor version of at most 9")
}

fn subset(checker: &mut Checker) -> Outcome {
    let json = r#"{"capabilities":{"pgsizes":4096,"x-peerbar":1}}"#;
    let reply = propose(checker, &wire::version(0, 0, json))?;
    let found = capabilities(&reply).unwrap_or_default();
    let is_subset = found
        .keys()
        .all(|name| ["pgsizes", "x-peerbar"].contains(&name.as_str()));
    checker
        .current()?
        .expect(is_subset, "no capability besides pgsizes")
}

fn twin_socket(checker: &mut Checker) -> Outcome {
    let json = r#"{"capabilities":{"twin_socket":{"supported":true}}}"#;
    let session = checker.fresh()?;
    let reply = session.success(command::VERSION, &wire::version(0, 0, json))?;
    let capabilities = capabilities(&reply.payload).unwrap_or_default();
    let twin = capabilities.get("twin_socket");
    let is_supported = twin.and_then(|twin| twin.get("supported")?.as_bool());
    let index = twin.and_then(|twin| twin.get("fd_index")?.as_u64());
    let index = index.and_then(|index| usize::try_from(index).ok());
    let is_right = match is_supported {
        Some(true) => index.is_some_and(|index| index < reply.descriptors.len()),
        _ => reply.descriptors.is_empty(),
    };
    session.expect(is_right, "no twin_socket, or one with its descriptor")
}

fn unknown_major(checker: &mut Checker) -> Outcome {
    refused(checker, &wire::version(0xfffe, 0, PROPOSED))
}

fn not_json(checker: &mut Checker) -> Outcome {
    for data in ["garbage", "[]", "{", r#"{"capabilities":[]}"#, "\u{1}"] {
        survives(checker, &wire::version(0, 0, data))?;
    }
    let without_nul = [&[0; 4], PROPOSED.as_bytes()].concat();
    survives(checker, &without_nul)
}

fn deep_json(checker: &mut Checker) -> Outcome {
    let data = format!(r#"{{"capabilities":{}"#, "[".repeat(50_000));
    survives(checker, &wire::version(0, 0, &data))
}

fn other_types(checker: &mut Checker) -> Outcome {
    for capabilities in [
        r#""max_msg_fds":-1"#,
        r#""max_msg_fds":1000000000000"#,
        r#""max_data_xfer_size":0"#,
        r#""max_data_xfer_size":"1""#,
        r#""twin_socket":true"#,
        r#""write_multiple":7"#,
    ] {
        let data = format!(r#"{{"capabilities":{{{capabilities}}}}}"#);
        survives(checker, &wire::version(0, 0, &data))?;
    }
    Ok(())
}

fn short(checker: &mut Checker) -> Outcome {
    refused(checker, &[])?;
    refused(checker, &[0; 3])
}

fn twice(checker: &mut Checker) -> Outcome {
    let session = checker.fresh_agreed()?;
    send(session, &wire::version(0, 0, PROPOSED))?;
    session.answered_or_hung_up()
}

fn missing(checker: &mut Checker) -> Outcome {
    let session = checker.fresh()?;
    let message = wire::message(1, command::INFO, 0, &device_info(16));
    session.send("DEVICE_GET_INFO before VERSION", &message)?;
    session.answered_or_hung_up()
}
