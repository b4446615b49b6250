//! Clients that leave. After each of these tests the next client must be served, too.

use crate::checker::Checker;
use crate::device::irq_flags::EVENTFD;
use crate::outcome::Failing;
use crate::outcome::Outcome;
use crate::session::device_info;
use crate::suite::dma::{ADDRESS, lend, take_back};
use crate::suite::interrupts::{assign, signals, signals_another};
use crate::test::{Group, specified};
use crate::wire::{self, command};

const SECTION: &str = "Client Disconnection";

pub(super) const GROUP: Group = Group {
    name: "disconnection",
    tests: &[
        (
            "next-client",
            specified(SECTION, "a client may leave, and the next one may connect"),
            next_client,
        ),
        (
            "mappings",
            specified(
                SECTION,
                "all memory regions of the client are unmapped and cleaned up",
            ),
            mappings,
        ),
        (
            "interrupts",
            specified(SECTION, "all eventfds of the client are closed"),
            interrupts,
        ),
        (
            "before-version",
            specified(
                SECTION,
                "a client may leave unexpectedly, here before it has sent anything",
            ),
            before_version,
        ),
        (
            "in-header",
            specified(
                SECTION,
                "a client may leave unexpectedly, here inside a header",
            ),
            in_header,
        ),
        (
            "in-payload",
            specified(
                SECTION,
                "a client may leave unexpectedly, here inside a payload",
            ),
            in_payload,
        ),
        (
            "before-reply",
            specified(
                SECTION,
                "a client may leave unexpectedly, here with commands that the server has not answered",
            ),
            before_reply,
        ),
    ],
};

fn next_client(checker: &mut Checker) -> Outcome {
    checker.fresh_agreed()?.still_answers()
}

fn mappings(checker: &mut Checker) -> Outcome {
    lend(checker.session()?, ADDRESS)?;
    let session = checker.fresh_agreed()?;
    lend(session, ADDRESS)?;
    take_back(session, ADDRESS)
}

fn interrupts(checker: &mut Checker) -> Outcome {
    let (session, device) = checker.device()?;
    let usable = device
        .irqs
        .iter()
        .find(|irq| irq.count > 0 && irq.has(EVENTFD));
    let irq = usable.ok_or_else(|| Failing::not_applicable("no interrupt has EVENTFD"))?;
    let event = assign(session, irq.index)?;
    let time_out = checker.options.time_out;
    let session = checker.fresh_agreed()?;
    signals_another(session, irq.index, time_out)?;
    let text = "no signal of the former client's eventfd";
    session.expect(signals(&event) == 0, text)
}

fn before_version(checker: &mut Checker) -> Outcome {
    checker.fresh().map(drop)
}

/// Agrees on a version, and sends the start of a message.
fn leave_after(checker: &mut Checker, bytes: usize) -> Outcome {
    let session = checker.fresh_agreed()?;
    let message = wire::message(1, command::INFO, 0, &device_info(16));
    let start = message.get(..bytes).unwrap_or_default();
    session.send(format!("{bytes} bytes of DEVICE_GET_INFO"), start)
}

fn in_header(checker: &mut Checker) -> Outcome {
    leave_after(checker, 10)
}

fn in_payload(checker: &mut Checker) -> Outcome {
    leave_after(checker, 20)
}

fn before_reply(checker: &mut Checker) -> Outcome {
    let session = checker.fresh_agreed()?;
    let message = wire::message(1, command::INFO, 0, &device_info(16));
    session.send("100 times DEVICE_GET_INFO", &message.repeat(100))?;
    session.raw.hang_up();
    Ok(())
}
