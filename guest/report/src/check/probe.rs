//! `probe`: what becomes of DMA between two devices.

use std::fmt;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{CheckKind, Key, Keys, Pair, TableError};

/// Tries peer-to-peer DMA between two devices, a write and a read, and reports the outcome. Only success with wrong data
/// fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// A disk or GPU: the one with the p2pmem.
    pub provider: String,
    /// A disk or GPU: the one with the DMA. A disk may be its own provider.
    pub client: String,
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to the memory of {}", self.client, self.provider)
    }
}

impl CheckKind for Probe {
    const KIND: &'static str = "probe";
    const ABOUT: &'static str = "Tries peer-to-peer DMA between two devices, a write and a read, and reports the outcome. \
        Only success with wrong data fails.";
    const KEYS: &'static [Key] = &[
        Key::required(
            "provider",
            "Name of an `[[nvme]]` with a `cmb`, or of a `[[gpu]]`: the one with the memory.",
        ),
        Key::required(
            "client",
            "Name of an `[[nvme]]` or a `[[gpu]]`: the one with the DMA. A disk may be its own provider.",
        ),
    ];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let provider = keys.provider("provider")?;
        let client: Spanned<String> = keys.required("client")?;
        let client = match keys.inventory.find_gpu(client.get_ref()) {
            Some(gpu) => gpu.name.clone(),
            None => keys.inventory.disk(client)?.name.clone(),
        };
        Ok(Self { provider, client })
    }

    fn pairs(&self) -> Vec<Pair> {
        vec![Pair::of(&self.provider, &self.client)]
    }
}
