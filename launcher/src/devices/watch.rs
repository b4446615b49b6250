//! The events of the devices as they occur: machines that connect and leave, faults, and traffic.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use peerbar_flight::{DmaOutcome, Event, FlightFile, Purpose};
use peerbar_lab::count::counted;
use peerbar_lab::counters::CounterFiles;
use peerbar_lab::folder::flight_record;
use peerbar_lab::scenario::Scenario;
use peerbar_lab::size::human;
use peerbar_report::{DeviceCounters, Route};
use serde_json::{Value, json};

use crate::iommu;

/// Faults of a device that are explained at once; a guest can cause millions.
const FEW: usize = 4;

/// The records and counters of all devices, as far as they have been printed.
pub(super) struct Watch {
    folder: PathBuf,
    devices: Vec<WatchedDevice>,
    files: CounterFiles,
    /// The last printed line of each device's counters.
    totals: BTreeMap<String, String>,
}

struct WatchedDevice {
    name: String,
    file: FlightFile,
    /// The first record that is still unread.
    next: u64,
    /// Time of the last fault that was explained, CLOCK_MONOTONIC in nanoseconds.
    explained: u64,
}

/// Traffic of a device since its server's start.
#[derive(Default, PartialEq, Eq)]
struct Totals {
    /// Bytes of payload by route.
    payload: BTreeMap<Route, u64>,
    /// DMAs of any purpose that failed.
    failures: u64,
}

impl Totals {
    fn of(counters: &DeviceCounters) -> Self {
        let mut totals = Self::default();
        let DeviceCounters::Counted { dma, .. } = counters else {
            return totals;
        };
        for entry in dma {
            totals.failures = totals.failures.saturating_add(entry.failures);
            if entry.purpose == Purpose::Payload && entry.bytes > 0 {
                let bytes = totals.payload.entry(entry.route).or_default();
                *bytes = bytes.saturating_add(entry.bytes);
            }
        }
        totals
    }

    fn news(&self, device: &str) -> News {
        let routes = self.payload.iter();
        let routes = routes.map(|(route, bytes)| format!("{} {}", route.word(), human(*bytes)));
        let payload = match routes.collect::<Vec<_>>().join(", ") {
            none if none.is_empty() => "none".to_owned(),
            routes => routes,
        };
        let failures = match self.failures {
            0 => String::new(),
            failures => format!("; {failures} DMAs failed"),
        };
        News {
            text: format!("{device}: payload so far: {payload}{failures}\n"),
            json: json!({
                "event": "counters",
                "device": device,
                "payload": self.payload,
                "failures": self.failures,
            }),
        }
    }
}

/// Something to print.
struct News {
    text: String,
    json: Value,
}

impl Watch {
    /// Watches the records and counters in the run's `folder`, which the servers of `scenario`
    /// write, from now on.
    pub(super) fn of(scenario: &Scenario, folder: &Path) -> anyhow::Result<Self> {
        let ours = scenario.devices().filter(|device| device.is_ours());
        let devices = ours.map(|device| {
            let path = flight_record(folder, device.name());
            let file = FlightFile::open(&path);
            Ok(WatchedDevice {
                name: device.name().to_owned(),
                file: file.with_context(|| format!("cannot read {}", path.display()))?,
                next: 0,
                explained: 0,
            })
        });
        let files = CounterFiles::of(scenario, folder);
        Ok(Self {
            folder: folder.to_owned(),
            devices: devices.collect::<anyhow::Result<_>>()?,
            files,
            totals: BTreeMap::new(),
        })
    }

    /// Returns the news since the last call: lines of text, or of JSON.
    pub(super) fn news(&mut self, as_json: bool) -> anyhow::Result<String> {
        let mut news = Vec::new();
        for device in &mut self.devices {
            device.news(&self.folder, &mut news)?;
        }
        let mut lines: String = news.iter().map(|news| news.line(as_json)).collect();
        for (name, counters) in self.files.read() {
            let totals = Totals::of(&counters);
            let line = totals.news(&name).line(as_json);
            let last = self.totals.get(&name);
            if last.map_or(totals != Totals::default(), |last| *last != line) {
                lines += &line;
                self.totals.insert(name, line);
            }
        }
        Ok(lines)
    }
}

impl News {
    fn line(&self, as_json: bool) -> String {
        if as_json {
            format!("{}\n", self.json)
        } else {
            self.text.clone()
        }
    }
}

