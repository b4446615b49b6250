//! Headers, and the stream of messages.

use crate::checker::Checker;
use crate::outcome::Outcome;
use crate::session::{device_info, is_error};
use crate::test::{Group, specified};
use crate::wire::{self, CONFIG, REPLY, command};

pub(super) const GROUP: Group = Group {
    name: "header",
    tests: &[
        (
            "id",
            specified(
                "Header",
                "the message ID is echoed in the reply; the receiver makes no assumption about its uniqueness",
            ),
            id,
        ),
        (
            "command",
            specified("Header", "the command is also set in the reply"),
            command_is_repeated,
        ),
        (
            "reply-type",
            specified(
                "Header",
                "the type of a reply is 1; it acknowledges a command with the same message ID",
            ),
            reply_type,
        ),
        (
            "size",
            specified(
                "Header",
                "the message size contains the size of the entire message",
            ),
            size,
        ),
        (
            "in-order",
            specified(
                "Command Concurrency",
                "a client may pipeline commands; the server processes them in the order of their arrival",
            ),
            in_order,
        ),
        (
            "in-pieces",
            specified(
                "Socket",
                "messages pass over a stream socket, which has no boundaries but the message sizes in the headers",
            ),
            in_pieces,
        ),
        (
            "no-reply",
            specified(
                "Header",
                "a command with No_reply needs no reply, so none comes",
            ),
            no_reply,
        ),
        (
            "no-reply-error",
            specified(
                "Header",
                "a command with No_reply needs no reply, even if it fails",
            ),
            no_reply_error,
        ),
        (
            "unknown-command",
            specified(
                "Header",
                "each command is replied to, and Error in the reply indicates that it had an error",
            ),
            unknown_command,
        ),
        (
            "unknown-payload",
            specified(
                "Header",
                "the message size tells where the next message begins, also after an unknown command",
            ),
            unknown_payload,
        ),
        (
            "error-header",
            specified("Header", "an error reply includes only the header"),
            error_header,
        ),
        (
            "longer-payload",
            specified(
                "Header",
                "the message size tells where the next message begins, also after a payload that is too long",
            ),
            longer_payload,
        ),
        (
            "shorter-payload",
            specified(
                "Security Considerations",
                "input is validated: a payload shorter than its command requires is refused",
            ),
            shorter_payload,
        ),
        (
            "server-commands",
            specified(
                "Commands",
                "DMA_READ and DMA_WRITE are sent by the server, so a server refuses them",
            ),
            server_commands,
        ),
    ],
};

/// A command that the specification does not have.
const UNKNOWN: u16 = 0x7fff;

/// Sends DEVICE_GET_INFO with this id, and receives a message.
fn exchange(checker: &mut Checker, id: u16) -> Outcome<wire::Message> {
    let session = checker.session()?;
    let bytes = wire::message(id, command::INFO, 0, &device_info(16));
    session.send(
        format!("DEVICE_GET_INFO with the message ID {id:#x}"),
        &bytes,
    )?;
    session.receive()
}

fn id(checker: &mut Checker) -> Outcome {
    for id in [0, 0xffff, 1, 1] {
        let reply = exchange(checker, id)?;
        checker
            .session()?
            .expect_equal("message ID", reply.id, id)?;
    }
    Ok(())
}

fn command_is_repeated(checker: &mut Checker) -> Outcome {
    let reply = exchange(checker, 7)?;
    let session = checker.session()?;
    session.expect_equal("command", reply.command, command::INFO)
}

fn reply_type(checker: &mut Checker) -> Outcome {
    let reply = exchange(checker, 7)?;
    let session = checker.session()?;
    session.expect_equal("type", reply.flags & 0xf, REPLY)
}

fn size(checker: &mut Checker) -> Outcome {
    for id in [7, 8] {
        let reply = exchange(checker, id)?;
        let session = checker.session()?;
        session.expect_equal("message ID", reply.id, id)?;
    }
    let session = checker.session()?;
    session.expect(!session.raw.is_readable(), "nothing after the two replies")
}

