//! The settings of a switch.

use std::collections::BTreeMap;

use peerbar_pci::{BusAddress, Range};

use crate::link_mode::LinkMode;

/// The settings of a switch.
#[derive(Clone, Debug)]
pub struct Config {
    /// The modes of the links to the endpoints with these names; [`LinkMode::Route`] for all
    /// others.
    pub modes: BTreeMap<String, LinkMode>,
    /// Address ranges where the machine has no RAM and windows may lie (QEMU's term: PCI holes). A
    /// window elsewhere is not passed on to any endpoint.
    pub holes: Vec<Range<BusAddress>>,
}

impl Config {
    /// Returns 0x80000000-0xfebfffff, up to the I/O APIC, and everything from 4 GiB: right for a
    /// q35 machine with up to 2 GiB of RAM (QEMU, `pc_q35_init` and `mch_realize`).
    pub fn default_holes() -> Vec<Range<BusAddress>> {
        let holes = [(0x8000_0000, 0xfebf_ffff), (0x1_0000_0000, u64::MAX)];
        let holes = holes.into_iter();
        holes
            .filter_map(|(first, last)| Range::from_bounds(BusAddress(first), BusAddress(last)))
            .collect()
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            modes: BTreeMap::new(),
            holes: Self::default_holes(),
        }
    }
}
