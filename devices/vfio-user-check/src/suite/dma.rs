//! DMA_MAP and DMA_UNMAP, with memory of the check. All of it is unmapped afterwards.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::checker::Checker;
use crate::outcome::{Failing, Outcome};
use crate::session::{Session, is_error};
use crate::suite::pipe;
use crate::suite::version::capabilities;
use crate::test::{Group, Source, specified};
use crate::wire::{command, dma_map, dma_unmap, quads, words};

pub(super) const GROUP: Group = Group {
    name: "dma",
    tests: &[
        (
            "map",
            specified(
                "DMA_MAP",
                "a region with a file descriptor can be mapped; there is no payload in the reply",
            ),
            map,
        ),
        (
            "map-without-memory",
            specified(
                "DMA_MAP",
                "a region that cannot be mapped has no descriptor; the server reaches it by messages",
            ),
            map_without_memory,
        ),
        (
            "map-read-only",
            specified(
                "DMA_MAP",
                "readable and writeable are two flags of a region",
            ),
            map_read_only,
        ),
        (
            "map-twice",
            specified(
                "DMA_MAP",
                "a command to map over an existing region is failed with EEXIST",
            ),
            map_twice,
        ),
        (
            "map-over-a-part",
            specified(
                "DMA_MAP",
                "a command to map over an existing region is failed with EEXIST, also over a part of it",
            ),
            map_over_a_part,
        ),
        (
            "unmap",
            specified(
                "DMA_UNMAP",
                "the server responds with the original DMA entry of the request",
            ),
            unmap,
        ),
        (
            "map-again",
            specified(
                "DMA_UNMAP",
                "an unmapped region is no longer available, so that another one can be mapped there",
            ),
            map_again,
        ),
        (
            "many",
            specified(
                "VERSION",
                "max_dma_maps windows can be valid simultaneously, 65535 by default (256 are tried)",
            ),
            many,
        ),
        (
            "overflow",
            specified(
                "Security Considerations",
                "input is validated: an address and a size whose sum overflows are an error",
            ),
            overflow,
        ),
        (
            "smaller-argsz",
            specified(
                "DMA_MAP",
                "argsz is the size of the structure, 32 bytes: a smaller one is an error",
            ),
            smaller_argsz,
        ),
        (
            "nonsense",
            specified(
                "Security Considerations",
                "input is validated: a server survives empty regions, unknown flags and wrong descriptors",
            ),
            nonsense,
        ),
        (
            "unmap-unmapped",
            Source::Qemu(
                "unmaps address space that it never mapped, behind an IOMMU, and reports a refusal as an error",
            ),
            unmap_unmapped,
        ),
        (
            "unmap-half",
            Source::Qemu(
                "unmaps the upper half of the address space, so that address and size add up to 2^64",
            ),
            unmap_half,
        ),
        (
            "unmap-all",
            Source::Qemu(
                "unmaps everything with flag 2 (VFIO_DMA_UNMAP_FLAG_ALL), address 0 and size 0",
            ),
            unmap_all,
        ),
    ],
};

/// Address of the check's memory, above the RAM of most guests.
pub(super) const ADDRESS: u64 = 1 << 40;
/// Size of each region.
pub(super) const SIZE: u64 = 1 << 16;
/// Readable and writeable.
const BOTH: u32 = 0b11;
const EEXIST: u32 = 17;

pub(super) fn memory() -> Outcome<OwnedFd> {
    let memory = memfd_create("vfio-user-check", MemfdFlags::CLOEXEC);
    let memory = memory.and_then(|memory| ftruncate(&memory, SIZE).map(|()| memory));
    memory.map_err(|error| Failing::not_applicable(format!("no memory can be made: {error}")))
}

/// Maps a region with memory.
pub(super) fn lend(session: &mut Session, address: u64) -> Outcome {
    let memory = memory()?;
    let request = dma_map(BOTH, 0, address, SIZE);
    let reply = session.success_with(command::DMA_MAP, &request, &[memory.as_fd()])?;
    session.expect(reply.payload.is_empty(), "no payload")
}

/// Unmaps a region.
pub(super) fn take_back(session: &mut Session, address: u64) -> Outcome {
    session.success(command::DMA_UNMAP, &dma_unmap(0, address, SIZE))?;
    Ok(())
}

fn map(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    lend(session, ADDRESS)?;
    take_back(session, ADDRESS)
}

fn map_without_memory(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let reply = session.success(command::DMA_MAP, &dma_map(BOTH, 0, ADDRESS, SIZE))?;
    session.expect(reply.payload.is_empty(), "no payload")?;
    take_back(session, ADDRESS)
}

fn map_read_only(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    for flags in [1, 2] {
        let memory = memory()?;
        let request = dma_map(flags, 0, ADDRESS, SIZE);
        session.success_with(command::DMA_MAP, &request, &[memory.as_fd()])?;
        take_back(session, ADDRESS)?;
    }
    Ok(())
}

