//! A whole time line, from a run's folder to the packets of its file.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use peerbar_flight::{
    Backing, Completer, Direction, Dma, DmaOutcome, DoorbellEvent, Event, FlightFile, Level,
    Mapping, Origin, Purpose, Recorder, Route,
};
use peerbar_pci::{Iova, Range};
use proptest::prelude::*;
use tempfile::TempDir;

use super::proto::{TracePacket, TrackEvent, read};
use super::{Contents, Inputs, Recorded};

const FLIGHT: &str = "disk0.flight";

fn dma(recorder: &Recorder, origin: Origin, route: Route, len: u64, outcome: DmaOutcome) {
    let dma = Dma {
        origin,
        purpose: Purpose::Payload,
        direction: Direction::Write,
        address: Iova(0x4000),
        len,
        route,
        completer: Completer::Unknown,
        outcome,
        took: 0,
    };
    recorder.dma(dma, recorder.clock());
}

/// Returns a run of one disk: two commands at once. The second one fails.
fn run(level: Level) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("nvme-disk0.log"), "").unwrap();
    let recorder = Recorder::create(&folder.path().join(FLIGHT), "disk0", level).unwrap();
    recorder.record(Event::Client(true));
    recorder.record(Event::Map(Mapping {
        range: Range::new(Iova(0), 0x1_0000).unwrap(),
        readable: true,
        writable: true,
        backing: Backing::Device,
    }));
    let [one, two] = [4097u32, 2].map(|number| Origin::command(1, number));
    recorder.record(Event::Doorbell(DoorbellEvent {
        queue: 1,
        tail: 2,
        added: 2,
        waiting: 2,
        vector: Some(3),
    }));
    recorder.record(Event::Begin {
        origin: one,
        operation: 2.into(),
    });
    recorder.record(Event::Begin {
        origin: two,
        operation: 2.into(),
    });
    dma(&recorder, one, Route::Peer, 4096, DmaOutcome::Done);
    dma(&recorder, one, Route::Peer, 512, DmaOutcome::Done);
    dma(
        &recorder,
        two,
        Route::Upstream,
        512,
        DmaOutcome::ClientRefused(19),
    );
    recorder.record(Event::End {
        origin: one,
        status: 0,
    });
    recorder.record(Event::End {
        origin: two,
        status: 4,
    });
    recorder.record(Event::Interrupt { vector: 3 });
    folder
}

fn written(folder: &TempDir) -> anyhow::Result<(Contents, Vec<TracePacket>)> {
    let inputs = Inputs::of(folder.path(), Recorded::open(folder.path())?)?;
    let mut file = Vec::new();
    let contents = inputs.write(&mut file)?;
    Ok((contents, read::packets(&file)))
}

/// Names of all tracks with those above them, and the events of each, by time, with their names.
fn by_track(packets: &[TracePacket]) -> BTreeMap<String, Vec<(u64, u32, String, TrackEvent)>> {
    let mut names: HashMap<u64, String> = HashMap::new();
    let mut texts = HashMap::new();
    let mut tracks: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for packet in packets {
        if let Some(track) = &packet.track_descriptor {
            let parent = track.parent_uuid.and_then(|parent| names.get(&parent));
            let parent = parent.map_or(String::new(), |parent| format!("{parent}/"));
            names.insert(track.uuid, parent + &track.name);
        }
        if let Some(fresh) = &packet.interned_data {
            texts.extend(
                fresh
                    .event_names
                    .iter()
                    .map(|name| (name.iid, name.text.clone())),
            );
        }
        if let (Some(event), Some(at)) = (&packet.track_event, packet.timestamp) {
            let name = event.name_iid.and_then(|iid| texts.get(&iid)).cloned();
            let track = format!("{} {}", names[&event.track_uuid], event.track_uuid);
            let entry = (at, event.kind, name.unwrap_or_default(), event.clone());
            tracks.entry(track).or_default().push(entry);
        }
    }
    tracks
}

/// Returns the kind and the name of each event of a file, by the name of its track.
pub(crate) fn events_by_track(file: &[u8]) -> BTreeMap<String, Vec<(u32, String)>> {
    let tracks = by_track(&read::packets(file)).into_iter();
    let tracks = tracks.map(|(track, events)| {
        let events = events.into_iter().map(|(_, kind, name, _)| (kind, name));
        (track, events.collect())
    });
    tracks.collect()
}

fn flows(events: &[TrackEvent]) -> Vec<u64> {
    events
        .iter()
        .flat_map(|event| event.flow_ids.clone())
        .collect()
}

