//! What decides beside the PCI tree: processor, IOMMU, version of the kernel.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The machine around a PCI tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Platform {
    /// The first processor.
    pub cpu: Cpu,
    /// Whether an IOMMU translates the client's requests, so that the kernel gives it IOVAs.
    pub translates: bool,
    /// Whose rule it is.
    pub kernel: Release,
}

/// A processor, as CPUID tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// Who made it.
    pub vendor: Vendor,
    /// Its family, extended family added: 0x17 is Zen.
    pub family: u32,
}

/// Who made a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Vendor {
    /// `AuthenticAMD`.
    Amd,
    /// `GenuineIntel`.
    Intel,
    /// Any other, Hygon among them: its processors derive from Zen, and Linux does not count them.
    Other,
}

impl Vendor {
    /// The vendor of CPUID's name, which is `vendor_id` in /proc/cpuinfo.
    pub fn from_id(id: &str) -> Self {
        match id {
            "AuthenticAMD" => Self::Amd,
            "GenuineIntel" => Self::Intel,
            _ => Self::Other,
        }
    }
}

impl Cpu {
    /// The first family of AMD's whose root complexes are all taken to forward requests from peer to peer.
    const ZEN: u32 = 0x17;

    /// Whether Linux trusts any root complex of this processor (drivers/pci/p2pdma.c, `cpu_supports_p2pdma`).
    pub fn is_trusted(self) -> bool {
        self.vendor == Vendor::Amd && self.family >= Self::ZEN
    }
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vendor = match self.vendor {
            Vendor::Amd => "AMD",
            Vendor::Intel => "Intel",
            Vendor::Other => "other vendor's",
        };
        write!(f, "{vendor} family {:#x}", self.family)
    }
}

/// Version of a kernel as far as the rule changed with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
}

impl Release {
    /// The newest whose rule is known here.
    pub const NEWEST: Self = Self { major: 7, minor: 2 };

    /// Reads what `uname -r` says: `7.2.12+deb13-amd64`, `6.13.0-rc4`. Nothing if it does not start with two numbers.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(|c: char| !c.is_ascii_digit());
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?.parse().ok()?;
        Some(Self { major, minor })
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_its_first_two_numbers() {
        let release = |major, minor| Some(Release { major, minor });
        assert_eq!(Release::parse("7.2.12+deb13-amd64"), release(7, 2));
        assert_eq!(Release::parse("6.13-rc1"), release(6, 13));
        assert_eq!(Release::parse("7"), None);
        assert_eq!(Release::parse("next.1"), None);
        assert!(release(6, 13) < release(7, 0));
    }

    #[test]
    fn zen_and_later_of_amd_alone_are_trusted() {
        let trusted = |vendor, family| Cpu { vendor, family }.is_trusted();
        assert!(trusted(Vendor::from_id("AuthenticAMD"), 0x17));
        assert!(trusted(Vendor::Amd, 0x1a));
        assert!(!trusted(Vendor::Amd, 0x15));
        assert!(!trusted(Vendor::from_id("GenuineIntel"), 6));
        assert!(!trusted(Vendor::from_id("HygonGenuine"), 0x18));
    }
}
