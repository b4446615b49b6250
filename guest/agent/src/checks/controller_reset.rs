//! A controller reset loses neither the disk nor the published CMB.

use super::{CheckOutcome, Run};
use peerbar_report::{ControllerReset, Measure};
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::devices::{Controller, reset};
use crate::disk;
use crate::guest_context::GuestContext;

/// Time limit for the return of the controller.
const TIME_OUT: Duration = Duration::from_secs(30);

const LENGTH: usize = 4096;

impl Run for ControllerReset {
    fn run(&self, guest: &GuestContext, _measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let controller = guest.controller(&self.device)?;
        reset(&controller.directory.join("reset_controller"))?;
        guest
            .uevents
            .wait_for(TIME_OUT, || controller.ensure_live())
            .with_context(|| format!("not back within {} s after a reset", TIME_OUT.as_secs()))?;
        round_trip(guest, controller).context("I/O after the reset")?;
        if controller.cmb_bytes > 0 {
            cmb_survived(guest, controller).context("the CMB after the reset")?;
        }
        Ok(CheckOutcome::Passed)
    }
}

fn round_trip(guest: &GuestContext, controller: &Controller) -> anyhow::Result<()> {
    let pattern = guest.fresh_pattern(controller);
    let disk = controller.disk.open_direct()?;
    disk::fill(&disk, pattern, 0, LENGTH)?;
    Ok(pattern.verify(0, &disk::read(&disk, 0, LENGTH)?)?)
}

/// Checks that the CMB has survived. The driver sets it up only once, so it must still be where it
/// was (NVMe Base 2.0, 3.1.3.16: a controller reset leaves CMBMSC alone).
fn cmb_survived(guest: &GuestContext, controller: &Controller) -> anyhow::Result<()> {
    let state = controller.pool().state()?;
    ensure!(
        state.published && state.size == controller.cmb_bytes,
        "{} of {} bytes are left, published: {}",
        state.size,
        controller.cmb_bytes,
        state.published
    );
    let pattern = guest.fresh_pattern(controller);
    let disk = controller.disk.open_direct()?;
    disk::fill(&disk, pattern, 0, LENGTH)?;
    let mut memory = controller.pool().map(LENGTH)?;
    memory
        .read_from(&disk, 0, LENGTH)
        .context("reading into it")?;
    Ok(pattern.verify(0, &memory.to_vec(LENGTH)?)?)
}
