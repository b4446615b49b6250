//! The driver of a controller in this process.

use peerbar_nvme::Config;
use peerbar_rig::nvme;

pub(crate) use peerbar_rig::nvme::{DATA, ENABLED, ENTRIES, LIST, queues, usual};

use crate::machine::{Machine, config};

pub(crate) type Driver = nvme::Driver<Machine>;

/// Returns an enabled controller with the CMB open and queue pair 1.
pub(crate) fn enabled() -> Driver {
    enabled_with(&config())
}

pub(crate) fn enabled_with(config: &Config) -> Driver {
    let mut driver = disabled(config);
    driver.open_cmb();
    driver.bring_up();
    driver
}

/// Returns a controller that is not enabled.
pub(crate) fn disabled(config: &Config) -> Driver {
    Driver::new(Machine::new(config))
}
