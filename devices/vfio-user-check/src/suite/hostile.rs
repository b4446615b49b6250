//! Clients that break the protocol, each on a connection of its own. After each of these tests the
//! next client must be served, too.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::checker::Checker;
use crate::outcome::{Failing, Hex, Outcome};
use crate::session::device_info;
use crate::suite::pipe;
use crate::test::{Group, Source, specified};
use crate::wire::{self, CONFIG, REPLY, command};

const fn secured(says: &'static str) -> Source {
    specified("Security Considerations", says)
}

pub(super) const GROUP: Group = Group {
    name: "hostile",
    tests: &[
        (
            "size-below-header",
            specified(
                "Header",
                "the message size includes the header: after a smaller one nobody knows where a message begins",
            ),
            size_below_header,
        ),
        (
            "huge-size",
            secured(
                "servers do not trust clients: a size of 4 GiB is no reason to end, or to serve nobody else",
            ),
            huge_size,
        ),
        (
            "large-payload",
            secured(
                "servers do not trust clients: a payload of 3 MiB is refused, or ends the connection",
            ),
            large_payload,
        ),
        (
            "other-type",
            specified(
                "Header",
                "the type of a message is command or reply: a server does not execute another one",
            ),
            other_type,
        ),
        (
            "reply-to-nothing",
            secured("servers do not trust clients: replies to no command are no reason to end"),
            reply_to_nothing,
        ),
        (
            "stray-descriptors",
            secured(
                "denial of service is prevented: descriptors that a command does not take are closed",
            ),
            stray_descriptors,
        ),
        (
            "many-descriptors",
            secured(
                "servers do not trust clients: more than max_msg_fds descriptors are no reason to end",
            ),
            many_descriptors,
        ),
        (
            "descriptors-in-pieces",
            secured(
                "denial of service is prevented: descriptors of an unfinished message are closed with the connection",
            ),
            descriptors_in_pieces,
        ),
        (
            "never-reads",
            secured(
                "denial of service is prevented: a client that does not read is no reason to serve nobody else",
            ),
            never_reads,
        ),
        (
            "second-client",
            specified(
                "Socket",
                "a server serves one or more clients: another connection does not disturb the first one",
            ),
            second_client,
        ),
        (
            "random-payloads",
            secured(
                "input is validated: any payload of any command is answered, or ends the connection",
            ),
            random_payloads,
        ),
        (
            "random-bytes",
            secured("input is validated: a stream that has no messages is no reason to end"),
            random_bytes,
        ),
    ],
};

/// The seed of random input, which is the same in each run.
const SEED: u64 = 0x7666_696f_2d75_7365;

/// Returns a header that announces a size.
fn header(size: u32) -> Vec<u8> {
    let mut header = wire::message(1, command::INFO, 0, &[]);
    header.splice(4..8, size.to_le_bytes());
    header
}

fn size_below_header(checker: &mut Checker) -> Outcome {
    for size in [0, 15] {
        let session = checker.fresh_agreed()?;
        session.send(format!("a header with the size {size}"), &header(size))?;
        session.refused_or_hung_up()?;
    }
    Ok(())
}

fn huge_size(checker: &mut Checker) -> Outcome {
    let session = checker.fresh_agreed()?;
    let start = [header(u32::MAX), vec![0; 4096]].concat();
    session.send("4096 bytes of a message of 4 GiB", &start)
}

fn large_payload(checker: &mut Checker) -> Outcome {
    let session = checker.fresh_agreed()?;
    let payload = vec![0xff; 3 << 20];
    let message = wire::message(1, command::REGION_WRITE, 0, &payload);
    match session.send("REGION_WRITE with a payload of 3 MiB of ones", &message) {
        // It has hung up.
        Err(_) if session.is_hung_up_on => Ok(()),
        sent => sent.and_then(|()| session.refused_or_hung_up()),
    }
}

fn other_type(checker: &mut Checker) -> Outcome {
    for kind in [2, 15] {
        let session = checker.fresh_agreed()?;
        let message = wire::message(1, command::INFO, kind, &device_info(16));
        session.send(format!("DEVICE_GET_INFO with the type {kind}"), &message)?;
        session.refused_or_hung_up()?;
    }
    Ok(())
}

fn reply_to_nothing(checker: &mut Checker) -> Outcome {
    let session = checker.fresh_agreed()?;
    let reply = wire::message(1, command::DMA_READ, REPLY, &[0; 48]);
    let asked = wire::message(2, command::INFO, 0, &device_info(16));
    let text = "a reply to no DMA_READ, then DEVICE_GET_INFO";
    session.send(text, &[reply, asked].concat())?;
    session.answered_or_hung_up()
}

