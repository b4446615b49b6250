//! Address translation services.

use peerbar_dma_log::AtsCounts;

use crate::route::RouteTable;

use super::Requester;

impl Requester {
    /// Whether the function asks for translations of addresses and keeps them (PCIe Base 6.0, 10.5.1.3, ATS Control). Once
    /// off, none that it has kept is used.
    pub fn set_ats(&self, on: bool) {
        let mut routes = self.change();
        routes.ats = on;
        if !on {
            routes.atc().clear();
        }
        self.share_ats(&routes);
    }

    /// What the address translation cache has done.
    pub fn ats_counts(&self) -> AtsCounts {
        self.route_table().with_ats_counts(|counts| counts)
    }

    /// Shares what the address translation cache has done.
    pub(super) fn share_ats(&self, routes: &RouteTable) {
        routes.with_ats_counts(|counts| self.counters.set_ats(&counts));
    }
}
