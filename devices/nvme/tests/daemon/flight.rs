//! The flight record: it outlives the daemon, and the sanitizer finds the traces of a careless
//! driver in it.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use peerbar_dma_log::counter_file::Reader;
use peerbar_flight::{
    DoorbellEvent, Event, FindingKind, Flight, FlightFile, Operation, Origin, Sanitizer,
};
use peerbar_pci::Iova;
use peerbar_rig::nvme::command::READ;
use peerbar_rig::nvme::{DATA, RAM, RAM_BYTES};
use peerbar_rig::{Daemon, Link, REGISTERS, memory_file, wait_until};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::SealFlags;
use tempfile::TempDir;

use crate::process::start;
use crate::{DaemonDriver, SUCCESS, driver};

/// A mapping for one command's data.
const BUFFER: u64 = 0x9000_0000;

/// A daemon that records everything, with a driver.
fn recorded() -> (Daemon, DaemonDriver, TempDir, FlightFile) {
    recorded_with(&[])
}

/// The same with further options.
fn recorded_with(options: &[&str]) -> (Daemon, DaemonDriver, TempDir, FlightFile) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk7.flight");
    let words = ["--namespace", "ram=2M", "--record", "all", "--flight"];
    let words = [&words[..], &[path.to_str().unwrap()], options].concat();
    let daemon = start(&words);
    let driver = driver(&daemon);
    let file = FlightFile::open(&path).unwrap();
    (daemon, driver, folder, file)
}

fn count(flight: &Flight, wanted: impl Fn(&Event) -> bool) -> usize {
    let records = flight.records.iter();
    records.filter(|record| wanted(&record.event)).count()
}

#[test]
fn client_doorbells_are_counted_unless_it_may_map_them() {
    // The tail of I/O queue 1, unchanged.
    const TAIL: u64 = 0x1008;
    for (poll, counted) in [("adaptive", Some(3)), ("always", None)] {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("disk7.counters");
        let counters = ["--counters", path.to_str().unwrap(), "--poll", poll];
        let (_daemon, driver, ..) = recorded_with(&counters);
        let reader = Reader::open(&path).unwrap();
        let of_queue = || {
            Some(
                reader
                    .read()
                    .unwrap()
                    .events
                    .doorbells?
                    .get(&1)
                    .copied()
                    .unwrap_or(0),
            )
        };
        let before = of_queue();
        for _ in 0..3 {
            driver.link.write(REGISTERS, TAIL, &[0; 4]);
        }
        let written = of_queue().zip(before).map(|(after, before)| after - before);
        assert_eq!(written, counted, "{poll}");
    }
}

#[test]
fn flight_record_is_read_from_running_and_killed_daemons() {
    let (mut daemon, mut driver, _folder, file) = recorded();
    assert_eq!(driver.io(READ, DATA, 8), SUCCESS);
    assert!(file.is_live().unwrap());
    let before = file.read().unwrap();
    let io = |event: &Event| {
        matches!(
            event,
            Event::Begin {
                origin: Origin::Command { queue: 1, .. },
                operation: Operation { opcode: READ, .. }
            }
        )
    };
    assert_eq!(count(&before, io), 1);
    let data = |event: &Event| matches!(event, Event::Dma(dma) if dma.address == Iova(DATA) && dma.len == 4096);
    assert_eq!(count(&before, data), 1);
    daemon.kill();
    let after = file.read().unwrap();
    assert!(!file.is_live().unwrap() && !after.header.ended);
    assert_eq!(after.header.name, "disk7");
    assert!(after.records.starts_with(&before.records));
    let mapped = after
        .now
        .iter()
        .filter(|record| matches!(record.event, Event::Map(m) if m.range.first() == Iova(RAM)));
    assert_eq!(mapped.count(), 1);
}

#[test]
fn command_is_recorded_between_doorbell_and_interrupt() {
    /// VFIO_PCI_MSIX_IRQ_INDEX.
    const MSI_X: u32 = 2;
    let (_daemon, mut driver, _folder, file) = recorded();
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    driver.link.signal_by(MSI_X, event.as_fd());
    let before = file.read().unwrap().records.len();
    driver.serial();
    rustix::io::read(&event, &mut [0; 8]).unwrap();
    let flight = file.read().unwrap();
    let steps = flight.records.get(before..).unwrap();
    let steps = steps.iter().filter_map(|record| match record.event {
        Event::Doorbell(doorbell) => {
            let DoorbellEvent { queue, vector, .. } = doorbell;
            let numbers = (queue, vector, doorbell.added, doorbell.waiting);
            assert_eq!(numbers, (0, Some(0), 1, 1));
            Some("doorbell")
        }
        Event::Begin { .. } => Some("begin"),
        Event::End { .. } => Some("end"),
        Event::Interrupt { vector: 0 } => Some("interrupt"),
        _ => None,
    });
    let steps: Vec<_> = steps.collect();
    assert_eq!(steps, ["doorbell", "begin", "end", "interrupt"]);
    // Its queue has no interrupts.
    assert_eq!(driver.io(READ, DATA, 8), SUCCESS);
    let flight = file.read().unwrap();
    let polled = |event: &Event| matches!(event, Event::Doorbell(rung) if (rung.queue, rung.tail, rung.vector) == (1, 1, None));
    assert_eq!(count(&flight, polled), 1);
    let interrupt = |event: &Event| matches!(event, Event::Interrupt { .. });
    assert_eq!(count(&flight, interrupt), 1);
}

