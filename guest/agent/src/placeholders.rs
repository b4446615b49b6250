//! The values of placeholders in commands and programs in this guest.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::anyhow;
use peerbar_report::{fill_in, unknown_placeholder};
use serde::{Deserialize, Serialize};

use crate::devices::Controller;
use crate::gpus::Gpu;
use crate::nics::Nic;

/// The value of each placeholder, by the text between its braces: `disk0:pci`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Placeholders(BTreeMap<String, String>);

impl Placeholders {
    /// Returns the placeholders of these devices.
    pub(crate) fn of(controllers: &[Controller], gpus: &[Gpu], nics: &[Nic]) -> Self {
        let mut all = Self::default();
        for controller in controllers {
            let name = &controller.name;
            all.add(name, "", &controller.node);
            all.add(name, ":disk", &controller.disk.node);
            for (nsid, disk) in &controller.namespaces {
                all.add(name, &format!(":ns{nsid}"), &disk.node);
            }
            all.add_pci(name, &controller.pci);
            if controller.cmb_bytes > 0 {
                all.add(name, ":p2pmem", &controller.pool().allocate_file());
            }
        }
        for gpu in gpus {
            all.add(&gpu.name, "", &gpu.node_path());
            all.add_pci(&gpu.name, &gpu.pci);
            if !gpu.window {
                all.add(&gpu.name, ":p2pmem", &gpu.pool().allocate_file());
            }
        }
        for nic in nics {
            all.add(&nic.name, "", Path::new(&nic.device));
            all.add(&nic.name, ":verbs", &nic.verbs);
            all.add_pci(&nic.name, &nic.pci);
        }
        all
    }

    /// Adds the placeholders of PCI functions, each with its name and its folder in sysfs.
    pub(crate) fn with_functions<'a>(
        mut self,
        functions: impl Iterator<Item = (&'a str, &'a Path)>,
    ) -> Self {
        functions.for_each(|(name, folder)| self.add_pci(name, folder));
        self
    }

    /// Returns `text` with the values in place of the placeholders.
    pub(crate) fn fill_in(&self, text: &str) -> anyhow::Result<String> {
        fill_in(text, |key| {
            let value = self.0.get(key).cloned();
            value
                .ok_or_else(|| anyhow!(unknown_placeholder(key, self.0.keys().map(String::as_str))))
        })
    }

    fn add(&mut self, name: &str, part: &str, value: &Path) {
        let value = value.to_string_lossy().into_owned();
        self.0.insert(format!("{name}{part}"), value);
    }

    /// Adds a PCI address, which is the last part of a device's folder in sysfs.
    fn add_pci(&mut self, name: &str, folder: &Path) {
        let address = folder.file_name().unwrap_or_default();
        self.add(name, ":pci", Path::new(address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;

    fn disk(node: &str) -> Disk {
        Disk {
            node: node.into(),
            bytes: 0,
            block: 512,
        }
    }

    fn controller() -> Controller {
        Controller {
            name: "left".into(),
            serial: "left".into(),
            number: 0,
            cmb_bytes: 2 << 20,
            directory: "/sys/class/nvme/nvme1".into(),
            node: "/dev/nvme1".into(),
            pci: "/sys/devices/0000:02:00.0".into(),
            disk: disk("/dev/nvme1n2"),
            namespaces: [(1, disk("/dev/nvme1n2")), (2, disk("/dev/nvme1n1"))].into(),
            uncounted: false,
        }
    }

    fn nic() -> Nic {
        Nic {
            name: "net".into(),
            number: 1,
            index: 0,
            pci: "/sys/bus/pci/devices/0000:05:00.0".into(),
            device: "efa_1".into(),
            verbs: "/dev/infiniband/uverbs0".into(),
        }
    }

    #[test]
    fn placeholders_become_paths_and_addresses() {
        let placeholders = Placeholders::of(&[controller()], &[], &[nic()]);
        let function = [("dev", Path::new("/sys/devices/0000:06:00.0"))];
        let placeholders = placeholders.with_functions(function.into_iter());
        for (text, filled) in [
            ("nvme id-ctrl {left}", "nvme id-ctrl /dev/nvme1"),
            ("{left:disk} {left:ns1}", "/dev/nvme1n2 /dev/nvme1n2"),
            ("{left:ns2}", "/dev/nvme1n1"),
            ("lspci -s {left:pci}", "lspci -s 0000:02:00.0"),
            ("{left:p2pmem}", "/sys/devices/0000:02:00.0/p2pmem/allocate"),
            ("ibv_devinfo -d {net}", "ibv_devinfo -d efa_1"),
            (
                "{net:verbs} {net:pci}",
                "/dev/infiniband/uverbs0 0000:05:00.0",
            ),
            ("lspci -s {dev:pci}", "lspci -s 0000:06:00.0"),
            ("awk '{ print }'", "awk '{ print }'"),
        ] {
            assert_eq!(placeholders.fill_in(text).unwrap(), filled);
        }
        let error = placeholders.fill_in("dd if={right:disk}").unwrap_err();
        let message = "unknown placeholder `{right:disk}` (known: {left}, {net}); ";
        assert!(error.to_string().starts_with(message), "{error}");
    }

    #[test]
    fn disk_without_cmb_has_no_p2pmem() {
        let bare = Controller {
            cmb_bytes: 0,
            ..controller()
        };
        let placeholders = Placeholders::of(&[bare], &[], &[]);
        assert!(placeholders.fill_in("{left:p2pmem}").is_err());
    }
}
