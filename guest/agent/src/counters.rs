//! The devices' own counts of their DMA before and after a piece of work. The launcher reads them
//! on the host's side, so that the devices need not do anything for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use peerbar_dma_log::{Completer, DeviceEvents, DmaKind, Entry, Purpose, Route};
use peerbar_report::{CompletionBytes, DeviceCounters, Measure, PayloadFlow, Record, inference};

use crate::guest_context::GuestContext;

/// Size of a submission queue entry in bytes (NVMe Base 2.0, 3.3.3.1).
const COMMAND_BYTES: u64 = 64;
/// Size of a completion queue entry in bytes (NVMe Base 2.0, 3.3.3.2).
const COMPLETION_BYTES: u64 = 16;

/// DMA and other events of the devices under test, each known by its index in the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    bytes: BTreeMap<(u32, DmaKind), u64>,
    failures: BTreeMap<u32, u64>,
    interrupts: BTreeMap<u32, u64>,
    injected_faults: BTreeMap<u32, u64>,
    /// Doorbells by device and queue, of the devices that count them.
    doorbells: BTreeMap<(u32, u16), u64>,
    count_doorbells: BTreeSet<u32>,
    /// Devices whose DMA is excluded from the sums over all devices.
    uncounted: BTreeSet<u32>,
    /// Devices whose accesses to mapped memory nobody counts.
    unmeasured: BTreeSet<u32>,
    /// Devices whose commands, completions and lists count as payload, because only their servers
    /// know the purpose of an access.
    without_purposes: BTreeSet<u32>,
    /// Bytes by device whose completer the device did not know, and which are attributed to another
    /// device.
    inferred: BTreeMap<u32, u64>,
}

impl Traffic {
    /// Returns the payload of one device that reached some device's memory.
    pub fn payload_to_devices(&self, device: u32) -> u64 {
        self.sum(|of, kind| of == device && is_payload_to_devices(kind))
    }

    /// Returns the payload of one device that reached guest RAM.
    pub fn payload_to_guest_ram(&self, device: u32) -> u64 {
        self.sum(|of, kind| of == device && is_payload_to_guest_ram(kind))
    }

    /// Returns the payload of all counted devices that reached some device's memory.
    pub(crate) fn peer_bytes(&self) -> u64 {
        self.sum(|of, kind| self.counts(of) && is_payload_to_devices(kind))
    }

    /// Returns the payload of all counted devices that reached guest RAM.
    pub(crate) fn ram_bytes(&self) -> u64 {
        self.sum(|of, kind| self.counts(of) && is_payload_to_guest_ram(kind))
    }

    /// Returns the payload of all counted devices.
    pub fn payload(&self) -> u64 {
        self.sum(|of, kind| self.counts(of) && kind.purpose == Purpose::Payload)
    }

    /// Returns `true` if a device is in the sums over all devices.
    pub(crate) fn counts(&self, device: u32) -> bool {
        !self.uncounted.contains(&device)
    }

    /// Returns `true` if all DMA of a device is counted, or excluded from sums by the scenario.
    pub(crate) fn measures(&self, device: u32) -> bool {
        !self.unmeasured.contains(&device)
    }

    /// Returns the traffic of these devices as that of devices with servers of other projects.
    #[cfg(test)]
    pub(crate) fn without_purposes(mut self, devices: impl IntoIterator<Item = u32>) -> Self {
        self.without_purposes.extend(devices);
        self
    }

    /// Returns `true` if the payload of a device is told apart from its commands and completions.
    pub(crate) fn tells_purposes(&self, device: u32) -> bool {
        !self.without_purposes.contains(&device)
    }

    /// Returns the payload of all counted devices that tell it apart from other DMA.
    pub(crate) fn payload_by_purpose(&self) -> u64 {
        self.sum(|of, kind| {
            self.counts(of) && self.tells_purposes(of) && kind.purpose == Purpose::Payload
        })
    }

