//! Memory of a GPU that is taken away while a disk reads into it.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use peerbar_report::{Measure, VfioBackend, VfioRevocation};
use peerbar_vfio_nvme::{Binding, Direction, Disk, DmaSpace, RegisterAccess, VfioDevice};

use super::vfio_nvme::{TakenDevices, start};
use super::{Outcome, Run};
use crate::counters::TrafficWatch;
use crate::guest_context::GuestContext;
use crate::kmsg::Expected;
use crate::pattern::Pattern;
use crate::user_drivers::{address_space, open_gpu, vram};

/// Bytes of one read.
const READ: u64 = 32 << 10;
/// Reads that are outstanding.
const DEPTH: u64 = 16;
/// Bytes of the GPU's memory that are read into.
const LENGTH: u64 = READ * DEPTH;
/// Places on the disk that each part of the memory is read from in turn. With three, a read that ended with success but moved nothing
/// leaves contents that neither it nor the next one has.
const PLACES: u64 = 3;
/// Reads that have ended well before the memory is taken away.
const BEFORE: u64 = 64;
/// Reads that must fail afterwards.
const AFTERWARDS: u64 = 4 * DEPTH;
/// How long a command, or the load as a whole, may take to end.
const PATIENCE: Duration = Duration::from_secs(20);

impl Run for VfioRevocation {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<Outcome> {
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
        Ok(Outcome::Passed)
    }

    fn expected_log(&self) -> Expected<'_> {
        Expected::FAULTS
    }

    fn has_own_addresses(&self) -> bool {
        true
    }
}

/// How the memory is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The GPU's BARs are no longer decoded.
    DecodeOff,
    /// The GPU is reset, which it survives.
    Reset,
    /// The addresses stand for nothing any more.
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

    /// Whether the memory is there again once it has happened. A dma-buf in iommufd stays revoked.
    fn is_passing(self, backend: VfioBackend) -> bool {
        self == Self::Reset && backend == VfioBackend::Type1
    }

    /// Whether the contents of the memory outlive it, and are there for this process again. A reset and a close of the GPU may clear them.
    fn keeps_contents(self) -> bool {
        matches!(self, Self::DecodeOff | Self::Unmap | Self::DiskReset)
    }

    /// Whether nothing reaches the memory once the call has returned. With type 1 the mapping outlives a close, and vfio-pci
    /// resets the GPU, restores its registers with memory decode on, and puts it into D3hot some time later (Linux
    /// drivers/vfio/pci/vfio_pci_core.c, `vfio_pci_core_disable`).
    fn is_at_once(self, backend: VfioBackend) -> bool {
        (self, backend) != (Self::Close, VfioBackend::Type1)
    }
}

/// One loss: reads without a pause, the loss, then what is left is checked.
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
    fill(&mut disk, pattern)?;
    let (_, binding) = taken.gpu.as_ref().context("a check without its GPU")?;
    let (gpu, address) = map(&space, backend, binding)?;
    let device = Arc::clone(disk.device());
    let load = Load::default();
    let (kept, slots) = load.during(&mut disk, address, || {
        load.wait_for(&load.done, BEFORE)?;
        let kept = take_away(way, gpu, &device, &space, address)?;
        if !way.is_at_once(backend) {
            wait_for_d3hot(binding.pci())?;
        }
        Ok(kept)
    })?;
    measure.bytes = measure
        .bytes
        .saturating_add(load.done.load(Ordering::Acquire).saturating_mul(READ));
    afterwards(guest, taken, backend, way, (&mut disk, address))?;
    match kept {
        Some(gpu) if way.keeps_contents() => {
            gpu.decode(true)?;
            judge_contents(&gpu, &slots, pattern)
        }
        kept => {
            drop(kept);
            if way == Way::Close && backend == VfioBackend::Iommufd {
                let _again = open_gpu(space.address_space(), binding)?;
                are_refused(guest, taken, &mut disk, address)
                    .context("once the GPU is open again")?;
            }
            Ok(())
        }
    }
}

/// Writes `pattern` to all places on the disk that are read.
fn fill(disk: &mut Disk, pattern: Pattern) -> anyhow::Result<()> {
    let length = PLACES.saturating_mul(LENGTH);
    let address = disk.space().allocate(length)?;
    let memory = disk.space().memory(address);
    let memory = memory.context("memory that is not there")?;
    memory.write(0, &pattern.bytes(0, usize::try_from(length)?))?;
    disk.transfer(Direction::Write, 0, address, length)?;
    Ok(())
}

