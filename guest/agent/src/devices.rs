//! The controllers under test, as sysfs shows them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use peerbar_gds::{FileOptions, Gpu, GpuFile, Policy};
use peerbar_report::NvmeDevice;

use crate::disk::Disk;
use crate::p2pmem::Pool;

/// Payload that a device must have moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The device's index in the plan.
    pub(crate) number: u32,
    /// Its name.
    pub(crate) name: String,
    /// Number of bytes.
    pub(crate) bytes: u64,
}

/// A controller that is live and has a disk.
#[derive(Clone, Debug)]
pub struct Controller {
    /// Its name in the plan.
    pub name: String,
    /// Its serial number, which is the name if the disk is not another project's.
    pub(crate) serial: String,
    /// Its index in the plan.
    pub number: u32,
    /// Size of its CMB in bytes, according to the plan.
    pub(crate) cmb_bytes: u64,
    /// `/sys/class/nvme/nvme0`.
    pub directory: PathBuf,
    /// `/dev/nvme0`.
    pub node: PathBuf,
    /// `/sys/bus/pci/devices/0000:02:00.0`.
    pub pci: PathBuf,
    /// The block device of its namespace with the NSID 1.
    pub disk: Disk,
    /// The block devices of all its namespaces, by NSID.
    pub(crate) namespaces: BTreeMap<u32, Disk>,
    /// See [`NvmeDevice::uncounted`].
    pub(crate) uncounted: bool,
}

impl Controller {
    /// Returns `bytes` as the payload that it must have moved.
    pub fn share(&self, bytes: u64) -> Share {
        Share {
            number: self.number,
            name: self.name.clone(),
            bytes,
        }
    }

    /// Opens its disk for reading and writing, for transfers with `gpu`.
    pub fn open_for(&self, gpu: &Gpu, policy: Policy) -> anyhow::Result<GpuFile> {
        let options = FileOptions::new().write(true).policy(policy);
        Ok(options.open(gpu, &self.disk.node)?)
    }

    /// Returns its p2pmem.
    pub fn pool(&self) -> Pool {
        Pool::of(&self.pci)
    }

    /// Fails unless the controller is live.
    pub(crate) fn ensure_live(&self) -> anyhow::Result<()> {
        let state = attribute(&self.directory, "state");
        ensure!(state == "live", "{} is {state}, not live", self.name);
        Ok(())
    }

    /// Returns the registers of the CMB as the driver read them, for messages.
    pub(crate) fn cmb_registers(&self) -> String {
        let text = attribute(&self.directory, "cmb");
        if text.is_empty() {
            "no cmb attribute".to_owned()
        } else {
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        }
    }
}

/// The folders where the kernel shows its devices.
#[derive(Debug)]
pub(crate) struct Roots {
    /// `/sys`.
    pub(crate) sys: PathBuf,
    /// `/dev`.
    pub(crate) dev: PathBuf,
}

impl Roots {
    pub(crate) fn of_the_guest() -> Self {
        Roots {
            sys: "/sys".into(),
            dev: "/dev".into(),
        }
    }

    /// Returns all of `devices`, each live and with a disk.
    ///
    /// # Errors
    /// Each device that is not there yet, with the state that was seen instead.
    pub(crate) fn find_all(&self, devices: &[NvmeDevice]) -> anyhow::Result<Vec<Controller>> {
        let mut found = Vec::new();
        let mut missing = String::new();
        for (number, device) in (0..).zip(devices) {
            match self.find(number, device) {
                Ok(controller) => found.push(controller),
                Err(error) => writeln!(missing, "device {}: {error:#}", device.name)?,
            }
        }
        ensure!(missing.is_empty(), "{}", missing.trim_end());
        Ok(found)
    }

    fn find(&self, number: u32, device: &NvmeDevice) -> anyhow::Result<Controller> {
        self.controller(number, device, self.with_serial(&device.name)?)
    }

    /// Returns the controller of the PCI function `pci`, live and with a disk.
    ///
    /// # Errors
    /// The state that was seen instead.
    pub(crate) fn find_at(
        &self,
        number: u32,
        device: &NvmeDevice,
        pci: &Path,
    ) -> anyhow::Result<Controller> {
        let entries = fs::read_dir(self.sys.join("class/nvme"));
        let mut entries = entries.into_iter().flatten().flatten();
        let belongs = |entry: &fs::DirEntry| {
            let function = fs::canonicalize(entry.path().join("device"));
            function.is_ok_and(|function| function.file_name() == pci.file_name())
        };
        let entry = entries.find(belongs);
        let entry = entry.with_context(|| {
            format!(
                "no NVMe controller belongs to {}; does Linux' nvme drive it?",
                pci.display()
            )
        })?;
        self.controller(number, device, entry.path())
    }

