//! A disk and, if wanted, a GPU driven from user space.

use std::sync::Arc;

use anyhow::{Context, anyhow, ensure};
use peerbar_nvme_driver::QueueMemory;
use peerbar_report::{Measure, QueueLocation, VfioBackend, VfioNvme};
use peerbar_vfio_nvme::{
    Binding, Direction, Disk, DmaSpace, LIST_BYTES, RegisterAccess, VfioDevice,
};

use super::route::judge;
use super::{CheckOutcome, PAGE, Run};
use crate::counters::{Traffic, TrafficWatch};
use crate::devices::Controller;
use crate::gpus::Gpu;
use crate::guest_context::GuestContext;
use crate::user_drivers::{
    address_space, disk_is_back, give_back_disk, give_back_gpu, map_bar, open_gpu, take, vram,
};
use peerbar_pattern::Pattern;

/// Bytes of each half of the memory: data to write to the disk, and data read back. Both take
/// several commands.
const HALF: u64 = 1 << 20;
/// Bytes of a GPU's memory: for the data, queues and PRP lists.
const VRAM: u64 = 3 * HALF;
const _: () = assert!(2 * HALF + QUEUE_BYTES + LIST_BYTES <= VRAM);

/// Entries of queues in a GPU's memory: a page of submission queue entries, as many as the library
/// keeps outstanding.
const ENTRIES: u16 = 64;
/// Bytes of such queues, one page each.
pub(super) const QUEUE_BYTES: u64 = 2 * PAGE;

impl Run for VfioNvme {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let disk = guest.controller(&self.disk)?;
        let mut watch = TrafficWatch::new(guest);
        let taken = TakenDevices::take(guest, self.backend, disk, self.with.provider())?;
        let outcome = both_ways(guest, self, &taken, &mut watch);
        taken.give_back(guest, outcome)?;
        measure.bytes = 4 * HALF;
        watch.write_to(measure);
        let share = disk.share(measure.bytes);
        let traffic = watch.traffic()?;
        judge(&self.with, &[share], traffic)?;
        judge_queues(self.queues, disk.number, traffic)?;
        judge_lists(self.lists, disk.number, traffic)?;
        Ok(CheckOutcome::by_counters(traffic, disk.number))
    }

    fn has_own_addresses(&self) -> bool {
        true
    }
}

/// Checks that all commands were fetched from the queues' location, and none from elsewhere.
pub(super) fn judge_queues(
    queues: QueueLocation,
    device: u32,
    traffic: &Traffic,
) -> anyhow::Result<()> {
    let ram = traffic.commands_from_guest_ram(device);
    let peers = traffic.commands_from_peers(device);
    let is_right = match queues {
        QueueLocation::GuestRam => ram > 0 && peers == 0,
        QueueLocation::Vram => ram == 0 && peers > 0,
    };
    ensure!(
        is_right,
        "with its queues in {queues:?} the disk fetched {ram} commands from guest RAM and {peers} from another device"
    );
    Ok(())
}

/// Checks that all PRP lists were read from their location, and none from elsewhere.
fn judge_lists(lists: QueueLocation, device: u32, traffic: &Traffic) -> anyhow::Result<()> {
    let [ram, peers] = traffic.list_bytes(device);
    let is_right = match lists {
        QueueLocation::GuestRam => ram > 0 && peers == 0,
        QueueLocation::Vram => ram == 0 && peers > 0,
    };
    ensure!(
        is_right,
        "with its PRP lists in {lists:?} the disk read {ram} bytes of lists from guest RAM and {peers} from another device"
    );
    Ok(())
}

