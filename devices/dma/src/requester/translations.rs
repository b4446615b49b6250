//! Address translation services.

use peerbar_dma_log::AtsCounts;

use crate::route::RouteTable;

use super::Requester;

impl Requester {
    /// Turns address translation services on or off (PCIe Base 6.0, 10.5.1.3, ATS Control): the
    /// function requests translations of addresses and keeps them. Once off, no kept translation is
    /// used.
    pub fn set_ats(&self, on: bool) {
        let mut routes = self.change();
        routes.ats = on;
        if !on {
            routes.atc().clear();
        }
        self.share_ats(&routes);
    }

    /// Returns the address translation cache's counts.
    pub fn ats_counts(&self) -> AtsCounts {
        self.route_table().with_ats_counts(|counts| counts)
    }

    /// Publishes the address translation cache's counts.
    pub(super) fn share_ats(&self, routes: &RouteTable) {
        routes.with_ats_counts(|counts| self.ledger.counters().set_ats(&counts));
    }
}
