//! DEVICE_GET_REGION_INFO.

use rustix::fs::{FileType, fstat};

use crate::checker::Checker;
use crate::device::region_flags::{CAPS, MMAP, READ, WRITE};
use crate::device::{Areas, REGION_INFO, REGION_SPACE, Region, areas, region_info};
use crate::outcome::{Failing, Outcome};
use crate::session::{Session, is_error};
use crate::test::{Group, Source, specified};
use crate::wire::{CONFIG, Message, command};

pub(super) const GROUP: Group = Group {
    name: "regions",
    tests: &[
        (
            "answers",
            specified(
                "DEVICE_GET_INFO",
                "num_regions is the number of regions that the device exposes, so each of them has information",
            ),
            answers,
        ),
        (
            "index",
            specified(
                "DEVICE_GET_REGION_INFO",
                "index is the index of the region being queried",
            ),
            index,
        ),
        (
            "argsz",
            specified(
                "DEVICE_GET_REGION_INFO",
                "argsz in the reply is the size of the structure and of all capabilities, which follow",
            ),
            argsz,
        ),
        (
            "smaller-argsz",
            specified(
                "Message sizes",
                "a reply that is larger than the requested maximum is not included in full; argsz has the size it needs",
            ),
            smaller_argsz,
        ),
        (
            "argsz-below-structure",
            specified(
                "Message sizes",
                "argsz is at least the size of the fixed reply; more than argsz bytes are never included",
            ),
            argsz_below_structure,
        ),
        (
            "past-the-end",
            specified(
                "DEVICE_GET_REGION_INFO",
                "index is the index of a region: one that the device does not have is an error",
            ),
            past_the_end,
        ),
        (
            "capabilities",
            specified(
                "VFIO region capabilities",
                "each capability's next is the offset of the next one, from the start of the structure",
            ),
            capabilities,
        ),
        (
            "areas",
            specified(
                "VFIO region info cap sparse mmap",
                "each area is a part of the region, and its offset and the region's form the offset for mmap()",
            ),
            sparse_areas,
        ),
        (
            "descriptor",
            specified(
                "DEVICE_GET_REGION_INFO",
                "with MMAP the reply includes a file descriptor (unless the list of areas is empty)",
            ),
            descriptor,
        ),
        (
            "no-descriptor",
            specified(
                "DEVICE_GET_REGION_INFO",
                "a file descriptor is for mmap(), which needs the flag MMAP",
            ),
            no_descriptor,
        ),
        (
            "mapping",
            specified(
                "DEVICE_GET_REGION_INFO",
                "the client can mmap() the region: the descriptor's file reaches to the end of what may be mapped",
            ),
            mapping,
        ),
        (
            "config",
            Source::Qemu("reads and writes config space as region 7, of 256 or 4096 bytes"),
            config,
        ),
        (
            "short-reply-offset",
            Source::Qemu(
                "refuses a reply with CAPS whose cap_offset is not between 32 and argsz, even an incomplete one",
            ),
            short_reply_offset,
        ),
    ],
};

const PAGE: u64 = 4096;

/// A region with everything that its reply has.
struct Described {
    region: Region,
    reply: Message,
}

/// Calls `check` with each region.
fn each(checker: &mut Checker, check: impl Fn(&Session, &Described) -> Outcome) -> Outcome {
    let (session, device) = checker.device()?;
    for known in &device.regions {
        let reply = session.success(
            command::REGION_INFO,
            &region_info(REGION_SPACE, known.index),
        )?;
        let region = parsed(session, &reply)?;
        check(session, &Described { region, reply })?;
    }
    Ok(())
}

fn parsed(session: &Session, reply: &Message) -> Outcome<Region> {
    let region = Region::parse(&reply.payload);
    region.ok_or_else(|| session.violation("32 bytes or more"))
}

/// Returns the list of areas of a region, if there is one.
fn list(session: &Session, described: &Described) -> Outcome<Option<Areas>> {
    areas(&described.region, &described.reply.payload).map_err(|reason| session.violation(reason))
}

fn answers(checker: &mut Checker) -> Outcome {
    let (session, device) = checker.device()?;
    for index in 0..device.region_count.min(64) {
        session.success(command::REGION_INFO, &region_info(REGION_SPACE, index))?;
    }
    Ok(())
}

fn index(checker: &mut Checker) -> Outcome {
    let (session, device) = checker.device()?;
    for index in 0..device.region_count.min(64) {
        let reply = session.ask(command::REGION_INFO, &region_info(32, index))?;
        if !is_error(&reply) {
            let region = parsed(session, &reply)?;
            session.expect_equal("index", region.index, index)?;
        }
    }
    Ok(())
}

fn argsz(checker: &mut Checker) -> Outcome {
    each(checker, |session, Described { region, reply }| {
        let size = u32::try_from(reply.payload.len()).unwrap_or(u32::MAX);
        session.expect_equal("argsz", region.argsz, size)
    })
}

