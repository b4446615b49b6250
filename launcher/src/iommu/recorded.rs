//! The records that a run has left, or is leaving.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use peerbar_flight::{
    Command, Event, Finding, Flight, FlightFile, History, Level, Mapping, Sanitizer, SharedPages,
    WindowEvent, shared,
};

use super::behind::Ram;
use super::device_kind::DeviceKind;
use super::kernel::IommuLog;
use peerbar_lab::count::counted;
use peerbar_lab::finished_run::SCENARIO;
use peerbar_lab::run_file;
use peerbar_lab::scenario::Scenario;

/// Most pages of mappings that are compared with those of other devices: they take some 250 MB.
pub(super) const MOST_PAGES: u64 = 1 << 22;

/// The records of a run, with all that explains them.
pub(crate) struct Recorded {
    /// Its devices, by name. Those that are not shown are necessary to find the target of a
    /// mapping, and the devices that share a page.
    pub(crate) devices: Vec<RecordedDevice>,
    /// The only one that is shown, if not all are.
    only: Option<String>,
    /// Place of its guest's RAM.
    pub(super) ram: Option<Ram>,
    /// The devices of the scenario that should have one.
    expected: Vec<String>,
    /// The messages of its guest's kernel.
    pub(super) kernel: IommuLog,
}

/// A device with a flight record.
pub(crate) struct RecordedDevice {
    /// Its name in the scenario.
    pub(crate) name: String,
    pub(crate) kind: DeviceKind,
    pub(super) live: bool,
    pub(super) file: FlightFile,
    pub(crate) flight: Flight,
    pub(super) history: History,
    pub(super) findings: Vec<Finding>,
}

impl RecordedDevice {
    /// Returns the number of records that were overwritten before they could be read, or are
    /// incomplete.
    pub(crate) fn lost(&self) -> u64 {
        // Incomplete records of a running device are not lost.
        let torn = if self.live { 0 } else { self.flight.torn };
        self.flight.overwritten.saturating_add(torn)
    }

    /// Returns the current mappings, by address. There are none after its client has left.
    pub(super) fn mappings(&self) -> Vec<Mapping> {
        let now = self
            .flight
            .now
            .iter()
            .filter_map(|record| match record.event {
                Event::Map(mapping) => Some(mapping),
                _ => None,
            });
        let mut mappings: Vec<Mapping> = now.collect();
        mappings.sort_unstable_by_key(|mapping| mapping.range);
        mappings
    }

    /// Returns its open windows: each that it has now, or had last.
    pub(super) fn windows(&self) -> Vec<WindowEvent> {
        let records = self.flight.records.iter().chain(&self.flight.now);
        let open = records.filter_map(|record| match record.event {
            Event::Window(window) if window.range.is_some() => Some(window),
            _ => None,
        });
        let mut windows: Vec<WindowEvent> = Vec::new();
        for window in open {
            windows.retain(|other| other.id != window.id);
            windows.push(window);
        }
        windows
    }

    /// Seconds from the start of the record to `nanos` of CLOCK_MONOTONIC.
    pub(super) fn seconds(&self, nanos: u64) -> f64 {
        nanos.saturating_sub(self.flight.header.monotonic) as f64 / 1e9
    }
}