    /// Returns the bytes in guest RAM that may be commands and completions of devices that do not
    /// tell payload apart from them.
    pub(crate) fn ram_bytes_without_purpose(&self) -> u64 {
        self.sum(|of, kind| {
            self.counts(of) && !self.tells_purposes(of) && is_payload_to_guest_ram(kind)
        })
    }

    /// Returns the commands that one device fetched from its own memory.
    pub(crate) fn commands_from_own_memory(&self, device: u32) -> u64 {
        self.commands(device, Completer::OwnMemory)
    }

    /// Returns the commands that one device fetched from guest RAM.
    pub fn commands_from_guest_ram(&self, device: u32) -> u64 {
        self.commands(device, Completer::GuestRam)
    }

    /// Returns the commands that one device fetched from another's memory.
    pub fn commands_from_peers(&self, device: u32) -> u64 {
        self.commands(device, Completer::PeerBar)
    }

    /// Returns the completions that one device wrote to another's memory.
    pub(crate) fn completions_to_peers(&self, device: u32) -> u64 {
        let bytes = self.sum(|of, kind| {
            let is_of_peer = kind.completer == Completer::PeerBar;
            of == device && kind.purpose == Purpose::Completion && is_of_peer
        });
        bytes / COMPLETION_BYTES
    }

    /// Returns the bytes of completions that one device wrote, by the owner of the memory.
    pub(crate) fn completion_bytes(&self, device: u32) -> CompletionBytes {
        let to = |is_device| self.completions_by_route(device, is_device).values().sum();
        CompletionBytes {
            to_devices: to(true),
            to_guest_ram: to(false),
        }
    }

    /// Returns the bytes of completions that one device wrote to memory of devices, or to guest
    /// RAM, by route.
    fn completions_by_route(&self, device: u32, to_devices: bool) -> BTreeMap<Route, u64> {
        self.by_route(|of, kind| {
            let is_there = match kind.completer {
                Completer::OwnMemory | Completer::PeerBar => to_devices,
                Completer::GuestRam => !to_devices,
                Completer::Unknown | Completer::None => false,
            };
            of == device && kind.purpose == Purpose::Completion && is_there
        })
    }

    /// Returns the bytes of PRP lists that one device read from guest RAM, and from another's
    /// memory.
    pub(crate) fn list_bytes(&self, device: u32) -> [u64; 2] {
        [Completer::GuestRam, Completer::PeerBar].map(|from| {
            self.sum(|of, kind| {
                of == device && kind.purpose == Purpose::List && kind.completer == from
            })
        })
    }

    /// Returns the bytes that one device wrote to registers of others. Behind an IOMMU the client
    /// maps no registers, so the device does not know whose they are.
    pub fn registers_written(&self, device: u32) -> u64 {
        self.sum(|of, kind| {
            let is_of_others = matches!(kind.completer, Completer::PeerBar | Completer::Unknown);
            of == device && kind.purpose == Purpose::Register && is_of_others
        })
    }

    /// Describes the part of a device's DMA that was not counted but inferred, if any.
    pub fn inference(&self, device: u32) -> Option<String> {
        let bytes = self.inferred.get(&device).copied().unwrap_or(0);
        inference("the disk", bytes)
    }

    /// Returns the interrupts that one device signalled.
    pub fn interrupts(&self, device: u32) -> u64 {
        self.interrupts.get(&device).copied().unwrap_or(0)
    }

    /// Returns the faults that the rules of one device have injected.
    pub fn injected_faults(&self, device: u32) -> u64 {
        self.injected_faults.get(&device).copied().unwrap_or(0)
    }

    /// Returns the doorbells of one device's queues that QEMU wrote, for the guest's processors or
    /// for devices through the root, or `None` if the device cannot count them.
    pub fn doorbells(&self, device: u32) -> Option<BTreeMap<u16, u64>> {
        let of_device = self.doorbells.iter().filter(|((of, _), _)| *of == device);
        let written = of_device.filter(|(_, count)| **count > 0);
        let is_counted = self.count_doorbells.contains(&device);
        is_counted.then(|| {
            written
                .map(|((_, queue), count)| (*queue, *count))
                .collect()
        })
    }

