//! Reads this machine from sysfs and procfs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use peerbar_rule::PortType;

use crate::address::Address;
use crate::config_space;
use crate::log;
use crate::machine::{Acs, Bar, Function, Iommu, Machine, Place};

/// `IORESOURCE_MEM`, `IORESOURCE_PREFETCH`, `IORESOURCE_MEM_64` (Linux include/linux/ioport.h).
const MEMORY: u64 = 0x200;
const PREFETCHABLE: u64 = 0x2000;
const MEMORY_64: u64 = 0x0010_0000;

/// Reads the machine whose `/` is the folder `root`.
///
/// # Errors
///
/// There is no sysfs, or it shows no PCI device.
pub(crate) fn read(root: &Path) -> io::Result<Machine> {
    let mut machine = Machine {
        is_complete: true,
        ..Machine::default()
    };
    for entry in fs::read_dir(root.join("sys/bus/pci/devices"))? {
        let entry = entry?;
        let address = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let Some(address) = address else { continue };
        machine.functions.insert(address, function(&entry.path()));
    }
    if machine.functions.is_empty() {
        let text = "sysfs shows no PCI device";
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    infer_port_types(&mut machine);
    host(root, &mut machine);
    if machine
        .functions
        .values()
        .any(|function| function.acs == Acs::Unknown)
    {
        machine
            .gaps
            .push("ACS, which only root can read".to_owned());
    }
    Ok(machine)
}

/// Returns the trimmed text of a file, or `None` if it cannot be read.
fn text(path: PathBuf) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Returns the last component of a link's target.
fn link_name(path: PathBuf) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_str()?.to_owned())
}

fn function(folder: &Path) -> Function {
    let mut function = Function {
        place: place(folder),
        bars: bars(&text(folder.join("resource")).unwrap_or_default()),
        ..Function::default()
    };
    config_space::read(
        &fs::read(folder.join("config")).unwrap_or_default(),
        &mut function,
    );
    function.numa_node = text(folder.join("numa_node")).and_then(|node| node.parse().ok());
    function.driver = link_name(folder.join("driver"));
    let group = folder.join("iommu_group");
    function.iommu_group = link_name(group.clone()).and_then(|group| group.parse().ok());
    function.iommu = Some(match text(group.join("type")) {
        Some(kind) if kind == "identity" => Iommu::PassThrough,
        Some(_) => Iommu::Translates,
        None => Iommu::Off,
    });
    function.p2pmem = text(folder.join("p2pmem/published")).map(|published| published == "1");
    function.names = names(folder);
    links(folder, &mut function);
    function
}

/// Reads the link's state from its own files if the configuration space has none: everyone may read
/// them.
fn links(folder: &Path, function: &mut Function) {
    let number = |name: &str| text(folder.join(name));
    let speed = |name: &str| number(name)?.split(' ').next()?.parse().ok();
    let width = |name: &str| {
        number(name)?
            .parse()
            .ok()
            .filter(|width| (1..64).contains(width))
    };
    if function.link.is_none() && folder.join("max_link_width").exists() {
        let link = function.link.get_or_insert_default();
        link.speed = speed("current_link_speed");
        link.width = width("current_link_width");
        link.max_speed = speed("max_link_speed");
        link.max_width = width("max_link_width");
    }
}

/// Returns the place of a device by its path: `…/pci0000:40/0000:40:01.0/0000:41:00.0`.
fn place(folder: &Path) -> Place {
    let real = folder.canonicalize().unwrap_or_default();
    let above = real
        .parent()
        .and_then(Path::file_name)
        .and_then(|name| name.to_str());
    match above {
        Some(name) => name.parse().map_or(Place::RootBus, Place::Below),
        None => Place::Unknown,
    }
}

/// Reads the lines `START END FLAGS` of the first six resources.
fn bars(text: &str) -> Vec<Bar> {
    let bar = |(index, line): (u8, &str)| {
        let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        let mut numbers = line.split(' ').map_while(number);
        let (start, end, flags) = (numbers.next()?, numbers.next()?, numbers.next()?);
        (flags & MEMORY != 0).then_some(Bar {
            index,
            address: (start != 0).then_some(start),
            size: end.checked_sub(start).and_then(|last| last.checked_add(1)),
            is_64_bit: flags & MEMORY_64 != 0,
            is_prefetchable: flags & PREFETCHABLE != 0,
            largest: None,
        })
    };
    (0..6).zip(text.lines()).filter_map(bar).collect()
}

/// Returns the names that the kernel's subsystems gave to the device.
fn names(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for class in ["nvme", "drm", "infiniband", "net", "accel"] {
        let Ok(entries) = fs::read_dir(folder.join(class)) else {
            continue;
        };
        let of_class = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok());
        // DRM's connectors are named `card0-DP-1`; a name such as `enx001122334455` has the MAC address.
        let is_short = |name: &String| !name.contains('-') && !name.starts_with("enx");
        let mut of_class: Vec<String> = of_class.filter(is_short).collect();
        of_class.sort();
        names.extend(of_class);
    }
    names
}

/// Gives bridges without a readable capability the type that their position allows: a port on a
/// root bus is a root port, below it upstream and downstream ports alternate.
fn infer_port_types(machine: &mut Machine) {
    let bridges: Vec<Address> = machine
        .functions
        .iter()
        .filter(|(_, function)| function.class == Some(0x0604) && function.port_type.is_none())
        .map(|(address, _)| *address)
        .collect();
    for address in bridges {
        let kind = match machine.bridges_above(address).0.len() {
            0 => PortType::RootPort,
            odd if odd % 2 == 1 => PortType::UpstreamPort,
            _ => PortType::DownstreamPort,
        };
        if let Some(function) = machine.functions.get_mut(&address) {
            function.port_type = Some(kind);
        }
    }
}

fn host(root: &Path, machine: &mut Machine) {
    let read = |path: &str| text(root.join(path)).unwrap_or_default();
    log::read(&read("proc/cpuinfo"), machine);
    let release = read("proc/sys/kernel/osrelease");
    let command_line = read("proc/cmdline");
    log::read(&read(&format!("boot/config-{release}")), machine);
    let host = &mut machine.host;
    host.set_command_line(&command_line);
    host.hypervisor = hypervisor(&read("sys/class/dmi/id/sys_vendor"), &read("proc/cpuinfo"));
    host.iommu = machine
        .functions
        .values()
        .filter_map(|function| function.iommu)
        .max_by_key(|iommu| match iommu {
            Iommu::Off => 0,
            Iommu::PassThrough => 1,
            Iommu::Translates => 2,
        });
    host.release = Some(release);
}

/// Returns the name of the hypervisor that firmware or the processor shows to its guests.
fn hypervisor(vendor: &str, cpuinfo: &str) -> Option<String> {
    let is_guest = cpuinfo
        .lines()
        .any(|line| line.starts_with("flags") && line.split(' ').any(|flag| flag == "hypervisor"));
    is_guest.then(|| {
        if vendor.is_empty() {
            "a hypervisor"
        } else {
            vendor
        }
        .to_owned()
    })
}
