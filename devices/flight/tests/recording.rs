//! A reader finds the records of a recorder: while the file is written, after the device is gone,
//! and in a damaged file.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test panics if it fails"
)]

use std::path::PathBuf;

use peerbar_flight::{
    Backing, Completer, Direction, Dma, DmaOutcome, DoorbellEvent, Event, FileSpan, Flight,
    FlightError, FlightFile, Injection, Level, Mapping, Origin, Purpose, Recorder, Route,
};
use peerbar_pci::{Iova, Range};
use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

const RING_OF_MAPS: u64 = 1 << 16;
const DOORBELL: DoorbellEvent = DoorbellEvent {
    queue: 1,
    tail: 1,
    added: 1,
    waiting: 1,
    vector: Some(1),
};

fn recording_path() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk0.flight");
    (folder, path)
}

fn mapping(iova: u64) -> Event {
    Event::Map(Mapping {
        range: Range::new(Iova(iova), 0x1000).unwrap(),
        readable: true,
        writable: false,
        backing: Backing::Ram(FileSpan {
            device: 1,
            inode: 2,
            offset: iova,
        }),
    })
}

fn unmapping(iova: u64) -> Event {
    Event::Unmap(Range::new(Iova(iova), 0x1000).unwrap())
}

fn dma(outcome: DmaOutcome) -> Dma {
    Dma {
        origin: Origin::command(1, 17u16),
        purpose: Purpose::Payload,
        direction: Direction::Write,
        address: Iova(0x7000),
        len: 0x1000,
        route: Route::GuestRam,
        completer: Completer::GuestRam,
        outcome,
        took: 0,
    }
}

#[test]
fn what_happens_is_numbered_and_what_is_true_is_in_the_table() {
    let (_folder, path) = recording_path();
    let recorder = Recorder::create(&path, "disk0", Level::Maps).unwrap();
    let events = [mapping(0x1000), mapping(0x2000), unmapping(0x1000)];
    events.into_iter().for_each(|event| recorder.record(event));
    let file = FlightFile::open(&path).unwrap();
    let flight = file.read().unwrap();
    assert_eq!(flight.header.name, "disk0");
    assert_eq!(flight.header.process, std::process::id());
    let happened: Vec<_> = flight
        .records
        .iter()
        .map(|r| (r.sequence, r.event))
        .collect();
    assert_eq!(happened, [(1, events[0]), (2, events[1]), (3, events[2])]);
    assert!(flight.records.is_sorted_by_key(|record| record.nanos));
    assert_eq!(flight.now, [flight.records[1]]);
    assert_eq!((flight.overwritten, flight.torn), (0, 0));
    assert!(file.is_live().unwrap() && !flight.header.ended);
    drop(recorder);
    assert!(!file.is_live().unwrap() && file.read().unwrap().header.ended);
}

#[test]
fn only_failures_are_recorded_unless_all_is_wanted() {
    for (level, expected) in [(Level::Maps, 1), (Level::All, 6)] {
        let (_folder, path) = recording_path();
        let recorder = Recorder::create(&path, "disk0", level).unwrap();
        let origin = Origin::command(1, 17u16);
        recorder.record(Event::Doorbell(DOORBELL));
        recorder.record(Event::Begin {
            origin,
            operation: 2.into(),
        });
        recorder.dma(dma(DmaOutcome::Done), recorder.clock());
        recorder.dma(dma(DmaOutcome::Forbidden), recorder.clock());
        recorder.record(Event::End { origin, status: 4 });
        recorder.record(Event::Interrupt { vector: 1 });
        let flight = FlightFile::open(&path).unwrap().read().unwrap();
        assert_eq!(flight.records.len(), expected);
        let mut failed = flight
            .records
            .iter()
            .filter_map(|record| match record.event {
                Event::Dma(dma) if dma.outcome != DmaOutcome::Done => Some(dma),
                _ => None,
            });
        let failed = failed.next().unwrap();
        let took = failed.took;
        assert_eq!(
            failed,
            Dma {
                took,
                ..dma(DmaOutcome::Forbidden)
            }
        );
    }
}

