//! Options that a user's kernel lacks for a scenario, named before anything boots.

use anyhow::anyhow;
use peerbar_images::KernelConfig;

use crate::exit::Failure;
use crate::iommu::Iommu;
use crate::scenario::Machine;

/// An option, without `CONFIG_`, and its purpose.
struct Need {
    option: &'static str,
    purpose: &'static str,
    /// Set if a module is sufficient, because something loads it.
    as_module: bool,
}

const fn built_in(option: &'static str, purpose: &'static str) -> Need {
    Need {
        option,
        purpose,
        as_module: false,
    }
}

const fn module(option: &'static str, purpose: &'static str) -> Need {
    Need {
        option,
        purpose,
        as_module: true,
    }
}

/// The needs of every guest. Nothing loads these as modules.
const ALWAYS: &[Need] = &[
    built_in("64BIT", "the agent, a 64-bit program"),
    built_in("BINFMT_ELF", "the agent"),
    built_in("BLK_DEV_INITRD", "the agent, which is in the initramfs"),
    built_in("DEVTMPFS", "the agent"),
    built_in("PROC_FS", "the agent"),
    built_in("SYSFS", "the agent"),
    built_in("TMPFS", "the agent"),
    built_in("PRINTK", "the search for complaints of the kernel"),
    built_in("SERIAL_8250_CONSOLE", "the console"),
    built_in("PCI_MSI", "the devices' interrupts"),
    built_in("PCI_P2PDMA", "peer-to-peer DMA"),
    built_in("VIRTIO_PCI", "the agent's port"),
    built_in("VIRTIO_CONSOLE", "the agent's port"),
];

/// Returns the needs of a module in the initramfs.
fn of_module(name: &str) -> &'static [Need] {
    const NVME: &[Need] = &[module("BLK_DEV_NVME", "[[nvme]]")];
    const TOOLS: &[Need] = &[
        module("9P_FS", "tools = true"),
        module("NET_9P_VIRTIO", "tools = true"),
    ];
    const VIRTIO_IOMMU: &[Need] = &[module("VIRTIO_IOMMU", "iommu = \"virtio\"")];
    const VIRTIO_GPU: &[Need] = &[module("DRM_VIRTIO_GPU", "virtio-gpu = true")];
    const VIRTIO_NET: &[Need] = &[module("VIRTIO_NET", "network = true")];
    const GPU: &[Need] = &[
        built_in("MODULES", "[[gpu]], whose driver is a module"),
        built_in("DMA_SHARED_BUFFER", "[[gpu]]"),
    ];
    const EFA: &[Need] = &[module("INFINIBAND_EFA", "[[nic]]")];
    const VERBS: &[Need] = &[module("INFINIBAND_USER_ACCESS", "[[nic]]")];
    const VFIO: &[Need] = &[module("VFIO_PCI", "a check with vfio-pci")];
    const IOMMUFD: &[Need] = &[
        module("IOMMUFD", "backend = \"iommufd\""),
        built_in("VFIO_DEVICE_CDEV", "backend = \"iommufd\""),
    ];
    // The kernel has containers only with groups.
    const TYPE1: &[Need] = &[
        module("VFIO_IOMMU_TYPE1", "a check with vfio-pci"),
        built_in("VFIO_CONTAINER", "a check with vfio-pci"),
    ];
    match name {
        "nvme" => NVME,
        "9p" => TOOLS,
        "virtio_iommu" => VIRTIO_IOMMU,
        "virtio_gpu" => VIRTIO_GPU,
        "virtio_net" => VIRTIO_NET,
        "peerbar_gpu" => GPU,
        "efa" => EFA,
        "ib_uverbs" => VERBS,
        "vfio_pci" => VFIO,
        "vfio_iommu_type1" => TYPE1,
        "iommufd" => IOMMUFD,
        _ => &[],
    }
}

fn of_iommu(iommu: Iommu) -> &'static [Need] {
    const INTEL: &[Need] = &[built_in("INTEL_IOMMU", "iommu = \"intel\"")];
    const AMD: &[Need] = &[built_in("AMD_IOMMU", "iommu = \"amd\"")];
    match iommu {
        Iommu::Intel | Iommu::IntelPassthrough => INTEL,
        Iommu::Amd => AMD,
        // Asked for as a module.
        Iommu::None | Iommu::Virtio => &[],
    }
}

/// Rejects a kernel that lacks an option for every guest, or for a guest with these modules.
pub(crate) fn check_modules(config: &KernelConfig, modules: &[String]) -> Result<(), Failure> {
    let of_modules = modules.iter().flat_map(|name| of_module(name));
    check(config, ALWAYS.iter().chain(of_modules))
}