/// Maps a region, and then others, which the server must refuse.
fn refused_over(checker: &mut Checker, regions: &[(u64, u64)]) -> Outcome {
    let session = checker.session()?;
    lend(session, ADDRESS)?;
    let mut outcome = Ok(());
    for (address, size) in regions {
        let memory = memory()?;
        let request = dma_map(BOTH, 0, *address, *size);
        let reply = session.ask_with(command::DMA_MAP, &request, &[memory.as_fd()])?;
        outcome = outcome.and(session.expect(reply.error == EEXIST, "the error EEXIST"));
        // The tests that follow need the address space.
        if reply.error == 0 {
            session.ask(command::DMA_UNMAP, &dma_unmap(0, *address, *size))?;
        }
    }
    session.ask(command::DMA_UNMAP, &dma_unmap(0, ADDRESS, SIZE))?;
    outcome
}

fn map_twice(checker: &mut Checker) -> Outcome {
    refused_over(checker, &[(ADDRESS, SIZE)])
}

fn map_over_a_part(checker: &mut Checker) -> Outcome {
    let half = SIZE / 2;
    refused_over(checker, &[(ADDRESS + half, SIZE), (ADDRESS - half, SIZE)])
}

fn unmap(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    lend(session, ADDRESS)?;
    let request = dma_unmap(0, ADDRESS, SIZE);
    let reply = session.success(command::DMA_UNMAP, &request)?;
    let is_same = reply.payload == request;
    session.expect(is_same, "the 24 bytes of the request")
}

fn map_again(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    for _ in 0..2 {
        lend(session, ADDRESS)?;
        take_back(session, ADDRESS)?;
    }
    Ok(())
}

fn many(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let capabilities = capabilities(&session.version).unwrap_or_default();
    let most = capabilities
        .get("max_dma_maps")
        .and_then(|value| value.as_u64());
    let addresses = (0..most.unwrap_or(256).min(256)).map(|number| ADDRESS + 2 * number * SIZE);
    let memory = memory()?;
    let mut outcome = Ok(());
    let mut mapped = Vec::new();
    for address in addresses {
        let request = dma_map(BOTH, 0, address, SIZE);
        let reply = session.success_with(command::DMA_MAP, &request, &[memory.as_fd()]);
        outcome = reply.map(drop);
        if outcome.is_err() {
            break;
        }
        mapped.push(address);
    }
    for address in mapped {
        take_back(session, address)?;
    }
    outcome
}

fn overflow(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    for (address, size) in [
        (u64::MAX, 2),
        (u64::MAX - 0xfff, 0x2000),
        (0x1000, u64::MAX),
    ] {
        let reply = session.ask(command::DMA_MAP, &dma_map(BOTH, 0, address, size))?;
        let outcome = session.expect(is_error(&reply), "an error");
        if outcome.is_err() {
            session.ask(command::DMA_UNMAP, &dma_unmap(0, address, size))?;
        }
        outcome?;
    }
    Ok(())
}

fn smaller_argsz(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let request = [words(&[31, BOTH]), quads(&[0, ADDRESS, SIZE])].concat();
    session.refusal(command::DMA_MAP, &request)?;
    Ok(())
}

fn nonsense(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let (memory, other) = (memory()?, memory()?);
    let (end, _other_end) = pipe()?;
    let region = dma_map(BOTH, 0, ADDRESS, SIZE);
    session.answered(
        command::DMA_MAP,
        &dma_map(BOTH, 0, ADDRESS, 0),
        &[memory.as_fd()],
    )?;
    session.answered(command::DMA_MAP, &region, &[end.as_fd()])?;
    session.ask(command::DMA_UNMAP, &dma_unmap(0, ADDRESS, SIZE))?;
    session.answered(command::DMA_MAP, &region, &[memory.as_fd(), other.as_fd()])?;
    session.ask(command::DMA_UNMAP, &dma_unmap(0, ADDRESS, SIZE))?;
    session.answered(command::DMA_MAP, &dma_map(!BOTH, 0, ADDRESS, SIZE), &[])?;
    session.ask(command::DMA_UNMAP, &dma_unmap(0, ADDRESS, SIZE))?;
    session.answered(
        command::DMA_MAP,
        &dma_map(BOTH, u64::MAX, ADDRESS, SIZE),
        &[memory.as_fd()],
    )?;
    session.ask(command::DMA_UNMAP, &dma_unmap(0, ADDRESS, SIZE))?;
    session.answered(command::DMA_UNMAP, &dma_unmap(0, ADDRESS, 0), &[])
}

fn unmap_unmapped(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    take_back(session, ADDRESS)
}

fn unmap_half(checker: &mut Checker) -> Outcome {
    const HALF: u64 = 1 << 63;
    let session = checker.session()?;
    session.success(command::DMA_UNMAP, &dma_unmap(0, HALF, HALF))?;
    Ok(())
}

fn unmap_all(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    lend(session, ADDRESS)?;
    session.success(command::DMA_UNMAP, &dma_unmap(2, 0, 0))?;
    lend(session, ADDRESS)?;
    take_back(session, ADDRESS)
}