/// Waits until nobody has the other end of a pipe.
fn is_closed(end: BorrowedFd<'_>, checker: &Checker) -> bool {
    // Its end alone, not data, is an event.
    let mut polled = [PollFd::from_borrowed_fd(end, PollFlags::empty())];
    let limit = Timespec::try_from(checker.options.time_out).ok();
    poll(&mut polled, limit.as_ref()).is_ok_and(|ready| ready > 0)
}

fn stray_descriptors(checker: &mut Checker) -> Outcome {
    let (end, sent) = pipe()?;
    let session = checker.fresh_agreed()?;
    let descriptors = [sent.as_fd(); 2];
    session.answered(command::INFO, &device_info(16), &descriptors)?;
    drop(sent);
    let is_closed = is_closed(end.as_fd(), checker);
    checker
        .current()?
        .expect(is_closed, "the server to close the descriptors")
}

fn many_descriptors(checker: &mut Checker) -> Outcome {
    let (_end, sent) = pipe()?;
    let session = checker.fresh_agreed()?;
    let message = wire::message(1, command::INFO, 0, &device_info(16));
    let text = "DEVICE_GET_INFO with 60 descriptors";
    session.send_with(text, &message, &[sent.as_fd(); 60])?;
    session.answered_or_hung_up()
}

fn descriptors_in_pieces(checker: &mut Checker) -> Outcome {
    let (end, sent) = pipe()?;
    let session = checker.fresh_agreed()?;
    let message = wire::message(1, command::DMA_MAP, 0, &wire::dma_map(3, 0, 0, 0x1000));
    let start = message.get(..20).unwrap_or_default();
    let text = "20 bytes of DMA_MAP with a descriptor, then the end of the connection";
    session.send_with(text, start, &[sent.as_fd()])?;
    session.raw.hang_up();
    drop(sent);
    let is_closed = is_closed(end.as_fd(), checker);
    checker
        .current()?
        .expect(is_closed, "the server to close the descriptor")
}

fn never_reads(checker: &mut Checker) -> Outcome {
    let session = checker.fresh_agreed()?;
    let read = wire::region_access(CONFIG, 0, 256);
    let reads = wire::message(1, command::REGION_READ, 0, &read).repeat(100);
    let stream = &session.raw.stream;
    // Until neither the server nor the kernel takes more.
    let unblocked = stream.set_nonblocking(true);
    unblocked.map_err(|error| Failing::not_applicable(error.to_string()))?;
    let mut taken = 0;
    while let Ok(count) = (&session.raw.stream).write(&reads) {
        taken += count;
        if taken > 64 << 20 {
            break;
        }
    }
    session.raw.hang_up();
    Ok(())
}

fn second_client(checker: &mut Checker) -> Outcome {
    checker.session()?;
    // It may wait, be refused or be served.
    let second = checker.connect()?;
    let session = checker.session()?;
    session.still_answers()?;
    drop(second);
    session.still_answers()?;
    // The server may meet the second client only after the first one.
    session.in_sync = false;
    Ok(())
}

fn random_payloads(checker: &mut Checker) -> Outcome {
    let mut random = fastrand::Rng::with_seed(SEED);
    for command in COMMANDS {
        let session = checker.fresh_agreed()?;
        for _ in 0..8 {
            let length = random.usize(0..80);
            let payload: Vec<u8> = (0..length).map(|_| byte(&mut random)).collect();
            let message = wire::message(1, command, 0, &payload);
            let text = format!("command {command} with the payload {}", Hex(&payload));
            if session.send(text, &message).is_err() && session.is_hung_up_on {
                break;
            }
            session.answered_or_hung_up()?;
            if session.is_hung_up_on {
                break;
            }
        }
    }
    Ok(())
}

/// Commands whose random payloads change nothing but what the client has lent.
const COMMANDS: [u16; 10] = [
    command::DMA_MAP,
    command::DMA_UNMAP,
    command::INFO,
    command::REGION_INFO,
    command::REGION_IO_FDS,
    command::IRQ_INFO,
    command::SET_IRQS,
    command::DMA_READ,
    command::MIG_DATA_READ,
    0x7fff,
];

/// Returns a byte that is often 0, so that numbers are often small.
fn byte(random: &mut fastrand::Rng) -> u8 {
    match random.u8(0..3) {
        0 => 0,
        1 => random.u8(0..40),
        _ => random.u8(..),
    }
}

fn random_bytes(checker: &mut Checker) -> Outcome {
    let mut random = fastrand::Rng::with_seed(SEED);
    for _ in 0..8 {
        let bytes: Vec<u8> = (0..2000).map(|_| random.u8(..)).collect();
        let session = checker.fresh_agreed()?;
        // Fails if the server gives up on the client.
        let sent = session.send("2000 random bytes", &bytes);
        if sent.is_err() && !session.is_hung_up_on {
            return sent;
        }
    }
    Ok(())
}
