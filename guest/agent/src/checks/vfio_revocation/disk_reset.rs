//! Effects that must not follow a reset of the disk.

use std::sync::Arc;

use anyhow::{Context, ensure};
use peerbar_vfio_nvme::{Direction, Disk, RegisterAccess, VfioDevice};

use super::fixture::Fixture;
use super::marked::{contents, is_marked, mark};
use super::slot::READ;
use crate::counters::{Begun, TrafficWatch};
use crate::guest_context::GuestContext;

/// Number of reads of the new controller while the mark must stay.
const READS: usize = 64;

/// The state right after a reset.
pub(super) struct DiskReset<'a> {
    watch: TrafficWatch<'a>,
    begun: Begun,
    /// Content that the earlier reads have left in the memory.
    pub(super) contents: Vec<u8>,
}

impl<'a> DiskReset<'a> {
    /// Notes the counters and the memory as soon as the reset has returned.
    pub(super) fn note(guest: &'a GuestContext, gpu: &VfioDevice) -> anyhow::Result<Self> {
        let watch = TrafficWatch::new(guest);
        let begun = watch.begin();
        Ok(Self {
            watch,
            begun,
            contents: contents(gpu)?,
        })
    }

    /// Checks that only data in progress has reached the memory, and nothing since the controller
    /// may do DMA again and executes commands.
    pub(super) fn judge(
        mut self,
        fixture: &Fixture<'_>,
        disk: Disk,
        gpu: &VfioDevice,
    ) -> anyhow::Result<()> {
        ensure!(!disk.is_ready()?, "the disk is ready after its reset");
        let lost = u64::try_from(disk.outstanding())?;
        let device = Arc::clone(disk.device());
        drop(disk);
        let mut disk = Disk::start(device, fixture.space.clone(), RegisterAccess::Mapped)
            .context("the disk does not start after its reset")?;
        // QEMU may still have a transfer that was in progress at the reset. It executes the
        // requests of a device in order.
        disk.transfer(Direction::Read, 0, fixture.address, READ)?;
        mark(gpu)?;
        fixture.nothing_moves(|| {
            let mut reads = 0..READS;
            reads.try_for_each(|_| read_to_own_memory(fixture, &mut disk))
        })?;
        is_marked(&contents(gpu)?)?;
        self.watch.end(self.begun);
        // The disk counts a transfer once QEMU has answered it, so those in progress at the reset
        // may be counted after it.
        let moved = fixture.moved(&self.watch)?;
        let most = lost.saturating_add(1).saturating_mul(READ);
        ensure!(
            moved <= most,
            "{moved} bytes went to the memory of a device after the reset, where {lost} reads of {READ} bytes were in progress, and \
             one was carried out"
        );
        Ok(())
    }
}

/// Executes one read, to memory of this process.
fn read_to_own_memory(fixture: &Fixture<'_>, disk: &mut Disk) -> anyhow::Result<()> {
    disk.transfer(Direction::Read, 0, fixture.own, READ)?;
    let memory = fixture.space.memory(fixture.own);
    let memory = memory.context("memory that is not there")?;
    let mut seen = vec![0; usize::try_from(READ)?];
    memory.read(0, &mut seen)?;
    Ok(fixture.pattern.verify(0, &seen)?)
}