#[test]
fn injected_fault_is_recorded_with_the_text_of_its_rule() {
    let (_folder, path) = recording_path();
    let recorder = Recorder::create(&path, "disk0", Level::Maps).unwrap();
    let injection = Event::Injected(Injection {
        rule: 2,
        matches: 3,
        origin: Origin::command(1, 17u16),
    });
    recorder.rule("drop completion nth=3");
    recorder.rule("fail command");
    recorder.record(injection);
    let flight = FlightFile::open(&path).unwrap().read().unwrap();
    assert_eq!(flight.records[0].event, injection);
    let rules = flight.header.rules;
    assert_eq!(rules, ["drop completion nth=3", "fail command"]);
}

#[test]
fn fault_rule_without_room_is_left_out_with_all_later_ones() {
    let (_folder, path) = recording_path();
    let recorder = Recorder::create(&path, "disk0", Level::Maps).unwrap();
    let long = "x".repeat(3000);
    for rule in [&long, &long, "short"] {
        recorder.rule(rule);
    }
    let flight = FlightFile::open(&path).unwrap().read().unwrap();
    assert_eq!(flight.header.rules, [long]);
}

#[test]
fn overwritten_records_are_counted_and_the_table_stays() {
    let (_folder, path) = recording_path();
    let recorder = Recorder::create(&path, "disk0", Level::Maps).unwrap();
    recorder.record(mapping(0x1000));
    let file = FlightFile::open(&path).unwrap();
    for _ in 0..RING_OF_MAPS {
        recorder.record(Event::BusMaster(true));
    }
    let flight = file.read().unwrap();
    assert_eq!((flight.overwritten, flight.torn), (1, 0));
    assert_eq!(flight.records.len() as u64, RING_OF_MAPS);
    assert_eq!(flight.records[0].sequence, 2);
    assert_eq!(flight.now.len(), 1);
    assert_eq!(flight.now[0].event, mapping(0x1000));
    let tail = file.tail(0).unwrap();
    assert_eq!((tail.lost, tail.next), (1, RING_OF_MAPS + 1));
    assert_eq!(tail.records, flight.records);
    assert!(file.tail(tail.next).unwrap().records.is_empty());
}

#[test]
fn as_many_mappings_as_a_client_may_have_are_in_the_table() {
    let (_folder, path) = recording_path();
    let recorder = Recorder::create(&path, "disk0", Level::Maps).unwrap();
    for page in 0..65535 {
        recorder.record(mapping(page * 0x2000));
    }
    let flight = FlightFile::open(&path).unwrap().read().unwrap();
    assert_eq!((flight.now.len(), flight.header.untracked), (65535, 0));
}

#[test]
fn threads_record_at_once() {
    let (_folder, path) = recording_path();
    let recorder = Recorder::create(&path, "disk0", Level::All).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1000).for_each(|_| recorder.dma(dma(DmaOutcome::Done), 1)));
        }
    });
    let flight = FlightFile::open(&path).unwrap().read().unwrap();
    assert_eq!((flight.records.len(), flight.torn), (4000, 0));
}

#[test]
fn a_record_that_is_not_whole_is_left_out_and_counted() {
    let (_folder, path) = recording_path();
    let recorder = Recorder::create(&path, "disk0", Level::Maps).unwrap();
    (1..4).for_each(|page| recorder.record(mapping(page << 12)));
    drop(recorder);
    let mut bytes = std::fs::read(&path).unwrap();
    let ring = 4096 + (1 << 16) * 64;
    bytes[ring + 64 + 60] ^= 1;
    let flight = Flight::parse(&bytes).unwrap();
    let sequences: Vec<_> = flight
        .records
        .iter()
        .map(|record| record.sequence)
        .collect();
    assert_eq!((sequences, flight.torn), (vec![1, 3], 1));
    std::fs::write(&path, &bytes).unwrap();
    let tail = FlightFile::open(&path).unwrap().tail(0).unwrap();
    assert_eq!((tail.records.len(), tail.lost, tail.next), (2, 1, 3));
}

