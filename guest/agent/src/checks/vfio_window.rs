//! A disk that this process drives by vfio-pci reaches the VRAM of a GPU that has its own driver:
//! by type 1, through a mapping of the window.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use peerbar_gds::{Buffer, Doorbells, GpuQueue, GpuRequest};
use peerbar_nvme_driver::QueueMemory;
use peerbar_report::{Measure, VfioBackend, VfioWindow};
use peerbar_vfio_nvme::{Direction, Disk, DmaSpace, RegisterAccess};

use super::vfio_nvme::{TakenDevices, start};
use super::{CheckOutcome, Run};
use crate::counters::{Traffic, TrafficWatch};
use crate::disk::fill;
use crate::guest_context::GuestContext;
use crate::user_drivers::address_space;
use crate::user_gpu::TIME_OUT;
use peerbar_pattern::Pattern;

/// Number of reads of the launch, and bytes of each. The window is trapped: each 8 bytes are a
/// message.
const READS: u16 = 32;
const READ_BYTES: u64 = 4096;
const BYTES: u64 = READS as u64 * READ_BYTES;
/// Entries of each queue, and the number of the GPU's queue pair. The first queue pair belongs to
/// the program.
const ENTRIES: u16 = 16;
const QUEUE: u16 = 2;
/// Time limit from one completion to the next.
const LIMIT: Duration = Duration::from_secs(10);
/// Distance of the offsets that are inspected.
const STEP: usize = 4096;
/// Bytes of a doorbell.
const DOORBELL_BYTES: u64 = 4;

impl Run for VfioWindow {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let (disk, gpu) = (guest.controller(&self.disk)?, guest.gpu(&self.gpu)?);
        disk.disk.check(0, BYTES)?;
        let pattern = guest.fresh_pattern(disk);
        let length = usize::try_from(BYTES)?;
        fill(&disk.disk.open_direct()?, pattern, 0, length)?;
        let opened = gpu.open()?;
        let mut watch = TrafficWatch::new(guest);
        let taken = TakenDevices::take(guest, VfioBackend::Type1, disk, None)?;
        let read = through_window(&taken, &opened, pattern, &mut watch);
        let doorbells = taken.give_back(guest, read)?;
        measure.bytes = BYTES;
        watch.write_to(measure);
        judge(watch.traffic()?, (disk.number, gpu.number), doorbells)?;
        Ok(CheckOutcome::Said(
            "a buffer that is freed stays the disk's; after a revoke the disk reaches no other owner's memory".to_owned(),
        ))
    }

    fn has_own_addresses(&self) -> bool {
        true
    }
}

/// Lets the GPU read by the disk's queues, then removes memory while the disk has addresses for it.
/// Returns the number of doorbells that the GPU wrote.
fn through_window(
    taken: &TakenDevices<'_>,
    gpu: &peerbar_gds::Gpu,
    pattern: Pattern,
    watch: &mut TrafficWatch<'_>,
) -> anyhow::Result<u64> {
    let space = DmaSpace::new(address_space(VfioBackend::Type1)?);
    let mut disk = start(taken, &space, RegisterAccess::Mapped)?;
    let doorbells = read_by_gpu(&mut disk, &space, gpu, pattern, watch)?;
    keeps_freed_memory(&mut disk, &space, gpu, pattern).context("after a free")?;
    loses_revoked_memory(&mut disk, &space, gpu, pattern).context("after a revoke")?;
    Ok(doorbells)
}

/// Maps a buffer of the GPU for the disk. Returns its address there.
fn map(space: &DmaSpace, buffer: &Buffer) -> anyhow::Result<u64> {
    let memory = Arc::new(buffer.map_again()?);
    let address = space.free_addresses(memory.size())?;
    space
        .map(address, memory)
        .context("mapping the window by type 1")?;
    Ok(address)
}

