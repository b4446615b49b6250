//! The devices with servers of other projects, as sysfs shows them.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use peerbar_report::{ForeignDevice, ForeignKind, Plan};

use crate::devices::{Controller, Roots, attribute};
use crate::pci_tree::ConfigSpace;

/// Start of the class code of an NVMe controller, mass storage of the subclass 8 (PCI Code and ID
/// Assignment 1.11, 1.2).
const NVME_CLASS: &str = "0x0108";

/// A device with a server of another project.
#[derive(Clone, Debug)]
pub(crate) struct Foreign {
    /// Its name in the plan.
    pub(crate) name: String,
    /// Its index in the plan, after all other devices.
    pub(crate) number: u32,
    /// `/sys/bus/pci/devices/0000:03:00.0`.
    pub(crate) pci: PathBuf,
    /// See [`ForeignDevice::counted`].
    pub(crate) is_counted: bool,
    /// It as a disk, if it is one.
    pub(crate) disk: Option<Controller>,
}

/// Returns all such devices of `plan`.
///
/// # Errors
/// Each device that is not there yet, with the state that was seen instead.
pub(crate) fn find_all(roots: &Roots, plan: &Plan) -> anyhow::Result<Vec<Foreign>> {
    let before = [plan.devices.len(), plan.gpus.len(), plan.nics.len()];
    let first = u32::try_from(before.iter().sum::<usize>())?;
    let mut found = Vec::new();
    let mut missing = String::new();
    for (number, device) in (first..).zip(&plan.foreign) {
        match find(roots, number, device) {
            Ok(device) => found.push(device),
            Err(error) => writeln!(missing, "device {}: {error:#}", device.name)?,
        }
    }
    ensure!(missing.is_empty(), "{}", missing.trim_end());
    Ok(found)
}

fn find(roots: &Roots, number: u32, device: &ForeignDevice) -> anyhow::Result<Foreign> {
    let pci = below_slot(roots, device.slot)?;
    let class = attribute(&pci, "class");
    let is_nvme = class.starts_with(NVME_CLASS);
    let is_disk = match device.kind {
        Some(kind) => kind == ForeignKind::Nvme,
        None => is_nvme,
    };
    let disk = is_disk.then(|| roots.find_at(number, &device.disk(), &pci));
    let disk = disk.transpose().map_err(|error| match is_nvme {
        true => error,
        false => error.context(format!(
            "its class code is {class}, not that of an NVMe controller: leave `kind = \"nvme\"` out"
        )),
    });
    Ok(Foreign {
        name: device.name.clone(),
        number,
        is_counted: device.counted,
        disk: disk?,
        pci,
    })
}

/// Returns the function below the port with this slot number.
fn below_slot(roots: &Roots, slot: u32) -> anyhow::Result<PathBuf> {
    let ports = fs::read_dir(roots.sys.join("bus/pci/devices"));
    let ports = ports.into_iter().flatten().flatten();
    let mut ports = ports.filter_map(|entry| fs::canonicalize(entry.path()).ok());
    let has_slot = |port: &PathBuf| {
        let config = ConfigSpace::open(port).ok();
        config.and_then(|config| config.slot()) == Some(slot)
    };
    let port = ports.find(has_slot);
    let port = port.with_context(|| format!("no port has the slot number {slot}"))?;
    function_below(&port)
        .with_context(|| format!("no function is below the port {}", port.display()))
}

/// Returns the function with the device and function number 0 on the bus of `port`.
fn function_below(port: &Path) -> Option<PathBuf> {
    let mut entries = fs::read_dir(port).ok()?.flatten();
    let entry = entries.find(|entry| {
        let name = entry.file_name();
        let parts = name
            .to_str()
            .map(|name| name.split(':').collect::<Vec<_>>());
        matches!(parts.as_deref(), Some([_, _, "00.0"]))
    });
    entry.map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Returns a guest with a port of slot 5, and a function of this class below it.
    fn guest(class: &str) -> (tempfile::TempDir, Roots) {
        let root = tempfile::tempdir().unwrap();
        let (sys, dev) = (root.path().join("sys"), root.path().join("dev"));
        let port = sys.join("devices/pci0000:00/0000:00:02.0");
        let function = port.join("0000:01:00.0");
        fs::create_dir_all(&function).unwrap();
        fs::create_dir_all(&dev).unwrap();
        fs::create_dir_all(port.join("0000:00:02.0:pcie004")).unwrap();
        let devices = sys.join("bus/pci/devices");
        fs::create_dir_all(&devices).unwrap();
        let mut config = vec![0; 256];
        config[0x34] = 0x40;
        // A root port with a slot; its number is in the upper bits.
        config[0x40..0x44].copy_from_slice(&[0x10, 0, 0x42, 1]);
        config[0x54..0x58].copy_from_slice(&(5u32 << 19 | 0x7f).to_le_bytes());
        fs::write(port.join("config"), &config).unwrap();
        config[0x42] = 0x02;
        fs::write(function.join("config"), &config).unwrap();
        fs::write(function.join("class"), class).unwrap();
        for directory in [&port, &function] {
            symlink(directory, devices.join(directory.file_name().unwrap())).unwrap();
        }
        (root, Roots { sys, dev })
    }

    fn plan(slot: u32, kind: Option<ForeignKind>) -> Plan {
        let text = r#"{"modules":[],"devices":[],"tools":false,"checks":[]}"#;
        Plan {
            foreign: vec![ForeignDevice {
                name: "dev0".to_owned(),
                slot,
                kind,
                counted: false,
            }],
            ..serde_json::from_str(text).unwrap()
        }
    }

    #[test]
    fn device_is_found_by_the_slot_above_it() {
        let (_root, roots) = guest("0x120000\n");
        let found = find_all(&roots, &plan(5, None)).unwrap();
        assert!(found[0].pci.ends_with("0000:01:00.0") && found[0].disk.is_none());
        let error = find_all(&roots, &plan(6, None)).unwrap_err().to_string();
        assert_eq!(error, "device dev0: no port has the slot number 6");
    }

    #[test]
    fn class_code_decides_without_a_kind() {
        let (_root, roots) = guest("0x010802\n");
        let error = find_all(&roots, &plan(5, None)).unwrap_err().to_string();
        let missing = "device dev0: no NVMe controller belongs to ";
        assert!(error.starts_with(missing), "{error}");
        let other = plan(5, Some(ForeignKind::Other));
        assert!(find_all(&roots, &other).unwrap()[0].disk.is_none());
        let (_root, roots) = guest("0x120000\n");
        let named = plan(5, Some(ForeignKind::Nvme));
        let error = find_all(&roots, &named).unwrap_err().to_string();
        let mistake =
            "device dev0: its class code is 0x120000, not that of an NVMe controller: leave ";
        assert!(error.starts_with(mistake), "{error}");
    }
}
