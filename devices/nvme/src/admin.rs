//! The admin commands (NVMe Base 2.0, 5), and the state behind them.

mod commands;
mod doorbell_buffer;
mod events;
mod feature_commands;
mod features;
mod identify;
mod identify_controller;
mod last_sanitize;
mod logs;
mod queues;
pub(crate) mod reply;
mod sanitize;
mod warnings;

use peerbar_nvme_spec::event::AsyncEvent;
use peerbar_nvme_spec::log::CriticalWarning;
use peerbar_pci::Identity;

use crate::config::Config;
use events::Events;
use features::Features;
use identify_controller::ControllerIdentity;
use last_sanitize::LastSanitize;
use reply::Late;

/// The state of the admin commands.
pub(crate) struct Admin {
    identity: ControllerIdentity,
    events: Events,
    /// Warnings whose event has been raised.
    reported: CriticalWarning,
    sanitize: LastSanitize,
    pub(crate) features: Features,
}

impl Admin {
    pub(crate) fn new(config: &Config, identity: &Identity) -> Self {
        Self {
            identity: ControllerIdentity::new(config, identity),
            events: Events::default(),
            reported: CriticalWarning::new(),
            sanitize: LastSanitize::default(),
            features: Features::new(config.namespaces.len(), config.spare_queues),
        }
    }

    /// Handles a controller reset: drops events, and resets the features.
    pub(crate) fn reset(&mut self) {
        self.events = Events::default();
        self.reported = CriticalWarning::new();
        self.features.reset();
    }

    /// Reports doorbells that were rung for a missing queue (`stray`), or with an invalid value.
    pub(crate) fn doorbell_errors(&mut self, stray: bool, bad_value: bool) {
        if stray {
            self.events.raise(AsyncEvent::INVALID_DOORBELL_REGISTER);
        }
        if bad_value {
            self.events.raise(AsyncEvent::INVALID_DOORBELL_VALUE);
        }
    }

    /// Returns the next completion of a command that waited for an event.
    pub(crate) fn next_late(&mut self) -> Option<Late> {
        self.events.next()
    }
}
