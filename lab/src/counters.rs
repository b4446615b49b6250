//! The DMA counters of a run's devices, which their servers share as files in the run's folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use peerbar_dma_log::counter_file::{CounterFileError, Reader};
use peerbar_report::DeviceCounters;

use crate::scenario::Scenario;

/// Where in a run's `folder` the device of that name shares its counters.
pub fn counter_file(folder: &Path, device: &str) -> PathBuf {
    folder.join(format!("{device}.counters"))
}

/// The counter files of the devices of a scenario.
///
/// They are opened once, before the guest runs: with `--share-rw` it could put a FIFO in the place of one, whose open(2) waits.
#[derive(Debug)]
pub struct CounterFiles {
    /// Each device's name and file, or why it has none.
    devices: Vec<(String, Result<Reader, String>)>,
}

impl CounterFiles {
    /// Those that the running servers of `scenario` keep in the run's `folder`.
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
        }
    }

    /// The counters of each device at this moment, by its name; those of a server that has ended are its last.
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

fn unreadable(file: &str, error: &CounterFileError) -> String {
    format!("{file} cannot be read ({error}): are the launcher and the servers of one build?")
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use crate::scenario::Model;

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