    /// Returns the bytes that all counted devices have moved through the root, for any purpose.
    pub(crate) fn upstream_bytes(&self) -> u64 {
        self.sum(|of, kind| self.counts(of) && kind.route == Route::Upstream)
    }

    /// Returns the record of one device, without its queues in guest RAM.
    pub(crate) fn record(&self, device: u32) -> Record {
        let is_payload = |kind: DmaKind| {
            let may_be_queue = kind.completer == Completer::GuestRam;
            kind.purpose == Purpose::Payload && (self.tells_purposes(device) || !may_be_queue)
        };
        Record {
            routes: self.by_route(|of, kind| of == device && is_payload(kind)),
            failures: self.failures.get(&device).copied().unwrap_or(0),
        }
    }

    /// Returns the failed DMA requests of all counted devices.
    pub fn failures(&self) -> u64 {
        let counted = self.failures.iter().filter(|(of, _)| self.counts(**of));
        counted.map(|(_, failures)| failures).sum()
    }

    /// Returns the number of commands. One request may fetch several, so bytes are counted.
    fn commands(&self, device: u32, from: Completer) -> u64 {
        let bytes = self.sum(|of, kind| {
            of == device && kind.purpose == Purpose::Command && kind.completer == from
        });
        bytes / COMMAND_BYTES
    }

    fn sum(&self, wanted: impl Fn(u32, DmaKind) -> bool) -> u64 {
        self.bytes
            .iter()
            .filter(|((device, kind), _)| wanted(*device, *kind))
            .map(|(_, bytes)| bytes)
            .sum()
    }

    fn payload_by_route(&self, of: impl Fn(u32) -> bool) -> BTreeMap<Route, u64> {
        self.by_route(|device, kind| of(device) && kind.purpose == Purpose::Payload)
    }

    fn by_route(&self, filter: impl Fn(u32, DmaKind) -> bool) -> BTreeMap<Route, u64> {
        let mut routes = BTreeMap::new();
        for ((device, kind), bytes) in &self.bytes {
            if filter(*device, *kind) && *bytes > 0 {
                let sum: &mut u64 = routes.entry(kind.route).or_default();
                *sum = sum.saturating_add(*bytes);
            }
        }
        routes
    }

    /// Returns the payload of one device, called `name`, by completer, route and direction.
    fn flows(&self, name: &str, device: u32) -> impl Iterator<Item = PayloadFlow> {
        let payload = self.bytes.iter().filter(move |((of, kind), bytes)| {
            *of == device && kind.purpose == Purpose::Payload && **bytes > 0
        });
        payload.map(|((_, kind), bytes)| PayloadFlow {
            requester: name.to_owned(),
            completer: kind.completer,
            route: kind.route,
            direction: kind.direction,
            bytes: *bytes,
        })
    }

    /// Adds DMA of one device.
    pub fn count(&mut self, device: u32, kind: DmaKind, bytes: u64, failures: u64) {
        let sum = self.bytes.entry((device, kind)).or_default();
        *sum = sum.saturating_add(bytes);
        let sum = self.failures.entry(device).or_default();
        *sum = sum.saturating_add(failures);
    }

    /// Adds all DMA of one device.
    fn count_all(&mut self, device: u32, entries: &[Entry]) {
        for entry in entries {
            self.count(device, entry.kind(), entry.bytes, entry.failures);
        }
    }

    /// Like [`Traffic::count_all`], for a device behind QEMU's virtio-iommu, with inferred
    /// completers.
    fn count_all_behind_virtio(&mut self, device: u32, entries: &[Entry]) {
        for entry in entries {
            let kind = entry.kind_behind_virtio();
            if kind != entry.kind() {
                let sum = self.inferred.entry(device).or_default();
                *sum = sum.saturating_add(entry.bytes);
            }
            self.count(device, kind, entry.bytes, entry.failures);
        }
    }

