//! The activity of a device, from its flight record: doorbells, commands by queue, interrupts, DMA,
//! mappings, faults, bytes by route.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use peerbar_flight::{
    Dma, DmaOutcome, DoorbellEvent, Event, Operation, Origin, Purpose, Record, Route,
};

use super::file::{Argument, TimedEvent, TraceFile, Track};
use super::lanes;
use super::signals::Signals;
use crate::iommu::line::{access, addresses, direction, event, range};
use crate::iommu::recorded::{Recorded, RecordedDevice};
use crate::iommu::register_writes;

/// A command from its begin to its end, as its device recorded them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordedCommand {
    /// Queue, or channel.
    pub(super) queue: u16,
    /// Its number there.
    pub(super) number: u32,
    /// Its operation.
    pub(super) operation: Operation,
    /// Time of its begin.
    pub(super) begun: u64,
    /// Time of its completion, or `None` if the record ends before.
    pub(super) ended: Option<u64>,
    /// Time at which the device read the doorbell that announced it.
    pub(super) announced: Option<u64>,
    /// Time at which the client was signalled to interrupt only for its completion.
    pub(super) interrupted: Option<u64>,
    /// Its status; 0 if it succeeded.
    pub(super) status: u16,
    /// Number that joins all its events.
    pub(super) flow: u64,
}

/// The records of a device, sorted for tracks.
#[derive(Default)]
pub(super) struct Activity {
    /// Its commands in the order of their begins.
    pub(super) commands: Vec<RecordedCommand>,
    /// By queue.
    doorbells: Vec<(u16, TimedEvent)>,
    interrupts: Vec<TimedEvent>,
    dmas: Vec<TimedEvent>,
    faults: Vec<TimedEvent>,
    /// Number of failed DMAs. A fault may also be a DMA that only went astray.
    failed: usize,
    mappings: Vec<TimedEvent>,
    changes: Vec<TimedEvent>,
    /// Writes of peers to its registers.
    register_writes: Vec<TimedEvent>,
    payload: Vec<(u64, Route, u64)>,
    last: u64,
}

/// Open commands and other operations while the records are read.
#[derive(Default)]
struct OpenCommands {
    /// The commands that have not ended.
    running: HashMap<Origin, usize>,
    signals: Signals,
}

/// The records of a queue.
#[derive(Default)]
struct Queue<'a> {
    doorbells: Vec<TimedEvent>,
    commands: Vec<&'a RecordedCommand>,
}

impl Activity {
    /// Sorts the records of a device. `number` is its index among the devices.
    pub(super) fn of(recorded: &Recorded, device: &RecordedDevice, number: usize) -> Self {
        let mut activity = Self {
            last: device
                .flight
                .records
                .last()
                .map_or(0, |record| record.nanos),
            ..Self::default()
        };
        let mut open = OpenCommands::default();
        for record in &device.flight.records {
            match record.event {
                Event::Doorbell(ref doorbell) => {
                    open.signals.rung(doorbell, activity.doorbells.len());
                    let doorbell = (doorbell.queue, rung(doorbell, record.nanos));
                    activity.doorbells.push(doorbell);
                }
                Event::Begin { origin, operation } => {
                    activity.begin(&mut open, origin, operation, record, number);
                }
                Event::End { origin, status } => {
                    activity.end(&mut open, origin, status, record.nanos);
                }
                Event::Interrupt { vector } => {
                    activity.interrupt(&mut open, vector, record.nanos);
                }
                Event::Dma(ref dma) => {
                    let command = open.running.get(&dma.origin);
                    let flow = command.and_then(|index| activity.commands.get(*index));
                    let flow = flow.map(|command| command.flow);
                    if let Some(mishap) = register_writes::mishap(device, dma) {
                        let mishap = TimedEvent::instant(record.nanos, mishap);
                        activity.faults.push(mishap.in_flows(flow));
                    }
                    activity.dma(dma, record.nanos, flow);
                }
                Event::Map(_) | Event::Unmap(_) => {
                    activity.mappings.push(mapping(recorded, device, record));
                }
                Event::RegisterWrite(_) => {
                    let what = event(recorded, device, &record.event);
                    let write = TimedEvent::instant(record.nanos, what);
                    activity.register_writes.push(write);
                }
                _ => {
                    if record.event == Event::Reset(true) {
                        open.signals.reset();
                    }
                    let what = event(recorded, device, &record.event);
                    let change = TimedEvent::instant(record.nanos, what);
                    activity.changes.push(change);
                }
            }
        }
        activity
    }

