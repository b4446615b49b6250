//! One line for each record, as `perf script` prints events.

use peerbar_flight::{
    Direction, Dma, DmaOutcome, DoorbellEvent, Event, Injection, Mapping, Record, WindowKind,
};
use peerbar_pci::{Address, Range};

use super::behind::{Behind, window_name};
use super::injected::rule as rule_text;
use super::recorded::{Recorded, RecordedDevice};
use super::register_writes;
use peerbar_lab::count::counted;
use peerbar_lab::size::human;

/// Returns all records of all devices in the order of their times.
pub(super) fn history(recorded: &Recorded) -> String {
    let mut all: Vec<(&RecordedDevice, &Record)> = Vec::new();
    for device in recorded.shown() {
        all.extend(device.flight.records.iter().map(|record| (device, record)));
    }
    all.sort_by_key(|(_, record)| record.nanos);
    let losers = recorded.shown().filter(|device| device.lost() > 0);
    let losses = losers.map(|device| lost(&device.name, device.lost()) + "\n");
    let lines = all
        .iter()
        .map(|(device, record)| line(recorded, device, record) + "\n");
    losses.chain(lines).collect()
}

/// Returns the line about that many records that the device `name` has lost.
pub(super) fn lost(name: &str, records: u64) -> String {
    format!("# {name}: it has lost {}", counted(records, "record"))
}

/// Returns a record in a line. Times are seconds since the first device's start.
pub(super) fn line(recorded: &Recorded, device: &RecordedDevice, record: &Record) -> String {
    let first = recorded
        .devices
        .iter()
        .map(|device| device.flight.header.monotonic)
        .min();
    let since = record.nanos.saturating_sub(first.unwrap_or(0)) as f64 / 1e9;
    let what = event(recorded, device, &record.event);
    format!("{since:12.6} {:<8} {what}", device.name)
}

/// Returns the description of an event, without its time.
pub(crate) fn event(recorded: &Recorded, device: &RecordedDevice, event: &Event) -> String {
    match *event {
        Event::Map(ref mapping) => {
            let behind = Behind::of(mapping, recorded).text();
            format!("map    {} {} {behind}", range(mapping), access(mapping))
        }
        Event::Unmap(range) => format!("unmap  {}", addresses(range)),
        Event::Dma(ref dma) => transfer(device, dma),
        Event::Begin { origin, operation } => {
            let operation = device.kind.operation(origin, operation);
            format!("begin  {origin}: {operation}")
        }
        Event::End { origin, status: 0 } => format!("end    {origin}"),
        Event::End { origin, status } => format!("end    {origin}: status {status:#06x}"),
        Event::Window(window) => match window.range {
            None => format!("window {} closes", window_name(window.id)),
            Some(range) => format!(
                "window {} {} {}",
                window_name(window.id),
                addresses(range),
                memory(window.memory)
            ),
        },
        Event::PeerWindow(window) => format!(
            "peer   {} {} {}",
            window.peer,
            addresses(window.range),
            memory(window.memory)
        ),
        Event::PeerLeaves(peer) => format!("peer   {peer} closes its windows"),
        Event::BusMaster(on) => format!("bus mastering {}", if on { "on" } else { "off" }),
        Event::Reset(true) => "reset begins".to_owned(),
        Event::Reset(false) => "reset is over".to_owned(),
        Event::Client(true) => "QEMU connects".to_owned(),
        Event::Client(false) => "QEMU leaves".to_owned(),
        Event::Injected(ref injection) => injected(device, injection),
        Event::Doorbell(ref doorbell) => rung(doorbell),
        Event::Interrupt { vector } => format!("interrupt, vector {vector}"),
        Event::RegisterWrite(ref write) => register_writes::line(recorded, device, write),
        Event::IgnoredWrite(ref write) => register_writes::ignored_line(write),
    }
}

/// Returns a transfer, with the error if it failed.
fn transfer(device: &RecordedDevice, dma: &Dma) -> String {
    let direction = direction(dma.direction);
    let purpose = format!("{:?}", dma.purpose).to_lowercase();
    let mut line = format!(
        "dma    {} {direction} {purpose} {:?}, {}",
        span(dma.address, dma.len),
        dma.route,
        dma.origin
    );
    if let Some(mishap) = register_writes::mishap(device, dma) {
        line += &format!(": {mishap}");
    }
    if dma.outcome != DmaOutcome::Done {
        line += &format!(": FAILED: {}", dma.outcome);
    }
    line
}

/// Returns a new value of a doorbell, and its effect.
fn rung(doorbell: &DoorbellEvent) -> String {
    let DoorbellEvent {
        queue,
        tail,
        added,
        waiting,
        ..
    } = doorbell;
    format!("doorbell of queue {queue}: tail {tail}, {added} added, {waiting} to fetch")
}

/// Returns a fault that was injected, by the text of its rule.
fn injected(device: &RecordedDevice, injection: &Injection) -> String {
    let Injection {
        rule,
        matches,
        origin,
    } = injection;
    let text = rule_text(&device.flight.header, *rule);
    format!("fault injected: {text}, match {matches}, {origin}")
}

/// Returns a mapping's addresses and size.
pub(crate) fn range(mapping: &Mapping) -> String {
    addresses(mapping.range)
}

/// Returns the first address and the size of a range.
pub(crate) fn addresses<A: Address>(range: Range<A>) -> String {
    match range == Range::all() {
        true => format!("{:#014x} all", 0),
        false => span(range.first(), range.size()),
    }
}

/// Returns an address and a size.
pub(crate) fn span(address: impl Address, size: u64) -> String {
    let address = address.get();
    format!("{address:#014x} {}", human(size))
}

pub(crate) fn access(mapping: &Mapping) -> &'static str {
    match (mapping.readable, mapping.writable) {
        (true, true) => "rw",
        (true, false) => "r-",
        (false, true) => "-w",
        (false, false) => "--",
    }
}

pub(crate) fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Read => "read",
        Direction::Write => "write",
    }
}

fn memory(memory: WindowKind) -> &'static str {
    match memory {
        WindowKind::Registers => "registers",
        WindowKind::Memory => "memory",
        WindowKind::Pages => "pages",
        WindowKind::Gone => "gone",
    }
}
