//! Names in `lspci`'s output that stand for numbers, for outputs without `-nn`.

use peerbar_rule::{Cpu, DeviceId, Vendor};

/// Names of the PCI ID list for classes that matter here, and their numbers.
const CLASSES: [(&str, u16); 21] = [
    ("Non-Volatile memory controller", 0x0108),
    ("VGA compatible controller", 0x0300),
    ("3D controller", 0x0302),
    ("Display controller", 0x0380),
    ("Processing accelerators", 0x1200),
    ("Co-processor", 0x0b40),
    ("Ethernet controller", 0x0200),
    ("Network controller", 0x0280),
    ("Infiniband controller", 0x0207),
    ("Fabric controller", 0x0208),
    ("Host bridge", 0x0600),
    ("ISA bridge", 0x0601),
    ("PCI bridge", 0x0604),
    ("Bridge", 0x0680),
    ("RAID bus controller", 0x0104),
    ("SATA controller", 0x0106),
    ("Serial Attached SCSI controller", 0x0107),
    ("USB controller", 0x0c03),
    ("SMBus", 0x0c05),
    ("Audio device", 0x0403),
    ("System peripheral", 0x0880),
];

/// Returns the class code with this name.
pub(crate) fn class(name: &str) -> Option<u16> {
    let found = CLASSES.iter().find(|(known, _)| *known == name);
    found.map(|(_, class)| *class)
}

/// Words in the names of devices, and the class of such a device. The first that occurs counts.
const DEVICE_WORDS: [(&str, u16); 21] = [
    ("Audio", 0x0403),
    ("USB", 0x0c03),
    ("UCSI", 0x0c80),
    ("Bridge", 0x0680),
    ("NVSwitch", 0x0680),
    ("RAID", 0x0104),
    ("SATA", 0x0106),
    ("AHCI", 0x0106),
    ("NVMe", 0x0108),
    ("Non-Volatile", 0x0108),
    ("ConnectX", 0x0200),
    ("Ethernet", 0x0200),
    ("Gigabit", 0x0200),
    ("GbE", 0x0200),
    ("Graphics", 0x0300),
    ("[Arc ", 0x0300),
    ("[Radeon ", 0x0300),
    ("[Instinct ", 0x0300),
    ("[GeForce ", 0x0300),
    ("[RTX ", 0x0300),
    ("[Tesla ", 0x0302),
];

/// Returns the class that the name of a device suggests, for a tree, which has no classes.
pub(crate) fn class_of_device(name: &str) -> Option<u16> {
    let found = DEVICE_WORDS.iter().find(|(word, _)| name.contains(word));
    let is_data_center_gpu = || {
        // NVIDIA's are named GH100 [H100 SXM5 80GB].
        name.starts_with("NVIDIA Corporation G") && name.ends_with("GB]")
    };
    found
        .map(|(_, class)| *class)
        .or_else(|| is_data_center_gpu().then_some(0x0302))
}

/// Names of host bridges on the kernel's list, in the PCI ID lists of all years.
const LISTED: [(&str, u16); 14] = [
    ("Sandy Bridge DMI2", 0x3c00),
    ("Xeon E5/Core i7 DMI2", 0x3c00),
    ("Xeon E5/Core i7 DMI2 in PCI Express Mode", 0x3c01),
    ("Haswell-E DMI2", 0x2f00),
    ("Xeon E5 v3/Core i7 DMI2", 0x2f00),
    ("Xeon E7 v3/Xeon E5 v3/Core i7 DMI2", 0x2f00),
    ("Haswell-E PCI Express Root Port 0", 0x2f01),
    (
        "Xeon E7 v3/Xeon E5 v3/Core i7 PCI Express Root Port 0",
        0x2f01,
    ),
    ("Sky Lake-E PCI Express Root Port A", 0x2030),
    ("Sky Lake-E PCI Express Root Port B", 0x2031),
    ("Sky Lake-E PCI Express Root Port C", 0x2032),
    ("Sky Lake-E PCI Express Root Port D", 0x2033),
    ("Sky Lake-E DMI3 Registers", 0x2020),
    ("Ice Lake Memory Map/VT-d", 0x09a2),
];

/// Vendors of host bridges.
const VENDORS: [(&str, u16); 3] = [
    ("Intel Corporation", 0x8086),
    ("Advanced Micro Devices, Inc. [AMD]", 0x1022),
    ("NVIDIA Corporation", 0x10de),
];

