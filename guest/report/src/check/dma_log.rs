//! `dma-log`: counters as the guest sees them.

use std::fmt;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{CheckKind, Key, Keys, TableError};

/// The counters that the device shows the guest equal those that the host reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DmaLog {
    /// A disk's or GPU's name.
    pub device: String,
}

impl fmt::Display for DmaLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} shows the guest its DMA counters", self.device)
    }
}

impl CheckKind for DmaLog {
    const KIND: &'static str = "dma-log";
    const ABOUT: &'static str = "The DMA counters that the device shows the guest, in a log page of a disk or in a BAR of \
        a GPU, equal those that the host reads.";
    const KEYS: &'static [Key] = &[Key::required(
        "device",
        "Name of an `[[nvme]]` or a `[[gpu]]`.",
    )];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let device: Spanned<String> = keys.required("device")?;
        let device = match keys.inventory.find_gpu(device.get_ref()) {
            Some(gpu) => gpu.name.clone(),
            None => keys.inventory.disk(device)?.name.clone(),
        };
        Ok(Self { device })
    }
}