/// Rejects a kernel that lacks the driver of the machine's IOMMU, or its huge pages.
pub(crate) fn check_machine(config: &KernelConfig, machine: &Machine) -> Result<(), Failure> {
    const HUGE_PAGES: &[Need] = &[built_in("HUGETLBFS", "hugepages")];
    let huge_pages = HUGE_PAGES.iter().filter(|_| machine.hugepages > 0);
    check(config, of_iommu(machine.iommu).iter().chain(huge_pages))
}

fn check<'a>(config: &KernelConfig, needs: impl Iterator<Item = &'a Need>) -> Result<(), Failure> {
    let missing: Vec<String> = needs.filter_map(|need| complaint(config, need)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::Usage(anyhow!(
        "the kernel lacks {} (says {}): set it and build again, or let `peerbar kernel build` make one, or take peerbar's own \
         kernel with `--kernel default`",
        missing.join(", "),
        config.origin().display()
    )))
}

fn complaint(config: &KernelConfig, need: &Need) -> Option<String> {
    let Need {
        option, purpose, ..
    } = need;
    match config.value(option) {
        Some("y") => None,
        Some("m") if need.as_module => None,
        Some("m") => Some(format!(
            "CONFIG_{option}=y, which is a module and nothing loads it (for {purpose})"
        )),
        _ => Some(format!("CONFIG_{option} (for {purpose})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    /// Returns a configuration with the needs of every guest except `without`, and with these
    /// lines.
    fn config(without: &str, lines: &str) -> KernelConfig {
        let file = tempfile::NamedTempFile::new().unwrap();
        let needed = ALWAYS.iter().filter(|need| need.option != without);
        let needed: String = needed
            .map(|need| format!("CONFIG_{}=y\n", need.option))
            .collect();
        std::fs::write(file.path(), needed + lines).unwrap();
        KernelConfig::read(file.path()).unwrap()
    }

    fn modules(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn missing_option_is_named_with_its_purpose() {
        let demo = modules(&["nvme", "9p", "ext4"]);
        let config = config("PCI_P2PDMA", "CONFIG_BLK_DEV_NVME=m\nCONFIG_9P_FS=y\n");
        let error = check_modules(&config, &demo).unwrap_err();
        assert_eq!(error.code(), 2);
        let text = error.to_string();
        assert!(
            text.starts_with(
                "the kernel lacks CONFIG_PCI_P2PDMA (for peer-to-peer DMA), CONFIG_NET_9P_VIRTIO (for tools = true) (says "
            ),
            "{text}"
        );
        assert!(text.contains("--kernel default"), "{text}");
    }

    #[test]
    fn module_that_nothing_loads_is_not_enough() {
        let config = config("VIRTIO_CONSOLE", "CONFIG_VIRTIO_CONSOLE=m\n");
        let text = check_modules(&config, &[]).unwrap_err().to_string();
        assert!(
            text.contains("CONFIG_VIRTIO_CONSOLE=y, which is a module"),
            "{text}"
        );
    }

    #[test]
    fn type_1_needs_containers() {
        let vfio = modules(&["vfio_iommu_type1", "vfio_pci"]);
        let lines = "CONFIG_VFIO_PCI=m\nCONFIG_VFIO_IOMMU_TYPE1=m\n";
        let error = check_modules(&config("", lines), &vfio).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with(
                "the kernel lacks CONFIG_VFIO_CONTAINER (for a check with vfio-pci) (says "
            ),
            "{text}"
        );
        let lines = format!("{lines}CONFIG_VFIO_CONTAINER=y\n");
        check_modules(&config("", &lines), &vfio).unwrap();
    }

    #[test]
    fn complete_config_has_no_complaint() {
        let config = config("", "CONFIG_BLK_DEV_NVME=m\nCONFIG_AMD_IOMMU=y\n");
        check_modules(&config, &modules(&["nvme"])).unwrap();
        let mut machine = Scenario::demo().unwrap().machine;
        let mut missing = |iommu, hugepages| {
            (machine.iommu, machine.hugepages) = (iommu, hugepages);
            let checked = check_machine(&config, &machine);
            checked.map_err(|error| error.to_string())
        };
        missing(Iommu::Amd, 0).unwrap();
        missing(Iommu::None, 0).unwrap();
        let text = missing(Iommu::Intel, 2 << 20).unwrap_err();
        assert!(text.contains("CONFIG_INTEL_IOMMU (for iommu"), "{text}");
        assert!(text.contains("CONFIG_HUGETLBFS (for hugepages)"), "{text}");
    }
}
