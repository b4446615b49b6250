//! The places of switches and devices.

use peerbar_report::TableError;
use toml::Spanned;

use super::error::Problem;

/// The place of a switch or a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AttachPoint {
    /// A separate root port below the machine's host bridge.
    #[default]
    Root,
    /// A separate root port below this further host bridge.
    HostBridge(String),
    /// A port of this switch.
    Switch(String),
}

impl AttachPoint {
    /// Returns the switch above, or `None`.
    pub fn switch(&self) -> Option<&str> {
        match self {
            AttachPoint::Switch(name) => Some(name),
            AttachPoint::Root | AttachPoint::HostBridge(_) => None,
        }
    }
}

/// Parts of a scenario that others can be below.
pub(super) struct AttachPoints {
    pub(super) host_bridges: Vec<String>,
    pub(super) switches: Vec<String>,
}

impl AttachPoints {
    /// Returns all names in it.
    pub(super) fn names(&self) -> Vec<String> {
        [self.host_bridges.as_slice(), &self.switches].concat()
    }

    /// Returns the place of a device that is said to be `below`.
    pub(super) fn of_device(&self, below: Option<Spanned<String>>) -> Result<AttachPoint, Problem> {
        match below {
            Some(switch) if self.switches.contains(switch.get_ref()) => {
                Ok(AttachPoint::Switch(switch.into_inner()))
            }
            below => self.below_root(below, "[[switch]] or [[host-bridge]]"),
        }
    }

    /// Returns the place of a switch that is said to be `below`.
    pub(super) fn of_switch(&self, below: Option<Spanned<String>>) -> Result<AttachPoint, Problem> {
        self.below_root(below, "[[host-bridge]]")
    }

    fn below_root(
        &self,
        below: Option<Spanned<String>>,
        kinds: &str,
    ) -> Result<AttachPoint, Problem> {
        match below {
            None => Ok(AttachPoint::Root),
            Some(bridge) if self.host_bridges.contains(bridge.get_ref()) => {
                Ok(AttachPoint::HostBridge(bridge.into_inner()))
            }
            Some(unknown) => {
                let name = unknown.get_ref();
                let message = format!("no {kinds} is named `{name}`");
                let names = self.names();
                let known = names.iter().map(String::as_str);
                let error = TableError::unknown_or(unknown.span(), message, name, known, || {
                    "declare it, or leave `below` out".to_owned()
                });
                Err(error.into())
            }
        }
    }
}
