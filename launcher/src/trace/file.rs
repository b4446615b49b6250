//! The trace file: tracks, and events on them.

use std::collections::HashMap;
use std::io::{self, Write};

use super::proto::{
    Clock, ClockSnapshot, CounterDescriptor, DebugAnnotation, InternedData, InternedText, Trace,
    TracePacket, TracePacketDefaults, TrackDescriptor, TrackEvent,
};
use super::wire::{Fields, Message};

/// Perfetto's number of CLOCK_REALTIME.
const REALTIME: u32 = 1;
/// Perfetto's number of CLOCK_MONOTONIC, the clock of all times here.
const MONOTONIC: u32 = 3;
/// All packets are of one writer.
const SEQUENCE: u32 = 1;
/// The largest number of 32 bits with a sign.
const LAST_RANK: u32 = i32::MAX.unsigned_abs();
/// Children are shown in the order in which they were made.
const BY_RANK: u32 = 3;

/// A row of the display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Track(u64);

/// An argument's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    /// A number.
    Number(u64),
    /// An address.
    Address(u64),
    /// One of a few words.
    Word(&'static str),
    /// Any text.
    Text(String),
}

/// An event on a track.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TimedEvent {
    /// Start, in nanoseconds of CLOCK_MONOTONIC.
    pub(super) from: u64,
    /// End, or `None` for an instant.
    pub(super) to: Option<u64>,
    /// Name.
    pub(super) name: String,
    /// More about it.
    pub(super) arguments: Vec<(&'static str, Argument)>,
    /// The flows that it is a part of: one for each command that it concerns.
    pub(super) flows: Vec<u64>,
}

impl TimedEvent {
    /// Something without a duration.
    pub(crate) fn instant(at: u64, name: impl Into<String>) -> Self {
        Self {
            from: at,
            to: None,
            name: name.into(),
            arguments: Vec::new(),
            flows: Vec::new(),
        }
    }

    /// Something that took until `to`.
    pub(crate) fn slice(from: u64, to: u64, name: impl Into<String>) -> Self {
        Self {
            to: Some(to.max(from)),
            ..Self::instant(from, name)
        }
    }

    /// With one argument more.
    pub(crate) fn with(mut self, name: &'static str, value: Argument) -> Self {
        self.arguments.push((name, value));
        self
    }

    /// Adds it to these flows.
    pub(super) fn in_flows(mut self, flows: impl IntoIterator<Item = u64>) -> Self {
        self.flows.extend(flows);
        self
    }
}

/// Numbers for texts.
#[derive(Default)]
struct Interned(HashMap<String, u64>);

impl Interned {
    /// Returns the number of a text, which is added to `fresh` if it is new.
    fn number(&mut self, text: &str, fresh: &mut Vec<InternedText>) -> u64 {
        if let Some(number) = self.0.get(text) {
            return *number;
        }
        let iid = self.0.len() as u64 + 1;
        self.0.insert(text.to_owned(), iid);
        let text = text.to_owned();
        fresh.push(InternedText { iid, text });
        iid
    }
}

/// A trace file that is being written. Packets of one lane come in their order; Perfetto sorts all by time.
pub(crate) struct TraceFile<W> {
    out: W,
    names: Interned,
    keys: Interned,
    words: Interned,
    tracks: u64,
    buffer: Vec<u8>,
}

impl<W: Write> TraceFile<W> {
    /// Begins a file; `monotonic` and `realtime` are the clocks at one moment, in nanoseconds.
    pub(crate) fn begin(out: W, monotonic: u64, realtime: u64) -> io::Result<Self> {
        let mut file = Self {
            out,
            names: Interned::default(),
            keys: Interned::default(),
            words: Interned::default(),
            tracks: 0,
            buffer: Vec::new(),
        };
        let clock = |clock_id, timestamp| Clock {
            clock_id,
            timestamp,
        };
        file.packet(TracePacket {
            sequence_flags: 1,
            clock_snapshot: Some(ClockSnapshot {
                clocks: vec![clock(MONOTONIC, monotonic), clock(REALTIME, realtime)],
                primary_trace_clock: MONOTONIC,
            }),
            trace_packet_defaults: Some(TracePacketDefaults {
                timestamp_clock_id: MONOTONIC,
            }),
            ..TracePacket::default()
        })?;
        Ok(file)
    }