    fn controller(
        &self,
        number: u32,
        device: &NvmeDevice,
        directory: PathBuf,
    ) -> anyhow::Result<Controller> {
        let node = self.dev.join(
            directory
                .file_name()
                .context("a controller without a name")?,
        );
        let state = attribute(&directory, "state");
        ensure!(state == "live", "{} is {state:?}, not live", node.display());
        let namespaces = self.namespaces(&directory, device.namespaces.max(1))?;
        let (_, disk) = namespaces.first_key_value().context("no namespace")?;
        let pci = fs::canonicalize(directory.join("device"))
            .with_context(|| format!("{} belongs to no PCI device", node.display()))?;
        Ok(Controller {
            name: device.name.clone(),
            serial: attribute(&directory, "serial"),
            number,
            cmb_bytes: device.cmb_bytes,
            disk: disk.clone(),
            namespaces,
            uncounted: device.uncounted,
            directory,
            node,
            pci,
        })
    }

    /// Returns the disks of the NSIDs 1 to `last`, each ready.
    fn namespaces(&self, directory: &Path, last: u32) -> anyhow::Result<BTreeMap<u32, Disk>> {
        let names = namespaces(directory);
        let disk = |nsid| {
            let name = names.get(&nsid);
            let name = name.with_context(|| format!("no namespace {nsid} yet"))?;
            Ok((nsid, Disk::read(&self.sys, &self.dev, name)?))
        };
        (1..=last).map(disk).collect()
    }

    fn with_serial(&self, serial: &str) -> anyhow::Result<PathBuf> {
        let class = self.sys.join("class/nvme");
        let mut seen = Vec::new();
        for entry in fs::read_dir(&class).into_iter().flatten().flatten() {
            let found = attribute(&entry.path(), "serial");
            if found == serial {
                return Ok(entry.path());
            }
            seen.push(format!(
                "{} ({found:?}, {})",
                entry.file_name().to_string_lossy(),
                attribute(&entry.path(), "state")
            ));
        }
        seen.sort();
        let seen = if seen.is_empty() {
            "none at all".to_owned()
        } else {
            seen.join(", ")
        };
        bail!("no NVMe controller has this serial number; there: {seen}")
    }
}

/// Returns the names of the disks below a controller, `nvme0n1`, by their NSIDs. The kernel numbers
/// disks in the order in which it finds them, which need not be that of the NSIDs.
fn namespaces(controller: &Path) -> BTreeMap<u32, String> {
    let entries = fs::read_dir(controller).into_iter().flatten().flatten();
    let disks = entries.filter_map(|entry| {
        let disk = disk_of(entry.file_name().to_str()?)?;
        Some((attribute(&entry.path(), "nsid").parse().ok()?, disk))
    });
    disks.collect()
}

/// Returns the disk's name of an entry such as `nvme0n1`, or `nvme0c1n2` where the kernel shows
/// only a path to it here.
fn disk_of(entry: &str) -> Option<String> {
    let (head, namespace) = entry.strip_prefix("nvme")?.split_once('n')?;
    let instance = head.split_once('c').map_or(head, |(instance, _)| instance);
    instance.parse::<u32>().ok()?;
    namespace.parse::<u32>().ok()?;
    Some(format!("nvme{instance}n{namespace}"))
}

/// Resets a device through its file in sysfs.
pub fn reset(file: &Path) -> anyhow::Result<()> {
    fs::write(file, "1").with_context(|| format!("the reset through {} failed", file.display()))
}

