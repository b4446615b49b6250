//! The RDMA network adapters under test, as sysfs shows them.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use peerbar_report::Plan;

use crate::devices::{Roots, attribute};

/// PCI vendor ID of an Elastic Fabric Adapter, and start of its device IDs (Linux
/// drivers/infiniband/hw/efa/efa_main.c).
const VENDOR: &str = "0x1d0f";
const DEVICE: &str = "0xefa";

/// An adapter that has a driver, and an interface for verbs.
#[derive(Clone, Debug)]
pub(crate) struct Nic {
    /// Its name in the plan.
    pub(crate) name: String,
    /// Its index in the plan, after all controllers and GPUs.
    pub(crate) number: u32,
    /// Its index among the adapters of the plan.
    pub(crate) index: u32,
    /// `/sys/bus/pci/devices/0000:03:00.0`.
    pub(crate) pci: PathBuf,
    /// The kernel's name for it: `efa_0`.
    pub(crate) device: String,
    /// `/dev/infiniband/uverbs0`.
    pub(crate) verbs: PathBuf,
}

/// Returns all adapters of `plan`.
///
/// # Errors
/// Each adapter that is not there yet, with the state that was seen instead.
pub(crate) fn find_all(roots: &Roots, plan: &Plan) -> anyhow::Result<Vec<Nic>> {
    let first = u32::try_from(plan.devices.len().saturating_add(plan.gpus.len()))?;
    let mut found = Vec::new();
    let mut missing = String::new();
    for (index, nic) in (0..).zip(&plan.nics) {
        let number = first.saturating_add(index);
        match find(roots, &nic.name, number, index) {
            Ok(nic) => found.push(nic),
            Err(error) => writeln!(missing, "adapter {}: {error:#}", nic.name)?,
        }
    }
    ensure!(missing.is_empty(), "{}", missing.trim_end());
    Ok(found)
}

impl Nic {
    /// Returns the adapter with its present names: a driver that is bound again may give others.
    ///
    /// # Errors
    /// It has no driver, or is gone.
    pub(crate) fn now(&self, roots: &Roots) -> anyhow::Result<Nic> {
        let found = find(roots, &self.name, self.number, self.index);
        found.with_context(|| format!("adapter {}", self.name))
    }
}

/// Returns the adapter with this index among the adapters of the plan.
fn find(roots: &Roots, name: &str, number: u32, index: u32) -> anyhow::Result<Nic> {
    let pci = with_subsystem(roots, u64::from(index).saturating_add(1))?;
    let device = only_entry(&pci.join("infiniband"))?;
    let verbs = only_entry(&pci.join("infiniband_verbs"))?;
    let verbs = roots.dev.join("infiniband").join(verbs);
    ensure!(verbs.exists(), "{} does not exist yet", verbs.display());
    Ok(Nic {
        name: name.to_owned(),
        number,
        index,
        pci,
        device,
        verbs,
    })
}

/// Returns the name of the only entry of a folder that a driver makes.
fn only_entry(folder: &Path) -> anyhow::Result<String> {
    let entries = fs::read_dir(folder).with_context(|| {
        format!(
            "{} does not exist; is the driver efa bound to it?",
            folder.display()
        )
    })?;
    let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    let [name] = names.as_slice() else {
        bail!("{} has {} entries, not one", folder.display(), names.len());
    };
    let name = name.to_str().context("a name that is not UTF-8")?;
    Ok(name.to_owned())
}

fn with_subsystem(roots: &Roots, wanted: u64) -> anyhow::Result<PathBuf> {
    let directory = roots.sys.join("bus/pci/devices");
    for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if attribute(&path, "vendor") != VENDOR || !attribute(&path, "device").starts_with(DEVICE) {
            continue;
        }
        let subsystem = attribute(&path, "subsystem_device");
        let number = subsystem.strip_prefix("0x");
        if number.and_then(|number| u64::from_str_radix(number, 16).ok()) == Some(wanted) {
            return Ok(path);
        }
    }
    bail!("no PCI device {VENDOR}:{DEVICE}* has the subsystem ID {wanted}")
}

#[cfg(test)]
mod tests {
    use peerbar_report::{Nic as PlannedNic, NvmeDevice};

