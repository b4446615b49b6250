//! Source and destination of the reads, and what must hold once the memory is gone.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use anyhow::{Context, ensure};
use peerbar_pattern::Pattern;
use peerbar_report::VfioBackend;
use peerbar_vfio_nvme::{Binding, Direction, Disk, DmaSpace, VfioDevice};

use super::load::Load;
use super::marked::{contents, is_marked, is_marked_or_cleared, mark};
use super::slot::{DEPTH, READ, TIME_OUT};
use crate::checks::vfio_nvme::TakenDevices;
use crate::counters::TrafficWatch;
use crate::guest_context::GuestContext;
use crate::user_drivers::open_gpu;

/// Number of reads that must fail afterwards.
const AFTERWARDS: u64 = 4 * DEPTH;

/// Source and destination of the reads.
pub(super) struct Fixture<'a> {
    pub(super) guest: &'a GuestContext,
    pub(super) taken: &'a TakenDevices<'a>,
    pub(super) backend: VfioBackend,
    pub(super) space: DmaSpace,
    /// That of the GPU.
    pub(super) binding: &'a Binding,
    /// Content of the disk.
    pub(super) pattern: Pattern,
    /// The address of [`READ`] bytes of this process's memory.
    pub(super) own: u64,
    /// The address of the GPU's memory.
    pub(super) address: u64,
}

impl Fixture<'_> {
    /// Checks that reads that begin now end with errors, and move nothing. Reads that were in
    /// progress when the memory was taken away have ended. The disk counts a transfer only when
    /// QEMU has answered it, so their transfers may be counted late.
    pub(super) fn are_refused(&self, disk: &mut Disk) -> anyhow::Result<()> {
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
    pub(super) fn leave_the_mark(&self, disk: &mut Disk, gpu: &VfioDevice) -> anyhow::Result<()> {
        mark(gpu)?;
        self.are_refused(disk)?;
        is_marked(&contents(gpu)?)
    }

    /// Checks that a read moves its bytes to its destination and nowhere else.
    pub(super) fn reach(&self, disk: &mut Disk, gpu: &VfioDevice) -> anyhow::Result<()> {
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
    pub(super) fn after_close(&self, disk: &mut Disk) -> anyhow::Result<()> {
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
    pub(super) fn nothing_moves(
        &self,
        work: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
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
    pub(super) fn moved(&self, watch: &TrafficWatch<'_>) -> anyhow::Result<u64> {
        Ok(watch
            .traffic()?
            .payload_to_devices(self.taken.disk.0.number))
    }
}

/// Waits until the kernel has put the function with this directory in sysfs into D3hot, in which it
/// decodes no memory.
pub(super) fn wait_for_d3hot(pci: &Path) -> anyhow::Result<()> {
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