/// A disk, and possibly a GPU, driven by vfio-pci.
pub(super) struct TakenDevices<'a> {
    pub(super) disk: (&'a Controller, Binding),
    pub(super) gpu: Option<(&'a Gpu, Binding)>,
}

impl<'a> TakenDevices<'a> {
    pub(super) fn take(
        guest: &'a GuestContext,
        backend: VfioBackend,
        disk: &'a Controller,
        gpu: Option<&str>,
    ) -> anyhow::Result<Self> {
        let gpu = gpu.map(|name| guest.gpu(name)).transpose()?;
        let of_disk = match take(guest, backend, &disk.pci) {
            Ok(of_disk) => of_disk,
            Err(error) => return Err(with_way_back(error, disk_is_back(guest, disk))),
        };
        let of_gpu = gpu.map(|gpu| take(guest, backend, &gpu.pci)).transpose();
        match of_gpu {
            Ok(of_gpu) => Ok(Self {
                disk: (disk, of_disk),
                gpu: gpu.zip(of_gpu),
            }),
            Err(error) => {
                let back = give_back_disk(guest, disk, of_disk);
                Err(with_way_back(error, back))
            }
        }
    }

    /// Gives both back, regardless of the `outcome` of the work with them.
    pub(super) fn give_back<T>(
        self,
        guest: &GuestContext,
        outcome: anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let (disk, binding) = self.disk;
        let of_disk = give_back_disk(guest, disk, binding);
        let of_gpu = self
            .gpu
            .map(|(gpu, binding)| give_back_gpu(guest, gpu, binding));
        let value = outcome?;
        of_disk.and(of_gpu.unwrap_or(Ok(())))?;
        Ok(value)
    }
}

/// Returns `error`, and the error of the return to the devices' own drivers if there is one.
fn with_way_back(error: anyhow::Error, back: anyhow::Result<()>) -> anyhow::Error {
    match back {
        Ok(()) => error,
        Err(lost) => anyhow!("{error:#}; and then {lost:#}"),
    }
}

/// Runs with mapped registers, and with registers by system calls.
fn both_ways(
    guest: &GuestContext,
    check: &VfioNvme,
    taken: &TakenDevices<'_>,
    watch: &mut TrafficWatch<'_>,
) -> anyhow::Result<()> {
    for access in [RegisterAccess::Mapped, RegisterAccess::Calls] {
        there_and_back(guest, check, taken, access, watch)
            .with_context(|| format!("with registers reached by {access:?}"))?;
    }
    Ok(())
}

fn there_and_back(
    guest: &GuestContext,
    check: &VfioNvme,
    taken: &TakenDevices<'_>,
    access: RegisterAccess,
    watch: &mut TrafficWatch<'_>,
) -> anyhow::Result<()> {
    let space = DmaSpace::new(address_space(check.backend)?);
    let first = space.free_addresses(PAGE)?;
    let mut disk = start(taken, &space, access)?;
    ensure!(
        space.memory(first).is_some(),
        "the disk has no queues at the first free address"
    );
    let vram = match &taken.gpu {
        None => None,
        Some((_, binding)) => Some(Vram::map(&space, check.backend, binding, VRAM)?),
    };
    let address = match &vram {
        None => space.allocate(2 * HALF)?,
        Some(vram) => vram.address,
    };
    let behind = address.saturating_add(2 * HALF);
    if check.queues == QueueLocation::Vram {
        disk.use_queue(2, queues_at(behind))?;
    }
    if check.lists == QueueLocation::Vram {
        disk.use_lists(behind.saturating_add(QUEUE_BYTES))?;
    }
    let memory = space.memory(address).context("memory that is not there")?;
    let pattern = guest.fresh_pattern(taken.disk.0);
    let bytes = usize::try_from(HALF)?;
    memory.write(0, &pattern.bytes(0, bytes))?;
    let back = address.saturating_add(HALF);
    watch.watch(|| {
        disk.transfer(Direction::Write, 0, address, HALF)?;
        disk.transfer(Direction::Read, 0, back, HALF)
    })?;
    let mut seen = vec![0; bytes];
    memory.read(HALF, &mut seen)?;
    pattern.verify(0, &seen)?;
    drop(disk);
    ensure!(
        space.memory(first).is_none(),
        "the queues of a disk that was closed are still mapped"
    );
    Ok(())
}

/// Returns queues in the [`QUEUE_BYTES`] from `submission` on.
pub(super) fn queues_at(submission: u64) -> QueueMemory {
    QueueMemory {
        submission,
        completion: submission.saturating_add(PAGE),
        submission_entries: ENTRIES,
        completion_entries: ENTRIES,
    }
}

/// Brings up the disk, which must be the one of the plan.
pub(super) fn start(
    taken: &TakenDevices<'_>,
    space: &DmaSpace,
    access: RegisterAccess,
) -> anyhow::Result<Disk> {
    let (_, binding) = &taken.disk;
    let device = Arc::new(space.address_space().open(binding)?);
    start_opened(taken, device, space, access)
}

/// Like [`start`], for a disk that is open in the address space.
pub(super) fn start_opened(
    taken: &TakenDevices<'_>,
    device: Arc<VfioDevice>,
    space: &DmaSpace,
    access: RegisterAccess,
) -> anyhow::Result<Disk> {
    let (controller, _) = &taken.disk;
    let disk = Disk::start(device, space.clone(), access)?;
    let identity = disk.identity();
    let bytes = identity.blocks.saturating_mul(identity.block_bytes);
    ensure!(
        identity.serial == controller.serial && bytes == controller.disk.bytes,
        "Identify says that it is {identity:?}, where Linux found {} with {} bytes",
        controller.serial,
        controller.disk.bytes
    );
    Ok(disk)
}

/// Writes `pattern` to the first `length` bytes of the disk.
pub(super) fn fill(disk: &mut Disk, pattern: Pattern, length: u64) -> anyhow::Result<()> {
    let address = disk.space().allocate(length)?;
    let memory = disk.space().memory(address);
    let memory = memory.context("memory that is not there")?;
    memory.write(0, &pattern.bytes(0, usize::try_from(length)?))?;
    disk.transfer(Direction::Write, 0, address, length)?;
    disk.space().unmap(address)?;
    Ok(())
}

/// The start of a GPU's memory in an address space.
pub(super) struct Vram {
    /// Its I/O address.
    pub(super) address: u64,
    /// Kept because closing it would take the memory away.
    _gpu: VfioDevice,
}

impl Vram {
    /// Maps the GPU's BAR, or a dma-buf of it.
    pub(super) fn map(
        space: &DmaSpace,
        backend: VfioBackend,
        binding: &Binding,
        length: u64,
    ) -> anyhow::Result<Self> {
        let gpu = open_gpu(space.address_space(), binding)?;
        let memory = Arc::new(gpu.map(vram(length))?);
        let address = map_bar(space, backend, &gpu, vram(length), memory)?;
        Ok(Self { address, _gpu: gpu })
    }
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::{Completer, Direction, DmaKind, Purpose, Route};

    use super::*;

    #[test]
    fn command_or_list_from_elsewhere_fails() {
        type Judge = fn(QueueLocation, u32, &Traffic) -> anyhow::Result<()>;
        let judges: [(Purpose, Judge); 2] = [
            (Purpose::Command, judge_queues),
            (Purpose::List, judge_lists),
        ];
        let (ram, peer) = (Completer::GuestRam, Completer::PeerBar);
        for (purpose, judge) in judges {
            let read = |completers: &[Completer]| {
                let mut traffic = Traffic::default();
                for completer in completers {
                    let kind = DmaKind {
                        purpose,
                        completer: *completer,
                        route: Route::Upstream,
                        direction: Direction::Read,
                    };
                    traffic.count(0, kind, 64, 0);
                }
                traffic
            };
            let judged =
                |location, completers: &[Completer]| judge(location, 0, &read(completers)).is_ok();
            let (in_vram, in_ram) = (QueueLocation::Vram, QueueLocation::GuestRam);
            assert!(judged(in_vram, &[peer]) && judged(in_ram, &[ram]));
            assert!(!judged(in_vram, &[peer, ram]) && !judged(in_vram, &[]));
            assert!(!judged(in_ram, &[peer]) && !judged(in_ram, &[ram, peer]));
        }
    }
}