/// Returns the ID of the device that the PCI ID list calls `name`, with its vendor, if it is a
/// listed host bridge, or one that the list did not know, such as `Intel Corporation Device 09a2`.
pub(crate) fn device_id(name: &str) -> Option<DeviceId> {
    let (vendor, name) = VENDORS
        .iter()
        .find_map(|(known, vendor)| Some((*vendor, name.strip_prefix(known)?.trim_start())))?;
    let unnamed = name
        .strip_prefix("Device ")
        .filter(|number| number.len() == 4);
    let listed = LISTED
        .iter()
        .find(|(known, _)| *known == name && vendor == 0x8086);
    let device = match unnamed {
        Some(number) => u16::from_str_radix(number, 16).ok()?,
        None => listed?.1,
    };
    Some(DeviceId { vendor, device })
}

/// Returns `true` if a host bridge of this name is on no release's list: AMD's, and those of
/// Intel's client processors and chipsets. Other names say nothing: the PCI ID list has changed
/// many.
pub(crate) fn is_unlisted(name: &str) -> bool {
    const CLIENTS: [&str; 3] = ["DRAM Controller", "DRAM Registers", "440FX"];
    name.starts_with("Advanced Micro Devices")
        || name.starts_with("Intel ") && CLIENTS.iter().any(|client| name.contains(client))
}

/// Device IDs of the root complexes of AMD's Zen families.
const ZEN: [u16; 11] = [
    0x1450, 0x1480, 0x14a4, 0x14b5, 0x14d8, 0x14e8, 0x1507, 0x153a, 0x15d0, 0x1630, 0x1645,
];

/// Words in the names of those root complexes.
const ZEN_WORDS: [&str; 13] = [
    "Family 17h",
    "Family 19h",
    "Family 1Ah",
    "Starship",
    "Matisse",
    "Milan",
    "Genoa",
    "Bergamo",
    "Turin",
    "Raphael",
    "Phoenix",
    "Renoir",
    "Raven",
];

/// Returns `true` if a host bridge with this ID, or this name, belongs to an AMD Zen processor.
pub(crate) fn is_zen(id: Option<DeviceId>, name: &str) -> bool {
    let by_id = id.is_some_and(|id| id.vendor == 0x1022 && ZEN.contains(&id.device));
    let is_amd = name.starts_with("Advanced Micro Devices");
    by_id || is_amd && ZEN_WORDS.iter().any(|word| name.contains(word))
}

/// A processor of the families that [`is_zen`] finds.
pub(crate) const ZEN_CPU: Cpu = Cpu {
    vendor: Vendor::Amd,
    family: 0x17,
};

/// Any of Intel's processors: the rule asks for nothing more.
pub(crate) const INTEL_CPU: Cpu = Cpu {
    vendor: Vendor::Intel,
    family: 6,
};

/// A processor of another vendor and architecture: Linux trusts only the host bridges on its list.
pub(crate) const OTHER_CPU: Cpu = Cpu {
    vendor: Vendor::Other,
    family: 0,
};

/// Device IDs of the root ports of NVIDIA's Arm processors: Grace, then Vera.
const NVIDIA_ARM: [u16; 7] = [0x22b1, 0x22b2, 0x22b8, 0x2f95, 0x2f96, 0x2f97, 0x2f98];

/// Returns `true` if a root port with this ID belongs to an Arm processor.
pub(crate) fn is_arm(id: Option<DeviceId>) -> bool {
    id.is_some_and(|id| id.vendor == 0x10de && NVIDIA_ARM.contains(&id.device))
}

/// Returns the hypervisor that makes root bus devices like this one.
pub(crate) fn hypervisor(id: Option<DeviceId>, name: &str) -> Option<&'static str> {
    const VENDORS: [(u16, &str, &str); 7] = [
        (0x1b36, "Red Hat", "QEMU"),
        (0x1af4, "Red Hat", "QEMU"),
        (0x15ad, "VMware", "VMware"),
        (0x1414, "Microsoft", "Hyper-V"),
        (0x5853, "XenSource", "Xen"),
        (0x80ee, "InnoTek", "VirtualBox"),
        (0x1d0f, "Amazon.com", "Amazon EC2"),
    ];
    let of_vendor = |(vendor, prefix, _): &&(u16, &str, &str)| {
        id.map_or_else(|| name.starts_with(prefix), |id| id.vendor == *vendor)
    };
    VENDORS
        .iter()
        .find(of_vendor)
        .map(|(.., hypervisor)| *hypervisor)
}

