//! REGION_WRITE_MULTI, in config space.

use crate::checker::Checker;
use crate::outcome::{Failing, Outcome};
use crate::session::Session;
use crate::suite::access::config_byte;
use crate::suite::version::capabilities;
use crate::test::{Group, specified};
use crate::wire::{CONFIG, command, quads, region_access, u64_at};

pub(super) const GROUP: Group = Group {
    name: "write-multi",
    tests: &[
        (
            "writes",
            specified(
                "REGION_WRITE_MULTI",
                "the reply has the number of writes that were completed",
            ),
            writes,
        ),
        (
            "none",
            specified(
                "Security Considerations",
                "input is validated: a server survives a list of no writes",
            ),
            none,
        ),
        (
            "wrong-count",
            specified(
                "REGION_WRITE_MULTI",
                "wr_cnt is the number of writes in the message: another number is an error",
            ),
            wrong_count,
        ),
        (
            "too-wide",
            specified(
                "REGION_WRITE_MULTI",
                "the format can only describe writes of 8 bytes or less: a wider one is not completed",
            ),
            too_wide,
        ),
    ],
};

/// Interrupt Line (PCI Local Bus 3.0, 6.2.4), which the writes leave as it is.
const INTERRUPT_LINE: u64 = 0x3c;

/// Returns the shared connection of a server that offers the command.
fn offered(checker: &mut Checker) -> Outcome<&mut Session> {
    let session = checker.session()?;
    let capabilities = capabilities(&session.version).unwrap_or_default();
    let offer = capabilities
        .get("write_multiple")
        .and_then(|value| value.as_bool());
    match offer {
        Some(true) => Ok(session),
        _ => Err(Failing::not_applicable(
            "the server does not offer write_multiple",
        )),
    }
}

/// Returns a list of equal writes.
fn list(count: u64, writes: usize, bytes: u32, data: u8) -> Vec<u8> {
    let value = [data, 0, 0, 0, 0, 0, 0, 0];
    let write = [&region_access(CONFIG, INTERRUPT_LINE, bytes), &value[..]].concat();
    [quads(&[count]), write.repeat(writes)].concat()
}

fn writes(checker: &mut Checker) -> Outcome {
    let session = offered(checker)?;
    let line = config_byte(session, INTERRUPT_LINE)?;
    for count in [1_usize, 2, 16] {
        let number = u64::try_from(count).unwrap_or_default();
        let request = list(number, count, 1, line);
        let reply = session.success(command::REGION_WRITE_MULTI, &request)?;
        let done = u64_at(&reply.payload, 0).filter(|_| reply.payload.len() == 8);
        session.expect(
            done == Some(number),
            format!("8 bytes with the number {count}"),
        )?;
    }
    Ok(())
}

fn none(checker: &mut Checker) -> Outcome {
    let session = offered(checker)?;
    session.answered(command::REGION_WRITE_MULTI, &list(0, 0, 1, 0), &[])
}

fn wrong_count(checker: &mut Checker) -> Outcome {
    let session = offered(checker)?;
    let line = config_byte(session, INTERRUPT_LINE)?;
    for count in [2, u64::MAX, u64::MAX / 24 + 2] {
        session.refusal(command::REGION_WRITE_MULTI, &list(count, 1, 1, line))?;
    }
    Ok(())
}

fn too_wide(checker: &mut Checker) -> Outcome {
    let session = offered(checker)?;
    for bytes in [9, u32::MAX] {
        // Read-only registers, so that nothing changes even if the write is carried out.
        let write = [region_access(CONFIG, 0, bytes), vec![0; 8]].concat();
        let request = [quads(&[1]), write].concat();
        let reply = session.ask(command::REGION_WRITE_MULTI, &request)?;
        let is_done = u64_at(&reply.payload, 0).is_some_and(|done| done > 0);
        session.expect(!is_done, "an error, or 0 completed writes")?;
    }
    Ok(())
}
