//! The DMA counters of a run's devices, which their servers share as files in the run's folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use peerbar_dma_log::counter_file::Reader;
use peerbar_report::DeviceCounters;

use crate::scenario::Scenario;

/// Where in a run's `folder` the device of that name shares its counters.
pub fn counter_file(folder: &Path, device: &str) -> PathBuf {
    folder.join(format!("{device}.counters"))
}

/// The counter files of the devices of a scenario.
#[derive(Debug)]
pub struct CounterFiles {
    /// Each device's name and file. QEMU's own models have none.
    devices: Vec<(String, Option<PathBuf>)>,
}

impl CounterFiles {
    /// Those that the servers of `scenario` keep in the run's `folder`.
    pub fn of(scenario: &Scenario, folder: &Path) -> Self {
        let file = |device: &str| counter_file(folder, device);
        let devices = scenario.devices().map(|device| {
            let file = device.is_ours().then(|| file(device.name()));
            (device.name().to_owned(), file)
        });
        Self {
            devices: devices.collect(),
        }
    }

    /// The counters of each device at this moment, by its name; those of a server that has ended are its last.
    pub fn read(&self) -> BTreeMap<String, DeviceCounters> {
        let devices = self.devices.iter();
        devices
            .map(|(name, file)| (name.clone(), read(file.as_deref())))
            .collect()
    }
}

fn read(file: Option<&Path>) -> DeviceCounters {
    let Some(file) = file else {
        return DeviceCounters::None("QEMU's own model counts no DMA".to_owned());
    };
    match Reader::open(file).and_then(|reader| reader.read()) {
        Ok(counters) => DeviceCounters::Counted(counters.entries),
        Err(error) => DeviceCounters::None(format!(
            "{} cannot be read ({error}): are the launcher and the servers of one build?",
            file.display()
        )),
    }
}

#[cfg(test)]
mod tests {
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
            DeviceCounters::Counted(entries) => panic!("{entries:?}"),
        };
        assert_eq!(reason("disk1"), "QEMU's own model counts no DMA");
        let missing = reason("disk0");
        assert!(
            missing.contains("disk0.counters cannot be read (") && missing.contains("No such file"),
            "{missing}"
        );
    }
}
