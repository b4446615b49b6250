//! Memory and DMA of a peer-to-peer transfer.

use serde::{Deserialize, Serialize};

/// The device with the memory and the device with the DMA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pair {
    /// The device with the memory.
    pub provider: String,
    /// The device with the DMA.
    pub client: String,
}

impl Pair {
    /// The pair of these two.
    pub fn of(provider: &str, client: &str) -> Self {
        Self {
            provider: provider.to_owned(),
            client: client.to_owned(),
        }
    }

    /// Whether `name` is one of both.
    pub fn has(&self, name: &str) -> bool {
        self.provider == name || self.client == name
    }
}
