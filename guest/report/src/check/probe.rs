//! `probe`: the outcome of DMA between two devices.

use std::fmt;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{CheckKind, Keys, Pair, TableError, VfioBackend, check, rdma};
use crate::ProbeOutcome;

check! {
    /// Tries peer-to-peer DMA between two devices, a write and a read, and reports the outcome.
    /// Success with wrong data fails, and any outcome except the one that `expect` names.
    "probe": "{client} to the memory of {provider}{by}"
    pub struct Probe {
        /// Name of an `[[nvme]]` with a `cmb`, or of a `[[gpu]]`: the device with the memory.
        pub provider: String,
        /// Name of an `[[nvme]]` or a `[[gpu]]`, or with `by = "verbs"` of a `[[nic]]`: the device
        /// with the DMA. A disk may be its own provider.
        pub client: String,
        /// The driver that requests the DMA: `"kernel"`; for a disk and a GPU `"vfio"`, a driver in
        /// user space; for a `[[nic]]` and a GPU `"verbs"`, a program that moves data within the
        /// GPU's memory and requires `tools = true` at the top.
        #[default = "`\"kernel\"`"]
        #[serde(default)]
        pub by: ProbeDriver,
        /// The only outcome that passes: `"peer"`, directly between the two; `"host-bridge"`,
        /// through the root complex; `"refused"` by the kernel.
        #[default = "any outcome without wrong data"]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub expect: Option<ProbeOutcome>,
    }
}

/// The driver that requests a probe's DMA from the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeDriver {
    /// The kernel's drivers.
    #[default]
    Kernel,
    /// A driver in user space, by vfio-pci with type 1.
    Vfio,
    /// A program with libibverbs, for an RDMA adapter.
    Verbs,
}

impl fmt::Display for ProbeDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "",
            Self::Vfio => ", by VFIO",
            Self::Verbs => ", by verbs",
        })
    }
}

impl CheckKind for Probe {
    const ON_DEMAND: &'static [&'static str] = VfioBackend::DEBIAN_MODULES;

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let provider = keys.provider("provider")?;
        let by: Option<Spanned<ProbeDriver>> = keys.optional("by")?;
        let at = by.as_ref().map(Spanned::span).unwrap_or_default();
        let by = by.map_or_else(ProbeDriver::default, Spanned::into_inner);
        let client = match by {
            ProbeDriver::Kernel | ProbeDriver::Vfio => keys.device("client")?,
            ProbeDriver::Verbs => {
                rdma::needs_tools(keys)?;
                keys.nic_name("client")?
            }
        };
        let is_gpu = |name| keys.inventory.find_gpu(name).is_some();
        let misfit = match by {
            ProbeDriver::Vfio if is_gpu(&client) || !is_gpu(&provider) => {
                Some("`by = \"vfio\"` requires a disk as `client` and a GPU as `provider`")
            }
            ProbeDriver::Verbs if !is_gpu(&provider) => {
                Some("`by = \"verbs\"` requires an adapter as `client` and a GPU as `provider`")
            }
            _ => None,
        };
        if let Some(message) = misfit {
            return Err(TableError::new(at, message));
        }
        Ok(Probe {
            provider,
            client,
            by,
            expect: keys.optional("expect")?.map(Spanned::into_inner),
            seconds: keys.seconds,
        })
    }

    fn pairs(&self) -> Vec<Pair> {
        vec![Pair::of(&self.provider, &self.client)]
    }

    fn modules_on_demand(&self) -> &'static [&'static str] {
        match self.by {
            ProbeDriver::Kernel | ProbeDriver::Verbs => &[],
            ProbeDriver::Vfio => VfioBackend::Type1.modules(),
        }
    }

    fn packages(&self) -> &'static [&'static str] {
        match self.by {
            ProbeDriver::Kernel | ProbeDriver::Vfio => &[],
            ProbeDriver::Verbs => rdma::PACKAGES,
        }
    }

    fn programs(&self) -> &'static [&'static str] {
        match self.by {
            ProbeDriver::Kernel | ProbeDriver::Vfio => &[],
            ProbeDriver::Verbs => rdma::PROGRAMS,
        }
    }
}
