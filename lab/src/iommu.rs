//! The guest's IOMMU: its arguments of QEMU, and its parameters of the kernel.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// The machine's IOMMU, and whether it translates.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ValueEnum, IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Iommu {
    /// No IOMMU.
    #[default]
    None,
    /// Intel's, translating. Its caching mode passes every map and unmap to the devices' servers.
    Intel,
    /// Intel's, in passthrough mode.
    IntelPassthrough,
    /// AMD's, translating.
    Amd,
    /// virtio's, translating.
    Virtio,
}

impl Iommu {
    /// Returns its name in a scenario.
    pub fn word(self) -> &'static str {
        self.into()
    }

    /// Returns the addition to QEMU's `-M`: interrupts that an IOMMU of Intel's or AMD's could
    /// remap are split.
    pub fn machine(self) -> &'static str {
        match self {
            Self::None | Self::Virtio => "",
            Self::Intel | Self::IntelPassthrough | Self::Amd => ",kernel-irqchip=split",
        }
    }

    /// Returns the device, which must come before all others. With `ats` it answers devices that
    /// ask for translations, if it can.
    pub fn device(self, ats: bool) -> Option<&'static str> {
        match self {
            Self::Intel | Self::IntelPassthrough if ats => {
                Some("intel-iommu,caching-mode=on,intremap=off,device-iotlb=on")
            }
            Self::None => None,
            Self::Intel | Self::IntelPassthrough => {
                Some("intel-iommu,caching-mode=on,intremap=off")
            }
            Self::Amd => Some("amd-iommu,dma-remap=on"),
            Self::Virtio => Some("virtio-iommu-pci"),
        }
    }

    /// Parameters for the guest's kernel.
    pub fn kernel_parameters(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Intel => "intel_iommu=on iommu=nopt",
            Self::IntelPassthrough => "intel_iommu=on iommu=pt",
            Self::Amd => "iommu=nopt",
            // Its driver is a module, for which the kernel would have other devices wait for 10 s,
            // the port that brings the agent's plan among them, and then do without.
            Self::Virtio => "iommu=nopt deferred_probe_timeout=0",
        }
    }

    /// Returns `true` if it translates the devices' requests under the kernel's settings.
    pub fn translates(self) -> bool {
        match self {
            Self::None | Self::IntelPassthrough => false,
            Self::Intel | Self::Amd | Self::Virtio => true,
        }
    }

    /// Returns its name in a column's head: at most eight characters.
    pub fn short_name(self) -> &'static str {
        match self {
            Self::IntelPassthrough => "intel-pt",
            Self::None | Self::Intel | Self::Amd | Self::Virtio => self.word(),
        }
    }

    /// Returns `true` if the machine has one, translating or not: the kernel enables ACS then, and
    /// vfio-pci takes devices.
    pub fn is_present(self) -> bool {
        match self {
            Self::None => false,
            Self::Intel | Self::IntelPassthrough | Self::Amd | Self::Virtio => true,
        }
    }

    /// Returns `true` if QEMU's model hides the owners of memory from the devices, so that their
    /// counters must infer them.
    pub fn hides_owners(self) -> bool {
        match self {
            Self::None | Self::Intel | Self::IntelPassthrough | Self::Amd => false,
            Self::Virtio => true,
        }
    }

    /// Returns the name that its driver's messages have in the kernel's log.
    pub fn log_name(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Intel | Self::IntelPassthrough => Some("DMAR"),
            Self::Amd => Some("AMD-Vi"),
            Self::Virtio => Some("virtio_iommu"),
        }
    }

    /// Returns a text that its driver logs for each DMA that it rejects, and for nothing else.
    fn fault_text(self) -> Option<&'static str> {
        match self {
            // All of Intel's are found by the same text.
            Self::None | Self::IntelPassthrough => None,
            Self::Intel => Some("DMAR: [DMA "),
            Self::Amd => Some("AMD-Vi: Event logged [IO_PAGE_FAULT"),
            Self::Virtio => Some(" fault from EP "),
        }
    }

    /// Returns the texts of all drivers, since the user may give the machine another IOMMU by
    /// options of QEMU and of the kernel.
    pub(crate) fn fault_texts() -> impl Iterator<Item = &'static str> {
        Self::value_variants()
            .iter()
            .filter_map(|iommu| iommu.fault_text())
    }

    /// Returns all except [`Iommu::None`].
    pub fn present() -> impl Iterator<Item = Self> {
        let all = Self::value_variants().iter().copied();
        all.filter(|iommu| iommu.is_present())
    }

    /// Returns the module that must be there before any device's driver.
    pub fn module(self) -> Option<&'static str> {
        match self {
            Self::None | Self::Intel | Self::IntelPassthrough | Self::Amd => None,
            Self::Virtio => Some("virtio_iommu"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_of_each_driver_is_told_from_its_other_messages() {
        let is_fault = |line: &str| Iommu::fault_texts().any(|text| line.contains(text));
        for line in [
            "DMAR: [DMA Read NO_PASID] Request device [02:00.0] fault addr 0xfe000000",
            "nvme 0000:02:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0001 address=0x0 flags=0x0]",
            "virtio_iommu virtio0: page fault from EP 16 at 0xfe000000 [R]",
        ] {
            assert!(is_fault(line), "{line}");
            let mut models = Iommu::present();
            assert!(models.any(|iommu| iommu.log_name().is_some_and(|name| line.contains(name))));
        }
        assert!(!is_fault("DMAR: Host address width 39"));
    }
}