    fn begin(
        &mut self,
        open: &mut OpenCommands,
        origin: Origin,
        operation: Operation,
        record: &Record,
        device: usize,
    ) {
        let Origin::Command { queue, command } = origin else {
            return;
        };
        // Its number is used again, so the end of the one before is lost.
        let before = open.running.insert(origin, self.commands.len());
        if let Some(before) = before.and_then(|index| self.commands.get_mut(index)) {
            before.ended = Some(record.nanos);
        }
        let flow = (device as u64 + 1) << 48 | record.sequence & 0xffff_ffff_ffff;
        let doorbell = open.signals.begun(queue);
        let doorbell = doorbell.and_then(|index| self.doorbells.get_mut(index));
        self.commands.push(RecordedCommand {
            queue,
            number: command,
            operation,
            begun: record.nanos,
            ended: None,
            announced: doorbell.as_ref().map(|(_, doorbell)| doorbell.from),
            interrupted: None,
            status: 0,
            flow,
        });
        if let Some((_, doorbell)) = doorbell {
            doorbell.flows.push(flow);
        }
    }

    fn end(&mut self, open: &mut OpenCommands, origin: Origin, status: u16, at: u64) {
        let command = open.running.remove(&origin);
        let command = command.and_then(|index| Some((index, self.commands.get_mut(index)?)));
        if let Some((index, command)) = command {
            command.ended = Some(at);
            command.status = status;
            open.signals.ended(command.queue, index);
        }
    }

    fn interrupt(&mut self, open: &mut OpenCommands, vector: u16, at: u64) {
        let reported = open.signals.interrupted(vector);
        if let [index] = *reported {
            if let Some(command) = self.commands.get_mut(index) {
                command.interrupted = Some(at);
            }
        }
        let commands = reported.iter();
        let commands = commands.filter_map(|index| self.commands.get(*index));
        let flows: Vec<u64> = commands.map(|command| command.flow).collect();
        let event = TimedEvent::instant(at, format!("vector {vector}"))
            .with("commands", Argument::Number(flows.len() as u64))
            .in_flows(flows);
        self.interrupts.push(event);
    }

    fn dma(&mut self, dma: &Dma, at: u64, flow: Option<u64>) {
        let about = |event: TimedEvent| {
            event
                .with("route", Argument::Word(dma.route.word()))
                .with("direction", Argument::Word(direction(dma.direction)))
                .with(
                    "purpose",
                    Argument::Text(format!("{:?}", dma.purpose).to_lowercase()),
                )
                .with("address", Argument::Address(dma.address.0))
                .with("bytes", Argument::Number(dma.len))
                .with("for", Argument::Text(dma.origin.to_string()))
                .in_flows(flow)
        };
        let from = at.saturating_sub(dma.took);
        let name = format!("{} {}", direction(dma.direction), dma.route.word());
        self.dmas.push(about(TimedEvent::slice(from, at, name)));
        if dma.outcome != DmaOutcome::Done {
            self.failed += 1;
            let name = format!("fault: {}", dma.outcome);
            self.faults.push(about(TimedEvent::instant(at, name)));
        } else if dma.purpose == Purpose::Payload {
            self.payload.push((at, dma.route, dma.len));
        }
    }

    /// Returns the numbers of doorbells and interrupts.
    pub(super) fn signal_counts(&self) -> (usize, usize) {
        (self.doorbells.len(), self.interrupts.len())
    }

    /// Returns the number of segments of DMA, and the number of failed ones.
    pub(super) fn dma_counts(&self) -> (usize, usize) {
        (self.dmas.len(), self.failed)
    }

    /// Returns the number of mappings and unmappings.
    pub(super) fn mapping_changes(&self) -> usize {
        self.mappings.len()
    }