#[test]
fn commands_at_once_are_on_lanes_of_their_queue() {
    let (contents, packets) = written(&run(Level::All)).unwrap();
    let tracks = by_track(&packets);
    let lanes = tracks
        .iter()
        .filter(|(name, _)| name.starts_with("disk0/queue 1 "));
    let lanes: Vec<_> = lanes.map(|(_, events)| events).collect();
    assert_eq!(lanes.len(), 2, "{:?}", tracks.keys());
    for events in &lanes {
        let kinds: Vec<u32> = events.iter().map(|(_, kind, ..)| *kind).collect();
        assert_eq!(kinds, [1, 2]);
        assert_eq!(events[0].2, "Read");
    }
    let device = &contents.devices[0];
    assert_eq!(
        (
            device.commands,
            device.doorbells,
            device.interrupts,
            device.dmas,
            device.faults,
            device.mapping_changes
        ),
        (2, 1, 1, 3, 1, 1)
    );
}

#[test]
fn flow_leads_from_doorbell_to_interrupt_by_command_and_dma() {
    let (_, packets) = written(&run(Level::All)).unwrap();
    let mut on = BTreeMap::new();
    for (track, events) in by_track(&packets) {
        for (at, kind, name, event) in events.iter().filter(|(_, kind, ..)| [1, 3].contains(kind)) {
            for flow in flows(std::slice::from_ref(event)) {
                let track = track.rsplit_once(' ').unwrap().0.to_owned();
                on.entry(flow)
                    .or_insert_with(Vec::new)
                    .push((*at, track, *kind, name.clone()));
            }
        }
    }
    assert_eq!(on.len(), 2, "{on:?}");
    on.values_mut().for_each(|events| events.sort());
    let of = |flow: usize| on.values().nth(flow).unwrap();
    let expected = [
        ("disk0/queue 1: doorbells", 3, "doorbell"),
        ("disk0/queue 1", 1, "Read"),
        ("disk0/DMA", 1, "write peer"),
        ("disk0/DMA", 1, "write peer"),
        ("disk0/queue 1: completions", 3, "complete"),
        ("disk0/interrupts", 3, "vector 3"),
    ];
    let first = of(0).iter();
    let first: Vec<_> = first
        .map(|(_, track, kind, name)| (track.as_str(), *kind, name.as_str()))
        .collect();
    assert_eq!(first, expected);
    let second: Vec<_> = of(1)
        .iter()
        .map(|(_, track, _, name)| (track.as_str(), name.as_str()))
        .collect();
    let expected = [
        ("disk0/queue 1: doorbells", "doorbell"),
        ("disk0/queue 1", "Read"),
        ("disk0/DMA", "write upstream"),
        ("disk0/faults", "fault: QEMU refused it (errno 19)"),
        ("disk0/queue 1: completions", "failed"),
        ("disk0/interrupts", "vector 3"),
    ];
    assert_eq!(second, expected);
}

#[test]
fn counters_add_up_the_payload_of_each_route() {
    let (_, packets) = written(&run(Level::All)).unwrap();
    let tracks = by_track(&packets);
    let counter = tracks
        .iter()
        .find(|(name, _)| name.starts_with("disk0/payload by peer "));
    let values: Vec<_> = counter
        .unwrap()
        .1
        .iter()
        .map(|(.., event)| event.counter_value)
        .collect();
    assert_eq!(values, [Some(0), Some(4096), Some(4608)]);
    assert!(
        !tracks
            .keys()
            .any(|name| name.contains("payload by upstream"))
    );
}

#[test]
fn record_of_mappings_only_says_what_is_missing() {
    let (contents, _) = written(&run(Level::Maps)).unwrap();
    assert_eq!(
        (contents.devices[0].commands, contents.devices[0].faults),
        (0, 1)
    );
    let missing = contents.missing.join("\n");
    assert!(
        missing.contains("disk0 recorded only mappings and failures: `peerbar run --trace`"),
        "{missing}"
    );
    assert!(
        missing.contains("the guest's kernel was not traced"),
        "{missing}"
    );
}

