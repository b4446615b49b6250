//! The DMA counters of a run's devices, which their servers share as files in the run's folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[cfg(doc)]
use peerbar_dma_log::Entry;
use peerbar_dma_log::counter_file::{CounterFileError, Reader};
use peerbar_report::DeviceCounters;

use crate::scenario::Scenario;

/// Returns the path in a run's `folder` at which the device with that name shares its counters.
pub fn counter_file(folder: &Path, device: &str) -> PathBuf {
    folder.join(format!("{device}.counters"))
}

/// The counter files of the devices of a scenario.
///
/// They are opened once, before the guest runs: with `--share-rw` it could put a FIFO in the place
/// of one, whose open(2) waits.
#[derive(Debug)]
pub struct CounterFiles {
    /// Each device's name and file, or the reason why it has none.
    devices: Vec<(String, Result<Reader, String>)>,
    hides_owners: bool,
}

impl CounterFiles {
    /// Returns those that the running servers of `scenario` keep in the run's `folder`.
    pub fn of(scenario: &Scenario, folder: &Path) -> Self {
        let reader = |device: &str| {
            let file = counter_file(folder, device);
            Reader::open(&file).map_err(|error| unreadable(&file.display().to_string(), &error))
        };
        let devices = scenario.devices().map(|device| {
            let reader = match device.is_ours() {
                true => reader(device.name()),
                false => Err("QEMU's own model counts no DMA".to_owned()),
            };
            (device.name().to_owned(), reader)
        });
        Self {
            devices: devices.collect(),
            hides_owners: scenario.machine.iommu.hides_owners(),
        }
    }

    /// Does the work of [`CounterFiles::read`], with the owners of memory that QEMU's virtio-iommu
    /// hides from the devices ([`Entry::kind_behind_virtio`]), and the number of bytes for which
    /// the owner is inferred.
    pub(crate) fn read_inferred(&self) -> impl Iterator<Item = (String, DeviceCounters, u64)> {
        let counters = self.read().into_iter();
        counters.map(|(name, mut counters)| {
            let inferred = match self.hides_owners {
                true => infer(&mut counters),
                false => 0,
            };
            (name, counters, inferred)
        })
    }

    /// Returns the counters of each device at this moment, by its name; those of a server that has
    /// ended are its last.
    pub fn read(&self) -> BTreeMap<String, DeviceCounters> {
        let read = |(name, reader): &(String, Result<Reader, String>)| {
            let counters = reader.as_ref().map_err(String::clone);
            let counters = counters
                .and_then(|reader| reader.read().map_err(|error| unreadable(name, &error)))
                .map_or_else(DeviceCounters::None, |counters| DeviceCounters::Counted {
                    dma: counters.entries,
                    events: counters.events,
                });
            (name.clone(), counters)
        };
        self.devices.iter().map(read).collect()
    }
}

/// Names the owners of memory for a device behind QEMU's virtio-iommu. Returns the number of bytes
/// that had others.
fn infer(counters: &mut DeviceCounters) -> u64 {
    let mut inferred: u64 = 0;
    if let DeviceCounters::Counted { dma, .. } = counters {
        for entry in dma {
            let completer = entry.kind_behind_virtio().completer;
            if completer != entry.completer {
                inferred = inferred.saturating_add(entry.bytes);
            }
            entry.completer = completer;
        }
    }
    inferred
}

fn unreadable(file: &str, error: &CounterFileError) -> String {
    format!(
        "{file} cannot be read ({error}): are the launcher and the servers from the same build?"
    )
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::{Completer, DeviceEvents, Direction, Entry, Purpose, Route};
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use crate::scenario::Model;

    #[test]
    fn memory_without_a_mapping_is_a_device_s_behind_virtio() {
        let entry = |completer| Entry {
            purpose: Purpose::Payload,
            route: Route::Upstream,
            completer,
            direction: Direction::Write,
            requests: 1,
            bytes: 64,
            failures: 0,
        };
        let mut counters = DeviceCounters::Counted {
            dma: vec![entry(Completer::Unknown), entry(Completer::GuestRam)],
            events: DeviceEvents::default(),
        };
        assert_eq!(infer(&mut counters), 64);
        let DeviceCounters::Counted { dma, .. } = counters else {
            panic!("{counters:?}");
        };
        assert_eq!(dma, [entry(Completer::PeerBar), entry(Completer::GuestRam)]);
    }

    #[test]
    fn device_without_counters_says_why() {
        let mut scenario = Scenario::demo().unwrap();
        scenario.nvmes[1].model = Model::Qemu;
        let folder = tempfile::tempdir().unwrap();
        let counters = CounterFiles::of(&scenario, folder.path()).read();
        let reason = |name: &str| match &counters[name] {
            DeviceCounters::None(reason) => reason.as_str(),
            counted @ DeviceCounters::Counted { .. } => panic!("{counted:?}"),
        };
        assert_eq!(reason("disk1"), "QEMU's own model counts no DMA");
        let missing = reason("disk0");
        assert!(
            missing.contains("disk0.counters cannot be read (") && missing.contains("No such file"),
            "{missing}"
        );
    }

    #[test]
    fn file_that_a_guest_replaces_is_not_opened() {
        let scenario = Scenario::demo().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = counter_file(folder.path(), "disk0");
        let mut file = peerbar_dma_log::counter_file::header(77).to_vec();
        file.resize(peerbar_dma_log::counter_file::FILE_BYTES, 0);
        std::fs::write(&path, file).unwrap();
        let files = CounterFiles::of(&scenario, folder.path());
        std::fs::remove_file(&path).unwrap();
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let counters = files.read();
        assert!(matches!(counters["disk0"], DeviceCounters::Counted { .. }));
    }
}