    /// Adds the events of one device.
    pub fn count_events(&mut self, device: u32, events: &DeviceEvents) {
        self.interrupts.insert(device, events.interrupts);
        self.injected_faults.insert(device, events.injected_faults);
        if let Some(doorbells) = &events.doorbells {
            self.count_doorbells.insert(device);
            let of_device = doorbells
                .iter()
                .map(|(queue, count)| ((device, *queue), *count));
            self.doorbells.extend(of_device);
        }
    }

    /// Adds the growth between two samples.
    fn add(&mut self, before: &Traffic, after: &Traffic) -> anyhow::Result<()> {
        self.uncounted.clone_from(&after.uncounted);
        self.unmeasured.clone_from(&after.unmeasured);
        self.without_purposes.clone_from(&after.without_purposes);
        self.count_doorbells.clone_from(&after.count_doorbells);
        add_growth(&mut self.bytes, &before.bytes, &after.bytes)?;
        add_growth(&mut self.failures, &before.failures, &after.failures)?;
        add_growth(&mut self.interrupts, &before.interrupts, &after.interrupts)?;
        add_growth(
            &mut self.injected_faults,
            &before.injected_faults,
            &after.injected_faults,
        )?;
        add_growth(&mut self.inferred, &before.inferred, &after.inferred)?;
        add_growth(&mut self.doorbells, &before.doorbells, &after.doorbells)
    }
}

fn is_payload_to_devices(kind: DmaKind) -> bool {
    let is_of_device = matches!(kind.completer, Completer::OwnMemory | Completer::PeerBar);
    kind.purpose == Purpose::Payload && is_of_device
}

fn is_payload_to_guest_ram(kind: DmaKind) -> bool {
    kind.purpose == Purpose::Payload && kind.completer == Completer::GuestRam
}

fn add_growth<K: Copy + Ord>(
    sums: &mut BTreeMap<K, u64>,
    before: &BTreeMap<K, u64>,
    after: &BTreeMap<K, u64>,
) -> anyhow::Result<()> {
    for (key, now) in after {
        let then = before.get(key).copied().unwrap_or(0);
        let growth = now
            .checked_sub(then)
            .with_context(|| format!("a counter went back from {then} to {now}"))?;
        let sum = sums.entry(*key).or_default();
        *sum = sum.saturating_add(growth);
    }
    Ok(())
}

/// Measures work: its time, and the growth of all devices' DMA counters.
#[derive(Debug)]
pub struct TrafficWatch<'a> {
    guest: &'a GuestContext,
    traffic: anyhow::Result<Traffic>,
    elapsed: Duration,
}

/// Watched work that has begun.
#[derive(Debug)]
pub struct Begun {
    before: anyhow::Result<Traffic>,
    at: Instant,
}

impl<'a> TrafficWatch<'a> {
    /// Makes a watch that has not watched anything.
    pub fn new(guest: &'a GuestContext) -> Self {
        TrafficWatch {
            guest,
            traffic: Ok(Traffic::default()),
            elapsed: Duration::ZERO,
        }
    }

