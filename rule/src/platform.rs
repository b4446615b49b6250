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
    /// Any other. This includes Hygon, whose processors derive from Zen, and Zhaoxin: Linux trusts
    /// neither.
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

    /// Returns `true` if Linux trusts any root complex of this processor, in every release from
    /// [`Release::OLDEST`] on (drivers/pci/p2pdma.c, `cpu_supports_p2pdma`).
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
    /// Third number, of a stable release.
    pub patch: u32,
}

impl Release {
    /// Returns the mainline release with these numbers.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self {
            major,
            minor,
            patch: 0,
        }
    }

    /// The oldest release that this crate covers: the first in which a program can get memory of a
    /// device for its own transfers.
    pub const OLDEST: Self = Self::new(6, 2);

    /// The newest release that this crate covers.
    pub const NEWEST: Self = Self::new(7, 3);

    /// The first release with `pci=config_acs=`.
    const CONFIG_ACS: Self = Self::new(6, 11);
    /// The first release without the errors of [`Self::may_keep_acs_redir`].
    const CONFIG_ACS_FIXED: Self = Self::new(6, 15);
    /// The first release whose NVMe driver maps data without a scatterlist.
    const NVME_MAPS_REQUESTS: Self = Self::new(6, 17);

    /// Returns the later releases that this crate knows, the oldest first.
    pub fn later(self) -> impl Iterator<Item = Self> {
        let series = [(6, 19), (7, Self::NEWEST.minor)];
        let all = series
            .into_iter()
            .flat_map(|(major, last)| (0..=last).map(move |minor| Self::new(major, minor)));
        all.filter(move |release| *release > self)
    }

    /// Returns a warning for a kernel older than [`Self::OLDEST`] or newer than [`Self::NEWEST`],
    /// whose rule may differ.
    pub fn caveat(self) -> Option<String> {
        let (age, covered) = match self {
            old if old < Self::OLDEST => ("older", format!("{}, the oldest", Self::OLDEST)),
            new if Self::new(new.major, new.minor) > Self::NEWEST => {
                ("newer", format!("{}, the newest", Self::NEWEST))
            }
            _ => return None,
        };
        Some(format!(
            "Linux {self} is {age} than Linux {covered} release that this rule covers: its decision may differ"
        ))
    }

    /// Returns `true` if the kernel has the parameter `pci=config_acs=`. All releases that this
    /// crate covers have `pci=disable_acs_redir=`. See [`Self::may_keep_acs_redir`] for errors in
    /// both.
    pub fn has_config_acs(self) -> bool {
        self >= Self::CONFIG_ACS
    }

    /// Returns `true` if `pci=disable_acs_redir=` may leave redirection on at a port where firmware
    /// has switched it on. In the same releases `pci=config_acs=` may set its first port only.
    /// Linux 6.15 fixed both (drivers/pci/pci.c, `__pci_config_acs`), and so did the stable
    /// releases 6.14.3 and, at the latest, 6.12.95.
    pub fn may_keep_acs_redir(self) -> bool {
        (Self::CONFIG_ACS..Self::CONFIG_ACS_FIXED).contains(&self)
    }

    /// Returns the number of the error with which a transfer of an NVMe disk fails if the kernel
    /// refuses its mapping: EREMOTEIO, and EINVAL from 6.17 on (Linux drivers/nvme/host/pci.c,
    /// `nvme_map_data`; block/blk-mq-dma.c, `blk_rq_dma_map_iter_start`). Drivers that map a
    /// scatterlist get EREMOTEIO in every release (kernel/dma/mapping.c, `dma_map_sgtable`).
    pub fn refusal_of_nvme(self) -> i32 {
        const EINVAL: i32 = 22;
        const EREMOTEIO: i32 = 121;
        match self >= Self::NVME_MAPS_REQUESTS {
            true => EINVAL,
            false => EREMOTEIO,
        }
    }

    /// Parses the output of `uname -r`: `7.2.12+deb13-amd64`, `6.13.0-rc4`. Returns `None` if it
    /// does not start with two numbers.
    pub fn parse(text: &str) -> Option<Self> {
        let is_end = |c: char| !c.is_ascii_digit() && c != '.';
        let mut numbers = text.split(is_end).next()?.split('.');
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?.parse().ok()?;
        let patch = numbers.next().and_then(|patch| patch.parse().ok());
        Some(Self {
            patch: patch.unwrap_or(0),
            ..Self::new(major, minor)
        })
    }
}

impl fmt::Display for Release {
    /// Writes the first two numbers, and with `{:#}` also the third one of a stable release.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        match f.alternate() && self.patch > 0 {
            true => write!(f, ".{}", self.patch),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_is_parsed_from_its_first_two_numbers() {
        let release = |major, minor| Some(Release::new(major, minor));
        let stable = Release::parse("7.2.12+deb13-amd64").unwrap();
        assert_eq!((stable.major, stable.minor, stable.patch), (7, 2, 12));
        assert_eq!(
            (format!("{stable}"), format!("{stable:#}")),
            ("7.2".into(), "7.2.12".into())
        );
        assert_eq!(Release::parse("6.8.0-45-generic"), release(6, 8));
        assert_eq!(Release::parse("6.13-rc1"), release(6, 13));
        assert_eq!(Release::parse("7"), None);
        assert_eq!(Release::parse("next.1"), None);
        assert!(release(6, 13) < release(7, 0) && release(7, 2) < Some(stable));
    }

    #[test]
    fn release_that_is_not_covered_has_a_caveat() {
        let caveat = |major, minor| Release::new(major, minor).caveat();
        for (major, minor) in [(6, 2), (6, 12), (6, 19), (7, 0), (7, 3)] {
            assert_eq!(caveat(major, minor), None);
        }
        assert_eq!(Release::parse("7.3.4").unwrap().caveat(), None);
        for (major, minor, begins) in [
            (
                6,
                1,
                "Linux 6.1 is older than Linux 6.2, the oldest release",
            ),
            (
                5,
                19,
                "Linux 5.19 is older than Linux 6.2, the oldest release",
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
    fn each_ability_starts_and_ends_with_its_release() {
        // Release, `pci=config_acs=`, redirection may stay on, error of a refused transfer.
        for (major, minor, config_acs, may_keep, errno) in [
            (6, 2, false, false, 121),
            (6, 10, false, false, 121),
            (6, 11, true, true, 121),
            (6, 14, true, true, 121),
            (6, 15, true, false, 121),
            (6, 16, true, false, 121),
            (6, 17, true, false, 22),
            (7, 3, true, false, 22),
        ] {
            let release = Release::new(major, minor);
            assert_eq!(release.has_config_acs(), config_acs, "{release}");
            assert_eq!(release.may_keep_acs_redir(), may_keep, "{release}");
            assert_eq!(release.refusal_of_nvme(), errno, "{release}");
        }
    }

    #[test]
    fn only_amd_zen_and_later_is_trusted() {
        let trusted = |vendor, family| Cpu { vendor, family }.is_trusted();
        assert!(trusted(Vendor::from_id("AuthenticAMD"), 0x17));
        assert!(trusted(Vendor::Amd, 0x1a));
        assert!(!trusted(Vendor::Amd, 0x15));
        assert!(!trusted(Vendor::from_id("GenuineIntel"), 6));
        for other in ["HygonGenuine", "CentaurHauls", "  Shanghai  "] {
            assert!(!trusted(Vendor::from_id(other), 0x18), "{other}");
        }
    }
}
