//! The settings of a switch.

use std::collections::BTreeMap;

use crate::link_mode::LinkMode;
use crate::pci_hole::PciHole;

/// The settings of a switch.
#[derive(Clone, Debug)]
pub struct Config {
    /// The modes of the links to the endpoints of these names; [`LinkMode::Route`] for any other.
    pub modes: BTreeMap<String, LinkMode>,
    /// Where windows may be. One that is elsewhere could cover RAM, and is passed on to nobody.
    pub holes: Vec<PciHole>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            modes: BTreeMap::new(),
            holes: PciHole::DEFAULT.to_vec(),
        }
    }
}
