//! The inputs of the decision other than the PCI tree: processor, IOMMU, kernel release.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The machine around a PCI tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Platform {
    /// The first processor.
    pub cpu: Cpu,
    /// An IOMMU translates the client's requests, so that the kernel gives it IOVAs.
    pub translates: bool,
    /// The kernel's release.
    pub kernel: Release,
}

/// A processor, as CPUID describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// Its vendor.
    pub vendor: Vendor,
    /// Its family, extended family added: 0x17 is Zen.
    pub family: u32,
}

/// The vendor of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Vendor {
    /// `AuthenticAMD`.
    Amd,
    /// `GenuineIntel`.
    Intel,
    /// Any other. This includes Hygon: its processors derive from Zen, but Linux does not trust
    /// them.
    Other,
}

impl Vendor {
    /// Returns the vendor with this name in CPUID, which is `vendor_id` in /proc/cpuinfo.
    pub fn from_id(id: &str) -> Self {
        match id {
            "AuthenticAMD" => Self::Amd,
            "GenuineIntel" => Self::Intel,
            _ => Self::Other,
        }
    }
}

impl Cpu {
    /// The first AMD family whose root complexes Linux trusts to forward peer-to-peer requests.
    const ZEN: u32 = 0x17;

    /// Returns `true` if Linux trusts any root complex of this processor (drivers/pci/p2pdma.c,
    /// `cpu_supports_p2pdma`).
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

/// The part of a kernel release on which the rule depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
}

impl Release {
    /// The oldest release that this crate has been compared with.
    pub const OLDEST: Self = Self {
        major: 6,
        minor: 13,
    };

    /// The newest release that this crate has been compared with.
    pub const NEWEST: Self = Self { major: 7, minor: 3 };

    /// Returns the later releases that this crate knows, the oldest first.
    pub fn later(self) -> impl Iterator<Item = Self> {
        let series = [(6, 19), (7, Self::NEWEST.minor)];
        let all = series
            .into_iter()
            .flat_map(|(major, last)| (0..=last).map(move |minor| Self { major, minor }));
        all.filter(move |release| *release > self)
    }

    /// Returns `true` if the kernel has the parameter `pci=config_acs=` (Linux
    /// Documentation/admin-guide/kernel-parameters.txt).
    pub fn has_config_acs(self) -> bool {
        self >= Self {
            major: 6,
            minor: 11,
        }
    }

    /// Returns a warning for a kernel older than [`Self::OLDEST`] or newer than [`Self::NEWEST`],
    /// whose rule may differ.
    pub fn caveat(self) -> Option<String> {
        let (age, compared) = match self {
            old if old < Self::OLDEST => ("older", format!("{}, the oldest", Self::OLDEST)),
            new if new > Self::NEWEST => ("newer", format!("{}, the newest", Self::NEWEST)),
            _ => return None,
        };
        Some(format!(
            "Linux {self} is {age} than Linux {compared} release that this rule was compared with: a decision through a \
             host bridge may differ"
        ))
    }

    /// Parses the output of `uname -r`: `7.2.12+deb13-amd64`, `6.13.0-rc4`. Returns `None` if it
    /// does not start with two numbers.
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
    fn release_is_parsed_from_its_first_two_numbers() {
        let release = |major, minor| Some(Release { major, minor });
        assert_eq!(Release::parse("7.2.12+deb13-amd64"), release(7, 2));
        assert_eq!(Release::parse("6.13-rc1"), release(6, 13));
        assert_eq!(Release::parse("7"), None);
        assert_eq!(Release::parse("next.1"), None);
        assert!(release(6, 13) < release(7, 0));
    }

    #[test]
    fn release_outside_the_compared_ones_has_a_caveat() {
        let caveat = |major, minor| Release { major, minor }.caveat();
        for (major, minor) in [(6, 13), (6, 19), (7, 0), (7, 3)] {
            assert_eq!(caveat(major, minor), None);
        }
        for (major, minor, begins) in [
            (
                6,
                1,
                "Linux 6.1 is older than Linux 6.13, the oldest release",
            ),
            (
                6,
                12,
                "Linux 6.12 is older than Linux 6.13, the oldest release",
            ),
            (
                7,
                4,
                "Linux 7.4 is newer than Linux 7.3, the newest release",
            ),
        ] {
            let caveat = caveat(major, minor).unwrap();
            assert!(caveat.starts_with(begins), "{caveat}");
        }
    }

    #[test]
    fn only_amd_zen_and_later_is_trusted() {
        let trusted = |vendor, family| Cpu { vendor, family }.is_trusted();
        assert!(trusted(Vendor::from_id("AuthenticAMD"), 0x17));
        assert!(trusted(Vendor::Amd, 0x1a));
        assert!(!trusted(Vendor::Amd, 0x15));
        assert!(!trusted(Vendor::from_id("GenuineIntel"), 6));
        assert!(!trusted(Vendor::from_id("HygonGenuine"), 0x18));
    }
}
