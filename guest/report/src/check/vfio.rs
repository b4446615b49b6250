//! Common parts of the checks whose devices are driven by vfio-pci.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kernel's interface to I/O address spaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VfioBackend {
    /// A container of type 1 with groups.
    #[default]
    Type1,
    /// iommufd with character devices.
    Iommufd,
}

impl VfioBackend {
    /// The modules of [`VfioBackend::modules`] that Debian's kernel has.
    pub(super) const DEBIAN_MODULES: &[&str] = &["vfio_iommu_type1", "vfio_pci"];

    /// Returns the required modules, in the order in which they are loaded.
    #[must_use]
    pub fn modules(self) -> &'static [&'static str] {
        match self {
            Self::Type1 => Self::DEBIAN_MODULES,
            Self::Iommufd => &["iommufd", "vfio_pci"],
        }
    }
}

impl fmt::Display for VfioBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Type1 => "type 1",
            Self::Iommufd => "iommufd",
        })
    }
}
