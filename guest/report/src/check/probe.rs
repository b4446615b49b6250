//! `probe`: what becomes of DMA between two devices.

use std::fmt;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{CheckKind, Keys, Pair, TableError, VfioBackend, check};

check! {
    /// Tries peer-to-peer DMA between two devices, a write and a read, and reports the outcome. Only success with wrong
    /// data fails.
    "probe": "{client} to the memory of {provider}{by}"
    pub struct Probe {
        /// Name of an `[[nvme]]` with a `cmb`, or of a `[[gpu]]`: the one with the memory.
        pub provider: String,
        /// Name of an `[[nvme]]` or a `[[gpu]]`: the one with the DMA. A disk may be its own provider.
        pub client: String,
        /// Who drives both: `"kernel"`, or for a disk and a GPU `"vfio"`, which is a driver in user space.
        #[default = "`\"kernel\"`"]
        #[serde(default)]
        pub by: ProbeDriver,
    }
}

/// Who drives the devices of a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeDriver {
    /// Their own drivers.
    #[default]
    Kernel,
    /// A driver in user space, by vfio-pci with type 1.
    Vfio,
}

impl fmt::Display for ProbeDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "",
            Self::Vfio => ", by VFIO",
        })
    }
}

impl CheckKind for Probe {
    const ON_DEMAND: &'static [&'static str] = VfioBackend::DEBIAN_MODULES;

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let provider = keys.provider("provider")?;
        let client = keys.device("client")?;
        let by: Option<Spanned<ProbeDriver>> = keys.optional("by")?;
        let at = by.as_ref().map(Spanned::span).unwrap_or_default();
        let by = by.map_or_else(ProbeDriver::default, Spanned::into_inner);
        let is_gpu = |name| keys.inventory.find_gpu(name).is_some();
        if by == ProbeDriver::Vfio && (is_gpu(&client) || !is_gpu(&provider)) {
            let message = "`by = \"vfio\"` takes a disk as `client` and a GPU as `provider`";
            return Err(TableError::new(at, message));
        }
        Ok(Probe {
            provider,
            client,
            by,
            seconds: keys.seconds,
        })
    }

    fn pairs(&self) -> Vec<Pair> {
        vec![Pair::of(&self.provider, &self.client)]
    }

    fn modules_on_demand(&self) -> &'static [&'static str] {
        match self.by {
            ProbeDriver::Kernel => &[],
            ProbeDriver::Vfio => VfioBackend::Type1.modules(),
        }
    }
}
