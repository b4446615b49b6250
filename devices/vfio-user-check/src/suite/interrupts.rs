//! DEVICE_SET_IRQS, with eventfds of the check. The device's interrupts are off afterwards.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::checker::Checker;
use crate::device::Irq;
use crate::device::irq_flags::{EVENTFD, MASKABLE};
use crate::outcome::{Failing, Outcome};
use crate::server::wait_for;
use crate::session::{Session, is_error};
use crate::suite::pipe;
use crate::test::{Group, specified};
use crate::wire::{command, set_irqs, words};

pub(super) const GROUP: Group = Group {
    name: "set-irqs",
    tests: &[
        (
            "eventfd",
            specified(
                "DEVICE_SET_IRQS",
                "DATA_EVENTFD and ACTION_TRIGGER assign an eventfd; there is no payload in the reply",
            ),
            assigns_eventfd,
        ),
        (
            "trigger",
            specified(
                "DEVICE_SET_IRQS",
                "a client may trigger an interrupt with DATA_NONE and ACTION_TRIGGER, which signals its eventfd",
            ),
            trigger,
        ),
        (
            "trigger-bool",
            specified(
                "DEVICE_SET_IRQS",
                "with DATA_BOOL the action is performed if the corresponding boolean is true",
            ),
            trigger_bool,
        ),
        (
            "deassign",
            specified(
                "DEVICE_SET_IRQS",
                "DATA_EVENTFD without descriptors de-assigns the interrupts, so nothing is signalled",
            ),
            deassign,
        ),
        (
            "disable",
            specified(
                "DEVICE_SET_IRQS",
                "a count of 0 with DATA_NONE disables all interrupts of the index, so nothing is signalled",
            ),
            disable,
        ),
        (
            "mask",
            specified(
                "DEVICE_GET_IRQ_INFO",
                "MASKABLE indicates that the type supports the actions MASK and UNMASK",
            ),
            mask,
        ),
        (
            "past-the-end",
            specified(
                "DEVICE_GET_IRQ_INFO",
                "count is the number of interrupts of the type: others are an error",
            ),
            past_the_end,
        ),
        (
            "unknown-index",
            specified(
                "DEVICE_SET_IRQS",
                "index is the index of a type: one that the device does not have is an error",
            ),
            unknown_index,
        ),
        (
            "one-kind-of-data",
            specified("DEVICE_SET_IRQS", "the DATA flags are mutually exclusive"),
            one_kind_of_data,
        ),
        (
            "one-action",
            specified("DEVICE_SET_IRQS", "the ACTION flags are mutually exclusive"),
            one_action,
        ),
        (
            "bool-length",
            specified(
                "DEVICE_SET_IRQS",
                "DATA_BOOL has a boolean for each interrupt: fewer are an error",
            ),
            bool_length,
        ),
        (
            "smaller-argsz",
            specified(
                "DEVICE_SET_IRQS",
                "argsz is the size of the request with its data, at least 20: a smaller one is an error",
            ),
            smaller_argsz,
        ),
        (
            "not-an-eventfd",
            specified(
                "Security Considerations",
                "input is validated: a server survives descriptors that are no eventfds",
            ),
            not_an_eventfd,
        ),
    ],
};

const DATA_NONE: u32 = 1 << 0;
const DATA_BOOL: u32 = 1 << 1;
const DATA_EVENTFD: u32 = 1 << 2;
const MASK: u32 = 1 << 3;
const UNMASK: u32 = 1 << 4;
const TRIGGER: u32 = 1 << 5;

pub(super) fn event() -> Outcome<OwnedFd> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    event.map_err(|error| Failing::not_applicable(format!("no eventfd can be made: {error}")))
}

/// Returns the number of signals of an eventfd since the last call.
pub(super) fn signals(event: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(event, &mut count) {
        Ok(8) => u64::from_ne_bytes(count),
        _ => 0,
    }
}

/// Returns the indexes with vectors that can have an eventfd.
fn usable(checker: &mut Checker) -> Outcome<(&mut Session, Vec<Irq>)> {
    let (session, device) = checker.device()?;
    let irqs = device.irqs.iter().copied();
    let usable: Vec<Irq> = irqs
        .filter(|irq| irq.count > 0 && irq.has(EVENTFD))
        .collect();
    match usable.is_empty() {
        true => Err(Failing::not_applicable("no interrupt has EVENTFD")),
        false => Ok((session, usable)),
    }
}