    /// Calls `work`. Counters that cannot be read are reported by [`TrafficWatch::traffic`], so
    /// that a failure of the work is seen even without them.
    pub fn watch<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let begun = self.begin();
        let result = work();
        self.end(begun);
        result
    }

    /// Begins work that is watched until `TrafficWatch::end`.
    pub fn begin(&self) -> Begun {
        Begun {
            before: sample(self.guest),
            at: Instant::now(),
        }
    }

    /// Returns the devices' traffic since the beginning of work that is still in progress.
    ///
    /// # Errors
    /// The reason why there are no counters.
    pub fn since(&self, begun: &Begun) -> anyhow::Result<Traffic> {
        let before = begun.before.as_ref();
        let before = before.map_err(|error| anyhow!("no counters at the beginning: {error:#}"))?;
        let mut traffic = Traffic::default();
        traffic.add(before, &sample(self.guest)?)?;
        Ok(traffic)
    }

    /// Ends work that is watched.
    pub(crate) fn end(&mut self, begun: Begun) {
        self.elapsed = self.elapsed.saturating_add(begun.at.elapsed());
        let after = sample(self.guest);
        let added = match (&mut self.traffic, begun.before, after) {
            (Ok(traffic), Ok(before), Ok(after)) => traffic.add(&before, &after),
            (Ok(_), Err(error), _) | (Ok(_), _, Err(error)) => Err(error),
            (Err(_), ..) => Ok(()),
        };
        if let Err(error) = added {
            self.traffic = Err(error);
        }
    }

    /// Returns the devices' traffic during all watched work.
    ///
    /// # Errors
    /// The reason why there are no counters.
    pub fn traffic(&self) -> anyhow::Result<&Traffic> {
        self.traffic
            .as_ref()
            .map_err(|error| anyhow!("the route of the data is unknown: {error:#}"))
    }

    /// Writes time and traffic into the figures of a check.
    pub(crate) fn write_to(&self, measure: &mut Measure) {
        measure.seconds = self.elapsed.as_secs_f64();
        if let Ok(traffic) = &self.traffic {
            measure.routes = traffic.payload_by_route(|of| traffic.counts(of));
            measure.peer_bytes = traffic.peer_bytes();
            measure.ram_bytes = traffic.ram_bytes();
            measure.failures = traffic.failures();
            measure.flows = self.flows_of(traffic);
        }
    }

    /// Like [`TrafficWatch::write_to`], but for completions that one device wrote to memory of
    /// devices, or to guest RAM, in place of payload.
    pub(crate) fn write_completions_to(
        &self,
        measure: &mut Measure,
        device: u32,
        to_devices: bool,
    ) {
        measure.seconds = self.elapsed.as_secs_f64();
        if let Ok(traffic) = &self.traffic {
            measure.routes = traffic.completions_by_route(device, to_devices);
            let bytes = measure.routes.values().sum();
            match to_devices {
                true => measure.peer_bytes = bytes,
                false => measure.ram_bytes = bytes,
            }
            measure.failures = traffic.failures();
        }
    }

    /// Returns the payload of all devices during all watched work.
    ///
    /// # Errors
    /// The reason why there are no counters.
    pub(crate) fn flows(&self) -> anyhow::Result<Vec<PayloadFlow>> {
        Ok(self.flows_of(self.traffic()?))
    }

    /// Returns the names of the disks whose DMA is excluded from sums.
    pub(crate) fn uncounted(&self) -> Vec<&'a str> {
        let uncounted = self.guest.controllers.iter().filter(|disk| disk.uncounted);
        uncounted.map(|disk| disk.name.as_str()).collect()
    }

    fn flows_of(&self, traffic: &Traffic) -> Vec<PayloadFlow> {
        let devices = self.guest.devices();
        let flows = devices.flat_map(|(name, number)| traffic.flows(name, number));
        flows.collect()
    }
}

