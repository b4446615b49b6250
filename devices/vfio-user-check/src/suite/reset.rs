//! DEVICE_RESET, only with `--reset`.

use crate::checker::Checker;
use crate::device::device_flags::RESET;
use crate::outcome::{Failing, Outcome};
use crate::session::Session;
use crate::suite::access::config;
use crate::suite::dma::{ADDRESS, lend, take_back};
use crate::test::{Group, Source, specified};
use crate::wire::command;

pub(super) const GROUP: Group = Group {
    name: "reset",
    tests: &[
        (
            "answer",
            specified(
                "DEVICE_RESET",
                "neither the request nor the reply has a payload",
            ),
            answer,
        ),
        (
            "device",
            specified(
                "DEVICE_GET_INFO",
                "RESET indicates that the device supports DEVICE_RESET; its IDs are the same afterwards",
            ),
            device,
        ),
        (
            "mappings",
            Source::Qemu("maps memory before it resets the device, and unmaps it afterwards"),
            mappings,
        ),
    ],
};

/// Resets the device, if the user and the device allow it.
fn reset(checker: &mut Checker) -> Outcome<&mut Session> {
    if !checker.options.reset {
        return Err(Failing::not_applicable(
            "resets the device only with --reset",
        ));
    }
    let (session, device) = checker.device()?;
    if device.flags & RESET == 0 {
        return Err(Failing::not_applicable("the device has no flag RESET"));
    }
    Ok(session)
}

fn answer(checker: &mut Checker) -> Outcome {
    let session = reset(checker)?;
    let reply = session.success(command::RESET, &[])?;
    session.expect(reply.payload.is_empty(), "no payload")
}

fn device(checker: &mut Checker) -> Outcome {
    let session = reset(checker)?;
    let before = config(session, 0, 4)?;
    session.success(command::RESET, &[])?;
    let after = config(session, 0, 4)?;
    session.expect(
        before == after,
        "the same vendor and device ID as before the reset",
    )
}

fn mappings(checker: &mut Checker) -> Outcome {
    let session = reset(checker)?;
    lend(session, ADDRESS)?;
    session.success(command::RESET, &[])?;
    take_back(session, ADDRESS)
}
