//! The kernel has taken the whole CMB, or a GPU's whole aperture, as p2pmem and published it.

use super::{CheckOutcome, Run};
use anyhow::ensure;
use peerbar_report::{Measure, Provider};

use super::PAGE;
use crate::guest_context::GuestContext;

impl Run for Provider {
    fn run(&self, guest: &GuestContext, _measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let device = &self.device;
        let provider = guest.provider(device)?;
        let state = provider.pool.state()?;
        let description = &provider.description;
        // The nvme driver gives the whole CMB to the pool and allocates its queues from it (Linux,
        // drivers/nvme/host/pci.c), so queues in the CMB reduce the available bytes, not the size.
        ensure!(
            state.size == provider.bytes,
            "the p2pmem of {device} has {} bytes, but its memory {}; look at the BAR's size, and at SZ and SZU of the CMBSZ of \
             an NVMe controller ({description})",
            state.size,
            provider.bytes
        );
        ensure!(
            state.published,
            "the p2pmem of {device} is not published; the nvme driver does that only for a CMB with RDS and WDS ({description})"
        );
        ensure!(
            state.available % PAGE == 0 && (1..=state.size).contains(&state.available),
            "{} of the {} bytes of the p2pmem of {device} are available; queues in the CMB leave less than all, but not \
             none: give it a larger CMB, or set nvme.use_cmb_sqes=0",
            state.available,
            state.size
        );
        Ok(CheckOutcome::Passed)
    }
}
