//! Commands that a server need not offer: DEVICE_GET_REGION_IO_FDS, DEVICE_FEATURE and MIG_DATA_READ.

use crate::checker::Checker;
use crate::outcome::{Failing, Outcome};
use crate::session::{Session, is_error};
use crate::test::{Group, specified};
use crate::wire::{Message, command, u32_at, u64_at, words};

pub(super) const GROUP: Group = Group {
    name: "optional",
    tests: &[
        (
            "io-fds",
            specified(
                "DEVICE_GET_REGION_IO_FDS",
                "the reply has an array of sub-regions, each with the index of its descriptor in the message",
            ),
            io_fds,
        ),
        (
            "io-fds-unknown-region",
            specified(
                "DEVICE_GET_REGION_IO_FDS",
                "index is the index of a region: one that the device does not have is an error",
            ),
            io_fds_unknown_region,
        ),
        (
            "migration-probe",
            specified(
                "DEVICE_FEATURE",
                "the reply payload is the same as the request payload for probing a feature",
            ),
            migration_probe,
        ),
        (
            "migration",
            specified(
                "DEVICE_FEATURE_MIGRATION",
                "if GET succeeds, at least the flag STOP_COPY is set",
            ),
            migration,
        ),
        (
            "migration-state",
            specified(
                "DEVICE_FEATURE_MIG_DEVICE_STATE",
                "GET has the current state, which is RUNNING (2) before any transition",
            ),
            migration_state,
        ),
        (
            "migration-data",
            specified(
                "MIG_DATA_READ",
                "data is read in a saving state, PRE_COPY or STOP_COPY: in another one it is an error",
            ),
            migration_data,
        ),
        (
            "get-and-set",
            specified(
                "DEVICE_FEATURE",
                "GET and SET are mutually exclusive, except for use with PROBE",
            ),
            get_and_set,
        ),
        (
            "unknown-feature",
            specified(
                "DEVICE_FEATURE",
                "a probe only returns success if all of the indicated methods are supported",
            ),
            unknown_feature,
        ),
    ],
};

/// Size of a sub-region (vfio-user, DEVICE_GET_REGION_IO_FDS).
const SUB_REGION: usize = 40;
const GET: u32 = 1 << 16;
const SET: u32 = 1 << 17;
const PROBE: u32 = 1 << 18;
const MIGRATION: u32 = 1;
const MIG_DEVICE_STATE: u32 = 2;
const STOP_COPY: u64 = 1 << 0;
const RUNNING: u32 = 2;

/// Returns a reply of a command that the server offers.
fn offered(reply: Message, name: &str) -> Outcome<Message> {
    match is_error(&reply) {
        false => Ok(reply),
        true => Err(Failing::not_applicable(format!(
            "the server does not offer {name}"
        ))),
    }
}

fn io_fds(checker: &mut Checker) -> Outcome {
    let (session, device) = checker.device()?;
    let mut is_offered = false;
    for region in &device.regions {
        let request = words(&[4096, 0, region.index, 0]);
        let reply = session.ask(command::REGION_IO_FDS, &request)?;
        if is_error(&reply) {
            continue;
        }
        is_offered = true;
        check_sub_regions(session, &reply, region.index, region.size)?;
    }
    let reason = || Failing::not_applicable("the server does not offer DEVICE_GET_REGION_IO_FDS");
    is_offered.then_some(()).ok_or_else(reason)
}

fn check_sub_regions(session: &Session, reply: &Message, index: u32, size: u64) -> Outcome {
    let payload = &reply.payload;
    let word = |at| u32_at(payload, at).unwrap_or_default();
    session.expect_equal("index", word(8), index)?;
    let count = usize::try_from(word(12)).unwrap_or(usize::MAX);
    let needed = count
        .checked_mul(SUB_REGION)
        .and_then(|bytes| bytes.checked_add(16));
    session.expect(
        needed == Some(payload.len()),
        format!("{count} sub-regions"),
    )?;
    for start in (16..payload.len()).step_by(SUB_REGION) {
        let quad = |at| u64_at(payload, start + at).unwrap_or_default();
        let end = quad(0).checked_add(quad(8));
        let is_inside = end.is_some_and(|end| end <= size);
        session.expect(is_inside, "sub-regions inside the region")?;
        let descriptor = usize::try_from(word(start + 16)).unwrap_or(usize::MAX);
        let is_sent = descriptor < reply.descriptors.len();
        session.expect(is_sent, format!("a descriptor {descriptor}"))?;
    }
    Ok(())
}

fn io_fds_unknown_region(checker: &mut Checker) -> Outcome {
    let (session, device) = checker.device()?;
    for index in [device.region_count, u32::MAX] {
        session.refusal(command::REGION_IO_FDS, &words(&[4096, 0, index, 0]))?;
    }
    Ok(())
}

/// Gets a feature's data, which is at most 16 bytes long.
fn get(session: &mut Session, feature: u32, name: &str) -> Outcome<Message> {
    let reply = session.ask(command::FEATURE, &words(&[24, GET | feature]))?;
    offered(reply, name)
}

fn migration_probe(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let request = words(&[8, PROBE | GET | MIGRATION]);
    let reply = session.ask(command::FEATURE, &request)?;
    let reply = offered(reply, "migration")?;
    session.expect(reply.payload == request, "the 8 bytes of the request")
}

fn migration(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let reply = get(session, MIGRATION, "migration")?;
    let flags = u64_at(&reply.payload, 8);
    let has_stop_copy = flags.is_some_and(|flags| flags & STOP_COPY != 0);
    session.expect(has_stop_copy, "flags with STOP_COPY")
}

fn migration_state(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let reply = get(session, MIG_DEVICE_STATE, "migration")?;
    let is_running = u32_at(&reply.payload, 8) == Some(RUNNING);
    session.expect(is_running, "the state RUNNING")
}

fn migration_data(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    session.refusal(command::MIG_DATA_READ, &words(&[24, 16]))?;
    Ok(())
}

fn get_and_set(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    let request = words(&[24, GET | SET | MIGRATION, 0, 0]);
    session.refusal(command::FEATURE, &request)?;
    Ok(())
}

fn unknown_feature(checker: &mut Checker) -> Outcome {
    let session = checker.session()?;
    for flags in [PROBE | GET | 0xffff, PROBE | SET | 0xffff, GET | 0xffff] {
        session.refusal(command::FEATURE, &words(&[24, flags]))?;
    }
    Ok(())
}