    use super::*;

    fn guest() -> (tempfile::TempDir, Roots) {
        let root = tempfile::tempdir().unwrap();
        let (sys, dev) = (root.path().join("sys"), root.path().join("dev"));
        fs::create_dir_all(dev.join("infiniband")).unwrap();
        for (address, device, subsystem) in [
            ("0000:02:00.0", "0xefa3", "0x0002"),
            ("0000:03:00.0", "0xefa3", "0x0001"),
            ("0000:04:00.0", "0xec20", "0x0001"),
        ] {
            let pci = sys.join("bus/pci/devices").join(address);
            fs::create_dir_all(&pci).unwrap();
            fs::write(pci.join("vendor"), "0x1d0f\n").unwrap();
            fs::write(pci.join("device"), format!("{device}\n")).unwrap();
            fs::write(pci.join("subsystem_device"), format!("{subsystem}\n")).unwrap();
        }
        (root, Roots { sys, dev })
    }

    fn plan(names: &[&str]) -> Plan {
        let text = r#"{"modules":[],"devices":[],"tools":false,"checks":[]}"#;
        let nics = names.iter().map(|&name| PlannedNic {
            name: name.to_owned(),
        });
        Plan {
            devices: vec![NvmeDevice::default()],
            nics: nics.collect(),
            ..serde_json::from_str(text).unwrap()
        }
    }

    /// Gives names to the adapter with this PCI address, as the driver does.
    fn bind(roots: &Roots, (address, device, verbs): (&str, &str, &str)) {
        let pci = roots.sys.join("bus/pci/devices").join(address);
        fs::create_dir_all(pci.join("infiniband").join(device)).unwrap();
        fs::create_dir_all(pci.join("infiniband_verbs").join(verbs)).unwrap();
        fs::write(roots.dev.join("infiniband").join(verbs), "").unwrap();
    }

    fn unbind(roots: &Roots, address: &str) {
        let pci = roots.sys.join("bus/pci/devices").join(address);
        fs::remove_dir_all(pci.join("infiniband")).unwrap();
        fs::remove_dir_all(pci.join("infiniband_verbs")).unwrap();
    }

    #[test]
    fn adapter_is_found_by_subsystem_id_with_its_verbs() {
        let (_root, roots) = guest();
        bind(&roots, ("0000:02:00.0", "efa_0", "uverbs0"));
        bind(&roots, ("0000:03:00.0", "efa_1", "uverbs1"));
        let found = find_all(&roots, &plan(&["left", "right"])).unwrap();
        let shown: Vec<_> = found
            .iter()
            .map(|nic| (nic.name.as_str(), nic.number, nic.device.as_str()))
            .collect();
        assert_eq!(shown, [("left", 1, "efa_1"), ("right", 2, "efa_0")]);
        assert!(found[0].verbs.ends_with("dev/infiniband/uverbs1"));
        let error = find_all(&roots, &plan(&["a", "b", "c"])).unwrap_err();
        let message = "adapter c: no PCI device 0x1d0f:0xefa* has the subsystem ID 3";
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn adapter_has_the_names_of_the_driver_that_was_bound_last() {
        let (_root, roots) = guest();
        bind(&roots, ("0000:03:00.0", "efa_0", "uverbs0"));
        let nic = find_all(&roots, &plan(&["left"])).unwrap().remove(0);
        unbind(&roots, "0000:03:00.0");
        let error = format!("{:#}", nic.now(&roots).unwrap_err());
        assert!(error.contains(" does not exist; is "), "{error}");
        bind(&roots, ("0000:03:00.0", "efa_7", "uverbs3"));
        let nic = nic.now(&roots).unwrap();
        assert_eq!((nic.device.as_str(), nic.number), ("efa_7", 1));
        assert!(nic.verbs.ends_with("dev/infiniband/uverbs3"));
    }

    #[test]
    fn adapter_without_a_driver_names_the_module() {
        let (_root, roots) = guest();
        let error = find_all(&roots, &plan(&["left"])).unwrap_err().to_string();
        assert!(
            error.starts_with("adapter left: /")
                && error.contains(" does not exist; is the driver efa bound to it?"),
            "{error}"
        );
    }
}
