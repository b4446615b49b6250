//! The time that devices take for transfers, by their own flight records, so that a slow guest does
//! not affect it.
//!
//! A command counts only if all of its data took the expected route, according to each piece that
//! the device recorded. Its time is from when the device takes it until it is complete.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use peerbar_flight::{DmaOutcome, Event, FlightFile, Level, Origin, Purpose, Record, Route};
use peerbar_lab::count::counted;
use peerbar_lab::folder;
use peerbar_lab::scenario::Scenario;

use crate::spread::median;

/// The records of each device, by its name in the scenario.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorded(BTreeMap<String, Vec<Record>>);

/// A device whose commands count, and the route that their data must have taken.
pub(crate) type DeviceRoute = (&'static str, Route);

impl Recorded {
    /// Reads the records that the devices of `scenario`, which have ended, left in `folder`, or
    /// none unless they record everything. It is an error if a record is incomplete.
    pub(crate) fn read(scenario: &Scenario, folder: &Path) -> anyhow::Result<Self> {
        let mut recorded = Self::default();
        if scenario.recording != Level::All {
            return Ok(recorded);
        }
        for device in scenario.devices().filter(|device| device.is_ours()) {
            let path = folder::flight_record(folder, device.name());
            let flight = FlightFile::open(&path).and_then(|file| file.read());
            let flight = flight.with_context(|| path.display().to_string())?;
            let lost = flight.overwritten.saturating_add(flight.torn);
            ensure!(
                lost == 0,
                "{} has lost {}: measure less at once, by `--quick` or `--only`",
                path.display(),
                counted(lost, "record")
            );
            let name = device.name().to_owned();
            recorded.0.insert(name, flight.records);
        }
        Ok(recorded)
    }

    /// Returns the records of this time ([`peerbar_flight::monotonic_ns`]).
    pub(crate) fn during(&self, span: &RangeInclusive<u64>) -> Self {
        let devices = self.0.iter().map(|(name, records)| {
            let then = records.iter().filter(|record| span.contains(&record.nanos));
            (name.clone(), then.copied().collect())
        });
        Self(devices.collect())
    }

    /// Returns the median rate, in bytes a second, of the commands that moved data by these routes.
    /// It is an error if a route has no command.
    pub(crate) fn rate(&self, routes: &[DeviceRoute]) -> anyhow::Result<f64> {
        let mut all = Vec::new();
        for (device, route) in routes {
            let records = self.0.get(*device);
            let rates = rates(records.map_or(&[], Vec::as_slice), *route);
            ensure!(
                !rates.is_empty(),
                "{device} has recorded no command whose data went by the route {route:?}"
            );
            all.extend(rates);
        }
        Ok(median(&all))
    }
}

/// A command that is under way.
struct Command {
    begun: u64,
    bytes: u64,
    as_wanted: bool,
}

impl Command {
    /// Returns its rate in bytes a second, if it ends now.
    fn rate(&self, now: u64) -> f64 {
        let nanos = now.saturating_sub(self.begun).max(1);
        // A byte counts as a nanosecond, so that both are converted to `f64` alike.
        let [bytes, time] =
            [self.bytes, nanos].map(|value| Duration::from_nanos(value).as_secs_f64());
        bytes / time * 1e9
    }
}

/// Returns the rate in bytes a second of each command whose data went by `route`.
fn rates(records: &[Record], route: Route) -> Vec<f64> {
    let mut under_way: HashMap<Origin, Command> = HashMap::new();
    let mut rates = Vec::new();
    for record in records {
        match record.event {
            Event::Begin { origin, .. } => {
                let command = Command {
                    begun: record.nanos,
                    bytes: 0,
                    as_wanted: true,
                };
                under_way.insert(origin, command);
            }
            Event::Dma(dma) if dma.purpose == Purpose::Payload => {
                if let Some(command) = under_way.get_mut(&dma.origin) {
                    command.bytes = command.bytes.saturating_add(dma.len);
                    command.as_wanted &= dma.route == route && dma.outcome == DmaOutcome::Done;
                }
            }
            Event::End { origin, status } => {
                let ended = under_way.remove(&origin);
                let counts = |command: &Command| command.as_wanted && command.bytes > 0;
                let counts = ended.filter(|command| status == 0 && counts(command));
                rates.extend(counts.map(|command| command.rate(record.nanos)));
            }
            _ => {}
        }
    }
    rates
}

#[cfg(test)]
mod tests {
    use peerbar_flight::{Completer, Direction, Dma, Recorder};
    use peerbar_pci::Iova;

    use super::*;

    /// Returns records at these times.
    fn records(events: &[(u64, Event)]) -> Vec<Record> {
        let records = events.iter().zip(1..);
        let records = records.map(|((nanos, event), sequence)| Record {
            sequence,
            nanos: *nanos,
            event: *event,
        });
        records.collect()
    }

    fn begin(command: u32) -> Event {
        let origin = Origin::command(1, command);
        Event::Begin {
            origin,
            operation: 2.into(),
        }
    }

    fn end(command: u32, status: u16) -> Event {
        let origin = Origin::command(1, command);
        Event::End { origin, status }
    }

    fn dma(command: u32, route: Route, len: u64) -> Event {
        Event::Dma(Dma {
            origin: Origin::command(1, command),
            purpose: Purpose::Payload,
            direction: Direction::Write,
            address: Iova(0),
            len,
            route,
            completer: Completer::PeerBar,
            outcome: DmaOutcome::Done,
            took: 1,
        })
    }

    fn list(command: u32, route: Route) -> Event {
        match dma(command, route, 4096) {
            Event::Dma(dma) => Event::Dma(Dma {
                purpose: Purpose::List,
                ..dma
            }),
            other => other,
        }
    }

    fn assert_close(one: f64, other: f64) {
        assert!((one / other - 1.0).abs() < 1e-9, "{one}, not {other}");
    }

    #[test]
    fn a_command_lasts_from_its_beginning_to_its_end() {
        let records = records(&[
            (10, begin(1)),
            (15, list(1, Route::GuestRam)),
            (20, dma(1, Route::Peer, 100)),
            (25, begin(2)),
            (30, dma(2, Route::Peer, 40)),
            (40, dma(1, Route::Peer, 50)),
            (60, end(1, 0)),
            (65, end(2, 0)),
            // Its number is used again.
            (100, begin(1)),
            (110, dma(1, Route::Peer, 40)),
            (120, end(1, 0)),
        ]);
        let rates = rates(&records, Route::Peer);
        assert_eq!(rates.len(), 3);
        for (rate, expected) in rates.iter().zip([3e9, 1e9, 2e9]) {
            assert_close(*rate, expected);
        }
        assert!(super::rates(&records, Route::GuestRam).is_empty());
    }

    #[test]
    fn commands_of_other_routes_failed_or_cut_off_do_not_count() {
        let refused = match dma(5, Route::Peer, 8) {
            Event::Dma(dma) => Event::Dma(Dma {
                outcome: DmaOutcome::PeerGone,
                ..dma
            }),
            other => other,
        };
        let records = records(&[
            // It began before the first record.
            (1, dma(1, Route::Peer, 8)),
            (2, end(1, 0)),
            (3, begin(2)),
            (4, dma(2, Route::Peer, 8)),
            (5, dma(2, Route::GuestRam, 8)),
            (6, end(2, 0)),
            (7, begin(3)),
            (8, dma(3, Route::Peer, 8)),
            (9, end(3, 0x4004)),
            (10, begin(4)),
            (11, end(4, 0)),
            (12, begin(5)),
            (13, refused),
            (14, end(5, 0)),
            (15, begin(6)),
            (16, dma(6, Route::Peer, 8)),
        ]);
        assert!(rates(&records, Route::Peer).is_empty());
    }

    #[test]
    fn the_middle_rate_is_of_the_asked_devices_and_times() {
        let transfer = |at, route, took| {
            [
                (at, begin(7)),
                (at + 1, dma(7, route, 1000)),
                (at + took, end(7, 0)),
            ]
        };
        let disk1 = [
            transfer(0, Route::Peer, 10),
            transfer(1000, Route::Peer, 100),
        ];
        let disk0 = transfer(1000, Route::OwnBar, 20);
        let devices = [("disk1", disk1.as_flattened()), ("disk0", &disk0)];
        let devices = devices.map(|(name, events)| (name.to_owned(), records(events)));
        let all = Recorded(devices.into());
        let (peer, own) = (("disk1", Route::Peer), ("disk0", Route::OwnBar));
        assert_close(all.rate(&[peer, own]).unwrap(), 5e10);
        assert_close(all.during(&(0..=999)).rate(&[peer]).unwrap(), 1e11);
        assert_close(all.during(&(1000..=1100)).rate(&[peer]).unwrap(), 1e10);
        for missing in [("far", Route::Peer), ("disk1", Route::Upstream)] {
            let error = all.rate(&[peer, missing]).unwrap_err().to_string();
            assert!(error.contains("has recorded no command"), "{error}");
        }
        // The end of one command and the beginning of another are not a command.
        assert!(all.during(&(5..=1050)).rate(&[peer]).is_err());
    }

    #[test]
    fn a_record_that_has_lost_something_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let mut scenario = Scenario::demo().unwrap();
        scenario.nvmes.truncate(1);
        scenario.gpus.clear();
        // Nothing is read unless everything is recorded.
        assert!(
            Recorded::read(&scenario, folder.path())
                .unwrap()
                .0
                .is_empty()
        );
        scenario.recording = Level::All;
        let path = folder::flight_record(folder.path(), "disk0");
        let missing = Recorded::read(&scenario, folder.path()).unwrap_err();
        assert!(missing.to_string().contains("disk0.flight"), "{missing:#}");
        let recorder = Recorder::create(&path, "disk0", Level::All).unwrap();
        recorder.record(begin(1));
        recorder.record(end(1, 0));
        drop(recorder);
        let whole = Recorded::read(&scenario, folder.path()).unwrap();
        assert_eq!(whole.0["disk0"].len(), 2);
        cut(&path);
        let error = Recorded::read(&scenario, folder.path()).unwrap_err();
        assert!(
            error.to_string().contains(" has lost 1 record: "),
            "{error:#}"
        );
    }

    /// Corrupts a byte of the first record of the ring.
    fn cut(path: &Path) {
        let flight = FlightFile::open(path).unwrap().read().unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        let ring = file.metadata().unwrap().len() - 64 * flight.header.ring_slots;
        std::os::unix::fs::FileExt::write_all_at(&file, &[0xff], ring + 8).unwrap();
    }
}