/// Returns the present counters of all devices.
fn sample(guest: &GuestContext) -> anyhow::Result<Traffic> {
    let mut counters = guest.launcher.counters()?;
    let uncounted = guest.controllers.iter().filter(|disk| disk.uncounted);
    let uncounted = uncounted.map(|disk| disk.number);
    let unmeasured: BTreeSet<u32> = guest.unmeasured().map(|device| device.number).collect();
    let mut traffic = Traffic {
        uncounted: uncounted.chain(unmeasured.iter().copied()).collect(),
        unmeasured,
        without_purposes: guest.foreign.iter().map(|device| device.number).collect(),
        ..Traffic::default()
    };
    let behind_virtio = has_virtio_iommu()?;
    for (name, number) in guest.devices() {
        match counters.remove(name) {
            Some(DeviceCounters::Counted { dma, events }) => {
                match behind_virtio {
                    true => traffic.count_all_behind_virtio(number, &dma),
                    false => traffic.count_all(number, &dma),
                }
                traffic.count_events(number, &events);
            }
            Some(DeviceCounters::None(_)) if !traffic.counts(number) => {}
            Some(DeviceCounters::None(reason)) => bail!("{name} has no DMA counters: {reason}"),
            None => bail!(
                "the launcher sends no DMA counters of {name}: are launcher and agent from the same build?"
            ),
        }
    }
    Ok(traffic)
}

