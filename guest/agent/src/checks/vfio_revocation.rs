//! Memory of a GPU that is taken away while a disk reads into it.

mod disk_reset;
mod fixture;
mod load;
mod marked;
mod slot;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::Context;
use peerbar_report::{Measure, VfioBackend, VfioRevocation};
use peerbar_vfio_nvme::{Binding, Disk, DmaSpace, RegisterAccess, VfioDevice};

use self::disk_reset::DiskReset;
use self::fixture::{Fixture, wait_for_d3hot};
use self::load::Load;
use self::marked::{contents, is_marked, judge_reads, mark};
use self::slot::{LENGTH, RANGES, READ, Slot};
use super::vfio_nvme::{TakenDevices, fill, start};
use super::{CheckOutcome, Run};
use crate::guest_context::GuestContext;
use crate::kmsg::Expected;
use crate::user_drivers::{address_space, open_gpu, vram};

/// Number of successful reads before the memory is taken away.
const BEFORE: u64 = 64;

impl Run for VfioRevocation {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let disk = guest.controller(&self.disk)?;
        let taken = TakenDevices::take(guest, self.backend, disk, Some(&self.gpu))?;
        let mut outcome = Ok(());
        for way in Way::ALL {
            outcome = outcome.and_then(|()| {
                lose(guest, &taken, self.backend, way, measure)
                    .with_context(|| format!("{way:?} during reads"))
            });
        }
        taken.give_back(guest, outcome)?;
        Ok(CheckOutcome::Passed)
    }

    fn expected_log(&self) -> Expected<'_> {
        Expected::FAULTS
    }

    fn has_own_addresses(&self) -> bool {
        true
    }
}

/// The way in which the memory is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The GPU's BARs are no longer decoded.
    DecodeOff,
    /// The GPU is reset, which it survives.
    Reset,
    /// The addresses become unmapped.
    Unmap,
    /// The GPU is closed.
    Close,
    /// The disk is reset.
    DiskReset,
}

impl Way {
    const ALL: [Self; 5] = [
        Self::DecodeOff,
        Self::Reset,
        Self::Unmap,
        Self::Close,
        Self::DiskReset,
    ];

    /// Returns `true` if the memory comes back afterwards. A dma-buf in iommufd stays revoked.
    fn is_passing(self, backend: VfioBackend) -> bool {
        self == Self::Reset && backend == VfioBackend::Type1
    }

    /// Returns `true` if nothing reaches the memory once the call has returned. With type 1 the
    /// mapping outlives a close, and vfio-pci resets the GPU, restores its registers with memory
    /// decode on, and puts it into D3hot some time later (Linux drivers/vfio/pci/vfio_pci_core.c,
    /// `vfio_pci_core_disable`).
    fn is_at_once(self, backend: VfioBackend) -> bool {
        (self, backend) != (Self::Close, VfioBackend::Type1)
    }
}

/// One loss: continuous reads, the loss, then a check of what is left.
fn lose(
    guest: &GuestContext,
    taken: &TakenDevices<'_>,
    backend: VfioBackend,
    way: Way,
    measure: &mut Measure,
) -> anyhow::Result<()> {
    let space = DmaSpace::new(address_space(backend)?);
    let mut disk = start(taken, &space, RegisterAccess::Mapped)?;
    let pattern = guest.fresh_pattern(taken.disk.0);
    fill(&mut disk, pattern, RANGES.saturating_mul(LENGTH))?;
    let own = space.allocate(READ)?;
    let (_, binding) = taken.gpu.as_ref().context("a check without its GPU")?;
    let (gpu, address) = map(&space, backend, binding)?;
    let fixture = Fixture {
        guest,
        taken,
        backend,
        space,
        binding,
        pattern,
        own,
        address,
    };
    let device = Arc::clone(disk.device());
    let load = Load::default();
    let ((kept, reset), slots) = load.during(&mut disk, address, || {
        load.wait_for(&load.done, BEFORE)?;
        let kept = take_away(way, gpu, &device, &fixture.space, address)?;
        if !way.is_at_once(backend) {
            wait_for_d3hot(binding.pci())?;
        }
        let reset = kept.as_ref().filter(|_| way == Way::DiskReset);
        let reset = reset.map(|gpu| DiskReset::note(guest, gpu)).transpose()?;
        Ok((kept, reset))
    })?;
    measure.bytes = measure
        .bytes
        .saturating_add(load.done.load(Ordering::Acquire).saturating_mul(READ));
    judge(&fixture, way, disk, (kept, reset), &slots)
}

/// Checks the state after a loss: the GPU, unless it was closed, and the disk, which may have
/// been reset.
fn judge(
    fixture: &Fixture<'_>,
    way: Way,
    mut disk: Disk,
    (gpu, reset): (Option<VfioDevice>, Option<DiskReset>),
    slots: &[Slot],
) -> anyhow::Result<()> {
    let judge_reads = |contents: &[u8]| judge_reads(contents, slots, fixture.pattern);
    match (way, gpu, reset) {
        (Way::DiskReset, Some(gpu), Some(reset)) => {
            judge_reads(&reset.contents)?;
            reset.judge(fixture, disk, &gpu)
        }
        (Way::DecodeOff, Some(gpu), _) => {
            fixture.are_refused(&mut disk)?;
            gpu.decode(true)?;
            judge_reads(&contents(&gpu)?)?;
            mark(&gpu)?;
            gpu.decode(false)?;
            fixture.are_refused(&mut disk)?;
            gpu.decode(true)?;
            is_marked(&contents(&gpu)?)
        }
        (Way::Unmap, Some(gpu), _) => {
            judge_reads(&contents(&gpu)?)?;
            fixture.leave_the_mark(&mut disk, &gpu)
        }
        (Way::Reset, Some(gpu), _) if way.is_passing(fixture.backend) => {
            fixture.reach(&mut disk, &gpu)
        }
        (Way::Reset, Some(gpu), _) => fixture.leave_the_mark(&mut disk, &gpu),
        _ => fixture.after_close(&mut disk),
    }
}

/// Opens the GPU and maps the start of its memory. This process keeps no mapping of it.
fn map(
    space: &DmaSpace,
    backend: VfioBackend,
    binding: &Binding,
) -> anyhow::Result<(VfioDevice, u64)> {
    let gpu = open_gpu(space.address_space(), binding)?;
    let address = space.free_addresses(LENGTH)?;
    match backend {
        VfioBackend::Type1 => {
            let memory = gpu.map(vram(LENGTH))?;
            space.address_space().map(address, &memory)?;
        }
        VfioBackend::Iommufd => {
            let dma_buf = gpu.export(vram(LENGTH))?;
            space
                .address_space()
                .map_dma_buf(address, dma_buf.as_fd(), LENGTH)?;
        }
    }
    Ok((gpu, address))
}

/// Takes the memory away. Returns the GPU, if it is still open.
fn take_away(
    way: Way,
    gpu: VfioDevice,
    disk: &VfioDevice,
    space: &DmaSpace,
    address: u64,
) -> anyhow::Result<Option<VfioDevice>> {
    match way {
        Way::DecodeOff => gpu.decode(false)?,
        Way::Reset => gpu.reset()?,
        Way::Unmap => space.address_space().unmap(address, LENGTH)?,
        Way::DiskReset => disk.reset()?,
        Way::Close => {
            drop(gpu);
            return Ok(None);
        }
    }
    Ok(Some(gpu))
}