/// Returns the regions with capabilities.
fn with_capabilities(checker: &mut Checker) -> Outcome<(&mut Session, Vec<Region>)> {
    let (session, device) = checker.device()?;
    let regions = device.regions.iter();
    let regions: Vec<Region> = regions.filter(|region| region.has(CAPS)).cloned().collect();
    match regions.is_empty() {
        true => Err(Failing::not_applicable("no region has capabilities")),
        false => Ok((session, regions)),
    }
}

fn smaller_argsz(checker: &mut Checker) -> Outcome {
    let (session, regions) = with_capabilities(checker)?;
    for known in regions {
        for argsz in [32, known.argsz.saturating_sub(1)] {
            let reply = session.success(command::REGION_INFO, &region_info(argsz, known.index))?;
            let most = usize::try_from(argsz).unwrap_or_default();
            session.expect(
                reply.payload.len() <= most,
                format!("at most {argsz} bytes"),
            )?;
            let needed = parsed(session, &reply)?.argsz;
            session.expect_equal("argsz", needed, known.argsz)?;
        }
    }
    Ok(())
}

fn argsz_below_structure(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    for argsz in [31_u32, 4, 0] {
        session.shortened(command::REGION_INFO, argsz, &region_info(argsz, CONFIG))?;
    }
    Ok(())
}

fn past_the_end(checker: &mut Checker) -> Outcome {
    let (session, device) = checker.device()?;
    for index in [device.region_count, u32::MAX] {
        session.refusal(command::REGION_INFO, &region_info(REGION_SPACE, index))?;
    }
    Ok(())
}

fn capabilities(checker: &mut Checker) -> Outcome {
    each(checker, |session, described| {
        let region = &described.region;
        let is_announced = region.argsz <= 32 || region.has(CAPS);
        session.expect(is_announced, "CAPS, because capabilities follow")?;
        list(session, described).map(drop)
    })
}

fn sparse_areas(checker: &mut Checker) -> Outcome {
    each(checker, |session, described| {
        let region = &described.region;
        for (offset, size) in list(session, described)?.unwrap_or_default() {
            let end = offset.checked_add(size);
            let is_inside = end.is_some_and(|end| end <= region.size) && size > 0;
            let area = format!("{offset:#x}+{size:#x}");
            session.expect(is_inside, format!("the area {area} inside the region"))?;
            let start = region.offset.checked_add(offset);
            let is_mappable = start.is_some_and(|start| start % PAGE == 0);
            session.expect(
                is_mappable,
                format!("a multiple of the page size for {area}"),
            )?;
        }
        Ok(())
    })
}

fn descriptor(checker: &mut Checker) -> Outcome {
    each(checker, |session, described| {
        let nowhere = list(session, described)?.is_some_and(|areas| areas.is_empty());
        let needs_one = described.region.has(MMAP) && !nowhere;
        let has_one = !described.reply.descriptors.is_empty();
        session.expect(!needs_one || has_one, "a descriptor, because of MMAP")
    })
}

fn no_descriptor(checker: &mut Checker) -> Outcome {
    each(checker, |session, Described { region, reply }| {
        let is_right = region.has(MMAP) || reply.descriptors.is_empty();
        session.expect(is_right, "no descriptor, because MMAP is missing")
    })
}

fn mapping(checker: &mut Checker) -> Outcome {
    each(checker, |session, described| {
        let region = &described.region;
        let areas = list(session, described)?.unwrap_or_else(|| vec![(0, region.size)]);
        let ends = areas
            .iter()
            .filter_map(|(offset, size)| offset.checked_add(*size));
        let end = ends.max().unwrap_or_default().saturating_add(region.offset);
        let Some(file) = described
            .reply
            .descriptors
            .first()
            .and_then(|fd| fstat(fd).ok())
        else {
            return Ok(());
        };
        // Others, such as devices, do not tell their size.
        let is_regular = FileType::from_raw_mode(file.st_mode) == FileType::RegularFile;
        let size = u64::try_from(file.st_size).unwrap_or_default();
        session.expect(
            !is_regular || size >= end,
            format!("a file of {end:#x} bytes or more, not {size:#x}"),
        )
    })
}

fn config(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let reply = session.success(command::REGION_INFO, &region_info(REGION_SPACE, CONFIG))?;
    let region = parsed(session, &reply)?;
    let is_right = region.has(READ | WRITE) && [256, 4096].contains(&region.size);
    session.expect(is_right, "READ and WRITE, and 256 or 4096 bytes")
}

fn short_reply_offset(checker: &mut Checker) -> Outcome {
    let (session, regions) = with_capabilities(checker)?;
    for known in regions {
        let reply = session.success(command::REGION_INFO, &region_info(32, known.index))?;
        let region = parsed(session, &reply)?;
        let least = u32::try_from(REGION_INFO).unwrap_or_default();
        let is_inside = (least..=region.argsz).contains(&region.cap_offset);
        session.expect(
            !region.has(CAPS) || is_inside,
            "no CAPS, or a cap_offset of 32 or more",
        )?;
    }
    Ok(())
}
