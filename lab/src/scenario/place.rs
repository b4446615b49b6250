//! Where in the PCI fabric switches and devices hang.

use toml::Spanned;

use super::error::Problem;

/// Where a switch or a device hangs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// A root port of its own below the machine's host bridge.
    #[default]
    Root,
    /// A root port of its own below this further host bridge.
    HostBridge(String),
    /// A port of this switch.
    Switch(String),
}

impl Place {
    /// The switch above, if any.
    pub fn switch(&self) -> Option<&str> {
        match self {
            Place::Switch(name) => Some(name),
            Place::Root | Place::HostBridge(_) => None,
        }
    }
}

/// What a scenario declares that others can be below of.
pub(super) struct Places {
    pub(super) host_bridges: Vec<String>,
    pub(super) switches: Vec<String>,
}

impl Places {
    /// All names in it.
    pub(super) fn names(&self) -> Vec<String> {
        [self.host_bridges.as_slice(), &self.switches].concat()
    }

    /// Where a device is that is said to be `below`.
    pub(super) fn of_device(&self, below: Option<Spanned<String>>) -> Result<Place, Problem> {
        match below {
            Some(switch) if self.switches.contains(switch.get_ref()) => {
                Ok(Place::Switch(switch.into_inner()))
            }
            below => self.below_root(below, "[[switch]] or [[host-bridge]]"),
        }
    }

    /// Where a switch is that is said to be `below`.
    pub(super) fn of_switch(&self, below: Option<Spanned<String>>) -> Result<Place, Problem> {
        self.below_root(below, "[[host-bridge]]")
    }

    fn below_root(&self, below: Option<Spanned<String>>, kinds: &str) -> Result<Place, Problem> {
        match below {
            None => Ok(Place::Root),
            Some(bridge) if self.host_bridges.contains(bridge.get_ref()) => {
                Ok(Place::HostBridge(bridge.into_inner()))
            }
            Some(unknown) => {
                let message = format!(
                    "no {kinds} is named `{}`: declare it, or leave `below` out",
                    unknown.get_ref()
                );
                Err(Problem::new(unknown.span(), message))
            }
        }
    }
}
