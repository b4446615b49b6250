//! The kernel has taken the whole CMB as p2pmem and published it.

use anyhow::ensure;

use crate::checks::PAGE;
use crate::lab::Lab;

pub(super) fn run(lab: &Lab, device: &str) -> anyhow::Result<()> {
    let controller = lab.provider(device)?;
    let state = controller.pool().state()?;
    let registers = controller.cmb_registers();
    // The driver gives the whole CMB to the pool and takes its queues out of it again (Linux,
    // drivers/nvme/host/pci.c), so queues in the CMB show in what is available, not in the size.
    ensure!(
        state.size == controller.cmb_bytes,
        "the p2pmem of {device} has {} bytes, but its CMB {}; look at SZ and SZU of CMBSZ ({registers}) and at the BAR's size",
        state.size,
        controller.cmb_bytes
    );
    ensure!(
        state.published,
        "the p2pmem of {device} is not published; the driver does that only for a CMB with RDS and WDS ({registers})"
    );
    ensure!(
        state.available.is_multiple_of(PAGE) && (1..=state.size).contains(&state.available),
        "{} of the {} bytes of the p2pmem of {device} are available; queues in the CMB leave less than all, but not \
         none: give it a larger CMB, or set nvme.use_cmb_sqes=0",
        state.available,
        state.size
    );
    Ok(())
}
