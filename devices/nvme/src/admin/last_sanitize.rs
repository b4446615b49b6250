//! The last sanitize operation. It survives resets, but not the server.

use peerbar_nvme_spec::command::admin::SanitizeControl;
use peerbar_nvme_spec::log::{SanitizeState, SanitizeStatus};
use zerocopy::FromZeros;

/// The last operation.
#[derive(Debug, Default)]
pub(crate) struct LastSanitize {
    pub(super) state: SanitizeState,
    pub(super) control: SanitizeControl,
}

impl LastSanitize {
    /// The Sanitize Status page (NVMe Base 2.0, 5.16.1.25).
    pub(super) fn page(&self) -> SanitizeStatus {
        let mut page = SanitizeStatus::new_zeroed();
        page.sprog = SanitizeStatus::NOT_IN_PROGRESS.into();
        page.sstat = self.state;
        page.scdw10 = self.control.into_bits().into();
        page.estimates = [SanitizeStatus::NO_ESTIMATE.into(); 6];
        page
    }
}
