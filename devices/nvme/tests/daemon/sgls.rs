//! SGLs of a hostile client, and SGLs in memory that the daemon has to ask for.

use peerbar_flight::{Event, FlightFile, Operation, Origin};
use peerbar_rig::nvme::command::{
    BIT_BUCKET, DATA_BLOCK, LAST_SEGMENT, READ, SEGMENT, WRITE, blocks, descriptor, sc,
};
use peerbar_rig::nvme::{DATA, Driver, LIST};
use peerbar_rig::{Answer, Daemon, GuestRam};
use tempfile::TempDir;

use crate::process::start;
use crate::{DaemonDriver, SUCCESS};

/// A peer's memory that is not shared.
const PEER: u64 = 0x80_0000_0000;
const PEER_BYTES: u64 = 1 << 20;

fn daemon() -> Daemon {
    start(&["--namespace", "ram=2M", "--sgl"])
}

/// A driver whose queues are in shared RAM, and the memory of a peer behind the client.
#[track_caller]
fn driver(daemon: &Daemon) -> (DaemonDriver, GuestRam) {
    let guest = crate::connect(daemon);
    guest.link.map((PEER, PEER_BYTES), None).unwrap();
    let peer = GuestRam::new(PEER, PEER_BYTES);
    guest.link.upstream().answer_from(vec![peer.clone()]);
    (Driver::enabled(guest), peer)
}

#[test]
fn list_mixes_shared_memory_and_memory_behind_the_client() {
    let daemon = daemon();
    let (mut driver, peer) = driver(&daemon);
    let data: Vec<u8> = (0..4096_u32).map(|at| (at % 251) as u8).collect();
    driver.ram.store(DATA, &data);
    let whole = descriptor(DATA_BLOCK, DATA, 4096);
    assert_eq!(driver.code(1, blocks(WRITE, 0, 8).with_sgl(whole)), SUCCESS);
    // 1000 bytes to the peer, 500 nowhere, 596 to RAM, the rest to the peer; the list is there, too.
    let list = [
        descriptor(DATA_BLOCK, PEER + 0x1003, 1000),
        descriptor(BIT_BUCKET, 0, 500),
        descriptor(SEGMENT, LIST, 32),
    ];
    peer.store(PEER + 8, &list.concat());
    let list = [
        descriptor(DATA_BLOCK, DATA + 0x1_0001, 596),
        descriptor(LAST_SEGMENT, PEER + 0x800, 16),
    ];
    driver.ram.store(LIST, &list.concat());
    peer.store(PEER + 0x800, &descriptor(DATA_BLOCK, PEER + 0x2000, 2000));
    let read = blocks(READ, 0, 8).with_sgl(descriptor(SEGMENT, PEER + 8, 48));
    assert_eq!(driver.code(1, read), SUCCESS);
    assert_eq!(peer.load(PEER + 0x1003, 1000), data[..1000]);
    assert_eq!(driver.ram.load(DATA + 0x1_0001, 596), data[1500..2096]);
    assert_eq!(peer.load(PEER + 0x2000, 2000), data[2096..]);
    assert_eq!(peer.load(PEER + 0x2000 + 2000, 100), [0; 100]);
    let write = blocks(WRITE, 1, 1).with_sgl(descriptor(DATA_BLOCK, PEER + 0x2001, 512));
    assert_eq!(driver.code(1, write), SUCCESS);
    let read = blocks(READ, 1, 1).with_sgl(descriptor(DATA_BLOCK, DATA, 512));
    assert_eq!(driver.code(1, read), SUCCESS);
    assert_eq!(driver.data(512), data[2097..2609]);
}

#[test]
fn list_without_an_end_ends_after_a_bounded_number_of_reads() {
    let daemon = daemon();
    let (mut driver, _peer) = driver(&daemon);
    let asked = driver.link.upstream().clone();
    // Each read of a descriptor brings a reference to the same one.
    let link = descriptor(SEGMENT, PEER, 16);
    asked.answer_with(move |_| Answer::Data(link.to_vec()));
    let loops = blocks(READ, 0, 1).with_sgl(link);
    assert_eq!(driver.code(1, loops), sc::SGL_INVALID_COUNT);
    assert_eq!(asked.seen().len(), 256);
    // Segments of empty data blocks, each with a reference to the first one at its end.
    let empty = [[0; 16]; 4095].concat();
    driver.ram.store(LIST, &empty);
    let link = descriptor(SEGMENT, LIST, 16 << 12);
    driver.ram.store(LIST + 16 * 4095, &link);
    assert_eq!(
        driver.code(1, blocks(READ, 0, 1).with_sgl(link)),
        sc::SGL_INVALID_COUNT
    );
    // A segment of 4 GiB.
    let huge = descriptor(LAST_SEGMENT, LIST, !0xf);
    assert_eq!(
        driver.code(1, blocks(READ, 0, 1).with_sgl(huge)),
        sc::SGL_INVALID_COUNT
    );
    assert_eq!(driver.serial(), "test");
}

#[test]
fn any_descriptors_leave_a_working_daemon() {
    let daemon = daemon();
    let (mut driver, _peer) = driver(&daemon);
    let mut state = peerbar_rig::seed();
    let mut next = || {
        // xorshift64*
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    let mut any = || {
        let addresses = [LIST, LIST + 8, LIST + 3, DATA, PEER, u64::MAX - 15, next()];
        let lengths = [0, 1, 16, 32, 512, 4096, u32::MAX, next() as u32];
        let kind = [0, 0, 1, 2, 3, 4, 15][next() as usize % 7];
        let address = addresses[next() as usize % addresses.len()];
        descriptor(kind, address, lengths[next() as usize % lengths.len()])
    };
    let known = [
        SUCCESS,
        sc::DATA_XFER_ERROR,
        sc::SGL_INVALID_LAST,
        sc::SGL_INVALID_COUNT,
        sc::SGL_INVALID_DATA,
        sc::SGL_INVALID_TYPE,
    ];
    let mut met = std::collections::BTreeSet::new();
    for round in 0..2000_u32 {
        let list: Vec<u8> = (0..8).flat_map(|_| any()).collect();
        driver.ram.store(LIST, &list);
        let opcode = [READ, WRITE][round as usize % 2];
        let code = driver.code(1, blocks(opcode, 0, 1).with_sgl(any()));
        assert!(known.contains(&code), "{code:#x}, round {round}");
        met.insert(code);
    }
    assert_eq!(met.len(), known.len(), "{met:x?}");
    assert_eq!(driver.serial(), "test");
}

#[test]
fn flight_record_tells_sgls_from_prps() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk7.flight");
    let words = [
        "--namespace",
        "ram=2M",
        "--sgl",
        "--record",
        "all",
        "--flight",
    ];
    let daemon = start(&[&words[..], &[path.to_str().unwrap()]].concat());
    let (mut driver, _peer) = driver(&daemon);
    assert_eq!(driver.io(READ, DATA, 8), SUCCESS);
    let by_sgl = blocks(READ, 0, 8).with_sgl(descriptor(DATA_BLOCK, DATA, 4096));
    assert_eq!(driver.code(1, by_sgl), SUCCESS);
    let flight = FlightFile::open(&path).unwrap().read().unwrap();
    let operations = flight
        .records
        .iter()
        .filter_map(|record| match record.event {
            Event::Begin {
                origin: Origin::Command { queue: 1, .. },
                operation,
            } => Some(operation),
            _ => None,
        });
    let of_flags = |flags| Operation {
        opcode: READ,
        flags,
    };
    let operations: Vec<_> = operations.collect();
    assert_eq!(operations, [of_flags(0), of_flags(0x40)]);
}