#[test]
fn second_device_at_the_same_path_gets_a_new_file() {
    let (_folder, path) = recording_path();
    let first = Recorder::create(&path, "disk0", Level::Maps).unwrap();
    let file = FlightFile::open(&path).unwrap();
    let _second = Recorder::create(&path, "disk1", Level::Maps).unwrap();
    first.record(mapping(0x1000));
    assert_eq!(file.read().unwrap().records.len(), 1);
    let other = FlightFile::open(&path).unwrap().read().unwrap();
    assert_eq!(
        (other.header.name.as_str(), other.records.len()),
        ("disk1", 0)
    );
}

/// Returns a small file with a few records.
fn sample() -> Vec<u8> {
    let (_folder, path) = recording_path();
    let recorder = Recorder::create(&path, "disk0", Level::Maps).unwrap();
    (1..4).for_each(|page| recorder.record(mapping(page << 12)));
    recorder.dma(dma(DmaOutcome::Forbidden), 0);
    drop(recorder);
    let mut bytes = std::fs::read(&path).unwrap();
    // Table and ring of 8 slots each, to keep the file small.
    bytes[16..24].copy_from_slice(&8u64.to_le_bytes());
    bytes[24..32].copy_from_slice(&8u64.to_le_bytes());
    let ring = 4096 + (1 << 16) * 64;
    bytes.copy_within(ring..ring + 512, 4096 + 512);
    bytes.truncate(4096 + 1024);
    bytes
}

#[test]
fn file_that_cannot_be_read_is_refused_by_name() {
    let sample = sample();
    assert_eq!(Flight::parse(&sample).unwrap().records.len(), 4);
    let said = |at: usize, value: u8| {
        let mut bytes = sample.clone();
        bytes[at] = value;
        Flight::parse(&bytes).unwrap_err().to_string()
    };
    assert!(said(0, b'x').contains("PBFLIGHT"));
    assert!(said(8, 9).contains("version 9"));
    assert_eq!(said(12, 65), "invalid flight record: record size = 65");
    assert!(said(31, 0x80).contains("ring slots = "));
    assert!(said(68, 2).contains("level = 2"));
    assert!(said(128, 0xff).contains("not UTF-8"));
    let short = Flight::parse(&sample[..5000]);
    assert!(matches!(
        short,
        Err(FlightError::Truncated { actual: 5000, .. })
    ));
    assert!(matches!(
        Flight::parse(&[]),
        Err(FlightError::Truncated { .. })
    ));
}

#[test]
fn record_that_a_guest_replaces_is_refused_at_once() {
    let (folder, path) = recording_path();
    let fifo = folder.path().join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
    drop(Recorder::create(&path, "disk0", Level::Maps).unwrap());
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for planted in [fifo, link] {
        let error = FlightFile::open(&planted).unwrap_err();
        assert!(matches!(error, FlightError::Io(_)), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_damaged_file_is_read_or_refused(
        changes in prop::collection::vec((0usize..5120, any::<u8>()), 0..20),
        header in prop::collection::vec((0usize..192, any::<u8>()), 0..4),
        length in prop_oneof![Just(5120usize), 0usize..5120],
    ) {
        let mut bytes = sample();
        for (at, value) in changes.into_iter().chain(header) {
            bytes[at] = value;
        }
        bytes.truncate(length);
        if let Ok(flight) = Flight::parse(&bytes) {
            prop_assert!(flight.records.is_sorted_by_key(|record| record.sequence));
            prop_assert!(flight.records.len() as u64 <= flight.header.ring_slots);
        }
    }
}