fn read_by_gpu(
    disk: &mut Disk,
    space: &DmaSpace,
    gpu: &peerbar_gds::Gpu,
    pattern: Pattern,
    watch: &mut TrafficWatch<'_>,
) -> anyhow::Result<u64> {
    let mut queue = GpuQueue::allocate(gpu, ENTRIES, READS)?;
    let buffer = gpu.allocate(BYTES)?;
    let (queues, data) = (map(space, queue.memory())?, map(space, &buffer)?);
    let offsets = disk.create_queue(
        QUEUE,
        QueueMemory {
            submission: queues,
            completion: queues.saturating_add(queue.completion_offset()),
            submission_entries: ENTRIES,
            completion_entries: ENTRIES,
        },
    )?;
    let doorbells = Doorbells {
        registers: gpu.import(disk.export_registers()?)?,
        tail: offsets.tail,
        head: offsets.head,
    };
    let blocks = READ_BYTES / disk.identity().block_bytes;
    let request = |index: u64| {
        let to = data.saturating_add(index * READ_BYTES);
        Ok(GpuRequest::read(index * blocks, u32::try_from(blocks)?, to))
    };
    let requests = (0..u64::from(READS)).map(request);
    let requests = requests.collect::<anyhow::Result<Vec<_>>>()?;
    let statuses = watch.watch(|| {
        queue.submit(&doorbells, 1, &requests, LIMIT)?;
        queue.wait(TIME_OUT)
    })?;
    ensure!(
        statuses == vec![0; usize::from(READS)],
        "the reads end with {statuses:x?}"
    );
    pattern.verify(0, &content(&buffer)?)?;
    let doorbells = queue.statistics()?.doorbells;
    disk.delete_queue(QUEUE)?;
    space.unmap(queues)?;
    queue.release();
    space.unmap(data)?;
    Ok(doorbells)
}

fn content(buffer: &Buffer) -> anyhow::Result<Vec<u8>> {
    let mut seen = vec![0; usize::try_from(BYTES)?];
    buffer.mapping().read(0, &mut seen)?;
    Ok(seen)
}

/// Checks that freed memory is not given to another owner while the address space maps it.
fn keeps_freed_memory(
    disk: &mut Disk,
    space: &DmaSpace,
    gpu: &peerbar_gds::Gpu,
    pattern: Pattern,
) -> anyhow::Result<()> {
    let buffer = gpu.allocate(BYTES)?;
    let address = map(space, &buffer)?;
    buffer.free()?;
    let next = gpu.allocate(BYTES)?;
    disk.transfer(Direction::Read, 0, address, READ_BYTES)?;
    ensure!(
        content(&next)?.iter().all(|byte| *byte == 0),
        "the disk has written to the next owner's memory"
    );
    let memory = space.unmap(address)?.context("memory that is not mapped")?;
    let mut seen = vec![0; usize::try_from(READ_BYTES)?];
    memory.read(0, &mut seen)?;
    Ok(pattern.verify(0, &seen)?)
}

/// Checks that revoked memory is lost. Type 1 cannot notice the revocation: its translation stays.
/// So the window refuses accesses through it, and gives the addresses to no other buffer.
fn loses_revoked_memory(
    disk: &mut Disk,
    space: &DmaSpace,
    gpu: &peerbar_gds::Gpu,
    pattern: Pattern,
) -> anyhow::Result<()> {
    let buffer = gpu.allocate(BYTES)?;
    let address = map(space, &buffer)?;
    let bus_address = buffer.placement(0)?.bus_address;
    buffer.revoke()?;
    let others = fill_window(gpu)?;
    ensure!(
        !is_given_out(&others, bus_address)?,
        "another owner has {bus_address:#x} of the window, which the disk still has addresses for"
    );
    let next = others.last().context("a window without pages")?;
    writes_no_other_memory(disk, address, &others)?;
    reads_no_other_memory(disk, space, address, next, pattern)?;
    drop(space.unmap(address)?);
    drop(buffer);
    ensure!(
        is_given_out(&fill_window(gpu)?, bus_address)?,
        "no other buffer gets {bus_address:#x} of the window, though its last mapping has gone"
    );
    Ok(())
}

