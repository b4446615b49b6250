//! DEVICE_GET_IRQ_INFO.

use crate::checker::Checker;
use crate::device::irq_flags::EVENTFD;
use crate::device::{Irq, irq_info};
use crate::outcome::{Failing, Outcome};
use crate::session::Session;
use crate::suite::access::{capability, config_byte};
use crate::test::{Group, Source, specified};
use crate::wire::{INTX, MSI_X, command, u16_at};

pub(super) const GROUP: Group = Group {
    name: "irq-info",
    tests: &[
        (
            "answers",
            specified(
                "DEVICE_GET_INFO",
                "num_irqs is the number of interrupt types of the device, so each of them has information",
            ),
            answers,
        ),
        (
            "index",
            specified(
                "DEVICE_GET_IRQ_INFO",
                "index is the index of the type being queried",
            ),
            index,
        ),
        (
            "argsz",
            specified(
                "DEVICE_GET_IRQ_INFO",
                "argsz in the reply is the size of the full reply payload, 16 bytes today",
            ),
            argsz,
        ),
        (
            "smaller-argsz",
            specified(
                "Message sizes",
                "a payload that is larger than the requested maximum size is not included in full",
            ),
            smaller_argsz,
        ),
        (
            "past-the-end",
            specified(
                "DEVICE_GET_IRQ_INFO",
                "index is the index of a type: one that the device does not have is an error",
            ),
            past_the_end,
        ),
        (
            "intx",
            Source::Qemu("sets an eventfd for INTx if config space has an interrupt pin"),
            intx,
        ),
        (
            "msi-x",
            Source::Qemu("sets an eventfd for each vector in the table of the MSI-X capability"),
            msi_x,
        ),
    ],
};

/// Interrupt Pin (PCI Local Bus 3.0, 6.2.4).
const INTERRUPT_PIN: u64 = 0x3d;
/// The capability MSI-X (PCI Local Bus 3.0, 6.8.2), and the table's size less one in its Message
/// Control.
const MSI_X_CAPABILITY: u8 = 0x11;
const TABLE_SIZE: u16 = 0x7ff;

fn parsed(session: &Session, payload: &[u8]) -> Outcome<Irq> {
    Irq::parse(payload).ok_or_else(|| session.violation("16 bytes"))
}

/// Asks for an index, which must be answered.
fn ask(session: &mut Session, argsz: u32, index: u32) -> Outcome<(Irq, usize)> {
    let reply = session.success(command::IRQ_INFO, &irq_info(argsz, index))?;
    Ok((parsed(session, &reply.payload)?, reply.payload.len()))
}

fn answers(checker: &mut Checker) -> Outcome {
    let (session, device) = checker.device()?;
    for index in 0..device.irq_count.min(64) {
        ask(session, 16, index)?;
    }
    Ok(())
}

fn index(checker: &mut Checker) -> Outcome {
    let (session, device) = checker.device()?;
    for irq in &device.irqs {
        let (found, _) = ask(session, 16, irq.index)?;
        session.expect_equal("index", found.index, irq.index)?;
    }
    let is_complete =
        device.irqs.len() == usize::try_from(device.irq_count.min(64)).unwrap_or_default();
    session.expect(is_complete, "information for each index")
}

fn argsz(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    for asked in [16, 4096] {
        let (irq, bytes) = ask(session, asked, INTX)?;
        session.expect_equal("argsz", irq.argsz, 16)?;
        session.expect_equal("bytes", bytes, 16)?;
    }
    Ok(())
}

fn smaller_argsz(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    for argsz in [15_u32, 4, 0] {
        session.shortened(command::IRQ_INFO, argsz, &irq_info(argsz, INTX))?;
    }
    Ok(())
}

fn past_the_end(checker: &mut Checker) -> Outcome {
    let (session, device) = checker.device()?;
    for index in [device.irq_count, u32::MAX] {
        session.refusal(command::IRQ_INFO, &irq_info(16, index))?;
    }
    Ok(())
}

fn intx(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    if config_byte(session, INTERRUPT_PIN)? == 0 {
        return Err(Failing::not_applicable("config space has no interrupt pin"));
    }
    let (irq, _) = ask(session, 16, INTX)?;
    session.expect(irq.count >= 1 && irq.has(EVENTFD), "a vector, and EVENTFD")
}

fn msi_x(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let Some(capability) = capability(session, MSI_X_CAPABILITY)? else {
        return Err(Failing::not_applicable(
            "config space has no capability MSI-X",
        ));
    };
    let control = super::access::config(session, capability + 2, 2)?;
    let size = u32::from(u16_at(&control, 0).unwrap_or_default() & TABLE_SIZE) + 1;
    let (irq, _) = ask(session, 16, MSI_X)?;
    session.expect(
        irq.count >= size && irq.has(EVENTFD),
        format!("{size} vectors or more, and EVENTFD"),
    )
}
