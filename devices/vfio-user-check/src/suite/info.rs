//! DEVICE_GET_INFO.

use crate::checker::Checker;
use crate::device::device_flags::{PCI, RESET};
use crate::outcome::Outcome;
use crate::session::device_info;
use crate::test::{Group, Source, specified};
use crate::wire::{command, u32_at};

pub(super) const GROUP: Group = Group {
    name: "info",
    tests: &[
        (
            "exact",
            specified(
                "DEVICE_GET_INFO",
                "argsz in the reply is the size of the full reply payload, 16 bytes today",
            ),
            exact,
        ),
        (
            "larger-argsz",
            specified(
                "Message sizes",
                "argsz in the reply may be less than the requested maximum size",
            ),
            larger_argsz,
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
            "flags",
            specified(
                "DEVICE_GET_INFO",
                "this version of the protocol only supports PCI devices; the flags are RESET and PCI",
            ),
            flags,
        ),
        (
            "regions",
            specified(
                "Device-Specific Regions",
                "a PCI device has VFIO_PCI_NUM_REGIONS regions (9) or more",
            ),
            regions,
        ),
        (
            "irqs",
            Source::Qemu(
                "needs the interrupt indexes INTx, MSI and MSI-X, so a count of at least 3",
            ),
            irqs,
        ),
        (
            "limits",
            Source::Qemu("refuses a device with more than 100 regions or 50 interrupt indexes"),
            limits,
        ),
    ],
};

/// Size of the reply.
const SIZE: u32 = 16;

fn exact(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let reply = session.success(command::INFO, &device_info(SIZE))?;
    session.expect_equal("bytes", reply.payload.len(), 16)?;
    session.expect(u32_at(&reply.payload, 0) == Some(SIZE), "argsz 16")
}

fn larger_argsz(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let reply = session.success(command::INFO, &device_info(4096))?;
    let argsz = u32_at(&reply.payload, 0);
    let is_full = argsz.and_then(|argsz| usize::try_from(argsz).ok()) == Some(reply.payload.len());
    session.expect(
        is_full && argsz >= Some(SIZE),
        "a payload of argsz bytes, at least 16",
    )
}

fn smaller_argsz(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    for argsz in [SIZE - 1, 4, 0] {
        session.shortened(command::INFO, argsz, &device_info(argsz))?;
    }
    Ok(())
}

/// Returns the word at an offset of the reply.
fn word(checker: &mut Checker, at: usize) -> Outcome<u32> {
    let session = checker.session()?;
    let reply = session.success(command::INFO, &device_info(SIZE))?;
    let word = u32_at(&reply.payload, at);
    word.ok_or_else(|| session.violation("16 bytes"))
}

fn flags(checker: &mut Checker) -> Outcome {
    let flags = word(checker, 4)?;
    let is_right = flags & PCI != 0 && flags & !(PCI | RESET) == 0;
    checker
        .session()?
        .expect(is_right, "PCI, perhaps RESET, and no other flag")
}

fn regions(checker: &mut Checker) -> Outcome {
    let count = word(checker, 8)?;
    checker.session()?.expect(count >= 9, "9 regions or more")
}

fn irqs(checker: &mut Checker) -> Outcome {
    let count = word(checker, 12)?;
    let session = checker.session()?;
    session.expect(count >= 3, "3 interrupt indexes or more")
}

fn limits(checker: &mut Checker) -> Outcome {
    let (regions, irqs) = (word(checker, 8)?, word(checker, 12)?);
    let is_right = regions <= 100 && irqs <= 50;
    checker
        .session()?
        .expect(is_right, "at most 100 regions and 50 indexes")
}
