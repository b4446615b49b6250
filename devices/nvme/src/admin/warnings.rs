//! The SMART warnings (NVMe Base 2.0, 5.16.1.3), and the events that report them.

use peerbar_nvme_spec::event::AsyncEvent;
use peerbar_nvme_spec::log::CriticalWarning;

use crate::engine::Engine;

impl Engine {
    /// Reports a temperature warning: a new threshold, or a newly enabled notification, may require
    /// an event.
    pub(super) fn check_temperature(&mut self) {
        let warning = self.admin.features.warning();
        if warning.temperature() && self.admin.features.wants(warning) {
            self.admin.events.raise(AsyncEvent::TEMPERATURE_THRESHOLD);
        }
    }

    /// Returns the current SMART warnings.
    pub(super) fn warning(&self) -> CriticalWarning {
        let warning = self.admin.features.warning();
        warning
            .with_reliability(self.storage.has_lost_data())
            .with_pmr(self.storage.pmr_has_failed())
    }

    /// Reports lost data and a failed Persistent Memory Region, each once after each reset.
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
