//! The input of `peerbar run`: a scenario of one guest, or of several.

use std::path::Path;
use std::time::Duration;

use anyhow::anyhow;
use peerbar_lab::exit::Failure;
use peerbar_lab::scenario::{GuestGroup, Scenario, ScenarioError};
use peerbar_nvme::PollPolicy;

use crate::keep;

/// A scenario of one guest, or of several.
pub(crate) enum Runnable {
    /// Of one.
    Single(Box<Scenario>),
    /// Of several.
    Group(Box<GuestGroup>),
}

impl Runnable {
    /// Reads a scenario file, or the shipped one of a bare name.
    pub(crate) fn load(path: &Path) -> Result<Self, ScenarioError> {
        match GuestGroup::load(path)? {
            Some(group) => Ok(Self::Group(Box::new(group))),
            None => Scenario::load(path).map(Self::of_one),
        }
    }

    /// Does the work of [`Runnable::load`], for a scenario that may have no checks.
    pub(crate) fn load_interactive(path: &Path) -> Result<Self, ScenarioError> {
        match GuestGroup::load_interactive(path)? {
            Some(group) => Ok(Self::Group(Box::new(group))),
            None => Scenario::load_interactive(path).map(Self::of_one),
        }
    }

    /// Returns a scenario of one guest.
    pub(crate) fn of_one(scenario: Scenario) -> Self {
        Self::Single(Box::new(scenario))
    }

    /// Returns its name.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Single(scenario) => &scenario.name,
            Self::Group(group) => &group.name,
        }
    }

    /// Returns the file that it was read from; that of the built-in demo is not there.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Single(scenario) => &scenario.path,
            Self::Group(group) => &group.path,
        }
    }

    /// Returns its guests.
    pub(crate) fn guests(&self) -> Vec<&Scenario> {
        match self {
            Self::Single(scenario) => vec![scenario],
            Self::Group(group) => group.guests.iter().map(|guest| &guest.scenario).collect(),
        }
    }

    /// Sets another limit for each guest.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        match self {
            Self::Single(scenario) => scenario.set_timeout(timeout),
            Self::Group(group) => group.set_timeout(timeout),
        }
    }

    /// Replaces the number of workers and the poll policy of our disks, where one is given.
    pub(crate) fn serve_disks_by(&mut self, workers: Option<u8>, poll: Option<PollPolicy>) {
        match self {
            Self::Single(scenario) => scenario.serve_disks_by(workers, poll),
            Self::Group(group) => group.serve_disks_by(workers, poll),
        }
    }

    /// Keeps the checks with one of these names, or all if there are no names.
    pub(crate) fn select_checks(&mut self, names: &[String]) -> anyhow::Result<()> {
        match self {
            Self::Single(scenario) => scenario.select_checks(names),
            Self::Group(group) => group.select_checks(names),
        }
    }

    /// Records every command and DMA, and traces the kernels.
    pub(crate) fn trace(&mut self) {
        match self {
            Self::Single(scenario) => scenario.trace(),
            Self::Group(group) => group.trace(),
        }
    }

    /// Lets programs into its guests, which see the current folder.
    pub(crate) fn prepare_to_keep(&mut self) -> Result<(), Failure> {
        match self {
            Self::Single(scenario) => keep::prepare(scenario),
            // Guests of several always take programs.
            Self::Group(_) => Ok(()),
        }
    }

    /// Returns its only guest, for `option`.
    ///
    /// # Errors
    /// It has several.
    pub(crate) fn only_guest(&mut self, option: &str) -> Result<&mut Scenario, Failure> {
        match self {
            Self::Single(scenario) => Ok(scenario),
            Self::Group(group) => Err(Failure::Usage(anyhow!(
                "{option} is for one guest, and {} has {}: leave it out, or write a scenario of that guest alone",
                group.name,
                group.guests.len()
            ))),
        }
    }
}
