//! The messages of Perfetto's trace format that are written, with the fields that are used
//! (perfetto.dev, protos/perfetto/trace/trace_packet.proto and below).

use super::wire::{Fields, Message};

/// A trace: the file.
pub(super) struct Trace<'a> {
    pub(super) packet: &'a TracePacket,
}

impl Message for Trace<'_> {
    fn write(&self, fields: &mut Fields<'_>) {
        fields.messages(1, [self.packet]);
    }
}

/// One entry of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TracePacket {
    pub(super) timestamp: Option<u64>,
    pub(super) clock_snapshot: Option<ClockSnapshot>,
    pub(super) trusted_packet_sequence_id: u32,
    pub(super) track_event: Option<TrackEvent>,
    pub(super) interned_data: Option<InternedData>,
    /// Bits: 1, names start from the beginning; 2, names of before are used.
    pub(super) sequence_flags: u32,
    pub(super) trace_packet_defaults: Option<TracePacketDefaults>,
    pub(super) track_descriptor: Option<TrackDescriptor>,
}

impl Message for TracePacket {
    fn write(&self, fields: &mut Fields<'_>) {
        fields.messages(6, &self.clock_snapshot);
        fields.optional(8, self.timestamp);
        fields.number(10, self.trusted_packet_sequence_id);
        fields.messages(11, &self.track_event);
        fields.messages(12, &self.interned_data);
        fields.number(13, self.sequence_flags);
        fields.messages(59, &self.trace_packet_defaults);
        fields.messages(60, &self.track_descriptor);
    }
}

/// Defaults for all packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TracePacketDefaults {
    pub(super) timestamp_clock_id: u32,
}

impl Message for TracePacketDefaults {
    fn write(&self, fields: &mut Fields<'_>) {
        fields.number(58, self.timestamp_clock_id);
    }
}

/// Several clocks at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClockSnapshot {
    pub(super) clocks: Vec<Clock>,
    pub(super) primary_trace_clock: u32,
}

impl Message for ClockSnapshot {
    fn write(&self, fields: &mut Fields<'_>) {
        fields.messages(1, &self.clocks);
        fields.number(2, self.primary_trace_clock);
    }
}

/// A clock's value in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    pub(super) clock_id: u32,
    pub(super) timestamp: u64,
}

impl Message for Clock {
    fn write(&self, fields: &mut Fields<'_>) {
        fields.number(1, self.clock_id);
        fields.number(2, self.timestamp);
    }
}

/// A track: a row of the display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TrackDescriptor {
    pub(super) uuid: u64,
    pub(super) name: String,
    pub(super) parent_uuid: Option<u64>,
    pub(super) counter: Option<CounterDescriptor>,
    /// 3: by rank.
    pub(super) child_ordering: u32,
    /// A number of 31 bits, as it has a sign.
    pub(super) sibling_order_rank: u32,
}

impl Message for TrackDescriptor {
    fn write(&self, fields: &mut Fields<'_>) {
        fields.number(1, self.uuid);
        fields.text(2, Some(&self.name));
        fields.optional(5, self.parent_uuid);
        fields.messages(8, &self.counter);
        fields.number(11, self.child_ordering);
        fields.number(12, self.sibling_order_rank);
    }
}

/// The unit of a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CounterDescriptor {
    /// 3: bytes.
    pub(super) unit: u32,
}

impl Message for CounterDescriptor {
    fn write(&self, fields: &mut Fields<'_>) {
        fields.number(3, self.unit);
    }
}

/// An event on a track.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TrackEvent {
    pub(super) debug_annotations: Vec<DebugAnnotation>,
    /// 1: a slice begins; 2: it ends; 3: an instant; 4: a counter.
    pub(super) kind: u32,
    pub(super) name_iid: Option<u64>,
    pub(super) track_uuid: u64,
    /// A number of 63 bits, as it has a sign.
    pub(super) counter_value: Option<u64>,
    pub(super) flow_ids: Vec<u64>,
}

impl Message for TrackEvent {
    fn write(&self, fields: &mut Fields<'_>) {
        fields.messages(4, &self.debug_annotations);
        fields.number(9, self.kind);
        fields.optional(10, self.name_iid);
        fields.number(11, self.track_uuid);
        fields.optional(30, self.counter_value);
        fields.fixed(47, &self.flow_ids);
    }
}

