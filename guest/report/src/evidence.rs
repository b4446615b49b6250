//! The guest's evidence about peer-to-peer DMA: the fabric that its kernel found, and the kernel's
//! messages and decisions.

use serde::{Deserialize, Serialize};

/// One piece of evidence, a separate line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// The machine around the fabric.
    Platform(GuestPlatform),
    /// A PCI function.
    Function(PciFunction),
    /// A decision that the kernel made.
    Decision(KernelDecision),
    /// The kernel's message about peer-to-peer DMA, from its log.
    Message(String),
    /// Decisions cannot be watched in this kernel, for this reason.
    Unwatched(String),
}

/// Kernel and processor of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestPlatform {
    /// `uname -r`.
    pub release: String,
    /// /proc/cmdline.
    pub command_line: String,
    /// `vendor_id` of the first processor in /proc/cpuinfo.
    pub cpu_vendor: String,
    /// `cpu family` there.
    pub cpu_family: u32,
    /// `model name` there.
    pub cpu_model: String,
}

/// A PCI function, as sysfs shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciFunction {
    /// Its address: `0000:01:00.0`.
    pub address: String,
    /// Its name in the plan, if it is under test.
    pub name: Option<String>,
    /// Its parent: the address of a bridge, or the name of a root bus, `pci0000:00`.
    pub parent: String,
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Class code with its programming interface: 0x010802.
    pub class: u32,
    /// Device/Port Type of the PCI Express Capabilities register (PCIe Base 6.0, 7.5.3.2), or
    /// `None` without that capability.
    pub port_type: Option<u8>,
    /// Its ACS capability, if it has one.
    pub acs: Option<AcsRegisters>,
    /// Its IOMMU group, if it has one.
    pub iommu_group: Option<IommuGroup>,
    /// Its driver, if it has one.
    pub driver: Option<String>,
    /// Bytes of p2pmem that it provides, or `None`.
    pub p2pmem: Option<u64>,
}

/// The registers of an ACS capability (PCIe Base 6.0, 7.7.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcsRegisters {
    /// ACS Capability: the supported controls.
    pub capability: u16,
    /// ACS Control: the enabled controls.
    pub control: u16,
}

/// An IOMMU group (Linux, Documentation/ABI/testing/sysfs-kernel-iommu_groups).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IommuGroup {
    /// Its number.
    pub number: u32,
    /// The type of its domain: `DMA`, `DMA-FQ`, `identity`, or empty if the kernel does not say.
    pub kind: String,
}

/// A decision that the kernel made about a pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelDecision {
    /// Address of the function with the memory.
    pub provider: String,
    /// Address of the function with the DMA.
    pub client: String,
    /// The map type (Linux include/linux/pci-p2pdma.h, `enum pci_p2pdma_map_type`). Its numbers
    /// depend on the release.
    pub map_type: u32,
}