/// What reads to `address` come to that begin once the memory is gone, or once it is there again.
fn afterwards(
    guest: &GuestContext,
    taken: &TakenDevices<'_>,
    backend: VfioBackend,
    way: Way,
    (disk, address): (&mut Disk, u64),
) -> anyhow::Result<()> {
    let mut watch = TrafficWatch::new(guest);
    if way == Way::DiskReset {
        return nothing_moves(taken, &mut watch, || {
            ensure!(!disk.is_ready()?, "the disk is ready after its reset");
            Ok(())
        });
    }
    if way.is_passing(backend) {
        watch.watch(|| disk.transfer(Direction::Read, 0, address, READ))?;
        let moved = watch.traffic()?.payload_to_devices(taken.disk.0.number);
        ensure!(
            moved == READ,
            "a read after it moved {moved} bytes to the GPU, not {READ}"
        );
        return Ok(());
    }
    are_refused(guest, taken, disk, address)
}

/// The memory has what the reads have put there that ended with success.
fn judge_contents(gpu: &VfioDevice, slots: &[Slot], pattern: Pattern) -> anyhow::Result<()> {
    let memory = gpu.map(vram(LENGTH))?;
    let mut judged = 0_u64;
    for (number, slot) in (0..).zip(slots) {
        let mut seen = vec![0; usize::try_from(READ)?];
        memory.read(READ.saturating_mul(number), &mut seen)?;
        let is_judged = slot.judge(number, &seen, pattern);
        judged += u64::from(is_judged.with_context(|| format!("part {number} of the memory"))?);
    }
    ensure!(judged > 0, "no part of the memory was read with success");
    Ok(())
}

/// Reads to `address` that begin now end with errors, and move nothing. Those that were in progress when the memory was taken away
/// have ended: the disk counts a transfer only when QEMU has answered it, so their transfers may be counted late.
fn are_refused(
    guest: &GuestContext,
    taken: &TakenDevices<'_>,
    disk: &mut Disk,
    address: u64,
) -> anyhow::Result<()> {
    let load = Load::default();
    let mut watch = TrafficWatch::new(guest);
    nothing_moves(taken, &mut watch, || {
        let work = || load.wait_for(&load.failed, AFTERWARDS);
        load.during(disk, address, work).map(drop)
    })?;
    let done = load.done.load(Ordering::Acquire);
    ensure!(done == 0, "{done} reads after it end with success");
    Ok(())
}

/// Waits until the kernel has put the function with this directory in sysfs into D3hot, in which it decodes no memory.
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
            begun.elapsed() < PATIENCE,
            "{} is in {}, not in D3hot, {} s after its close",
            pci.display(),
            state.trim_end(),
            PATIENCE.as_secs()
        );
        thread::yield_now();
    }
}

/// `work` moves nothing to the memory of a device.
fn nothing_moves(
    taken: &TakenDevices<'_>,
    watch: &mut TrafficWatch<'_>,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    watch.watch(work)?;
    moved_nothing(taken, watch)
}

/// The disk has moved nothing to the memory of a device while `watch` watched.
fn moved_nothing(taken: &TakenDevices<'_>, watch: &TrafficWatch<'_>) -> anyhow::Result<()> {
    let moved = watch.traffic()?.payload_to_devices(taken.disk.0.number);
    ensure!(
        moved == 0,
        "{moved} bytes went to the memory of a device afterwards"
    );
    Ok(())
}

/// Opens the GPU and maps the start of its memory; this process keeps no mapping of it.
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

/// Takes the memory away; returns the GPU, if it is still open.
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

/// Reads without a pause.
#[derive(Debug, Default)]
struct Load {
    /// Reads that ended well.
    done: AtomicU64,
    /// Reads that ended with an error.
    failed: AtomicU64,
    /// Whether no further read begins.
    stop: AtomicBool,
}

impl Load {
    /// Reads into `address` while `work` runs, and until the last of these reads has ended. Returns what `work` does, and what was read.
    fn during<T>(
        &self,
        disk: &mut Disk,
        address: u64,
        work: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, Vec<Slot>)> {
        thread::scope(|scope| {
            let reads = scope.spawn(|| self.run(disk, address));
            let worked = work();
            self.stop.store(true, Ordering::Release);
            match reads.join() {
                Ok(read) => read.and_then(|slots| Ok((worked?, slots))),
                Err(_) => bail!("the thread that reads panicked"),
            }
        })
    }

    /// Reads until it is to stop, and then until no command is outstanding or the controller is disabled.
    fn run(&self, disk: &mut Disk, address: u64) -> anyhow::Result<Vec<Slot>> {
        let mut slots = vec![Slot::default(); usize::try_from(DEPTH)?];
        let mut free: Vec<usize> = (0..slots.len()).collect();
        let mut of_command = BTreeMap::new();
        let mut stopped = None;
        loop {
            if self.stop.load(Ordering::Acquire) {
                stopped.get_or_insert_with(Instant::now);
            }
            while let (None, Some(index)) = (stopped, free.last().copied()) {
                let number = u64::try_from(index)?;
                let slot = slots.get_mut(index).context("a slot that is not there")?;
                let block = slot.begin(number) / disk.identity().block_bytes;
                let at = address.saturating_add(number.saturating_mul(READ));
                let cid = disk.submit(Direction::Read, block, at, READ)?;
                of_command.insert(cid, index);
                free.pop();
            }
            if let Some((_, completion)) = disk.reap()? {
                let is_done = completion.status == 0;
                if let Some(index) = of_command.remove(&completion.cid) {
                    if let Some(slot) = slots.get_mut(index).filter(|_| is_done) {
                        slot.end_with_success();
                    }
                    free.push(index);
                }
                let count = if is_done { &self.done } else { &self.failed };
                count.fetch_add(1, Ordering::AcqRel);
                continue;
            }
            match stopped {
                Some(_) if disk.outstanding() == 0 || !disk.is_ready()? => return Ok(slots),
                Some(since) if since.elapsed() > PATIENCE => bail!(
                    "{} reads have not ended {} s later",
                    disk.outstanding(),
                    PATIENCE.as_secs()
                ),
                _ => thread::yield_now(),
            }
        }
    }

