//! A disk that is taken away while it serves the GPU's queues: commands are in progress, and none may touch the memory afterwards.
//!
//! Rules of the disk hold back its reads of some blocks: one half before they begin, the other half before their completions. So commands are
//! in progress whatever the speed of the host, which the disk's counters prove once it is lost: commands fetched, and not completed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use peerbar_gds::{Error, Fault};
use peerbar_vfio_nvme::{Direction, Disk, DmaSpace, RegisterAccess, VfioDevice};

use super::own_driver::OwnDriverGpu;
use super::revoked::read_by_new_queues;
use super::{BYTES, Initiator as _, READ_BYTES, READS, blocks_of_a_read, give_queues};
use crate::checks::vfio_nvme::{TakenDevices, start, start_opened};
use crate::counters::{Begun, Traffic, TrafficWatch};
use crate::gpus::Gpu;
use crate::guest_context::GuestContext;
use crate::pattern::Pattern;
use crate::user_gpu::PATIENCE;

/// Reads of a launch that the disk carries out at once, before those that it holds back.
const AT_ONCE: u16 = 64;
/// Where on the disk the reads are that it holds back before they begin, and those whose completions it holds back, in bytes.
const HELD_BACK: [u64; 2] = [8 << 20, 12 << 20];
/// How many of them follow each other there.
const PLACES: u64 = 256;
/// Longest time to the next completion, by which the launch ends: shorter than the disk holds its reads back.
const LIMIT: Duration = Duration::from_secs(4);
/// How long to wait between two looks at the counters.
const PAUSE: Duration = Duration::from_millis(10);
/// How often the disk may have completed the reads before it is taken away, as on a host that has stopped the guest.
const TRIES: usize = 8;
/// What nothing may change afterwards.
const MARK: u8 = 0x5a;

/// How the disk is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// A reset of the function. It revokes the registers first, for which the GPU's driver waits until the launch has ended.
    Reset,
    /// The program closes it: DMA is off at once, then the registers are revoked.
    Close,
    /// The program disables the controller. The registers stay.
    Disable,
}

impl Loss {
    pub(super) const ALL: [Self; 3] = [Self::Reset, Self::Close, Self::Disable];

    /// Takes the disk away; the device is still open unless the program closes it. Once this returns it uses the GPU's memory no more.
    fn inflict(self, disk: Disk) -> anyhow::Result<Option<Arc<VfioDevice>>> {
        match self {
            Self::Reset => disk.device().reset()?,
            Self::Disable => disk.disable()?,
            Self::Close => return Ok(None),
        }
        Ok(Some(Arc::clone(disk.device())))
    }

    /// Whether the launch may end with this fault.
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

/// Who takes part.
pub(super) struct Scene<'a> {
    pub(super) guest: &'a GuestContext,
    pub(super) taken: &'a TakenDevices<'a>,
    pub(super) space: DmaSpace,
    pub(super) gpu: &'a Gpu,
    /// The most commands in progress.
    pub(super) depth: u16,
    pub(super) pattern: Pattern,
}

/// How a launch has ended.
enum End {
    /// The disk had completed all commands before it was taken away.
    Early,
    /// So many commands were in progress on a disk that may still be open.
    Lost(u64, Option<Arc<VfioDevice>>),
}

/// Takes the disk away during a launch, by `loss`; how many commands were in progress.
pub(super) fn lose(loss: Loss, scene: &Scene<'_>) -> anyhow::Result<u64> {
    for _ in 0..TRIES {
        let most = AT_ONCE.saturating_add(scene.depth.saturating_mul(2));
        let mut lost = OwnDriverGpu::open_for(scene.gpu, scene.depth, most)?;
        let disk = start(scene.taken, &scene.space, RegisterAccess::Mapped)?;
        let outcome = scene
            .lose_once(loss, &mut lost, disk)
            .and_then(|end| match end {
                End::Early => Ok(None),
                End::Lost(in_progress, device) => scene
                    .stays_marked(&lost, device)
                    .map(|()| Some(in_progress)),
            });
        // No disk uses the queues: each way takes it away, and so does an error, which drops it.
        lost.release();
        if let Some(in_progress) = outcome? {
            return Ok(in_progress);
        }
    }
    bail!("{TRIES} times the disk had completed all commands before {loss}")
}