#[test]
fn injected_fault_is_in_the_record_with_its_rule() {
    let rule = "fail command read nth=2";
    let (_daemon, mut driver, _folder, file) = recorded_with(&["--fault", rule]);
    assert_eq!(driver.io(READ, DATA, 8), SUCCESS);
    assert_ne!(driver.io(READ, DATA, 8), SUCCESS);
    let flight = file.read().unwrap();
    assert_eq!(flight.header.rules, [rule]);
    let injected = |event: &Event| matches!(event, Event::Injected(fault) if (fault.rule, fault.matches) == (1, 2));
    assert_eq!(count(&flight, injected), 1);
}

#[test]
fn rule_by_the_control_socket_is_in_force_at_once() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("control");
    let options = ["--control", path.to_str().unwrap()];
    let (_daemon, mut driver, _folder, file) = recorded_with(&options);
    let ask = |line: &str| {
        let mut stream = UnixStream::connect(&path).unwrap();
        writeln!(stream, "{line}").unwrap();
        std::io::read_to_string(stream).unwrap()
    };
    let rule = "delay dma write by=10ms limit=1";
    assert_eq!(ask(rule), format!("ok in force: {rule}\n"));
    assert_eq!(driver.io(READ, DATA, 8), SUCCESS);
    assert_eq!(ask("fail command"), "ok in force: fail command\n");
    assert_ne!(driver.io(READ, DATA, 8), SUCCESS);
    assert_eq!(ask("clear"), "ok rules cleared: 2\n");
    assert_eq!(driver.io(READ, DATA, 8), SUCCESS);
    let flight = file.read().unwrap();
    assert_eq!(flight.header.rules, [rule, "fail command"]);
    assert_eq!(
        count(&flight, |event| matches!(event, Event::Injected(_))),
        2
    );
}

#[test]
fn removed_device_is_gone_for_its_client_and_there_for_the_next() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("control");
    let options = ["--control", path.to_str().unwrap()];
    let (daemon, mut driver, _folder, file) = recorded_with(&options);
    assert_eq!(driver.io(READ, DATA, 8), SUCCESS);
    let mut stream = UnixStream::connect(&path).unwrap();
    writeln!(stream, "remove device").unwrap();
    std::io::read_to_string(stream).unwrap();
    wait_until("the client is gone", || {
        let events = file.read().unwrap();
        (count(&events, |event| *event == Event::Client(false)) == 1).then_some(())
    });
    let mut driver = self::driver(&daemon);
    assert_eq!(driver.io(READ, DATA, 8), SUCCESS);
}

#[test]
fn a_mapping_that_its_driver_leaves_behind_is_found() {
    let (mut daemon, mut driver, _folder, file) = recorded();
    let buffer = memory_file(RAM_BYTES, SealFlags::SHRINK);
    driver
        .link
        .map((BUFFER, 4096), Some(buffer.as_fd()))
        .unwrap();
    assert_eq!(driver.io(READ, BUFFER, 8), SUCCESS);
    assert_eq!(daemon.terminate().code, Some(0));
    let mut flight = file.read().unwrap();
    assert!(flight.header.ended);
    // Drivers have a second to remove a mapping: this stands for a later end.
    let mut records = flight.records.iter();
    let end = records.position(|record| record.event == Event::Client(false));
    for record in &mut flight.records[end.unwrap()..] {
        record.nanos += 1_010_000_000;
    }
    let (findings, _) = Sanitizer::of(&flight);
    let found: Vec<_> = findings.iter().map(|f| (f.kind, f.address)).collect();
    assert_eq!(found, [(FindingKind::LeftBehind, Iova(BUFFER))]);
}

#[test]
fn device_without_flight_record_goes_on_and_says_so() {
    let words = ["--namespace", "ram=2M", "--flight", "/nowhere/disk7.flight"];
    let mut daemon = start(&words);
    let said = daemon.stderr();
    let expected = "/nowhere/disk7.flight: flight record: cannot make the file: ";
    assert!(said.contains(expected), "{said}");
    assert!(said.contains("continuing without it"), "{said}");
    assert_eq!(daemon.terminate().code, Some(0));
}
