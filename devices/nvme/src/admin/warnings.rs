//! The warnings of SMART (NVMe Base 2.0, 5.16.1.3), and the events by which they are reported.

use peerbar_nvme_spec::event::AsyncEvent;
use peerbar_nvme_spec::log::CriticalWarning;

use crate::engine::Engine;

impl Engine {
    /// A new threshold, or an enabled notification, may make the temperature an event.
    pub(super) fn check_temperature(&mut self) {
        let warning = self.admin.features.warning();
        if warning.temperature() && self.admin.features.wants(warning) {
            self.admin.events.raise(AsyncEvent::TEMPERATURE_THRESHOLD);
        }
    }

    /// What SMART warns of.
    pub(super) fn warning(&self) -> CriticalWarning {
        let warning = self.admin.features.warning();
        warning
            .with_reliability(self.storage.has_lost_data())
            .with_pmr(self.storage.pmr_has_failed())
    }

    /// Lost data, and a Persistent Memory Region that has failed, are events, each once after each reset.
    pub(crate) fn check_reliability(&mut self) {
        let lost_data = self.storage.has_lost_data();
        let warnings = [
            CriticalWarning::new().with_reliability(lost_data),
            CriticalWarning::new().with_pmr(self.storage.pmr_has_failed()),
        ];
        for warning in warnings {
            let reported = self.admin.reported.into_bits();
            let is_new = reported & warning.into_bits() == 0;
            if is_new && self.admin.features.wants(warning) {
                self.admin.reported = CriticalWarning::from_bits(reported | warning.into_bits());
                self.admin.events.raise(AsyncEvent::RELIABILITY_DEGRADED);
            }
        }
    }
}
