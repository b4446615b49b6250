//! Reads this machine from sysfs and procfs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use peerbar_rule::DeviceId;

use crate::config_space;
use crate::conflicts;
use crate::log;
use crate::machine::{Acs, Bar, Function, Iommu, Machine, Place};
use crate::names;
use crate::pci_ids;

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
    machine.infer_port_types();
    describe(root, &mut machine);
    host(root, &mut machine);
    machine.conflicts = conflicts::of_command_line(&machine);
    if machine
        .functions
        .values()
        .any(|function| function.acs == Acs::Unknown)
    {
        machine
            .gaps
            .push("ACS, which only root can read: sudo peerbar p2p".to_owned());
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
        place: place(&folder.canonicalize().unwrap_or_default()),
        bars: bars(&text(folder.join("resource")).unwrap_or_default()),
        ..Function::default()
    };
    config_space::read(
        &fs::read(folder.join("config")).unwrap_or_default(),
        &mut function,
    );
    // The configuration space of a virtual function has no ID.
    function.id = function.id.or_else(|| id(folder));
    if folder.join("physfn").exists() {
        function.decodes_memory = None;
    }
    function.numa_node = text(folder.join("numa_node")).and_then(|node| node.parse().ok());
    function.dma_bits = text(folder.join("dma_mask_bits")).and_then(|bits| bits.parse().ok());
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

