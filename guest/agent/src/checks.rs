//! The checks. Each kind has its own module.
//!
//! A kind's keys and its name are in the module `check` of `peerbar_report`. To add a kind: a file
//! here with an implementation of `Run`, and its `mod` line below.

mod buffered_read;
mod command;
mod controller_reset;
mod copy;
mod dma_log;
mod expectation;
mod gpu_file;
mod gpu_initiated;
mod gpu_refused;
pub mod held_back;
mod holders;
mod layout;
pub mod linux_events;
mod owner;
mod pmr;
mod pool_exhausted;
mod probe;
mod program;
mod provider;
mod queues_in_cmb;
mod rdma;
pub mod route;
mod vfio_alias;
mod vfio_nvme;
mod vfio_order;
mod vfio_revocation;
mod vfio_window;

use peerbar_report::{Check, Measure};

use crate::counters::Traffic;
use crate::guest_context::{GuestContext, NO_TOOLS_ROOT};
use crate::kmsg::Expected;

/// The behaviour of a kind of check in the guest.
pub(crate) trait Run {
    /// Runs the check. `measure` contains its figures even if it fails.
    ///
    /// # Errors
    /// The reason for the failure: what was expected, what was seen, what to look at.
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome>;

    /// Returns the kernel messages that do not fail the check, and those that it requires.
    fn expected_log(&self) -> Expected<'_> {
        Expected::default()
    }

    /// Returns `true` if devices use I/O addresses that the check chooses. In that case even
    /// devices below one switch reach each other through the root.
    fn has_own_addresses(&self) -> bool {
        false
    }
}

/// Returns the implementation of a check.
pub(crate) fn runner(check: &Check) -> &dyn Run {
    peerbar_report::with_check!(check, check => check)
}

/// The outcome of a check that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CheckOutcome {
    /// It passed.
    Passed,
    /// It passed, and its message is wanted.
    Said(String),
    /// It could not be run, for this reason.
    Skipped(String),
}

impl CheckOutcome {
    /// Passes by the counters of `device`, with a note about inferred numbers.
    fn by_counters(traffic: &Traffic, device: u32) -> Self {
        traffic.inference(device).map_or(Self::Passed, Self::Said)
    }

    /// Skips a check that needs the tools root, because the guest has none.
    fn without_tools() -> Self {
        Self::Skipped(NO_TOOLS_ROOT.to_owned())
    }
}

/// Page size of the guest in bytes.
const PAGE: u64 = 4096;

/// Runs one check, as [`Run::run`] does, and verifies the conditions that hold for all checks.
pub(crate) fn run(
    guest: &GuestContext,
    check: &Check,
    measure: &mut Measure,
) -> anyhow::Result<CheckOutcome> {
    let runner = runner(check);
    let unmeasured = guest.unmeasured().map(|device| device.name.as_str());
    let of_check = unmeasured.filter(|name| check.mentions(name));
    measure.mapped_not_counted = of_check.map(str::to_owned).collect();
    let outcome = runner.run(guest, measure)?;
    if guest.plan.one_switch && !runner.has_own_addresses() {
        route::stayed_below(measure)?;
    }
    Ok(outcome)
}
