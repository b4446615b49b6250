//! The report for programs.

use peerbar_flight::{Event, Fault, Finding, Flight, Level, Mapping, Moment};
use serde_json::{Value, json};

use super::behind::Behind;
use super::injected;
use super::line::{access, direction};
use super::recorded::{Recorded, RecordedDevice, Sanitized};
use super::register_writes;

/// Returns everything, with the findings of the sanitizer if it is requested.
pub(super) fn all(
    recorded: &Recorded,
    sanitized: Option<&Sanitized<'_>>,
    unjudged: &[String],
) -> Value {
    let devices = recorded.shown();
    let devices: Vec<Value> = devices.map(|each| device(recorded, each)).collect();
    let mut all = json!({ "devices": devices });
    if let (Some(found), Some(fields)) = (sanitized, all.as_object_mut()) {
        let findings = found.findings.iter();
        let findings: Vec<Value> = findings
            .map(|(device, each)| finding(recorded, device, each))
            .collect();
        fields.insert("findings".to_owned(), findings.into());
        fields.insert("uncompared_pages".to_owned(), found.uncompared.into());
        fields.insert("unjudged".to_owned(), unjudged.into());
    }
    all
}

fn device(recorded: &Recorded, device: &RecordedDevice) -> Value {
    let (flight, history) = (&device.flight, &device.history);
    let mappings = device.mappings();
    let last = flight.records.last();
    let mapped = mappings.iter().map(|each| mapping(recorded, each));
    let faults = history
        .faults
        .iter()
        .map(|each| fault(recorded, device, each));
    let teardowns = history.teardowns.iter().map(
        |each| json!({ "seconds": device.seconds(each.at.nanos), "still_mapped": each.mappings }),
    );
    json!({
        "name": device.name,
        "process": flight.header.process,
        "live": device.live,
        "ended": flight.header.ended,
        "everything_recorded": flight.header.level == Level::All,
        "started_ns_since_1970": flight.header.realtime,
        "seconds": last.map_or(0.0, |last| device.seconds(last.nanos)),
        "lost_records": device.lost(),
        "untracked_mappings": flight.header.untracked,
        "injected": injected::lines(flight),
        "register_writes": register_writes::made(recorded, device),
        "registers_written": register_writes::met(recorded, device),
        "ignored_writes": register_writes::ignored(device),
        "maps": history.maps,
        "unmaps": history.unmaps,
        "peak": history.peak,
        "maps_in_busiest_second": busiest_second(flight),
        "dmas": history.dmas,
        "failed_dmas": history.failed,
        "teardowns": teardowns.collect::<Vec<Value>>(),
        "mappings": mapped.collect::<Vec<Value>>(),
        "faults": faults.collect::<Vec<Value>>(),
    })
}

fn mapping(recorded: &Recorded, mapping: &Mapping) -> Value {
    let behind = match Behind::of(mapping, recorded) {
        Behind::Ram(address) => json!({ "guest_ram": address }),
        Behind::File(offset) => json!({ "file_offset": offset }),
        Behind::Bar(name, id) => json!({ "device": name, "window": format!("{id:?}") }),
        Behind::Device => json!({ "device": null }),
    };
    json!({
        "iova": mapping.range.first().0,
        "size": mapping.range.size(),
        "access": access(mapping),
        "behind": behind,
    })
}

pub(super) fn fault(recorded: &Recorded, device: &RecordedDevice, fault: &Fault) -> Value {
    let life = |number: Option<usize>| {
        let life = number.and_then(|number| device.history.mapping(number))?;
        Some(mapping(recorded, &life.mapping))
    };
    let was = fault.around.was.and_then(|unmapped| {
        let life = device.history.mapping(unmapped.life)?;
        Some(json!({
            "mapping": mapping(recorded, &life.mapping),
            "unmapped_seconds": device.seconds(unmapped.unmapped.nanos),
            "made_for": life.first_user.map(|user| user.origin.to_string()),
        }))
    });
    let dma = &fault.dma;
    json!({
        "seconds": device.seconds(fault.at.nanos),
        "origin": dma.origin.to_string(),
        "operation": fault.command.map(|command| device.kind.operation(dma.origin, command.operation)),
        "address": dma.address.0,
        "size": dma.len,
        "direction": direction(dma.direction),
        "outcome": dma.outcome.to_string(),
        "in": life(fault.around.at),
        "was": was,
        "nearest_below": life(fault.around.below),
        "nearest_above": life(fault.around.above),
        "kernel": recorded.kernel.lines(&device.name, dma.address.0, dma.len),
    })
}

fn finding(recorded: &Recorded, device: &RecordedDevice, finding: &Finding) -> Value {
    let other = recorded.other(finding);
    let then = |moment: Moment| device.seconds(moment.nanos);
    json!({
        "kind": format!("{:?}", finding.kind),
        "device": device.name,
        "origin": finding.origin.to_string(),
        "seconds": device.seconds(finding.at.nanos),
        "address": finding.address.0,
        "size": finding.len,
        "mapping_iova": finding.mapping.map(|(mapping, _)| mapping.range.first().0),
        "mapping_seconds": finding.mapping.map(|(_, moment)| then(moment)),
        "other_device": other.map(|(device, _)| &device.name),
        "other_origin": other.and_then(|(_, command)| Some(command?.origin.to_string())),
    })
}

/// Returns the most mappings that were made within one second.
pub(super) fn busiest_second(flight: &Flight) -> usize {
    const SECOND: u64 = 1_000_000_000;
    let maps = flight
        .records
        .iter()
        .filter(|record| matches!(record.event, Event::Map(_)));
    let times: Vec<u64> = maps.map(|record| record.nanos).collect();
    let mut most = 0;
    let mut from = 0;
    for (number, time) in times.iter().enumerate() {
        while times
            .get(from)
            .is_some_and(|start| time.saturating_sub(*start) >= SECOND)
        {
            from += 1;
        }
        most = most.max(number + 1 - from);
    }
    most
}