impl Recorded {
    /// Reads all flight records in a run's folder.
    pub(crate) fn open(run: &Path) -> anyhow::Result<Self> {
        if !run.is_dir() {
            bail!(
                "{}: no run found: run a scenario, or name the folder of a run",
                run.display()
            );
        }
        let files = fs::read_dir(run)
            .with_context(|| format!("cannot read the run's folder {}", run.display()))?;
        let mut devices = Vec::new();
        for file in files {
            let path = file?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "flight")
            {
                let read = device(run, &path);
                devices.push(read.with_context(|| path.display().to_string())?);
            }
        }
        if devices.is_empty() {
            bail!("{} has no flight record (NAME.flight)", run.display());
        }
        devices.sort_by(|one, other| one.name.cmp(&other.name));
        let path = run.join(SCENARIO);
        let scenario = run_file::read_to_string(&path).ok();
        let scenario = scenario.and_then(|text| Scenario::parse_interactive(&path, text).ok());
        let expected = scenario.iter().flat_map(Scenario::devices);
        let expected = expected.filter(|device| device.is_ours());
        let expected = expected.map(|device| device.name().to_owned()).collect();
        Ok(Self {
            devices,
            expected,
            only: None,
            ram: scenario.map(|scenario| Ram::of_q35(scenario.machine.memory)),
            kernel: IommuLog::of(run),
        })
    }

    /// Restricts the output to the device with that name, if there is a name.
    pub(super) fn show_only(&mut self, name: Option<&str>) -> anyhow::Result<()> {
        self.only = name.map(str::to_owned);
        if let Some(name) = name.filter(|_| self.shown().next().is_none()) {
            let devices = self.devices.iter();
            let names: Vec<&str> = devices.map(|device| device.name.as_str()).collect();
            bail!(
                "no record of {name}; recorded devices: {}",
                names.join(", ")
            );
        }
        Ok(())
    }

    /// Returns the devices that are shown.
    pub(crate) fn shown(&self) -> impl Iterator<Item = &RecordedDevice> {
        self.devices.iter().filter(|device| self.shows(device))
    }

    /// The device that a finding about two is about as well, and its command.
    pub(crate) fn other(&self, finding: &Finding) -> Option<(&RecordedDevice, Option<Command>)> {
        let (number, command) = finding.other?;
        Some((self.devices.get(number)?, command))
    }

    fn shows(&self, device: &RecordedDevice) -> bool {
        self.only.as_ref().is_none_or(|only| device.name == *only)
    }

    /// Returns the findings of the sanitizer for the devices that are shown. A finding about two
    /// devices is listed with the second one.
    pub(crate) fn sanitized(&self) -> Sanitized<'_> {
        let own = self.shown();
        let own = own.flat_map(|device| device.findings.iter().map(move |f| (device, f.clone())));
        let histories: Vec<&History> = self.devices.iter().map(|device| &device.history).collect();
        let SharedPages {
            findings,
            uncompared,
        } = shared(&histories, MOST_PAGES);
        let both = findings.into_iter();
        let both = both.filter_map(|(number, finding)| Some((self.devices.get(number)?, finding)));
        let both = both.filter(|(device, _)| self.shows(device));
        Sanitized {
            findings: own.chain(both).collect(),
            uncompared,
        }
    }

    /// Returns all that the sanitizer could not judge, among the devices that are shown and those
    /// of `expected` that have no record.
    pub(crate) fn unjudged<'a>(
        &'a self,
        sanitized: &Sanitized<'_>,
        expected: &'a [String],
    ) -> Vec<Unjudged<'a>> {
        let mut all = Vec::new();
        if sanitized.uncompared > 0 {
            all.push(Unjudged::Uncompared(sanitized.uncompared));
        }
        let is_recorded = |name: &str| self.devices.iter().any(|device| device.name == name);
        let is_shown = |name: &str| self.only.as_ref().is_none_or(|only| name == *only);
        let without = expected.iter();
        let without = without.filter(|name| is_shown(name) && !is_recorded(name));
        all.extend(without.map(|name| Unjudged::NoRecord(name)));
        for device in self.shown() {
            if device.flight.header.level == Level::Maps {
                all.push(Unjudged::OnlyFailures(&device.name));
            }
            if device.lost() > 0 {
                all.push(Unjudged::Lost(&device.name, device.lost()));
            }
        }
        all
    }

    /// Returns the devices of the scenario that should have a record.
    pub(crate) fn expected(&self) -> &[String] {
        &self.expected
    }
}

/// Something that the sanitizer could not judge.
pub(crate) enum Unjudged<'a> {
    /// This device has no flight record.
    NoRecord(&'a str),
    /// This device recorded only failures and mappings.
    OnlyFailures(&'a str),
    /// Number of records that this device lost.
    Lost(&'a str, u64),
    /// Number of pages that were not looked for among those of other devices.
    Uncompared(u64),
}

impl Display for Unjudged<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRecord(name) => write!(
                f,
                "{name}: no flight record: the log of its server says why"
            ),
            Self::OnlyFailures(name) => write!(
                f,
                "{name}: only failures were recorded; `sanitize = true` in the scenario records every DMA"
            ),
            Self::Lost(name, lost) => write!(
                f,
                "{name}: it has lost {}, and with that any findings there",
                counted(*lost, "record")
            ),
            Self::Uncompared(count) => write!(
                f,
                "{} of mappings not compared with those of other devices: at most {MOST_PAGES} are",
                counted(*count, "page")
            ),
        }
    }
}

/// The findings of the sanitizer.
pub(crate) struct Sanitized<'a> {
    /// Each with its device.
    pub(crate) findings: Vec<(&'a RecordedDevice, Finding)>,
    /// Number of pages of mappings that were not compared with those of other devices, because
    /// there were more than [`MOST_PAGES`].
    pub(crate) uncompared: u64,
}

fn device(run: &Path, path: &Path) -> anyhow::Result<RecordedDevice> {
    let file = FlightFile::open(path)?;
    let live = file.is_live()?;
    let flight = file.read()?;
    let (findings, history) = Sanitizer::of(&flight);
    let name = flight.header.name.clone();
    Ok(RecordedDevice {
        kind: DeviceKind::of(run, &name),
        name,
        live,
        file,
        flight,
        history,
        findings,
    })
}