/// Allocates buffers of other owners, as many as there is room for.
fn fill_window(gpu: &peerbar_gds::Gpu) -> anyhow::Result<Vec<Buffer>> {
    let mut owners = Vec::new();
    loop {
        match gpu.allocate(BYTES) {
            Ok(buffer) => owners.push(buffer),
            Err(peerbar_gds::Error::Map { source, .. })
                if source.kind() == ErrorKind::StorageFull =>
            {
                return Ok(owners);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_given_out(owners: &[Buffer], bus_address: u64) -> anyhow::Result<bool> {
    for owner in owners {
        let at = owner.placement(0)?;
        if (at.bus_address..at.bus_address.saturating_add(at.length)).contains(&bus_address) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Transfers where the window has no memory. A write may end with success: PCI Express has no
/// completions for writes.
fn transfer_refused(disk: &mut Disk, direction: Direction, address: u64) -> anyhow::Result<()> {
    match disk.transfer(direction, 0, address, READ_BYTES) {
        Ok(()) | Err(peerbar_vfio_nvme::Error::Status { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn writes_no_other_memory(disk: &mut Disk, address: u64, others: &[Buffer]) -> anyhow::Result<()> {
    transfer_refused(disk, Direction::Read, address)?;
    for other in others {
        for page in (0..BYTES).step_by(STEP) {
            let mut seen = [0; 8];
            other.mapping().read(page, &mut seen)?;
            ensure!(
                seen == [0; 8],
                "the disk has written to another owner's memory: {seen:x?} at {page:#x}"
            );
        }
    }
    Ok(())
}

/// Checks that the disk reads no other owner's memory: it writes its block 0 from there, then shows
/// it. Memory of another owner would be zeros.
fn reads_no_other_memory(
    disk: &mut Disk,
    space: &DmaSpace,
    address: u64,
    next: &Buffer,
    pattern: Pattern,
) -> anyhow::Result<()> {
    transfer_refused(disk, Direction::Write, address)?;
    let shown = map(space, next)?;
    disk.transfer(Direction::Read, 0, shown, READ_BYTES)?;
    let mut seen = vec![0; usize::try_from(READ_BYTES)?];
    next.mapping().read(0, &mut seen)?;
    space.unmap(shown)?;
    ensure!(
        seen.iter().all(|byte| *byte == 0xff) || pattern.verify(0, &seen).is_ok(),
        "the disk has read neither all-ones nor nothing: {:x?}",
        seen.get(..16)
    );
    Ok(())
}

/// Checks that nothing of it was in guest RAM, and that all doorbells were the GPU's.
fn judge(traffic: &Traffic, (disk, gpu): (u32, u32), doorbells: u64) -> anyhow::Result<()> {
    let in_ram = (
        traffic.commands_from_guest_ram(disk),
        traffic.payload_to_guest_ram(disk),
        traffic.failures(),
    );
    ensure!(
        in_ram == (0, 0, 0) && traffic.payload() == BYTES,
        "the disk's counters show {in_ram:?}: commands out of guest RAM, bytes to there, and failures; and {} bytes in all where \
         {BYTES} should have been of the window",
        traffic.payload()
    );
    let written = traffic.registers_written(gpu);
    ensure!(
        written == doorbells * DOORBELL_BYTES && doorbells > 0,
        "the GPU's counters show {written} bytes that it wrote to registers of other devices, and it says that it wrote {doorbells} doorbells"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::{Completer, Direction, DmaKind, Purpose, Route};

    use super::*;

    fn judged(doorbells: u64, change: impl FnOnce(&mut Traffic)) -> bool {
        let mut traffic = Traffic::default();
        traffic.count(0, kind(Purpose::Payload, Completer::Unknown), BYTES, 0);
        traffic.count(1, kind(Purpose::Register, Completer::Unknown), 40, 0);
        change(&mut traffic);
        judge(&traffic, (0, 1), doorbells).is_ok()
    }

    fn kind(purpose: Purpose, completer: Completer) -> DmaKind {
        DmaKind {
            purpose,
            completer,
            route: Route::Upstream,
            direction: Direction::Write,
        }
    }

    #[test]
    fn command_or_data_of_guest_ram_or_doorbell_too_few_fails() {
        assert!(judged(10, |_| {}));
        assert!(!judged(11, |_| {}));
        for purpose in [Purpose::Command, Purpose::Payload] {
            let of_ram = kind(purpose, Completer::GuestRam);
            assert!(!judged(10, |traffic| traffic.count(0, of_ram, 64, 0)));
        }
        let missing = kind(Purpose::Payload, Completer::Unknown);
        assert!(!judged(10, |traffic| traffic.count(0, missing, 0, 1)));
    }
}
