//! `queues-in-cmb`: submission queues in a CMB.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, TableError};

/// The submission queues of the device lie in its CMB: it fetches commands from its own memory, and none of the I/O queues'
/// from guest RAM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueuesInCmb {
    /// A disk's name.
    pub device: String,
}

impl fmt::Display for QueuesInCmb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has its queues in the CMB", self.device)
    }
}

impl CheckKind for QueuesInCmb {
    const KIND: &'static str = "queues-in-cmb";
    const ABOUT: &'static str = "The submission queues of the device lie in its CMB: it fetches commands from its own \
        memory, and none of the I/O queues' from guest RAM.";
    const KEYS: &'static [Key] = &[Key::required(
        "device",
        "Name of an `[[nvme]]` with `cmb-queues = true`.",
    )];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        let name = keys.required("device")?;
        let at = name.span();
        let nvme = keys.inventory.disk(name)?;
        if nvme.cmb_queues {
            return Ok(Self {
                device: nvme.name.clone(),
            });
        }
        let message = format!(
            "`{0}` takes no queues in a CMB: give [[nvme]] {0} `cmb-queues = true`",
            nvme.name
        );
        Err(TableError::new(at, message))
    }
}
