//! A disk that is taken away while it serves the GPU's queues: commands are in progress, and none may touch the memory afterwards.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use peerbar_gds::{Error, Fault};
use peerbar_vfio_nvme::{Disk, DmaSpace, RegisterAccess};

use super::own_driver::OwnDriverGpu;
use super::revoked::read_by_new_queues;
use super::{Initiator as _, blocks_of_a_read, give_queues};
use crate::checks::vfio_nvme::{TakenDevices, start};
use crate::gpus::Gpu;
use crate::pattern::Pattern;
use crate::user_gpu::PATIENCE;

/// Requests of the launch: as many as a launch takes, so that the disk is taken away long before its end.
const REQUESTS: u16 = u16::MAX - 1;
/// Longest time to the next completion. The launch ends by it where the registers are not revoked.
const LIMIT: Duration = Duration::from_secs(5);
/// How long to wait between two looks at the data.
const PAUSE: Duration = Duration::from_millis(1);
/// How often a launch may be over before the disk is taken away, as on a host that has stopped the guest.
const TRIES: usize = 8;
/// What the memory holds until the disk writes to it, and what nothing may change afterwards.
const BEFORE: u8 = 0xa5;
const MARK: u8 = 0x5a;

/// How the disk is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// A reset of the function. It revokes the registers first, for which the GPU's driver lets a launch go on for 10 s: a launch that is
    /// over by then ends well, on queues that the disk still has.
    Reset,
    /// The program closes it: DMA is off at once, then the registers are revoked.
    Close,
    /// The program disables the controller. The registers stay.
    Disable,
}

impl Loss {
    pub(super) const ALL: [Self; 3] = [Self::Reset, Self::Close, Self::Disable];

    /// Takes the disk away; it is still open unless the program closes it. Once this returns it uses the GPU's memory no more.
    fn inflict(self, disk: Disk) -> anyhow::Result<Option<Disk>> {
        match self {
            Self::Reset => disk.device().reset()?,
            Self::Disable => disk.disable()?,
            Self::Close => {
                drop(disk);
                return Ok(None);
            }
        }
        Ok(Some(disk))
    }

    /// Whether the launch may end with this fault.
    fn may_end_with(self, fault: Fault) -> bool {
        match fault {
            Fault::TimeOut | Fault::BadCompletion => true,
            Fault::Revoked => self != Self::Disable,
            _ => false,
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "a reset of the disk",
            Self::Close => "the end of the program that has the disk",
            Self::Disable => "a disable of the controller",
        })
    }
}

/// How a launch has ended.
enum End {
    /// Before the disk was taken away.
    Early,
    /// As its disk was taken away, which may still be open.
    Lost(Option<Box<Disk>>),
}

/// Takes the disk away during a launch, by `loss`.
pub(super) fn lose(
    loss: Loss,
    taken: &TakenDevices<'_>,
    space: &DmaSpace,
    (gpu, depth): (&Gpu, u16),
    pattern: Pattern,
) -> anyhow::Result<()> {
    for _ in 0..TRIES {
        let mut lost = OwnDriverGpu::open_for(gpu, depth, REQUESTS)?;
        let disk = start(taken, space, RegisterAccess::Mapped)?;
        let outcome = lose_once(loss, &mut lost, disk).and_then(|end| match end {
            End::Early => Ok(false),
            End::Lost(disk) => {
                let read = || {
                    drop(disk);
                    read_by_new_queues(taken, space, (gpu, depth), pattern)
                };
                stays_marked(&lost, read).map(|()| true)
            }
        });
        // No disk uses the queues: each way takes it away, and so does an error, which drops it.
        lost.release();
        if outcome? {
            return Ok(());
        }
    }
    bail!("{TRIES} launches of {REQUESTS} reads were over before {loss}")
}

/// One launch, during which the disk is taken away.
fn lose_once(loss: Loss, gpu: &mut OwnDriverGpu, mut disk: Disk) -> anyhow::Result<End> {
    give_queues(std::slice::from_mut(gpu), &mut disk)?;
    gpu.fill(BEFORE)?;
    gpu.launch_all(blocks_of_a_read(&disk)?, LIMIT)?;
    if !serves(gpu)? {
        return Ok(End::Early);
    }
    let disk = loss.inflict(disk)?;
    match gpu.statuses(PATIENCE) {
        Ok(statuses) if loss == Loss::Reset => {
            let failed = statuses.iter().find(|status| **status != 0);
            ensure!(failed.is_none(), "a read ends with status {failed:x?}");
            Ok(End::Lost(disk.map(Box::new)))
        }
        Ok(_) => Ok(End::Early),
        Err(Error::Fault(fault)) if loss.may_end_with(fault) => Ok(End::Lost(disk.map(Box::new))),
        Err(error) => Err(error).context("a launch whose disk is gone"),
    }
}

/// Waits until the first data have come; whether the launch goes on then.
fn serves(gpu: &mut OwnDriverGpu) -> anyhow::Result<bool> {
    loop {
        match gpu.statuses(PAUSE) {
            Err(Error::TimedOut(_)) => {}
            Ok(_) => return Ok(false),
            Err(error) => return Err(error).context("before the disk is taken away"),
        }
        if gpu.first_data()?.iter().any(|byte| *byte != BEFORE) {
            return Ok(true);
        }
    }
}

/// Marks queues and data, which nobody uses any more. No byte may have changed after `work`, in which the disk is used again.
fn stays_marked(
    gpu: &OwnDriverGpu,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    gpu.fill(MARK)?;
    gpu.fill_queues(MARK)?;
    work()?;
    for (what, seen) in [("data", gpu.data()?), ("queues", gpu.contents_of_queues()?)] {
        is_marked(&seen).context(what)?;
    }
    Ok(())
}

fn is_marked(seen: &[u8]) -> anyhow::Result<()> {
    let first = seen.iter().position(|byte| *byte != MARK);
    ensure!(
        first.is_none(),
        "the disk has written to the GPU's memory after it was taken away, at byte {first:?}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_in_place_of_the_mark_is_found() {
        let mut seen = [MARK; 64];
        assert!(is_marked(&seen).is_ok());
        seen[63] = 0;
        let error = is_marked(&seen).unwrap_err().to_string();
        assert!(error.ends_with("Some(63)"), "{error}");
    }

    #[test]
    fn disabled_disk_keeps_its_registers() {
        assert!(Loss::Reset.may_end_with(Fault::Revoked));
        assert!(!Loss::Disable.may_end_with(Fault::Revoked));
        assert!(
            Loss::ALL
                .iter()
                .all(|loss| loss.may_end_with(Fault::TimeOut))
        );
        assert!(!Loss::Close.may_end_with(Fault::Injected));
    }
}
