//! Combinations of tables that are invalid, even though each table is valid.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::{self, Path, PathBuf};

use toml::Spanned;

use super::contents::{Machine, Nvme};
use super::error::Problem;
use super::file::File;
use super::gpu::Gpu;
use super::machine::{LEAST_MEMORY, MEMORY_UNIT};
use crate::size::Size;

/// Downstream ports on the bus inside a switch: the devices that a bus has numbers for (PCIe Base
/// 6.0, 2.2.6.2).
const PORTS: usize = 32;
/// Linux keeps a page structure of 64 bytes for each page of p2pmem. A guest with exactly this
/// amount dies while it starts; with a quarter more it does not.
const BYTES_FOR_PAGE: u64 = 80;
const PAGE: u64 = 4096;

/// Checks that each switch has a port for every device below it.
pub(super) fn ports(file: &File) -> Result<(), Problem> {
    let nvmes = file.nvme.iter().filter_map(|nvme| nvme.below.as_ref());
    let gpus = file.gpu.iter().filter_map(|gpu| gpu.below.as_ref());
    let nics = file.nic.iter().filter_map(|nic| nic.below.as_ref());
    let foreign = file.device.iter();
    let foreign = foreign.filter_map(|device| device.below.as_ref());
    let is_switch = |below: &&Spanned<String>| {
        let mut switches = file.switch.iter();
        switches.any(|switch| switch.name.get_ref() == below.get_ref())
    };
    let mut taken: HashMap<&str, usize> = HashMap::new();
    let all = nvmes.chain(gpus).chain(nics).chain(foreign);
    for below in all.filter(is_switch) {
        let count = taken.entry(below.get_ref()).or_default();
        *count += 1;
        if *count > PORTS {
            let message = format!(
                "`{}` has more than {PORTS} devices below it, and a switch has no more ports: declare another [[switch]]",
                below.get_ref()
            );
            return Err(Problem::new(below.span(), message));
        }
    }
    Ok(())
}

/// Checks that no two namespaces or Persistent Memory Regions share a file; paths are relative to
/// `folder`.
pub(super) fn images(file: &File, folder: &Path) -> Result<(), Problem> {
    let namespaces = file.nvme.iter().flat_map(|nvme| nvme.namespaces.get_ref());
    let images = namespaces.map(|table| (table.get_ref().file.as_deref(), table.span()));
    let regions = file.nvme.iter().filter_map(|nvme| nvme.pmr.as_ref());
    let regions = regions.map(|table| (table.get_ref().file.as_deref(), table.span()));
    let images = images.chain(regions);
    let images = images.filter_map(|(image, at)| Some((folder.join(image?), at)));
    distinct(images, |path| {
        format!("image {path} is already used by another namespace: give each its own")
    })
}

/// Checks that no two devices of other projects' servers have one socket; paths are relative to
/// `folder`.
pub(super) fn sockets(file: &File, folder: &Path) -> Result<(), Problem> {
    let sockets = file
        .device
        .iter()
        .filter_map(|device| device.socket.as_ref());
    let sockets = sockets.map(|socket| (folder.join(socket.get_ref()), socket.span()));
    distinct(sockets, |path| {
        format!("`socket` {path} is already that of another device: give each its own")
    })
}