fn in_order(checker: &mut Checker) -> Outcome {
    const COMMANDS: u16 = 32;
    let session = checker.session()?;
    let commands: Vec<u8> = (0..COMMANDS)
        .flat_map(|id| {
            let access = wire::region_access(CONFIG, u64::from(id), 1);
            wire::message(id, command::REGION_READ, 0, &access)
        })
        .collect();
    session.send(
        format!("{COMMANDS} reads of config space at once"),
        &commands,
    )?;
    for id in 0..COMMANDS {
        let reply = session.receive()?;
        session.expect_equal("message ID", reply.id, id)?;
    }
    Ok(())
}

fn in_pieces(checker: &mut Checker) -> Outcome {
    // A server may find the pieces together, by chance.
    const MESSAGES: u16 = 16;
    let session = checker.session()?;
    // After a failure, nobody knows where the server expects the next message.
    session.in_sync = false;
    for id in 0..MESSAGES {
        for byte in wire::message(id, command::INFO, 0, &device_info(16)) {
            session.send("DEVICE_GET_INFO, byte by byte", &[byte])?;
        }
        let reply = session.receive()?;
        session.expect_equal("message ID", reply.id, id)?;
        session.expect(!is_error(&reply), "success")?;
    }
    session.in_sync = true;
    Ok(())
}

fn no_reply(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let posted = wire::message(1, command::INFO, wire::NO_REPLY, &device_info(16));
    let asked = wire::message(2, command::INFO, 0, &device_info(16));
    let text = "DEVICE_GET_INFO with No_reply and the message ID 1, then DEVICE_GET_INFO with 2";
    session.send(text, &[posted, asked].concat())?;
    let reply = session.receive()?;
    session.in_sync = reply.id == 2;
    session.expect_equal("message ID", reply.id, 2)
}

fn no_reply_error(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let posted = wire::message(1, UNKNOWN, wire::NO_REPLY, &[]);
    let asked = wire::message(2, command::INFO, 0, &device_info(16));
    let text = "an unknown command with No_reply and the message ID 1, then DEVICE_GET_INFO with 2";
    session.send(text, &[posted, asked].concat())?;
    let reply = session.receive()?;
    session.in_sync = reply.id == 2;
    session.expect_equal("message ID", reply.id, 2)
}

fn unknown_command(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    for unknown in [0, UNKNOWN, u16::MAX] {
        session.refusal(unknown, &[])?;
    }
    Ok(())
}

fn unknown_payload(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    session.answered(UNKNOWN, &[0xee; 1000], &[])
}

fn error_header(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    session.send(
        "the unknown command 0x7fff",
        &wire::message(3, UNKNOWN, 0, &[]),
    )?;
    let reply = session.receive()?;
    let is_header = reply.payload.is_empty() && reply.descriptors.is_empty();
    session.expect(is_error(&reply) && is_header, "an error reply of 16 bytes")
}

fn longer_payload(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let payload = [device_info(16), vec![0; 64]].concat();
    session.answered(command::INFO, &payload, &[])
}

fn shorter_payload(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let access = wire::region_access(CONFIG, 0, 4);
    for (command, payload) in [
        (command::REGION_READ, access.get(..12)),
        (command::REGION_WRITE, access.get(..12)),
        (command::DMA_MAP, Some(&[0; 8][..])),
        (command::SET_IRQS, Some(&[0; 8][..])),
    ] {
        session.refusal(command, payload.unwrap_or_default())?;
    }
    Ok(())
}

fn server_commands(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let range = wire::quads(&[0, 4]);
    session.refusal(command::DMA_READ, &range)?;
    session.refusal(command::DMA_WRITE, &[range, vec![0; 4]].concat())?;
    Ok(())
}