    /// Waits until `count`, one of those above, is at least `reads`.
    fn wait_for(&self, count: &AtomicU64, reads: u64) -> anyhow::Result<()> {
        let begun = Instant::now();
        while count.load(Ordering::Acquire) < reads {
            let (done, failed) = (&self.done, &self.failed);
            ensure!(
                begun.elapsed() < PATIENCE,
                "{} reads have ended well and {} with an error, and no more do",
                done.load(Ordering::Acquire),
                failed.load(Ordering::Acquire)
            );
            thread::yield_now();
        }
        Ok(())
    }
}

/// A part of the memory, of [`READ`] bytes: what reads have put there, one after the other. A read that has failed is repeated from the
/// same place on the disk.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Reads that ended with success.
    done: u64,
    /// Whether a further one has begun, which has failed or not ended.
    is_open: bool,
}

impl Slot {
    /// Begins a read into the slot with this number; returns its byte offset on the disk.
    fn begin(&mut self, number: u64) -> u64 {
        self.is_open = true;
        Self::place(number, self.done)
    }

    fn end_with_success(&mut self) {
        self.done = self.done.saturating_add(1);
        self.is_open = false;
    }

    /// Where on the disk the read of a slot begins that comes after `earlier` successful ones.
    fn place(number: u64, earlier: u64) -> u64 {
        let set = (earlier % PLACES).saturating_mul(LENGTH);
        set.saturating_add(number.saturating_mul(READ))
    }

    /// Each byte of `seen` is of the last read that ended with success, or of the one that has begun since. Returns whether there was
    /// such a read, without which nothing is known.
    fn judge(self, number: u64, seen: &[u8], pattern: Pattern) -> anyhow::Result<bool> {
        let Some(last) = self.done.checked_sub(1) else {
            return Ok(false);
        };
        let of_read = |earlier| pattern.bytes(Self::place(number, earlier), seen.len());
        let mut expected = of_read(last);
        if self.is_open {
            for ((expected, begun), seen) in expected.iter_mut().zip(of_read(self.done)).zip(seen) {
                if begun == *seen {
                    *expected = begun;
                }
            }
        }
        let wrong = expected
            .iter()
            .zip(seen)
            .filter(|(expected, seen)| expected != seen)
            .count();
        ensure!(
            wrong == 0,
            "{wrong} of {} bytes are not of read {last}, which ended with success{}",
            seen.len(),
            if self.is_open {
                ", nor of the next one"
            } else {
                ""
            }
        );
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATTERN: Pattern = Pattern { disk: 1, round: 2 };

    /// Part 3 of the memory as successful read `earlier` leaves it.
    fn left_by(earlier: u64) -> Vec<u8> {
        PATTERN.bytes(Slot::place(3, earlier), usize::try_from(READ).unwrap())
    }

    #[test]
    fn read_that_moved_nothing_but_succeeded_is_found() {
        let mut slot = Slot::default();
        assert!(!slot.judge(3, &left_by(0), PATTERN).unwrap());
        for earlier in 0..5 {
            assert_eq!(slot.begin(3), Slot::place(3, earlier));
            slot.end_with_success();
        }
        assert!(slot.judge(3, &left_by(4), PATTERN).unwrap());
        let error = slot.judge(3, &left_by(3), PATTERN).unwrap_err().to_string();
        assert!(
            error.ends_with("read 4, which ended with success"),
            "{error}"
        );
        // The next one fails, and is repeated from the same place.
        assert_eq!(slot.begin(3), slot.begin(3));
        let error = slot.judge(3, &left_by(3), PATTERN).unwrap_err().to_string();
        assert!(error.ends_with("nor of the next one"), "{error}");
    }

    #[test]
    fn read_that_failed_may_have_moved_some_bytes() {
        let mut slot = Slot::default();
        slot.begin(3);
        slot.end_with_success();
        slot.begin(3);
        let mut seen = left_by(0);
        seen[7000..9000].copy_from_slice(&left_by(1)[7000..9000]);
        assert!(slot.judge(3, &seen, PATTERN).unwrap());
        seen[8000] ^= 1;
        assert!(slot.judge(3, &seen, PATTERN).is_err());
    }
}
