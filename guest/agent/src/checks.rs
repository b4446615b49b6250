//! The checks, one module for each kind.

mod buffered_read;
mod command;
mod controller_reset;
mod copy;
mod pool_exhausted;
mod provider;
mod queues_in_cmb;

use peerbar_report::{Check, Measure};

use crate::lab::Lab;

/// How a check ended that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It passed.
    Passed,
    /// It could not be run, and why.
    Skipped(String),
}

/// Page size of the guest in bytes.
const PAGE: u64 = 4096;

/// Runs one check; `measure` holds its figures also if it fails.
///
/// # Errors
/// Why it failed: what was expected, what was seen, what to look at.
pub(crate) fn run(lab: &Lab, check: &Check, measure: &mut Measure) -> anyhow::Result<Outcome> {
    match check {
        Check::Provider { device } => provider::run(lab, device)?,
        Check::QueuesInCmb { device } => queues_in_cmb::run(lab, device, measure)?,
        Check::Copy(copy) => copy::run(lab, copy, measure)?,
        Check::BufferedRead { from, provider } => buffered_read::run(lab, from, provider, measure)?,
        Check::PoolExhausted { provider } => pool_exhausted::run(lab, provider)?,
        Check::ControllerReset { device } => controller_reset::run(lab, device)?,
        Check::Command(command) => return command::run(lab, command, measure),
    }
    Ok(Outcome::Passed)
}
