//! `controller-reset`: a reset of a controller.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CheckKind, Key, Keys, TableError};

/// The controller is reset through sysfs and is live again afterwards; its p2pmem is still there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControllerReset {
    /// A disk's name.
    pub device: String,
}

impl fmt::Display for ControllerReset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} survives a controller reset", self.device)
    }
}

impl CheckKind for ControllerReset {
    const KIND: &'static str = "controller-reset";
    const ABOUT: &'static str = "The controller is reset through sysfs and is live again afterwards; its p2pmem is still \
        there.";
    const KEYS: &'static [Key] = &[Key::required("device", "Name of an `[[nvme]]`.")];

    fn read(keys: &mut Keys<'_, '_>) -> Result<Self, TableError> {
        Ok(Self {
            device: keys.disk("device")?.name.clone(),
        })
    }
}
