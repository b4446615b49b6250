//! A disk that is taken away while it serves the GPU's queues: commands are in progress, and none
//! may touch the memory afterwards.
//!
//! Once the disk is lost, its counters show that some commands were fetched and not completed.

use std::fmt;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use peerbar_gds::{Error, Fault};
use peerbar_vfio_nvme::{Direction, Disk, DmaSpace, RegisterAccess, VfioDevice};

use super::initiator::{BYTES, Initiator as _, READ_BYTES, READS, blocks_of_a_read, give_queues};
use super::own_driver::{OwnDriverGpu, read_by_new_queues};
use crate::checks::held_back::{
    self, LIMIT, MARK, OFFSETS, PAUSE, firsts, in_progress, is_marked, until_commands_are_met,
};
use crate::checks::vfio_nvme::{TakenDevices, start, start_opened};
use crate::counters::{Begun, Traffic, TrafficWatch};
use crate::gpus::Gpu;
use crate::guest_context::GuestContext;
use crate::user_gpu::TIME_OUT;
use peerbar_pattern::Pattern;

/// The way in which the disk is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// A reset of the function. It first revokes the registers, and the GPU's driver makes it wait
    /// there until the launch has ended.
    Reset,
    /// The program closes the disk: DMA is off at once, then the registers are revoked.
    Close,
    /// The program disables the controller. The registers stay.
    Disable,
}

impl Loss {
    pub(super) const ALL: [Self; 3] = [Self::Reset, Self::Close, Self::Disable];

    /// Takes the disk away. The device is still open unless the program closes it. Once this
    /// returns the disk uses the GPU's memory no more.
    fn inflict(self, disk: Disk) -> anyhow::Result<Option<Arc<VfioDevice>>> {
        match self {
            Self::Reset => disk.device().reset()?,
            Self::Disable => disk.disable()?,
            Self::Close => return Ok(None),
        }
        Ok(Some(Arc::clone(disk.device())))
    }

