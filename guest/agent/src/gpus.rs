//! The GPUs under test, as sysfs shows them.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use peerbar_report::Plan;

use crate::devices::{Roots, Share, attribute, bar_start};
use crate::p2pmem::Pool;

/// The BAR through which a GPU exposes its memory (devices/gpu/INTERFACE.md).
pub const APERTURE: u32 = 2;

/// PCI vendor and device ID of a peerbar GPU (devices/gpu/INTERFACE.md).
const IDENTITY: (&str, &str) = ("0x1af4", "0x10f0");

/// Start of the name of the driver's device files, before the number.
const NODE: &str = "peerbar-gpu";

/// A GPU that has a driver.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// Its name in the plan.
    pub name: String,
    /// Its index in the plan, after all controllers.
    pub number: u32,
    /// Size of its aperture in bytes, according to the plan.
    pub aperture_bytes: u64,
    /// `true` if the aperture is a window, which is not p2pmem.
    pub(crate) window: bool,
    /// `/sys/bus/pci/devices/0000:03:00.0`.
    pub pci: PathBuf,
    /// The number in the name of its device file.
    node: u32,
}

impl Gpu {
    /// Opens it again, with a separate channel.
    pub fn open(&self) -> anyhow::Result<peerbar_gds::Gpu> {
        peerbar_gds::Gpu::open(self.node).with_context(|| format!("GPU {}", self.name))
    }

    /// Returns the number in the name of its device file.
    pub fn node(&self) -> u32 {
        self.node
    }

    /// Returns its device file.
    pub fn node_path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/{NODE}{}", self.node))
    }

    /// Returns its p2pmem.
    pub fn pool(&self) -> Pool {
        Pool::of(&self.pci)
    }

    /// Returns the free bytes of its VRAM.
    pub fn free_vram(&self) -> anyhow::Result<u64> {
        Ok(self.pool().state()?.available)
    }

    /// Fails unless as much VRAM is free as `before`.
    pub fn check_free_vram(&self, before: u64) -> anyhow::Result<()> {
        let after = self.free_vram()?;
        ensure!(
            after == before,
            "{before} bytes of VRAM were free, now {after} are"
        );
        Ok(())
    }

    /// Returns its properties, for messages.
    pub(crate) fn description(&self) -> String {
        match self.open() {
            Ok(gpu) => format!("{:?}", gpu.properties()),
            Err(error) => format!("{error:#}"),
        }
    }

    /// Returns the bus address at which its aperture starts.
    pub fn aperture_start(&self) -> anyhow::Result<u64> {
        bar_start(&self.pci, APERTURE)
    }

    /// Returns `bytes` as the payload that it must have moved.
    pub fn share(&self, bytes: u64) -> Share {
        Share {
            number: self.number,
            name: self.name.clone(),
            bytes,
        }
    }
}

/// Returns all GPUs of `plan`, each with its device file.
///
/// # Errors
/// Each GPU that is not there yet, with the state that was seen instead.
pub(crate) fn find_all(roots: &Roots, plan: &Plan) -> anyhow::Result<Vec<Gpu>> {
    let first = u32::try_from(plan.devices.len())?;
    let mut found = Vec::new();
    let mut missing = String::new();
    for (index, gpu) in (0..).zip(&plan.gpus) {
        let here = find(roots, index).map(|(pci, node)| Gpu {
            name: gpu.name.clone(),
            number: first.saturating_add(index),
            aperture_bytes: gpu.aperture_bytes,
            window: gpu.window,
            pci,
            node,
        });
        match here {
            Ok(gpu) => found.push(gpu),
            Err(error) => writeln!(missing, "GPU {}: {error:#}", gpu.name)?,
        }
    }
    ensure!(missing.is_empty(), "{}", missing.trim_end());
    Ok(found)
}

/// Returns the directory in sysfs of the GPU with this index in the plan, and the number of its
/// device file.
fn find(roots: &Roots, index: u32) -> anyhow::Result<(PathBuf, u32)> {
    let wanted = u64::from(index).saturating_add(1);
    let pci = with_subsystem(roots, wanted)?;
    let address = pci
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .context("a PCI device without an address")?;
    for number in nodes(roots) {
        let gpu = peerbar_gds::Gpu::open(number)?;
        if gpu.properties().address == address {
            return Ok((pci, number));
        }
    }
    bail!("no {NODE} device file belongs to {address}; is the module peerbar_gpu loaded?")
}