/// Returns `true` if the guest's IOMMU is a virtio-iommu, which means that its driver has a device.
pub(crate) fn has_virtio_iommu() -> anyhow::Result<bool> {
    let driver = Path::new("/sys/bus/virtio/drivers/virtio_iommu");
    match fs::read_dir(driver) {
        Ok(entries) => {
            let mut names = entries.map(|entry| entry.map(|entry| entry.file_name()));
            Ok(names.any(|name| name.is_ok_and(|name| is_virtio_device(&name.to_string_lossy()))))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot list {}", driver.display())),
    }
}

/// Returns a driver's folder contains files such as `bind` besides its devices.
fn is_virtio_device(name: &str) -> bool {
    let number = name.strip_prefix("virtio");
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::Direction;

    use super::*;

    const PEER: DmaKind = DmaKind {
        purpose: Purpose::Payload,
        completer: Completer::PeerBar,
        route: Route::Upstream,
        direction: Direction::Read,
    };
    const OWN: DmaKind = DmaKind {
        completer: Completer::OwnMemory,
        route: Route::OwnBar,
        ..PEER
    };
    const RAM: DmaKind = DmaKind {
        completer: Completer::GuestRam,
        route: Route::GuestRam,
        ..PEER
    };
    const FETCH: DmaKind = DmaKind {
        purpose: Purpose::Command,
        ..OWN
    };

    fn traffic(counts: &[(u32, DmaKind, u64, u64)]) -> Traffic {
        let mut traffic = Traffic::default();
        for (device, kind, bytes, failures) in counts {
            traffic.count(*device, *kind, *bytes, *failures);
        }
        traffic
    }

    #[test]
    fn bytes_are_counted_by_completer_and_device() {
        let seen = traffic(&[
            (0, OWN, 100, 0),
            (0, RAM, 10, 0),
            (1, PEER, 1, 2),
            (0, FETCH, 128, 0),
        ]);
        assert_eq!(
            (seen.payload_to_devices(0), seen.payload_to_guest_ram(0)),
            (100, 10)
        );
        assert_eq!(
            (seen.peer_bytes(), seen.ram_bytes(), seen.payload()),
            (101, 10, 111)
        );
        assert_eq!(
            (
                seen.commands_from_own_memory(0),
                seen.commands_from_guest_ram(0)
            ),
            (2, 0)
        );
        assert_eq!(seen.failures(), 2);
        let routes = BTreeMap::from([
            (Route::OwnBar, 100),
            (Route::GuestRam, 10),
            (Route::Upstream, 1),
        ]);
        assert_eq!(seen.payload_by_route(|_| true), routes);
        let record = seen.record(1);
        assert_eq!((record.routes.len(), record.failures), (1, 2));
    }

    #[test]
    fn directions_are_summed_and_are_flows_of_their_own() {
        let write = DmaKind {
            direction: Direction::Write,
            ..OWN
        };
        let both = traffic(&[(0, OWN, 1, 0), (0, write, 2, 0), (0, FETCH, 64, 0)]);
        assert_eq!(both.peer_bytes(), 3);
        let flows: Vec<_> = both.flows("a", 0).map(|f| (f.direction, f.bytes)).collect();
        assert_eq!(flows, [(Direction::Read, 1), (Direction::Write, 2)]);
        assert_eq!(both.flows("b", 1).count(), 0);
    }

    #[test]
    fn uncounted_device_is_in_no_sum_but_its_own() {
        let before = Traffic {
            uncounted: [1].into(),
            ..Traffic::default()
        };
        let after = Traffic {
            uncounted: [1].into(),
            ..traffic(&[(0, PEER, 4, 1), (1, RAM, 2, 3), (1, PEER, 8, 0)])
        };
        let mut seen = Traffic::default();
        seen.add(&before, &after).unwrap();
        assert_eq!(
            (seen.peer_bytes(), seen.ram_bytes(), seen.payload()),
            (4, 0, 4)
        );
        assert_eq!(seen.failures(), 1);
        assert_eq!(
            (seen.payload_to_devices(1), seen.payload_to_guest_ram(1)),
            (8, 2)
        );
    }

    #[test]
    fn growth_adds_up_over_pieces_of_work_and_never_shrinks() {
        let (before, after) = (
            traffic(&[(0, OWN, 5, 1)]),
            traffic(&[(0, OWN, 7, 1), (1, RAM, 3, 0)]),
        );
        let mut sum = Traffic::default();
        sum.add(&before, &after).unwrap();
        sum.add(&before, &after).unwrap();
        assert_eq!(sum, traffic(&[(0, OWN, 4, 0), (1, RAM, 6, 0)]));
        let error = sum.add(&after, &before).unwrap_err().to_string();
        assert_eq!(error, "a counter went back from 7 to 5");
    }

    #[test]
    fn unknown_memory_is_a_devices_behind_virtio_only() {
        let entry = |kind: DmaKind, bytes| Entry {
            bytes,
            ..Entry::none(kind)
        };
        let unknown = DmaKind {
            completer: Completer::Unknown,
            ..PEER
        };
        let entries = [entry(PEER, 1), entry(unknown, 64), entry(RAM, 2)];
        let mut counted = Traffic::default();
        counted.count_all(0, &entries);
        assert_eq!(
            (counted.payload_to_devices(0), counted.inference(0)),
            (1, None)
        );
        let mut inferred = Traffic::default();
        inferred.count_all_behind_virtio(0, &entries);
        let ways = (
            inferred.payload_to_devices(0),
            inferred.payload_to_guest_ram(0),
        );
        assert_eq!(ways, (65, 2), "guest RAM stays guest RAM");
        let mut grown = Traffic::default();
        grown.add(&Traffic::default(), &inferred).unwrap();
        let said = grown.inference(0).unwrap();
        assert!(said.contains("64 bytes"), "{said}");
        assert_eq!(grown.inference(1), None);
        assert!(is_virtio_device("virtio0") && !is_virtio_device("virtio_iommu"));
    }

    #[test]
    fn events_grow_by_device_and_queue_where_they_are_counted() {
        let events = |interrupts, doorbells: &[(u16, u64)]| DeviceEvents {
            interrupts,
            injected_faults: 2 * interrupts,
            doorbells: Some(doorbells.iter().copied().collect()),
        };
        let sample = |of_disk: &DeviceEvents| {
            let mut sample = Traffic::default();
            sample.count_events(0, of_disk);
            sample.count_events(1, &DeviceEvents::default());
            sample
        };
        let before = sample(&events(3, &[(1, 5), (2, 7)]));
        let after = sample(&events(4, &[(1, 5), (2, 9)]));
        let mut seen = Traffic::default();
        seen.add(&before, &after).unwrap();
        assert_eq!((seen.interrupts(0), seen.injected_faults(0)), (1, 2));
        assert_eq!(seen.doorbells(0), Some([(2, 2)].into()));
        assert_eq!((seen.interrupts(1), seen.doorbells(1)), (0, None));
    }
}