    /// Adds the device's tracks.
    pub(super) fn add<W: Write>(
        self,
        file: &mut TraceFile<W>,
        device: &RecordedDevice,
    ) -> io::Result<()> {
        let group = file.track(&device.name, None)?;
        for (name, events) in [
            ("faults", self.faults),
            ("mappings", self.mappings),
            ("state", self.changes),
            ("registers written by peers", self.register_writes),
        ] {
            if !events.is_empty() {
                lanes::add(file, name, group, events)?;
            }
        }
        let mut queues: BTreeMap<u16, Queue<'_>> = BTreeMap::new();
        for (queue, doorbell) in self.doorbells {
            queues.entry(queue).or_default().doorbells.push(doorbell);
        }
        for command in &self.commands {
            let queue = queues.entry(command.queue).or_default();
            queue.commands.push(command);
        }
        for (number, queue) in queues {
            let name = device.kind.queue(number);
            lanes::add(file, &format!("{name}: doorbells"), group, queue.doorbells)?;
            let commands = queue.commands.iter();
            let slices = commands.clone().map(|each| slice(device, each, self.last));
            lanes::add(file, &name, group, slices.collect())?;
            let ends = commands.filter_map(|command| completion(command));
            lanes::add(file, &format!("{name}: completions"), group, ends.collect())?;
        }
        lanes::add(file, "interrupts", group, self.interrupts)?;
        lanes::add(file, "DMA", group, self.dmas)?;
        counters(file, group, self.payload)
    }
}

fn slice(device: &RecordedDevice, command: &RecordedCommand, last: u64) -> TimedEvent {
    let origin = Origin::command(command.queue, command.number);
    let name = device.kind.operation(origin, command.operation);
    let slice = TimedEvent::slice(command.begun, command.ended.unwrap_or(last), name)
        .with("command", Argument::Number(command.number.into()))
        .in_flows([command.flow]);
    match command.ended {
        Some(_) => slice.with("status", Argument::Number(command.status.into())),
        None => slice.with("status", Argument::Word("not complete")),
    }
}

fn rung(doorbell: &DoorbellEvent, at: u64) -> TimedEvent {
    TimedEvent::instant(at, "doorbell")
        .with("tail", Argument::Number(doorbell.tail.into()))
        .with("added", Argument::Number(doorbell.added.into()))
        .with("to fetch", Argument::Number(doorbell.waiting.into()))
}

fn completion(command: &RecordedCommand) -> Option<TimedEvent> {
    let name = if command.status == 0 {
        "complete"
    } else {
        "failed"
    };
    let event = TimedEvent::instant(command.ended?, name)
        .with("command", Argument::Number(command.number.into()))
        .with("status", Argument::Number(command.status.into()));
    Some(event.in_flows([command.flow]))
}

fn mapping(recorded: &Recorded, device: &RecordedDevice, record: &Record) -> TimedEvent {
    match record.event {
        Event::Map(ref mapping) => TimedEvent::instant(record.nanos, "map")
            .with("range", Argument::Text(range(mapping)))
            .with("access", Argument::Word(access(mapping)))
            .with("bytes", Argument::Number(mapping.range.size())),
        Event::Unmap(range) => TimedEvent::instant(record.nanos, "unmap")
            .with("range", Argument::Text(addresses(range))),
        ref other => TimedEvent::instant(record.nanos, event(recorded, device, other)),
    }
}

/// Adds counters of the payload that was moved until each moment, by route.
fn counters<W: Write>(
    file: &mut TraceFile<W>,
    group: Track,
    mut payload: Vec<(u64, Route, u64)>,
) -> io::Result<()> {
    payload.sort_by_key(|(at, ..)| *at);
    let mut sums: BTreeMap<Route, (Track, u64)> = BTreeMap::new();
    for (at, route, bytes) in payload {
        let (track, sum) = match sums.get(&route) {
            Some(sum) => *sum,
            None => {
                let name = format!("payload by {}", route.word());
                let track = file.byte_counter(&name, group)?;
                file.count(track, at.saturating_sub(1), 0)?;
                (track, 0)
            }
        };
        let sum = bytes.saturating_add(sum);
        sums.insert(route, (track, sum));
        file.count(track, at, sum)?;
    }
    Ok(())
}
