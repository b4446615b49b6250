//! The checks: what each kind does in the guest, one module each.
//!
//! A kind's other half, its keys and its name, is `peerbar_report`'s `check` module. To add one: a file here with an
//! implementation of `Run`, and its `mod` line below.

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
mod rdma_chain;
mod rdma_completions;
mod rdma_lost;
mod rdma_refused;
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

pub(crate) use route::Share;

/// What a kind of check does in the guest.
pub(crate) trait Run {
    /// Runs it; `measure` holds its figures also if it fails.
    ///
    /// # Errors
    /// Why it failed: what was expected, what was seen, what to look at.
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome>;

    /// What the kernel may log meanwhile without failing it, and what it must.
    fn expected_log(&self) -> Expected<'_> {
        Expected::default()
    }

    /// Whether devices use I/O addresses of its own choice: then also those below one switch reach each other through the
    /// root.
    fn has_own_addresses(&self) -> bool {
        false
    }
}

/// The check's kind.
pub(crate) fn runner(check: &Check) -> &dyn Run {
    peerbar_report::with_check!(check, check => check)
}

/// How a check ended that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CheckOutcome {
    /// It passed.
    Passed,
    /// It passed, and what it said is wanted.
    Said(String),
    /// It could not be run, and why.
    Skipped(String),
}

impl CheckOutcome {
    /// It passed by what is counted of `device`, and says what of that is inferred.
    fn by_counters(traffic: &Traffic, device: u32) -> Self {
        traffic.inference(device).map_or(Self::Passed, Self::Said)
    }

    /// It works in the tools root, which the guest does not have.
    fn without_tools() -> Self {
        Self::Skipped(NO_TOOLS_ROOT.to_owned())
    }
}

/// Page size of the guest in bytes.
const PAGE: u64 = 4096;

/// Runs one check, as [`Run::run`], and holds it to what is true of all of them.
pub(crate) fn run(
    guest: &GuestContext,
    check: &Check,
    measure: &mut Measure,
) -> anyhow::Result<CheckOutcome> {
    let runner = runner(check);
    let outcome = runner.run(guest, measure)?;
    if guest.plan.one_switch && !runner.has_own_addresses() {
        route::stayed_below(measure)?;
    }
    Ok(outcome)
}
