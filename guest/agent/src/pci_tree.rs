//! The PCI tree that the guest's kernel found, as sysfs shows it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use peerbar_report::{AcsRegisters, Evidence, GuestPlatform, IommuGroup, PciFunction};

use crate::devices::attribute;
use crate::guest_context::GuestContext;
use crate::p2pmem::Pool;

/// Returns all functions, and the platform around them. Unreadable data is omitted: no check
/// depends on it, only explanations.
pub(crate) fn found(guest: &GuestContext) -> Vec<Evidence> {
    let platform = platform(&read("/proc/cpuinfo")).map(Evidence::Platform);
    let functions = functions(Path::new("/sys"), &|pci| name(guest, pci));
    let functions = functions.into_iter().map(Evidence::Function);
    platform.into_iter().chain(functions).collect()
}

fn platform(cpuinfo: &str) -> Option<GuestPlatform> {
    let field = |name: &str| {
        let fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        let mut values = fields.filter(|(key, _)| key.trim() == name);
        values.next().map(|(_, value)| value.trim().to_owned())
    };
    Some(GuestPlatform {
        release: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        command_line: read("/proc/cmdline").trim().to_owned(),
        cpu_vendor: field("vendor_id")?,
        cpu_family: field("cpu family")?.parse().ok()?,
        cpu_model: field("model name")?,
    })
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Returns the plan's name for the function with this directory.
fn name(guest: &GuestContext, pci: &Path) -> Option<String> {
    let controllers = guest
        .controllers
        .iter()
        .map(|device| (&device.pci, &device.name));
    let gpus = guest.gpus.iter().map(|gpu| (&gpu.pci, &gpu.name));
    let nics = guest.nics.iter().map(|nic| (&nic.pci, &nic.name));
    let foreign = guest
        .foreign
        .iter()
        .map(|device| (&device.pci, &device.name));
    let mut all = controllers.chain(gpus).chain(nics).chain(foreign);
    let same = |path: &PathBuf| path.file_name() == pci.file_name();
    all.find(|(path, _)| same(path))
        .map(|(_, name)| name.clone())
}

/// Returns the functions below `sys`, each after its upstream port, in the order of their addresses
/// on each bus.
fn functions(sys: &Path, name: &dyn Fn(&Path) -> Option<String>) -> Vec<PciFunction> {
    let entries = fs::read_dir(sys.join("bus/pci/devices"))
        .into_iter()
        .flatten()
        .flatten();
    let mut directories: Vec<PathBuf> = entries
        .filter_map(|entry| fs::canonicalize(entry.path()).ok())
        .collect();
    directories.sort();
    let read = |directory: &PathBuf| function(sys, directory, name(directory)).ok();
    directories.iter().filter_map(read).collect()
}

fn function(sys: &Path, directory: &Path, name: Option<String>) -> anyhow::Result<PciFunction> {
    let last = |path: &Path| {
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
    };
    let target = |link: &str| last(&fs::read_link(directory.join(link)).ok()?);
    let number = |attribute_name: &str| {
        let text = attribute(directory, attribute_name);
        let digits = text.strip_prefix("0x").unwrap_or(&text);
        u32::from_str_radix(digits, 16).with_context(|| format!("{attribute_name} is {text:?}"))
    };
    let config = ConfigSpace::open(directory)?;
    let group = target("iommu_group").and_then(|group| group.parse().ok());
    Ok(PciFunction {
        address: last(directory).context("a function without an address")?,
        name,
        parent: directory
            .parent()
            .and_then(last)
            .context("a function without a bus")?,
        vendor: u16::try_from(number("vendor")?)?,
        device: u16::try_from(number("device")?)?,
        class: number("class")?,
        port_type: config.port_type(),
        acs: config.acs(),
        iommu_group: group.map(|number: u32| IommuGroup {
            number,
            kind: attribute(&sys.join(format!("kernel/iommu_groups/{number}")), "type"),
        }),
        driver: target("driver"),
        p2pmem: Pool::of(directory).state().ok().map(|state| state.size),
    })
}

/// A function's configuration space (PCIe Base 6.0, 7.5).
pub(crate) struct ConfigSpace(File);

impl ConfigSpace {
    /// Maximum number of capabilities of each kind that fit the configuration space, so that a
    /// circular list ends, too.
    const MOST: usize = 1024;
    const PCI_EXPRESS: u8 = 0x10;
    const ACS: u16 = 0x0d;
    const ROOT_PORT: u8 = 4;
    const DOWNSTREAM_PORT: u8 = 6;

    /// Opens that of the function with this directory in sysfs.
    pub(crate) fn open(directory: &Path) -> anyhow::Result<Self> {
        let path = directory.join("config");
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Self(file))
    }

    fn dword(&self, offset: u16) -> Option<[u8; 4]> {
        let mut bytes = [0; 4];
        self.0.read_exact_at(&mut bytes, offset.into()).ok()?;
        Some(bytes)
    }

    /// Returns Device/Port Type, bits 7:4 of the register after the capability's header (PCIe Base
    /// 6.0, 7.5.3.2).
    fn port_type(&self) -> Option<u8> {
        let [_, _, register, _] = self.dword(self.express()?)?;
        Some(register >> 4)
    }

    /// Returns the Physical Slot Number, bits 31:19 of Slot Capabilities (PCIe Base 6.0, 7.5.3.9),
    /// of a root port or a switch's downstream port.
    pub(crate) fn slot(&self) -> Option<u32> {
        let is_above_a_slot = matches!(self.port_type()?, Self::ROOT_PORT | Self::DOWNSTREAM_PORT);
        let capabilities = self.express()?.checked_add(0x14)?;
        let capabilities = u32::from_le_bytes(self.dword(capabilities)?);
        is_above_a_slot.then_some(capabilities >> 19)
    }

    /// Returns the offset of the PCI Express capability.
    fn express(&self) -> Option<u16> {
        let [mut at, ..] = self.dword(0x34)?;
        for _ in 0..Self::MOST {
            let offset = u16::from(at & !3);
            let [id, next, ..] = self.dword(offset).filter(|_| at >= 0x40)?;
            if id == Self::PCI_EXPRESS {
                return Some(offset);
            }
            at = next;
        }
        None
    }

    /// Returns the ACS capability (PCIe Base 6.0, 7.7.11), found in the list of extended
    /// capabilities (7.6.3).
    fn acs(&self) -> Option<AcsRegisters> {
        let mut at = 0x100;
        for _ in 0..Self::MOST {
            let header = u32::from_le_bytes(self.dword(at)?);
            if u16::try_from(header & 0xffff).ok()? == Self::ACS {
                let [c0, c1, d0, d1] = self.dword(at.checked_add(4)?)?;
                return Some(AcsRegisters {
                    capability: u16::from_le_bytes([c0, c1]),
                    control: u16::from_le_bytes([d0, d1]),
                });
            }
            at = u16::try_from(header >> 20)
                .ok()
                .filter(|next| *next >= 0x100)?
                & !3;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Returns a root port with ACS, and below it an endpoint with a circular list of capabilities.
    fn guest() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let port = root.path().join("devices/pci0000:00/0000:00:02.0");
        let disk = port.join("0000:01:00.0");
        fs::create_dir_all(&disk).unwrap();
        let devices = root.path().join("bus/pci/devices");
        fs::create_dir_all(&devices).unwrap();
        for (directory, device) in [(&port, "0x000c"), (&disk, "0x0010")] {
            symlink(directory, devices.join(directory.file_name().unwrap())).unwrap();
            fs::write(directory.join("vendor"), "0x1b36\n").unwrap();
            fs::write(directory.join("device"), device).unwrap();
            fs::write(directory.join("class"), "0x010802\n").unwrap();
        }
        let mut config = vec![0; 4096];
        config[0x34] = 0x54;
        config[0x54..0x58].copy_from_slice(&[0x10, 0x48, 0x42, 0]);
        config[0x100..0x104].copy_from_slice(&0x1481_0001u32.to_le_bytes());
        config[0x148..0x14c].copy_from_slice(&0x0001_000du32.to_le_bytes());
        config[0x14c..0x150].copy_from_slice(&[0x5f, 0, 0x1d, 0]);
        fs::write(port.join("config"), &config).unwrap();
        config[0x54] = 0x05;
        config[0x48..0x4c].copy_from_slice(&[0x11, 0x54, 0, 0]);
        config[0x148..0x14c].copy_from_slice(&0x1001_0003u32.to_le_bytes());
        fs::write(disk.join("config"), &config).unwrap();
        fs::create_dir_all(root.path().join("kernel/iommu_groups/7")).unwrap();
        fs::write(root.path().join("kernel/iommu_groups/7/type"), "DMA-FQ\n").unwrap();
        symlink("../../../kernel/iommu_groups/7", disk.join("iommu_group")).unwrap();
        root
    }

    #[test]
    fn functions_come_after_what_they_are_plugged_into() {
        let guest = guest();
        let name = |pci: &Path| pci.ends_with("0000:01:00.0").then(|| "disk0".to_owned());
        let functions = functions(guest.path(), &name);
        let [port, disk] = functions.as_slice() else {
            panic!("{functions:?}")
        };
        assert_eq!(
            (port.address.as_str(), port.parent.as_str()),
            ("0000:00:02.0", "pci0000:00")
        );
        assert_eq!(port.port_type, Some(4));
        let acs = AcsRegisters {
            capability: 0x5f,
            control: 0x1d,
        };
        assert_eq!((port.acs, &port.iommu_group), (Some(acs), &None));
        assert_eq!(disk.parent, port.address);
        assert_eq!(
            (disk.vendor, disk.device, disk.class),
            (0x1b36, 0x10, 0x1_0802)
        );
        assert_eq!(disk.name.as_deref(), Some("disk0"));
        let group = disk.iommu_group.as_ref().unwrap();
        assert_eq!((group.number, group.kind.as_str()), (7, "DMA-FQ"));
    }

    #[test]
    fn circular_capability_list_ends() {
        let guest = guest();
        let disk = functions(guest.path(), &|_| None).pop().unwrap();
        assert_eq!((disk.port_type, disk.acs), (None, None));
    }

    #[test]
    fn the_first_processor_counts() {
        let text = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 23\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n\n\
                    processor\t: 1\nvendor_id\t: x\n";
        let platform = platform(text).unwrap();
        assert_eq!(
            (platform.cpu_vendor.as_str(), platform.cpu_family),
            ("AuthenticAMD", 23)
        );
        assert_eq!(platform.cpu_model, "AMD EPYC");
    }
}
