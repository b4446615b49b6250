//! The two devices of a peer-to-peer transfer.

use serde::{Deserialize, Serialize};

use crate::placeholder::{disk_of, keys};

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
    /// Makes the pair of these two.
    pub fn of(provider: &str, client: &str) -> Self {
        Self {
            provider: provider.to_owned(),
            client: client.to_owned(),
        }
    }

    /// Returns `true` if `name` is one of the two.
    pub fn has(&self, name: &str) -> bool {
        self.provider == name || self.client == name
    }
}

/// Returns each p2pmem that placeholders in `texts` refer to, combined with each disk that they
/// refer to.
pub(super) fn named_in<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<Pair> {
    let keys: Vec<String> = texts.into_iter().flat_map(keys).collect();
    let mut pairs = Vec::new();
    for provider in keys.iter().filter_map(|key| key.strip_suffix(":p2pmem")) {
        for client in keys.iter().filter_map(|key| disk_of(key)) {
            let pair = Pair::of(provider, client);
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
    }
    pairs
}