/// Returns an attribute of sysfs without surrounding white space, or an empty string if there is
/// none.
pub(crate) fn attribute(directory: &Path, name: &str) -> String {
    fs::read_to_string(directory.join(name))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Returns the bus address at which a BAR of a PCI device starts.
pub(crate) fn bar_start(pci: &Path, bar: u32) -> anyhow::Result<u64> {
    let path = pci.join("resource");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let line = text.lines().nth(usize::try_from(bar)?);
    let start = line.and_then(|line| line.split_whitespace().next());
    let start = start.and_then(|start| start.strip_prefix("0x"));
    let start = start.and_then(|start| u64::from_str_radix(start, 16).ok());
    start.with_context(|| format!("{} says nothing of BAR {bar}", path.display()))
}

/// Returns a device's path below `/sys/devices`, which names the bridges above it.
pub fn real_path(pci: &Path) -> anyhow::Result<PathBuf> {
    pci.canonicalize()
        .with_context(|| format!("cannot find {}", pci.display()))
}

/// Returns `true` if two devices are below one switch, by their paths in sysfs: below a common root
/// port and one more port.
pub fn have_common_switch(one: &Path, other: &Path) -> bool {
    let bridges = |path: &Path| -> Vec<String> {
        let parts = path.iter().map(|part| part.to_string_lossy().into_owned());
        parts.skip_while(|part| !part.starts_with("pci")).collect()
    };
    let (one, other) = (bridges(one), bridges(other));
    let common = one.iter().zip(&other).take_while(|(a, b)| a == b);
    // The host bridge, the root port, the switch's upstream port.
    common.count() >= 3
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn guest(state: &str) -> (tempfile::TempDir, Roots) {
        let root = tempfile::tempdir().unwrap();
        let (sys, dev) = (root.path().join("sys"), root.path().join("dev"));
        let controller = sys.join("class/nvme/nvme0");
        for (entry, nsid) in [("nvme0c0n1", "2\n"), ("nvme0c0n2", "1\n")] {
            fs::create_dir_all(controller.join(entry)).unwrap();
            fs::write(controller.join(entry).join("nsid"), nsid).unwrap();
        }
        fs::create_dir_all(sys.join("bus/pci/devices/0000:02:00.0")).unwrap();
        symlink(
            sys.join("bus/pci/devices/0000:02:00.0"),
            controller.join("device"),
        )
        .unwrap();
        fs::write(controller.join("serial"), "left                \n").unwrap();
        fs::write(controller.join("state"), format!("{state}\n")).unwrap();
        fs::create_dir(&dev).unwrap();
        for (disk, sectors) in [("nvme0n2", "2048\n"), ("nvme0n1", "4096\n")] {
            let entry = sys.join("block").join(disk);
            fs::create_dir_all(entry.join("queue")).unwrap();
            fs::write(entry.join("size"), sectors).unwrap();
            fs::write(entry.join("queue/logical_block_size"), "512\n").unwrap();
            fs::write(dev.join(disk), "").unwrap();
        }
        (root, Roots { sys, dev })
    }

    fn device(name: &str) -> NvmeDevice {
        NvmeDevice {
            name: name.to_owned(),
            ..NvmeDevice::default()
        }
    }

    #[test]
    fn a_controller_is_found_by_its_serial_number() {
        let (_root, roots) = guest("live");
        let found = roots.find_all(&[device("left")]).unwrap();
        assert_eq!(found[0].node, roots.dev.join("nvme0"));
        assert_eq!(found[0].disk.node, roots.dev.join("nvme0n2"));
        assert_eq!(found[0].disk.bytes, 1 << 20);
        assert!(found[0].pci.ends_with("0000:02:00.0"));
    }

    #[test]
    fn controller_found_by_its_function_keeps_its_serial_number() {
        let (_root, roots) = guest("live");
        let pci = Path::new("0000:02:00.0");
        let found = roots.find_at(0, &device("disk0"), pci).unwrap();
        assert_eq!((&*found.name, &*found.serial), ("disk0", "left"));
    }

    #[test]
    fn namespaces_are_known_by_nsid_once_all_are_there() {
        let (_root, roots) = guest("live");
        let of = |namespaces| NvmeDevice {
            namespaces,
            ..device("left")
        };
        let found = roots.find_all(&[of(2)]).unwrap();
        let disk = |name: &str, bytes| Disk {
            node: roots.dev.join(name),
            bytes,
            block: 512,
        };
        let disks = [(1, disk("nvme0n2", 1 << 20)), (2, disk("nvme0n1", 2 << 20))];
        assert_eq!(found[0].namespaces, BTreeMap::from(disks));
        let error = roots.find_all(&[of(3)]).unwrap_err().to_string();
        assert_eq!(error, "device left: no namespace 3 yet");
    }

    #[test]
    fn namespace_without_its_node_is_waited_for() {
        let (_root, roots) = guest("live");
        fs::remove_file(roots.dev.join("nvme0n1")).unwrap();
        let both = NvmeDevice {
            namespaces: 2,
            ..device("left")
        };
        let error = roots.find_all(&[both]).unwrap_err().to_string();
        let early = "device left: the disk nvme0n1 has no ";
        assert!(error.starts_with(early), "{error}");
    }

    #[test]
    fn another_namespace_does_not_stand_for_the_first() {
        let (_root, roots) = guest("live");
        fs::remove_dir_all(roots.sys.join("class/nvme/nvme0/nvme0c0n2")).unwrap();
        let error = roots.find_all(&[device("left")]).unwrap_err().to_string();
        assert_eq!(error, "device left: no namespace 1 yet");
    }

    #[test]
    fn missing_device_is_named_with_those_present() {
        let (_root, roots) = guest("connecting");
        let error = roots
            .find_all(&[device("left"), device("right")])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("device left: ") && error.contains("is \"connecting\", not live"),
            "{error}"
        );
        assert!(
            error.contains("device right: no NVMe controller has this serial number; there: nvme0"),
            "{error}"
        );
    }

    #[test]
    fn paths_of_a_multipath_namespace_stand_for_its_disk() {
        assert_eq!(disk_of("nvme0n1").unwrap(), "nvme0n1");
        assert_eq!(disk_of("nvme3c0n12").unwrap(), "nvme3n12");
        for other in ["nvme0", "nvme0n1p1", "power", "nvmen1", "ng0n1"] {
            assert_eq!(disk_of(other), None, "{other}");
        }
    }

    #[test]
    fn switch_is_common_below_its_upstream_port() {
        let device = |path: &str| Path::new("/sys/devices").join(path);
        let disk = device("pci0000:00/0000:00:03.0/0000:01:00.0/0000:02:00.0/0000:03:00.0");
        let gpu = device("pci0000:00/0000:00:03.0/0000:01:00.0/0000:02:01.0/0000:04:00.0");
        let alone = device("pci0000:00/0000:00:04.0/0000:05:00.0");
        assert!(have_common_switch(&disk, &gpu));
        assert!(!have_common_switch(&disk, &alone));
        assert!(!have_common_switch(
            &alone,
            &device("pci0000:00/0000:00:05.0/0000:06:00.0")
        ));
    }
}