    /// Returns `true` if the launch may end with this fault.
    fn may_end_with(self, fault: Fault) -> bool {
        match fault {
            Fault::TimeOut => true,
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

/// The participants.
pub(super) struct Fixture<'a> {
    pub(super) guest: &'a GuestContext,
    pub(super) taken: &'a TakenDevices<'a>,
    pub(super) space: DmaSpace,
    pub(super) gpu: &'a Gpu,
    /// Limit of the commands in progress.
    pub(super) depth: u16,
    pub(super) pattern: Pattern,
}

/// The end of a launch.
enum End {
    /// The disk had completed all commands before it was taken away.
    Early,
    /// The number of commands that were in progress, and the disk if it may still be open.
    Lost(u64, Option<Arc<VfioDevice>>),
}

/// Takes the disk away during a launch, by `loss`. Returns the number of commands that were in
/// progress.
pub(super) fn lose(loss: Loss, fixture: &Fixture<'_>) -> anyhow::Result<u64> {
    until_commands_are_met(loss, || {
        let requests = held_back::requests(fixture.depth);
        let mut lost = OwnDriverGpu::open_for(fixture.gpu, fixture.depth, requests)?;
        let disk = start(fixture.taken, &fixture.space, RegisterAccess::Mapped)?;
        let outcome = fixture
            .lose_once(loss, &mut lost, disk)
            .and_then(|end| match end {
                End::Early => Ok(0),
                End::Lost(in_progress, device) => {
                    fixture.stays_marked(&lost, device).map(|()| in_progress)
                }
            });
        // No disk uses the queues: each way takes it away, and an error drops it.
        lost.release();
        outcome
    })
}

impl Fixture<'_> {
    fn disk(&self) -> u32 {
        self.taken.disk.0.number
    }

    /// Runs one launch, during which the disk is taken away.
    fn lose_once(&self, loss: Loss, gpu: &mut OwnDriverGpu, mut disk: Disk) -> anyhow::Result<End> {
        give_queues(std::slice::from_mut(gpu), &mut disk)?;
        let watch = TrafficWatch::new(self.guest);
        let begun = watch.begin();
        let block = disk.identity().block_bytes;
        let firsts = firsts(self.depth, block);
        gpu.launch_from(&firsts, blocks_of_a_read(&disk)?, LIMIT)?;
        if !self.holds_most_back(gpu, &watch, &begun)? {
            return Ok(End::Early);
        }
        let device = loss.inflict(disk)?;
        let in_progress = in_progress(&watch.since(&begun)?, self.disk())?;
        let ended = gpu.statuses(TIME_OUT);
        if in_progress == 0 {
            return Ok(End::Early);
        }
        match ended {
            Ok(_) => {
                bail!("the launch ended well while {in_progress} of its commands were in progress")
            }
            Err(Error::Fault(fault)) if loss.may_end_with(fault) => {
                Ok(End::Lost(in_progress, device))
            }
            Err(error) => Err(error).context("a launch whose disk is gone"),
        }
    }

    /// Waits until the disk holds back most of the commands in progress. Returns `true` if the
    /// launch still runs then.
    fn holds_most_back(
        &self,
        gpu: &mut OwnDriverGpu,
        watch: &TrafficWatch<'_>,
        begun: &Begun,
    ) -> anyhow::Result<bool> {
        loop {
            let ended = match gpu.statuses(PAUSE) {
                Err(Error::TimedOut(_)) => false,
                Ok(_) | Err(Error::Fault(Fault::TimeOut)) => true,
                Err(error) => return Err(error).context("before the disk is taken away"),
            };
            let traffic = watch.since(begun)?;
            let most = held_back::holds_most_back(&traffic, (self.disk(), self.depth), ended)?;
            if ended || most {
                return Ok(!ended);
            }
        }
    }

    /// Marks queues and data, which are not in use any more. No byte may change while the disk
    /// serves others, until all held-back commands would have been due.
    fn stays_marked(
        &self,
        gpu: &OwnDriverGpu,
        device: Option<Arc<VfioDevice>>,
    ) -> anyhow::Result<()> {
        gpu.fill(MARK)?;
        gpu.fill_queues(MARK)?;
        let watch = TrafficWatch::new(self.guest);
        let begun = watch.begin();
        let access = RegisterAccess::Mapped;
        let mut disk = match device {
            Some(device) => start_opened(self.taken, device, &self.space, access)?,
            None => start(self.taken, &self.space, access)?,
        };
        self.outlast_held_back(&mut disk)?;
        read_by_new_queues(disk, (self.gpu, self.depth), self.pattern)?;
        is_of_new_queues(&watch.since(&begun)?, self.disk())?;
        for (what, seen) in [("data", gpu.data()?), ("queues", gpu.contents_of_queues()?)] {
            is_marked(&seen).context(what)?;
        }
        Ok(())
    }

    /// Reads to memory of this process, which the disk holds back for as long as the earlier reads.
    fn outlast_held_back(&self, disk: &mut Disk) -> anyhow::Result<()> {
        let own = self.space.allocate(READ_BYTES)?;
        for offset in OFFSETS {
            let first = offset / disk.identity().block_bytes;
            disk.submit(Direction::Read, first, own, READ_BYTES)?;
        }
        for _ in OFFSETS {
            let (_, completion) = disk.wait()?;
            let status = completion.status;
            ensure!(
                status == 0,
                "a read of the disk that was taken away ends with {status:#x}"
            );
        }
        self.space.unmap(own)?;
        Ok(())
    }
}

/// Checks that the disk has done the work of the new queues in the memory of peers, and nothing
/// else.
fn is_of_new_queues(traffic: &Traffic, disk: u32) -> anyhow::Result<()> {
    let seen = (
        traffic.commands_from_peers(disk),
        traffic.completions_to_peers(disk),
        traffic.payload_to_devices(disk),
    );
    let reads = u64::from(READS);
    ensure!(
        seen == (reads, reads, BYTES),
        "the disk's counters show {seen:?} once it was taken away: commands, completions and bytes of data in the GPU's memory; \
         {reads} reads of {BYTES} bytes were of new queues"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::{Completer, Direction, DmaKind, Purpose, Route};

    use super::*;

    fn kind(purpose: Purpose) -> DmaKind {
        DmaKind {
            purpose,
            completer: Completer::PeerBar,
            route: Route::Peer,
            direction: Direction::Write,
        }
    }

    fn traffic(commands: u64, completions: u64, bytes: u64) -> Traffic {
        let mut traffic = Traffic::default();
        traffic.count(0, kind(Purpose::Command), commands * 64, 0);
        traffic.count(0, kind(Purpose::Completion), completions * 16, 0);
        traffic.count(0, kind(Purpose::Payload), bytes, 0);
        traffic
    }

    #[test]
    fn one_completion_or_read_too_many_is_found() {
        let reads = u64::from(READS);
        let judge = |commands, completions, bytes| {
            is_of_new_queues(&traffic(commands, completions, bytes), 0)
        };
        assert!(judge(reads, reads, BYTES).is_ok());
        assert!(judge(reads, reads + 1, BYTES).is_err());
        assert!(judge(reads, reads, BYTES + READ_BYTES).is_err());
        assert!(judge(reads + 1, reads, BYTES).is_err());
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
        assert!(!Loss::Close.may_end_with(Fault::BadCompletion));
    }
}