impl WatchedDevice {
    fn news(&mut self, folder: &Path, news: &mut Vec<News>) -> anyhow::Result<()> {
        let tail = self.file.tail(self.next)?;
        self.next = tail.next;
        let name = self.name.clone();
        let mut faults = tail.lost > 0;
        for record in tail.records {
            let (text, event) = match record.event {
                Event::Client(true) => ("QEMU connects", "connected"),
                Event::Client(false) => ("QEMU leaves, and the next may come", "left"),
                Event::Dma(dma) if dma.outcome != DmaOutcome::Done => {
                    faults = true;
                    continue;
                }
                _ => continue,
            };
            news.push(News {
                text: format!("{name}: {text}\n"),
                json: json!({ "event": event, "device": name }),
            });
        }
        if faults {
            self.explain(folder, news)?;
        }
        Ok(())
    }

    /// Explains the first of the faults that are new, and counts the rest.
    fn explain(&mut self, folder: &Path, news: &mut Vec<News>) -> anyhow::Result<()> {
        let faults = iommu::faults_since(folder, &self.name, self.explained, FEW)?;
        let name = &self.name;
        self.explained = faults.last;
        for fault in faults.first {
            news.push(News {
                text: format!("{name}:\n{}", fault.text),
                json: json!({ "event": "fault", "device": name, "fault": fault.data }),
            });
        }
        let more = faults.more;
        if more > 0 {
            let folder = folder.display();
            news.push(News {
                text: format!(
                    "{name}: and {}, which `peerbar iommu {folder}` shows\n",
                    counted(more, "more failed DMA")
                ),
                json: json!({ "event": "more-faults", "device": name, "count": more }),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use peerbar_flight::{Completer, Direction, Dma, Level, Origin, Recorder};
    use peerbar_lab::folder::flight_record;
    use peerbar_pci::Iova;

    use super::*;

    /// Returns a read that went nowhere.
    fn failed(address: u64) -> Dma {
        Dma {
            origin: Origin::Queue(1),
            purpose: Purpose::Payload,
            direction: Direction::Read,
            address: Iova(address),
            len: 8,
            route: Route::Upstream,
            completer: Completer::Unknown,
            outcome: DmaOutcome::ClientRefused(19),
            took: 0,
        }
    }

    /// Returns the demo's devices in a folder, and the recorder of the first.
    fn watched() -> (tempfile::TempDir, Watch, Recorder) {
        let folder = tempfile::tempdir().unwrap();
        let scenario = Scenario::demo().unwrap();
        let recorder = |name| {
            Recorder::create(&flight_record(folder.path(), name), name, Level::Maps).unwrap()
        };
        let disk = recorder("disk0");
        for device in scenario.devices().skip(1) {
            recorder(device.name());
        }
        let watch = Watch::of(&scenario, folder.path()).unwrap();
        (folder, watch, disk)
    }

    #[test]
    fn connections_are_news_once() {
        let (_folder, mut watch, disk) = watched();
        assert_eq!(watch.news(false).unwrap(), "");
        disk.record(Event::Client(true));
        disk.record(Event::Client(false));
        let expected = "disk0: QEMU connects\ndisk0: QEMU leaves, and the next may come\n";
        assert_eq!(watch.news(false).unwrap(), expected);
        assert_eq!(watch.news(false).unwrap(), "");
        disk.record(Event::Client(true));
        let line: Value = serde_json::from_str(&watch.news(true).unwrap()).unwrap();
        assert_eq!(line, json!({ "event": "connected", "device": "disk0" }));
    }

    #[test]
    fn first_faults_are_explained_and_others_counted() {
        let (_folder, mut watch, disk) = watched();
        for number in 0..6 {
            disk.dma(failed(0x4000 + number * 0x10_0000), disk.clock());
        }
        let news = watch.news(false).unwrap();
        assert_eq!(news.matches("FAULT at").count(), FEW, "{news}");
        assert!(news.contains("disk0: and 2 more failed DMAs"), "{news}");
        assert_eq!(watch.news(false).unwrap(), "");
        disk.dma(failed(0x9000), disk.clock());
        let news = watch.news(true).unwrap();
        let fault: Value = serde_json::from_str(news.trim_end()).unwrap();
        assert_eq!(fault["fault"]["address"], 0x9000, "{news}");
    }

    #[test]
    fn totals_are_payload_by_route_and_failures() {
        let totals = Totals {
            payload: [(Route::Peer, 8 << 20), (Route::GuestRam, 4096)].into(),
            failures: 2,
        };
        let news = totals.news("disk0");
        let expected = "disk0: payload so far: peer 8 MiB, guest-ram 4 KiB; 2 DMAs failed\n";
        assert_eq!(news.text, expected);
        assert_eq!(news.json["payload"]["peer"], 8 << 20);
        let none = Totals::default().news("gpu0");
        assert_eq!(none.text, "gpu0: payload so far: none\n");
    }
}