/// Assigns an eventfd to vector 0 of an index.
pub(super) fn assign(session: &mut Session, index: u32) -> Outcome<OwnedFd> {
    let event = event()?;
    let request = set_irqs(DATA_EVENTFD | TRIGGER, index, 0, 1);
    let reply = session.success_with(command::SET_IRQS, &request, &[event.as_fd()])?;
    session.expect(reply.payload.is_empty(), "no payload")?;
    Ok(event)
}

/// Disables the interrupts of an index.
fn turn_off(session: &mut Session, index: u32) -> Outcome {
    session.success(
        command::SET_IRQS,
        &set_irqs(DATA_NONE | TRIGGER, index, 0, 0),
    )?;
    Ok(())
}

/// Triggers vector 0 of an index. Returns `false` if the server does not support it.
fn try_trigger(session: &mut Session, index: u32) -> Outcome<bool> {
    let request = set_irqs(DATA_NONE | TRIGGER, index, 0, 1);
    let reply = session.ask(command::SET_IRQS, &request)?;
    Ok(!is_error(&reply))
}

fn not_triggered() -> Failing {
    Failing::not_applicable("the server lets the client trigger no interrupt")
}

fn assigns_eventfd(checker: &mut Checker) -> Outcome {
    let (session, irqs) = usable(checker)?;
    for irq in irqs {
        assign(session, irq.index)?;
        turn_off(session, irq.index)?;
    }
    Ok(())
}

fn trigger(checker: &mut Checker) -> Outcome {
    let time_out = checker.options.time_out;
    let (session, irqs) = usable(checker)?;
    let mut is_supported = false;
    for irq in irqs {
        let event = assign(session, irq.index)?;
        if try_trigger(session, irq.index)? {
            is_supported = true;
            let text = format!("a signal of the eventfd of index {}", irq.index);
            session.expect(wait_for(&event, time_out), text)?;
        }
        turn_off(session, irq.index)?;
    }
    is_supported.then_some(()).ok_or_else(not_triggered)
}

fn trigger_bool(checker: &mut Checker) -> Outcome {
    let time_out = checker.options.time_out;
    let (session, irqs) = usable(checker)?;
    let mut is_supported = false;
    for irq in irqs {
        let event = assign(session, irq.index)?;
        let request = |chosen| {
            let start = set_irqs(DATA_BOOL | TRIGGER, irq.index, 0, 1);
            with_argsz(21, &[start, vec![chosen]].concat())
        };
        let of_none = session.ask(command::SET_IRQS, &request(0))?;
        let of_one = session.ask(command::SET_IRQS, &request(1))?;
        if !is_error(&of_none) && !is_error(&of_one) {
            is_supported = true;
            session.expect(wait_for(&event, time_out), "a signal, because of a 1")?;
            let is_one = signals(&event) == 1;
            session.expect(is_one, "one signal, not another one because of a 0")?;
        }
        turn_off(session, irq.index)?;
    }
    is_supported.then_some(()).ok_or_else(not_triggered)
}

/// Returns a request with another argsz.
fn with_argsz(argsz: u32, request: &[u8]) -> Vec<u8> {
    [&words(&[argsz]), request.get(4..).unwrap_or_default()].concat()
}

/// Checks that an eventfd is no longer signalled after `remove`.
fn signals_nothing_after(
    checker: &mut Checker,
    remove: impl Fn(&mut Session, u32) -> Outcome,
) -> Outcome {
    let time_out = checker.options.time_out;
    let (session, irqs) = usable(checker)?;
    let mut is_supported = false;
    for irq in irqs {
        let event = assign(session, irq.index)?;
        remove(session, irq.index)?;
        try_trigger(session, irq.index)?;
        if signals_another(session, irq.index, time_out)? {
            is_supported = true;
            session.expect(signals(&event) == 0, "no signal of the former eventfd")?;
        }
        turn_off(session, irq.index)?;
    }
    is_supported.then_some(()).ok_or_else(not_triggered)
}