#[test]
fn guest_commands_join_the_flow_of_their_devices() {
    let folder = run(Level::All);
    let (_, packets) = written(&folder).unwrap();
    let at = |kind: &str, number| {
        let tracks = by_track(&packets);
        let mut events = tracks
            .iter()
            .filter(|(name, _)| name.starts_with("disk0/queue 1 "))
            .flat_map(|(_, events)| events);
        let wanted = if kind == "begin" { 1 } else { 2 };
        let mut times: Vec<u64> = events
            .by_ref()
            .filter(|(_, kind, ..)| *kind == wanted)
            .map(|(at, ..)| *at)
            .collect();
        times.sort_unstable();
        times[number]
    };
    // The guest's clock is 7 s behind.
    let guest = |host: u64| host - 7_000_000_000;
    // The driver submits before the doorbell and completes after the interrupt, however late begin and end are.
    let flight = FlightFile::open(&folder.path().join(FLIGHT)).unwrap();
    let records = flight.read().unwrap().records;
    let recorded = |is: fn(&Event) -> bool| {
        let record = records.iter().find(|record| is(&record.event));
        guest(record.unwrap().nanos)
    };
    let submit = recorded(|event| matches!(event, Event::Doorbell(_))) - 3000;
    let complete = recorded(|event| matches!(event, Event::Interrupt { .. })) + 4000;
    let clock = |host: u64| {
        format!(
            "# clock {} {host} {}\n",
            guest(host) - 200_000,
            guest(host) + 300_000
        )
    };
    let time = |nanos: u64| {
        format!(
            "{}.{:06}",
            nanos / 1_000_000_000,
            nanos % 1_000_000_000 / 1000
        )
    };
    let text = format!(
        "# controller nvme5 disk0\n{}  fio-1 [000] ..... {}: nvme_setup_cmd: nvme5: disk=nvme5n1, qid=1, cmdid=4097, nsid=1, flags=0x0, \
         meta=0x0, cmd=(nvme_cmd_read slba=0, len=7)\n  fio-1 [000] ..... {}: nvme_complete_rq: nvme5: disk=nvme5n1, qid=1, cmdid=4097, \
         res=0x0, retries=0, flags=0x0, status=0x0\n{}",
        clock(submit + 6_900_000_000),
        time(submit),
        time(complete),
        clock(complete + 7_100_000_000),
    );
    fs::write(folder.path().join("guest.trace"), text).unwrap();
    let (contents, packets) = written(&folder).unwrap();
    let guest = contents.guest.unwrap();
    assert_eq!((guest.commands, guest.commands_found), (1, 1));
    assert!(guest.clock_error_ns < 20_000, "{guest:?}");
    let tracks = by_track(&packets);
    let slice = tracks
        .iter()
        .find(|(name, _)| name.starts_with("guest kernel/nvme5 queue 1 (disk0) "));
    let (begin, end) = (&slice.unwrap().1[0], &slice.unwrap().1[1]);
    assert_eq!(begin.2, "read");
    assert!(
        begin.0 <= at("begin", 0) && end.0 >= at("end", 0),
        "{begin:?} {end:?}"
    );
    let flow = flows(std::slice::from_ref(&begin.3));
    let joined = tracks
        .values()
        .flatten()
        .filter(|(.., event)| flow.iter().all(|flow| event.flow_ids.contains(flow)));
    assert_eq!((flow.len(), joined.count()), (1, 8));
}

#[test]
fn checks_are_slices_with_their_verdict() {
    let folder = run(Level::Maps);
    let times = r#"[{"name":"a","verdict":"pass","began_ns":5,"ended_ns":9},{"name":"b","verdict":"fail","began_ns":9,"ended_ns":12}]"#;
    fs::write(folder.path().join("times.json"), times).unwrap();
    let (contents, packets) = written(&folder).unwrap();
    assert_eq!(contents.checks, 2);
    let tracks = by_track(&packets);
    let (_, events) = tracks
        .iter()
        .find(|(name, _)| name.starts_with("checks/"))
        .unwrap();
    let found: Vec<_> = events
        .iter()
        .map(|(at, kind, name, _)| (*at, *kind, name.as_str()))
        .collect();
    assert_eq!(found, [(5, 1, "a"), (9, 2, ""), (9, 1, "b"), (12, 2, "")]);
    fs::write(folder.path().join("times.json"), "[{]").unwrap();
    let error = written(&folder).unwrap_err();
    assert!(
        error.to_string().contains("times.json is invalid"),
        "{error}"
    );
}

#[test]
fn truncated_record_is_an_error() {
    let folder = run(Level::All);
    let path = folder.path().join(FLIGHT);
    let bytes = fs::read(&path).unwrap();
    for length in [0, 100, 4096, bytes.len() - 1] {
        fs::write(&path, &bytes[..length]).unwrap();
        let error = format!("{:#}", written(&folder).unwrap_err());
        assert!(error.contains("flight record"), "{length}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn hostile_record_never_panics(changes in proptest::collection::vec((0..8192usize, any::<u8>()), 1..60)) {
        let folder = run(Level::Maps);
        let path = folder.path().join(FLIGHT);
        let mut bytes = fs::read(&path).unwrap();
        let ring = bytes.len() - (65_536 * 64);
        for (at, byte) in changes {
            // Into the header, or the first records.
            let offset = if at < 256 { at } else { ring + at - 256 };
            bytes[offset] = byte;
        }
        fs::write(&path, &bytes).unwrap();
        if let Ok((contents, packets)) = written(&folder) {
            prop_assert!(!packets.is_empty());
            prop_assert_eq!(contents.devices.len(), 1);
        }
    }
}