/// Returns the hypervisor whose firmware has this system vendor.
pub(crate) fn hypervisor_by_firmware(vendor: &str) -> Option<String> {
    const VENDORS: [&str; 4] = ["QEMU", "VMware", "Xen", "innotek"];
    let is_one = VENDORS.iter().any(|known| vendor.starts_with(known));
    is_one.then(|| vendor.to_owned())
}

/// Returns `true` if a name of a kernel's device stands for the whole device and may be published:
/// DRM's connectors are named `card0-DP-1`, and names such as `enx001122334455` and
/// `ibx0c42a103008b3bc6` have an address.
pub(crate) fn is_plain(name: &str) -> bool {
    !name.contains('-') && !has_hardware_address(name)
}

/// Returns `true` if `text` has as many hexadecimal digits in a row as a MAC address.
fn has_hardware_address(text: &str) -> bool {
    const DIGITS: usize = 12;
    let mut runs = text.split(|c: char| !c.is_ascii_hexdigit());
    runs.any(|run| run.len() >= DIGITS)
}

/// Returns the words of a device's description up to one that is not part of a name: a value that
/// somebody has put there, or an address.
pub(crate) fn published(description: &str) -> String {
    let is_part = |word: &&str| {
        let has_value = word.contains(['=', '@']);
        // Groups of two digits: a MAC address.
        !has_value && word.matches(':').count() < 5 && !has_hardware_address(word)
    };
    let words: Vec<&str> = description.split(' ').take_while(is_part).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_bridges_are_known_by_their_names() {
        let id = |name: &str| device_id(name).map(|id| (id.vendor, id.device));
        assert_eq!(
            id("Intel Corporation Ice Lake Memory Map/VT-d"),
            Some((0x8086, 0x09a2))
        );
        assert_eq!(id("Intel Corporation Device 09a2"), Some((0x8086, 0x09a2)));
        assert_eq!(
            id("Intel Corporation Haswell-E DMI2"),
            Some((0x8086, 0x2f00))
        );
        assert_eq!(
            id("Advanced Micro Devices, Inc. [AMD] Device 14a4"),
            Some((0x1022, 0x14a4))
        );
        assert_eq!(
            id("Intel Corporation 8th Gen Core Processor Host Bridge/DRAM Registers"),
            None
        );
    }

    #[test]
    fn names_with_an_address_are_not_plain() {
        for name in [
            "enx001122334455",
            "ibx0c42a103008b3bc6",
            "wlx001122334455",
            "rocex0c42a1030016054c",
            "card0-DP-1",
        ] {
            assert!(!is_plain(name), "{name}");
        }
        for name in ["enP2p1s0f0np0v0", "mlx5_0", "renderD128", "rocep59s0f0"] {
            assert!(is_plain(name), "{name}");
        }
    }

    #[test]
    fn description_ends_before_what_is_no_name() {
        for (text, expected) in [
            ("Mellanox MT27800 serial=MT1 MAC", "Mellanox MT27800"),
            ("Mellanox MT27800 0c:42:a1:00:8b:3b", "Mellanox MT27800"),
            (
                "NVIDIA Corporation GH100 [H100 SXM5 80GB]",
                "NVIDIA Corporation GH100 [H100 SXM5 80GB]",
            ),
        ] {
            assert_eq!(published(text), expected);
        }
    }

    #[test]
    fn class_is_guessed_from_a_name() {
        for (name, class) in [
            (
                "NVIDIA Corporation AD102GL [RTX 6000 Ada Generation]",
                Some(0x0300),
            ),
            (
                "NVIDIA Corporation AD102 High Definition Audio Controller",
                Some(0x0403),
            ),
            ("NVIDIA Corporation GH100 [H100 SXM5 80GB]", Some(0x0302)),
            (
                "Mellanox Technologies MT2910 Family [ConnectX-7]",
                Some(0x0200),
            ),
            (
                "Samsung Electronics Co Ltd NVMe SSD Controller S4LV008[Pascal]",
                Some(0x0108),
            ),
            ("Intel Corporation Device 09a2", None),
        ] {
            assert_eq!(class_of_device(name), class, "{name}");
        }
    }

    #[test]
    fn zen_is_known_by_number_and_by_name() {
        let zen = |device| {
            is_zen(
                Some(DeviceId {
                    vendor: 0x1022,
                    device,
                }),
                "",
            )
        };
        assert!(zen(0x1480));
        assert!(!zen(0x1410), "family 15h");
        assert!(is_zen(
            None,
            "Advanced Micro Devices, Inc. [AMD] Starship/Matisse Root Complex"
        ));
        assert!(!is_zen(
            None,
            "Advanced Micro Devices, Inc. [AMD] Family 15h Processor Root Complex"
        ));
    }
}
