//! Memory of a GPU that is taken away while a disk reads into it.

mod disk_reset;
mod load;
mod marked;
mod slot;

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use peerbar_report::{Measure, VfioBackend, VfioRevocation};
use peerbar_vfio_nvme::{Binding, Direction, Disk, DmaSpace, RegisterAccess, VfioDevice};

use self::disk_reset::DiskReset;
use self::load::Load;
use self::marked::{contents, is_marked, is_marked_or_cleared, judge_reads, mark};
use self::slot::Slot;
use super::vfio_nvme::{TakenDevices, fill, start};
use super::{CheckOutcome, Run};
use crate::counters::TrafficWatch;
use crate::guest_context::GuestContext;
use crate::kmsg::Expected;
use crate::user_drivers::{address_space, open_gpu, vram};
use peerbar_pattern::Pattern;

/// Bytes of one read.
const READ: u64 = 32 << 10;
/// Number of outstanding reads.
const DEPTH: u64 = 16;
/// Bytes of the GPU's memory that the reads fill.
const LENGTH: u64 = READ * DEPTH;
/// Ranges of the disk from which each part of the memory is read in turn. With three, a read that
/// ended with success but moved nothing leaves contents that neither it nor the next one has.
const RANGES: u64 = 3;
/// Number of successful reads before the memory is taken away.
const BEFORE: u64 = 64;
/// Number of reads that must fail afterwards.
const AFTERWARDS: u64 = 4 * DEPTH;
/// Time limit for a command, or for the load as a whole.
const TIME_OUT: Duration = Duration::from_secs(20);

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

/// Source and destination of the reads.
struct Fixture<'a> {
    guest: &'a GuestContext,
    taken: &'a TakenDevices<'a>,
    backend: VfioBackend,
    space: DmaSpace,
    /// That of the GPU.
    binding: &'a Binding,
    /// Content of the disk.
    pattern: Pattern,
    /// The address of [`READ`] bytes of this process's memory.
    own: u64,
    /// The address of the GPU's memory.
    address: u64,
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
    fixture.judge(way, disk, (kept, reset), &slots)
}

impl Fixture<'_> {
    /// Checks the state after a loss: the GPU, unless it was closed, and the disk, which may have
    /// been reset.
    fn judge(
        &self,
        way: Way,
        mut disk: Disk,
        (gpu, reset): (Option<VfioDevice>, Option<DiskReset>),
        slots: &[Slot],
    ) -> anyhow::Result<()> {
        let judge_reads = |contents: &[u8]| judge_reads(contents, slots, self.pattern);
        match (way, gpu, reset) {
            (Way::DiskReset, Some(gpu), Some(reset)) => {
                judge_reads(&reset.contents)?;
                reset.judge(self, disk, &gpu)
            }
            (Way::DecodeOff, Some(gpu), _) => {
                self.are_refused(&mut disk)?;
                gpu.decode(true)?;
                judge_reads(&contents(&gpu)?)?;
                mark(&gpu)?;
                gpu.decode(false)?;
                self.are_refused(&mut disk)?;
                gpu.decode(true)?;
                is_marked(&contents(&gpu)?)
            }
            (Way::Unmap, Some(gpu), _) => {
                judge_reads(&contents(&gpu)?)?;
                self.leave_the_mark(&mut disk, &gpu)
            }
            (Way::Reset, Some(gpu), _) if way.is_passing(self.backend) => {
                self.reach(&mut disk, &gpu)
            }
            (Way::Reset, Some(gpu), _) => self.leave_the_mark(&mut disk, &gpu),
            _ => self.after_close(&mut disk),
        }
    }

    /// Checks that reads that begin now end with errors, and move nothing. Reads that were in
    /// progress when the memory was taken away have ended. The disk counts a transfer only when
    /// QEMU has answered it, so their transfers may be counted late.
    fn are_refused(&self, disk: &mut Disk) -> anyhow::Result<()> {
        let load = Load::default();
        self.nothing_moves(|| {
            let work = || load.wait_for(&load.failed, AFTERWARDS);
            load.during(disk, self.address, work).map(drop)
        })?;
        let done = load.done.load(Ordering::Acquire);
        ensure!(done == 0, "{done} reads after it end with success");
        Ok(())
    }

    /// Like [`Fixture::are_refused`], and checks that the memory stays unchanged.
    fn leave_the_mark(&self, disk: &mut Disk, gpu: &VfioDevice) -> anyhow::Result<()> {
        mark(gpu)?;
        self.are_refused(disk)?;
        is_marked(&contents(gpu)?)
    }

    /// Checks that a read moves its bytes to its destination and nowhere else.
    fn reach(&self, disk: &mut Disk, gpu: &VfioDevice) -> anyhow::Result<()> {
        mark(gpu)?;
        let mut watch = TrafficWatch::new(self.guest);
        watch.watch(|| disk.transfer(Direction::Read, 0, self.address, READ))?;
        let moved = self.moved(&watch)?;
        ensure!(
            moved == READ,
            "a read after it moved {moved} bytes to the GPU, not {READ}"
        );
        let contents = contents(gpu)?;
        let (read, rest) = contents
            .split_at_checked(usize::try_from(READ)?)
            .context("memory that is too short")?;
        self.pattern.verify(0, read)?;
        is_marked(rest)
    }

    /// Checks that reads are refused once the GPU is closed. When it is open again, they do not
    /// reach its memory with iommufd. With type 1 they do while it is open, since the mapping has
    /// outlived the close.
    fn after_close(&self, disk: &mut Disk) -> anyhow::Result<()> {
        self.are_refused(disk)?;
        let open = || open_gpu(self.space.address_space(), self.binding);
        let gpu = open()?;
        if self.backend == VfioBackend::Iommufd {
            let left = self.leave_the_mark(disk, &gpu);
            return left.context("once the GPU is open again");
        }
        mark(&gpu)?;
        drop(gpu);
        wait_for_d3hot(self.binding.pci())?;
        self.are_refused(disk)
            .context("once the GPU is closed again")?;
        is_marked_or_cleared(&contents(&open()?)?)
    }

    /// Checks that `work` moves nothing to the memory of a device.
    fn nothing_moves(&self, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut watch = TrafficWatch::new(self.guest);
        watch.watch(work)?;
        let moved = self.moved(&watch)?;
        ensure!(
            moved == 0,
            "{moved} bytes went to the memory of a device afterwards"
        );
        Ok(())
    }

    /// Returns the bytes that the disk has moved to the memory of devices.
    fn moved(&self, watch: &TrafficWatch<'_>) -> anyhow::Result<u64> {
        Ok(watch
            .traffic()?
            .payload_to_devices(self.taken.disk.0.number))
    }
}

/// Waits until the kernel has put the function with this directory in sysfs into D3hot, in which it
/// decodes no memory.
fn wait_for_d3hot(pci: &Path) -> anyhow::Result<()> {
    let file = pci.join("power_state");
    let begun = Instant::now();
    loop {
        let state =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        if state.trim_end() == "D3hot" {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < TIME_OUT,
            "{} is in {}, not in D3hot, {} s after its close",
            pci.display(),
            state.trim_end(),
            TIME_OUT.as_secs()
        );
        thread::yield_now();
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