/// Reads vendor and device ID from their own files: `0x15b3`.
fn id(folder: &Path) -> Option<DeviceId> {
    let number = |name: &str| {
        let text = text(folder.join(name))?;
        u16::from_str_radix(text.strip_prefix("0x")?, 16).ok()
    };
    Some(DeviceId {
        vendor: number("vendor")?,
        device: number("device")?,
    })
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
pub(crate) fn place(path: &Path) -> Place {
    let above = path.parent().and_then(Path::file_name);
    match above.and_then(|name| name.to_str()) {
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
        let mut of_class: Vec<String> = of_class.filter(|name| names::is_plain(name)).collect();
        of_class.sort();
        names.extend(of_class);
    }
    names
}

/// Describes functions by the system's PCI ID list, or by their IDs.
fn describe(root: &Path, machine: &mut Machine) {
    let ids = machine
        .functions
        .values()
        .filter_map(|function| function.id);
    let names = pci_ids::names(root, &ids.map(pci_ids::key).collect());
    for function in machine.functions.values_mut() {
        if let Some(id) = function.id {
            let name = names.get(&pci_ids::key(id)).cloned();
            function.description = name.unwrap_or_else(|| format!("Device {id}"));
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
    host.release = Some(release).filter(|release| !release.is_empty());
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use peerbar_rule::PortType;

    use super::*;
    use crate::address::Address;
    use crate::machine::Kind;

    /// A root folder with one GPU below a root port, as an unprivileged user sees them.
    fn sample() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, content: &[u8]| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        let header = |id: [u8; 4], class: [u8; 2], kind: u8| {
            let mut bytes = [0; 64];
            bytes[..4].copy_from_slice(&id);
            bytes[4] = 0x6;
            bytes[0x0a..0x0c].copy_from_slice(&class);
            bytes[0x0e] = kind;
            bytes
        };
        let port = "sys/devices/pci0000:16/0000:16:02.0";
        let gpu = "sys/devices/pci0000:16/0000:16:02.0/0000:17:00.0";
        write(
            &format!("{port}/config"),
            &header([0x86, 0x80, 0x7a, 0x34], [0x04, 0x06], 1),
        );
        write(
            &format!("{gpu}/config"),
            &header([0xde, 0x10, 0x30, 0x23], [0x02, 0x03], 0),
        );
        write(
            &format!("{gpu}/resource"),
            b"0x0 0x0 0x0\n0x0000380000000000 0x0000381fffffffff 0x000000000014220c\n",
        );
        write(&format!("{gpu}/numa_node"), b"1\n");
        write(&format!("{gpu}/dma_mask_bits"), b"47\n");
        write(&format!("{gpu}/max_link_width"), b"16\n");
        write(&format!("{gpu}/max_link_speed"), b"32.0 GT/s PCIe\n");
        write(&format!("{gpu}/current_link_width"), b"8\n");
        write(&format!("{gpu}/p2pmem/published"), b"1\n");
        write(&format!("{gpu}/drm/renderD128/dev"), b"");
        write(&format!("{gpu}/drm/card0-DP-1/dev"), b"");
        write("sys/kernel/iommu_groups/7/type", b"DMA-FQ\n");
        symlink(
            root.path().join("sys/kernel/iommu_groups/7"),
            root.path().join(gpu).join("iommu_group"),
        )
        .unwrap();
        symlink(
            "/sys/bus/pci/drivers/nvidia",
            root.path().join(gpu).join("driver"),
        )
        .unwrap();
        write("proc/cpuinfo", b"vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel name\t: AMD EPYC 7763\nflags\t\t: fpu hypervisor\n");
        write("proc/sys/kernel/osrelease", b"6.8.0-45-generic\n");
        write("proc/cmdline", b"root=/dev/sda1 iommu=pt pci=noaer\n");
        write("boot/config-6.8.0-45-generic", b"CONFIG_PCI_P2PDMA=y\n");
        write("sys/class/dmi/id/sys_vendor", b"QEMU\n");
        write(
            "usr/share/misc/pci.ids",
            b"10de  NVIDIA Corporation\n\t2330  GH100\n",
        );
        let devices = root.path().join("sys/bus/pci/devices");
        fs::create_dir_all(&devices).unwrap();
        for (name, path) in [("0000:16:02.0", port), ("0000:17:00.0", gpu)] {
            symlink(root.path().join(path), devices.join(name)).unwrap();
        }
        root
    }

    #[test]
    fn unprivileged_user_reads_all_but_acs() {
        let root = sample();
        let machine = read(root.path()).unwrap();
        let port: Address = "16:02.0".parse().unwrap();
        let gpu = machine.function("17:00.0".parse().unwrap()).unwrap();
        assert_eq!((gpu.place, gpu.kind()), (Place::Below(port), Kind::Gpu));
        assert_eq!(gpu.description, "NVIDIA Corporation GH100");
        assert_eq!(gpu.provider_bar().and_then(|bar| bar.size), Some(128 << 30));
        assert_eq!(
            (gpu.numa_node, gpu.iommu_group, gpu.iommu),
            (Some(1), Some(7), Some(Iommu::Translates))
        );
        assert_eq!(
            (gpu.driver.as_deref(), gpu.p2pmem),
            (Some("nvidia"), Some(true))
        );
        assert_eq!(
            (gpu.names.as_slice(), gpu.dma_bits),
            (&["renderD128".to_owned()][..], Some(47))
        );
        let link = gpu.link.unwrap();
        assert_eq!(
            (link.width, link.max_width, link.max_speed),
            (Some(8), Some(16), Some(32.0))
        );
        let port = machine.function(port).unwrap();
        assert_eq!(
            (port.place, port.port_type),
            (Place::RootBus, Some(PortType::RootPort))
        );
        assert_eq!(port.acs, Acs::Unknown);
        assert_eq!(
            machine.gaps,
            ["ACS, which only root can read: sudo peerbar p2p"]
        );
    }

    #[test]
    fn virtual_function_has_the_id_of_its_files() {
        let root = sample();
        let gpu = root
            .path()
            .join("sys/devices/pci0000:16/0000:16:02.0/0000:17:00.0");
        let mut config = fs::read(gpu.join("config")).unwrap();
        config[..5].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0x04]);
        for (name, content) in [
            ("config", config.as_slice()),
            ("vendor", b"0x10de\n"),
            ("device", b"0x2330\n"),
            ("physfn", b""),
        ] {
            fs::write(gpu.join(name), content).unwrap();
        }
        let machine = read(root.path()).unwrap();
        let gpu = machine.function("17:00.0".parse().unwrap()).unwrap();
        assert_eq!(gpu.description, "NVIDIA Corporation GH100");
        assert_eq!((gpu.decodes_memory, gpu.masters_bus), (None, Some(true)));
    }

    #[test]
    fn host_is_read_without_what_identifies_it() {
        let host = read(sample().path()).unwrap().host;
        assert_eq!(host.cpu.map(|cpu| cpu.family), Some(25));
        assert_eq!(host.release.as_deref(), Some("6.8.0-45-generic"));
        assert_eq!(host.command_line.as_deref(), Some("iommu=pt pci=noaer"));
        assert_eq!(
            (host.iommu, host.has_p2pdma),
            (Some(Iommu::Translates), Some(true))
        );
        assert_eq!(host.hypervisor.as_deref(), Some("QEMU"));
    }

    #[test]
    fn folder_without_sysfs_is_an_error() {
        let empty = tempfile::tempdir().unwrap();
        assert!(read(empty.path()).is_err());
    }
}