/// An argument of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DebugAnnotation {
    pub(super) name_iid: u64,
    pub(super) uint_value: Option<u64>,
    pub(super) string_value: Option<String>,
    pub(super) pointer_value: Option<u64>,
    pub(super) string_value_iid: Option<u64>,
}

impl Message for DebugAnnotation {
    fn write(&self, fields: &mut Fields<'_>) {
        fields.number(1, self.name_iid);
        fields.optional(3, self.uint_value);
        fields.text(6, self.string_value.as_deref());
        fields.optional(7, self.pointer_value);
        fields.optional(17, self.string_value_iid);
    }
}

/// Texts that later packets name by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InternedData {
    pub(super) event_names: Vec<InternedText>,
    pub(super) debug_annotation_names: Vec<InternedText>,
    pub(super) debug_annotation_string_values: Vec<InternedText>,
}

impl Message for InternedData {
    fn write(&self, fields: &mut Fields<'_>) {
        fields.messages(2, &self.event_names);
        fields.messages(3, &self.debug_annotation_names);
        fields.messages(29, &self.debug_annotation_string_values);
    }
}

/// A text and its number (EventName, DebugAnnotationName, and InternedString, which are alike on the wire).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InternedText {
    pub(super) iid: u64,
    pub(super) text: String,
}

impl Message for InternedText {
    fn write(&self, fields: &mut Fields<'_>) {
        fields.number(1, self.iid);
        fields.text(2, Some(&self.text));
    }
}

/// A reader of the parts that the tests examine.
#[cfg(test)]
pub(super) mod read {
    use super::super::wire::read::{Value, fields};
    use super::{InternedData, InternedText, TracePacket, TrackDescriptor, TrackEvent};

    /// Returns the packets of a file.
    pub(in super::super) fn packets(file: &[u8]) -> Vec<TracePacket> {
        fields(file)
            .into_iter()
            .map(|(number, packet)| {
                assert_eq!(number, 1, "a field of the file");
                packet_of(packet)
            })
            .collect()
    }

    fn packet_of(value: Value<'_>) -> TracePacket {
        let mut packet = TracePacket::default();
        for (number, value) in fields(value.bytes()) {
            match number {
                8 => packet.timestamp = Some(value.number()),
                11 => packet.track_event = Some(track_event(value)),
                12 => packet.interned_data = Some(interned_data(value)),
                60 => packet.track_descriptor = Some(track_descriptor(value)),
                _ => {}
            }
        }
        packet
    }

    fn track_event(value: Value<'_>) -> TrackEvent {
        let mut event = TrackEvent::default();
        for (number, value) in fields(value.bytes()) {
            match number {
                9 => event.kind = u32::try_from(value.number()).unwrap(),
                10 => event.name_iid = Some(value.number()),
                11 => event.track_uuid = value.number(),
                30 => event.counter_value = Some(value.number()),
                47 => event.flow_ids.push(value.number()),
                _ => {}
            }
        }
        event
    }

    fn interned_data(value: Value<'_>) -> InternedData {
        let names = fields(value.bytes()).into_iter();
        let names = names.filter(|(number, _)| *number == 2);
        InternedData {
            event_names: names.map(|(_, value)| interned_text(value)).collect(),
            ..InternedData::default()
        }
    }

    fn interned_text(value: Value<'_>) -> InternedText {
        match *fields(value.bytes()) {
            [(1, iid), (2, text)] => InternedText {
                iid: iid.number(),
                text: text.text(),
            },
            ref other => panic!("{other:?} in place of a text and its number"),
        }
    }

    fn track_descriptor(value: Value<'_>) -> TrackDescriptor {
        let mut track = TrackDescriptor {
            uuid: 0,
            name: String::new(),
            parent_uuid: None,
            counter: None,
            child_ordering: 0,
            sibling_order_rank: 0,
        };
        for (number, value) in fields(value.bytes()) {
            match number {
                1 => track.uuid = value.number(),
                2 => track.name = value.text(),
                5 => track.parent_uuid = Some(value.number()),
                _ => {}
            }
        }
        track
    }
}