/// Checks that no two paths lead to one file.
fn distinct(
    paths: impl Iterator<Item = (PathBuf, Range<usize>)>,
    mistake: impl FnOnce(path::Display<'_>) -> String,
) -> Result<(), Problem> {
    let mut seen: HashMap<PathBuf, Range<usize>> = HashMap::new();
    for (path, at) in paths {
        if let Some(first) = seen.insert(real(&path), at.clone()) {
            return Err(Problem::new(at, mistake(path.display())).with(first));
        }
    }
    Ok(())
}

/// Returns the path that identifies a file, even if it does not exist yet.
fn real(path: &Path) -> PathBuf {
    let missing = || {
        let path = path::absolute(path).ok()?;
        let folder = path.parent()?.canonicalize().ok()?;
        Some(folder.join(path.file_name()?))
    };
    let there = fs::canonicalize(path).ok();
    there.or_else(missing).unwrap_or_else(|| path.to_owned())
}

/// The places in a scenario that determine if its p2pmem fits the guest.
pub(super) struct P2pmem {
    memory: Option<Range<usize>>,
    names: Vec<Spanned<String>>,
}

impl P2pmem {
    /// Returns the spans in `file`.
    pub(super) fn of(file: &File) -> Self {
        let nvmes = file.nvme.iter().map(|nvme| nvme.name.clone());
        let gpus = file.gpu.iter().map(|gpu| gpu.name.clone());
        Self {
            memory: file.machine.memory.as_ref().map(Spanned::span),
            names: nvmes.chain(gpus).collect(),
        }
    }

    /// Checks that the guest has RAM for the page structures of all p2pmem: its kernel panics
    /// without it. The span is that of `memory`, or of the device with most p2pmem if it is left
    /// out. A GPU's window is no p2pmem.
    pub(super) fn fits(
        self,
        machine: &Machine,
        nvmes: &[Nvme],
        gpus: &[Gpu],
    ) -> Result<(), Problem> {
        let cmbs = nvmes
            .iter()
            .map(|nvme| nvme.config.cmb.unwrap_or_default().0);
        let apertures = gpus.iter().map(|gpu| match gpu.config.is_window() {
            true => 0,
            false => gpu.config.aperture().0,
        });
        let sizes: Vec<u64> = cmbs.chain(apertures).collect();
        let all = sizes
            .iter()
            .fold(0, |sum: u64, &size| sum.saturating_add(size));
        let structures = all.div_ceil(PAGE).saturating_mul(BYTES_FOR_PAGE);
        let needed = structures
            .saturating_add(LEAST_MEMORY)
            .checked_next_multiple_of(MEMORY_UNIT);
        let needed = needed.unwrap_or(u64::MAX);
        if needed <= machine.memory {
            return Ok(());
        }
        let largest = self.names.iter().zip(&sizes).max_by_key(|&(_, size)| size);
        let span = self.memory.or(largest.map(|(name, _)| name.span()));
        let message = format!(
            "{} of CMBs and apertures take {} of the guest's {} for the kernel's page structures: write \
             `memory = \"{}\"` in [machine], or make them smaller",
            Size(all),
            Size(structures),
            Size(machine.memory),
            Size(needed)
        );
        Err(Problem::new(span.unwrap_or(0..0), message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    const CHECK: &str = "[[check]]\nkind = \"controller-reset\"\ndevice = \"d0\"\n";

    fn refused(text: &str) -> Option<String> {
        let text = format!("name = \"x\"\n{text}\n{CHECK}");
        let parsed = Scenario::parse(Path::new("x.toml"), text);
        parsed.err().map(|error| error.to_string())
    }

    fn disk(name: &str, lines: &str) -> String {
        format!("[[nvme]]\nname = \"{name}\"\n{lines}\n")
    }

    #[test]
    fn p2pmem_needs_guest_ram_for_its_page_structures() {
        let with_cmb = |cmb: &str| {
            let lines = format!("cmb = \"{cmb}\"\nnamespaces = [{{ ram = \"1M\" }}]");
            disk("d1", "namespaces = [{ ram = \"1M\" }]") + &disk("d0", &lines)
        };
        assert_eq!(refused(&with_cmb("20G")), None);
        let expected = "21G of CMBs and apertures take 420M of the guest's 512M for the kernel's page structures: \
                        write `memory = \"516M\"` in [machine], or make them smaller";
        let error = refused(&with_cmb("21G"));
        assert_eq!(error, Some(format!("x.toml:6: {expected}")));
        let small = format!("machine.memory = \"98M\"\n{}", with_cmb("104M"));
        assert!(refused(&small).unwrap().starts_with("x.toml:2: 104M "));
        assert_eq!(refused(&small.replace("104M", "102M")), None);
    }

    #[test]
    fn a_window_is_no_p2pmem() {
        let gpu = |mode: &str| {
            let disk = disk("d0", "namespaces = [{ ram = \"1M\" }]");
            format!("machine.memory = \"96M\"\n{disk}[[gpu]]\nname = \"g0\"\nmode = \"{mode}\"\n")
        };
        assert!(
            refused(&gpu("static"))
                .unwrap()
                .starts_with("x.toml:2: 256M ")
        );
        assert_eq!(refused(&gpu("window")), None);
    }

    #[test]
    fn an_image_belongs_to_one_namespace() {
        let image = |path: &str| format!("namespaces = [{{ file = \"{path}\", size = \"1M\" }}]");
        let two =
            |other: &str| refused(&(disk("d0", &image("a.img")) + &disk("d1", &image(other))));
        assert_eq!(two("b.img"), None);
        for other in ["a.img", "./a.img"] {
            let error = two(other).unwrap();
            assert!(error.starts_with("x.toml:7: image "), "{error}");
            assert!(error.ends_with("give each its own (see line 4)"), "{error}");
        }
    }

    #[test]
    fn a_switch_has_ports_for_32() {
        let lab = |devices: u32| {
            let below = "below = \"s0\"\nnamespaces = [{ ram = \"1M\" }]";
            let disks = (0..devices).map(|number| disk(&format!("d{number}"), below));
            refused(&("[[switch]]\nname = \"s0\"\n".to_owned() + &disks.collect::<String>()))
        };
        assert_eq!(lab(32), None);
        let error = lab(33).unwrap();
        assert!(
            error.starts_with("x.toml:134: `s0` has more than 32 devices"),
            "{error}"
        );
    }
}