fn with_subsystem(roots: &Roots, wanted: u64) -> anyhow::Result<PathBuf> {
    let directory = roots.sys.join("bus/pci/devices");
    for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let identity = (attribute(&path, "vendor"), attribute(&path, "device"));
        if (identity.0.as_str(), identity.1.as_str()) != IDENTITY {
            continue;
        }
        let subsystem = attribute(&path, "subsystem_device");
        let number = subsystem.strip_prefix("0x");
        if number.and_then(|number| u64::from_str_radix(number, 16).ok()) == Some(wanted) {
            return Ok(path);
        }
    }
    bail!(
        "no PCI device {}:{} has the subsystem ID {wanted}",
        IDENTITY.0,
        IDENTITY.1
    )
}

/// Returns the numbers of the existing device files.
fn nodes(roots: &Roots) -> Vec<u32> {
    let entries = fs::read_dir(&roots.dev).into_iter().flatten().flatten();
    let number = |name: &str| name.strip_prefix(NODE)?.parse().ok();
    let mut numbers: Vec<u32> = entries
        .filter_map(|entry| number(entry.file_name().to_str()?))
        .collect();
    numbers.sort_unstable();
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest() -> (tempfile::TempDir, Roots) {
        let root = tempfile::tempdir().unwrap();
        let (sys, dev) = (root.path().join("sys"), root.path().join("dev"));
        fs::create_dir_all(&dev).unwrap();
        for (address, device, subsystem) in [
            ("0000:02:00.0", "0x10f0", "0x0002"),
            ("0000:03:00.0", "0x10f0", "0x0001"),
            ("0000:04:00.0", "0x1042", "0x0001"),
        ] {
            let pci = sys.join("bus/pci/devices").join(address);
            fs::create_dir_all(&pci).unwrap();
            fs::write(pci.join("vendor"), "0x1af4\n").unwrap();
            fs::write(pci.join("device"), format!("{device}\n")).unwrap();
            fs::write(pci.join("subsystem_device"), format!("{subsystem}\n")).unwrap();
        }
        (root, Roots { sys, dev })
    }

    #[test]
    fn a_gpu_is_found_by_its_subsystem_id() {
        let (_root, roots) = guest();
        let address = |wanted| {
            let path = with_subsystem(&roots, wanted).unwrap();
            path.file_name().unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(
            (address(1).as_str(), address(2).as_str()),
            ("0000:03:00.0", "0000:02:00.0")
        );
        let error = with_subsystem(&roots, 3).unwrap_err().to_string();
        assert_eq!(error, "no PCI device 0x1af4:0x10f0 has the subsystem ID 3");
    }

    #[test]
    fn a_gpu_without_a_device_file_names_its_driver() {
        let (_root, roots) = guest();
        let error = find(&roots, 0).unwrap_err().to_string();
        assert!(
            error.contains("0000:03:00.0") && error.contains("peerbar_gpu loaded?"),
            "{error}"
        );
        fs::write(roots.dev.join("peerbar-gpu7"), "").unwrap();
        fs::write(roots.dev.join("peerbar-gpux"), "").unwrap();
        assert_eq!(nodes(&roots), [7]);
    }

    #[test]
    fn the_aperture_is_the_third_resource() {
        let (_root, roots) = guest();
        let pci = with_subsystem(&roots, 1).unwrap();
        let gpu = Gpu {
            name: "gpu0".to_owned(),
            number: 2,
            aperture_bytes: 1 << 28,
            window: false,
            pci: pci.clone(),
            node: 0,
        };
        assert!(gpu.aperture_start().is_err());
        let lines = "0x00000000fe000000 0x00000000fe00ffff 0x0000000000140204\n0x0 0x0 0x0\n\
            0x0000004000000000 0x000000400fffffff 0x000000000014220c\n";
        fs::write(pci.join("resource"), lines).unwrap();
        assert_eq!(gpu.aperture_start().unwrap(), 0x40_0000_0000);
    }
}