/// Assigns another eventfd and waits until it is signalled: an earlier trigger has then taken
/// effect, too. Returns `false` if the server lets the client trigger nothing.
pub(super) fn signals_another(
    session: &mut Session,
    index: u32,
    time_out: Duration,
) -> Outcome<bool> {
    let event = assign(session, index)?;
    let is_supported = try_trigger(session, index)?;
    let is_signalled = !is_supported || wait_for(&event, time_out);
    session.expect(is_signalled, "a signal of the eventfd")?;
    Ok(is_supported)
}

fn deassign(checker: &mut Checker) -> Outcome {
    signals_nothing_after(checker, |session, index| {
        let request = set_irqs(DATA_EVENTFD | TRIGGER, index, 0, 1);
        session.success(command::SET_IRQS, &request)?;
        Ok(())
    })
}

fn disable(checker: &mut Checker) -> Outcome {
    signals_nothing_after(checker, turn_off)
}

fn mask(checker: &mut Checker) -> Outcome {
    let (session, irqs) = usable(checker)?;
    let mut is_supported = false;
    for irq in irqs.iter().filter(|irq| irq.has(MASKABLE)) {
        is_supported = true;
        assign(session, irq.index)?;
        for action in [MASK, UNMASK] {
            let request = set_irqs(DATA_NONE | action, irq.index, 0, 1);
            session.success(command::SET_IRQS, &request)?;
        }
        turn_off(session, irq.index)?;
    }
    let reason = || Failing::not_applicable("no interrupt has MASKABLE");
    is_supported.then_some(()).ok_or_else(reason)
}

fn past_the_end(checker: &mut Checker) -> Outcome {
    let (session, irqs) = usable(checker)?;
    for irq in irqs {
        for (start, count) in [
            (irq.count, 1),
            (0, irq.count.saturating_add(1)),
            (u32::MAX, 1),
            (1, u32::MAX),
        ] {
            let request = set_irqs(DATA_NONE | TRIGGER, irq.index, start, count);
            session.refusal(command::SET_IRQS, &request)?;
        }
    }
    Ok(())
}

fn unknown_index(checker: &mut Checker) -> Outcome {
    let (session, device) = checker.device()?;
    for index in [device.irq_count, u32::MAX] {
        let request = set_irqs(DATA_NONE | TRIGGER, index, 0, 1);
        session.refusal(command::SET_IRQS, &request)?;
    }
    Ok(())
}

/// Sends flags that must be refused, to each usable index.
fn refused_flags(checker: &mut Checker, flags: &[u32]) -> Outcome {
    let (session, irqs) = usable(checker)?;
    for irq in irqs {
        for flags in flags {
            session.refusal(command::SET_IRQS, &set_irqs(*flags, irq.index, 0, 1))?;
        }
    }
    Ok(())
}

fn one_kind_of_data(checker: &mut Checker) -> Outcome {
    let two = DATA_NONE | DATA_EVENTFD | TRIGGER;
    refused_flags(checker, &[two, two | DATA_BOOL])
}

fn one_action(checker: &mut Checker) -> Outcome {
    let two = DATA_NONE | MASK | TRIGGER;
    refused_flags(checker, &[two, two | UNMASK])
}

fn bool_length(checker: &mut Checker) -> Outcome {
    let (session, irqs) = usable(checker)?;
    for irq in irqs {
        let request = set_irqs(DATA_BOOL | TRIGGER, irq.index, 0, 1);
        session.refusal(command::SET_IRQS, &request)?;
    }
    Ok(())
}

fn smaller_argsz(checker: &mut Checker) -> Outcome {
    let (session, irqs) = usable(checker)?;
    for irq in irqs {
        let request = set_irqs(DATA_NONE | TRIGGER, irq.index, 0, 0);
        session.refusal(command::SET_IRQS, &with_argsz(19, &request))?;
    }
    Ok(())
}

fn not_an_eventfd(checker: &mut Checker) -> Outcome {
    let (session, irqs) = usable(checker)?;
    let (end, _other) = pipe()?;
    for irq in irqs {
        let request = set_irqs(DATA_EVENTFD | TRIGGER, irq.index, 0, 1);
        session.answered(command::SET_IRQS, &request, &[end.as_fd()])?;
        turn_off(session, irq.index)?;
    }
    Ok(())
}