impl Scene<'_> {
    fn disk(&self) -> u32 {
        self.taken.disk.0.number
    }

    /// One launch, during which the disk is taken away.
    fn lose_once(&self, loss: Loss, gpu: &mut OwnDriverGpu, mut disk: Disk) -> anyhow::Result<End> {
        give_queues(std::slice::from_mut(gpu), &mut disk)?;
        let watch = TrafficWatch::new(self.guest);
        let begun = watch.begin();
        let block = disk.identity().block_bytes;
        let firsts = firsts(self.depth, block);
        gpu.launch_from(&firsts, blocks_of_a_read(&disk)?, LIMIT)?;
        if !self.holds_all_back(gpu, &watch, &begun)? {
            return Ok(End::Early);
        }
        let device = loss.inflict(disk)?;
        let in_progress = in_progress(&watch.since(&begun)?, self.disk())?;
        let ended = gpu.statuses(PATIENCE);
        if in_progress == 0 {
            return Ok(End::Early);
        }
        match ended {
            Ok(_) => {
                bail!("the launch ends well, where {in_progress} of its commands were in progress")
            }
            Err(Error::Fault(fault)) if loss.may_end_with(fault) => {
                Ok(End::Lost(in_progress, device))
            }
            Err(error) => Err(error).context("a launch whose disk is gone"),
        }
    }

    /// Waits until the disk holds back as many commands as the GPU has in progress; whether the launch goes on then.
    fn holds_all_back(
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
            let held_back = watch.since(begun)?.injected_faults(self.disk());
            ensure!(
                held_back > 0 || !ended,
                "the disk has held back no command: give it the rules that the check's table names"
            );
            if ended || held_back >= self.depth.into() {
                return Ok(!ended);
            }
        }
    }

    /// Marks queues and data, which nobody uses any more. No byte may change while the disk serves others and until all that it has held back
    /// would have been due.
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

    /// Reads to memory of this process what the disk holds back as long as the reads before.
    fn outlast_held_back(&self, disk: &mut Disk) -> anyhow::Result<()> {
        let own = self.space.allocate(READ_BYTES)?;
        for start in HELD_BACK {
            let first = start / disk.identity().block_bytes;
            disk.submit(Direction::Read, first, own, READ_BYTES)?;
        }
        for _ in HELD_BACK {
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

/// The first logical blocks of the reads of a launch: those that the disk carries out at once, then twice as many as may be in progress
/// that it holds back, one of each kind in turn.
fn firsts(depth: u16, block: u64) -> Vec<u64> {
    let at_once = (0..AT_ONCE.into()).map(|number: u64| number * READ_BYTES);
    let held_back = (0..u64::from(depth)).flat_map(|number| {
        HELD_BACK.map(|start| start.saturating_add(number % PLACES * READ_BYTES))
    });
    at_once.chain(held_back).map(|byte| byte / block).collect()
}

/// Commands of peers' queues that a disk has fetched and not completed.
fn in_progress(traffic: &Traffic, disk: u32) -> anyhow::Result<u64> {
    let (fetched, completed) = (
        traffic.commands_from_peers(disk),
        traffic.completions_to_peers(disk),
    );
    fetched.checked_sub(completed).with_context(|| {
        format!("the disk has completed {completed} commands, and fetched {fetched}")
    })
}

/// The disk has done what the new queues have demanded in the memory of peers, and nothing else.
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
    fn commands_without_a_completion_are_in_progress() {
        assert_eq!(in_progress(&traffic(96, 64, 0), 0).unwrap(), 32);
        assert_eq!(in_progress(&traffic(64, 64, 0), 0).unwrap(), 0);
        assert!(in_progress(&traffic(1, 2, 0), 0).is_err());
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
    fn reads_that_are_held_back_fill_the_queue_behind_the_others() {
        let firsts = firsts(32, 512);
        assert_eq!(firsts.len(), 64 + 2 * 32);
        let (at_once, held_back) = firsts.split_at(64);
        assert!(at_once.iter().all(|first| *first < BYTES / 512));
        assert_eq!(held_back[..3], [16384, 24576, 16392]);
        assert!(held_back.iter().all(|first| (16384..32768).contains(first)));
    }

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
        assert!(!Loss::Close.may_end_with(Fault::BadCompletion));
    }
}
