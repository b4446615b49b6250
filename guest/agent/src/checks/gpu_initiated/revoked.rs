//! A disk that is taken away from a GPU that waits for it or that it serves: the launch must end,
//! and new queues must work.

use std::time::Duration;

use anyhow::{Context, bail};
use peerbar_gds::{Error, Fault};
use peerbar_report::GpuInitiated;
use peerbar_vfio_nvme::{Disk, DmaSpace, RegisterAccess};

use super::initiator::{QUEUE, blocks_of_a_read, give_queues};
use super::live::{self, Fixture, Loss};
use super::own_driver::{OwnDriverGpu, read_by_new_queues};
use crate::checks::CheckOutcome;
use crate::checks::vfio_nvme::{TakenDevices, start};
use crate::devices::Controller;
use crate::gpus::Gpu;
use crate::guest_context::GuestContext;
use crate::user_drivers::address_space;
use crate::user_gpu::TIME_OUT;
use peerbar_pattern::Pattern;

/// Longest time to the next completion, which exceeds the driver's wait before it gives up the
/// launch.
const NO_LIMIT: Duration = Duration::from_secs(50);
/// Time for which the launch is observed not to end.
const SEEN: Duration = Duration::from_millis(100);

/// Loses the disk's registers during a launch, then the disk while it serves one, and each time
/// reads by new queues.
pub(super) fn run(
    check: &GpuInitiated,
    guest: &GuestContext,
    disk: &Controller,
    gpu: &Gpu,
    pattern: Pattern,
) -> anyhow::Result<CheckOutcome> {
    let taken = TakenDevices::take(guest, check.backend, disk, None)?;
    let outcome = lose_and_read(check, guest, &taken, gpu, pattern);
    Ok(CheckOutcome::Said(taken.give_back(guest, outcome)?))
}

/// Returns, in words, the disk's activity when it was lost.
fn lose_and_read(
    check: &GpuInitiated,
    guest: &GuestContext,
    taken: &TakenDevices<'_>,
    gpu: &Gpu,
    pattern: Pattern,
) -> anyhow::Result<String> {
    let space = DmaSpace::new(address_space(check.backend)?);
    let mut lost = OwnDriverGpu::open(gpu, check.depth)?;
    let mut disk = start(taken, &space, RegisterAccess::Mapped)?;
    let outcome = lose(&mut lost, &mut disk);
    // The device is reset, and uses the queues no more.
    drop(disk);
    lost.release();
    outcome?;
    let to = (gpu, check.depth);
    let disk = start(taken, &space, RegisterAccess::Mapped)?;
    read_by_new_queues(disk, to, pattern)?;
    let fixture = Fixture {
        guest,
        taken,
        space,
        gpu,
        depth: check.depth,
        pattern,
    };
    let lost = Loss::ALL.map(|loss| {
        let lost = live::lose(loss, &fixture).with_context(|| loss.to_string())?;
        Ok(format!("{loss} met {lost}"))
    });
    let lost = lost.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    Ok(format!("commands in progress: {}", lost.join(", ")))
}

/// Makes the GPU wait for a disk that no longer has these queues, and resets the disk during the
/// wait.
fn lose(gpu: &mut OwnDriverGpu, disk: &mut Disk) -> anyhow::Result<()> {
    give_queues(std::slice::from_mut(gpu), disk)?;
    disk.delete_queue(QUEUE)?;
    gpu.launch_with(blocks_of_a_read(disk)?, NO_LIMIT)?;
    match gpu.statuses(SEEN) {
        Err(Error::TimedOut(_)) => {}
        ended => bail!("the launch should have no end, but is over: {ended:?}"),
    }
    disk.device().reset()?;
    match gpu.statuses(TIME_OUT) {
        Err(Error::Fault(Fault::Revoked)) => Ok(()),
        ended => bail!("the launch should end with fault 257, but ended so: {ended:?}"),
    }
}