    /// Makes a track of slices and instants, or of further tracks.
    pub(crate) fn track(&mut self, name: &str, parent: Option<Track>) -> io::Result<Track> {
        self.make_track(name, parent, None)
    }

    /// Makes a track of a number of bytes.
    pub(super) fn byte_counter(&mut self, name: &str, parent: Track) -> io::Result<Track> {
        self.make_track(name, Some(parent), Some(CounterDescriptor { unit: 3 }))
    }

    fn make_track(
        &mut self,
        name: &str,
        parent: Option<Track>,
        counter: Option<CounterDescriptor>,
    ) -> io::Result<Track> {
        self.tracks += 1;
        let uuid = self.tracks;
        self.packet(TracePacket {
            track_descriptor: Some(TrackDescriptor {
                uuid,
                name: name.to_owned(),
                parent_uuid: parent.map(|parent| parent.0),
                counter,
                child_ordering: BY_RANK,
                sibling_order_rank: u32::try_from(uuid)
                    .map_or(LAST_RANK, |rank| rank.min(LAST_RANK)),
            }),
            ..TracePacket::default()
        })?;
        Ok(Track(uuid))
    }

    /// Adds an event to a track. Those of one track must come in their order and must not overlap.
    pub(crate) fn event(&mut self, track: Track, event: &TimedEvent) -> io::Result<()> {
        let mut fresh = InternedData::default();
        let name = self.names.number(&event.name, &mut fresh.event_names);
        let arguments = event.arguments.iter();
        let arguments = arguments.map(|(key, value)| self.annotation(key, value, &mut fresh));
        let debug_annotations = arguments.collect();
        let first = TrackEvent {
            debug_annotations,
            kind: if event.to.is_some() { 1 } else { 3 },
            name_iid: Some(name),
            track_uuid: track.0,
            counter_value: None,
            flow_ids: event.flows.clone(),
        };
        self.track_event(event.from, first, fresh)?;
        let Some(to) = event.to else {
            return Ok(());
        };
        let last = TrackEvent {
            kind: 2,
            track_uuid: track.0,
            ..TrackEvent::default()
        };
        self.track_event(to, last, InternedData::default())
    }

    /// Sets a counter.
    pub(super) fn count(&mut self, track: Track, at: u64, value: u64) -> io::Result<()> {
        let event = TrackEvent {
            kind: 4,
            track_uuid: track.0,
            counter_value: Some(value.min(i64::MAX.unsigned_abs())),
            ..TrackEvent::default()
        };
        self.track_event(at, event, InternedData::default())
    }

    /// Ends the file.
    pub(crate) fn end(mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn annotation(
        &mut self,
        key: &str,
        value: &Argument,
        fresh: &mut InternedData,
    ) -> DebugAnnotation {
        let mut annotation = DebugAnnotation {
            name_iid: self.keys.number(key, &mut fresh.debug_annotation_names),
            ..DebugAnnotation::default()
        };
        match value {
            Argument::Number(number) => annotation.uint_value = Some(*number),
            Argument::Address(address) => annotation.pointer_value = Some(*address),
            Argument::Text(text) => annotation.string_value = Some(text.clone()),
            Argument::Word(word) => {
                let words = &mut fresh.debug_annotation_string_values;
                annotation.string_value_iid = Some(self.words.number(word, words));
            }
        }
        annotation
    }

    fn track_event(&mut self, at: u64, event: TrackEvent, fresh: InternedData) -> io::Result<()> {
        let is_empty = fresh == InternedData::default();
        self.packet(TracePacket {
            // Perfetto's times are signed.
            timestamp: Some(at.min(i64::MAX.unsigned_abs())),
            track_event: Some(event),
            interned_data: (!is_empty).then_some(fresh),
            sequence_flags: 2,
            ..TracePacket::default()
        })
    }

    fn packet(&mut self, packet: TracePacket) -> io::Result<()> {
        let packet = TracePacket {
            trusted_packet_sequence_id: SEQUENCE,
            ..packet
        };
        self.buffer.clear();
        let trace = Trace { packet: &packet };
        trace.write(&mut Fields::of(&mut self.buffer));
        self.out.write_all(&self.buffer)
    }
}
