//! Reads that the GPU starts: it has queues of the disk in its memory, and writes the disk's doorbells.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use peerbar_mapping::Mapping;
use peerbar_nvme_driver::QueueMemory;
use peerbar_report::{GpuInitiated, Measure, VfioBackend};
use peerbar_vfio_nvme::{BarRange, Direction, Disk, DmaSpace, RegisterAccess};

use super::vfio_nvme::{TakenDevices, start};
use super::{Outcome, Run};
use crate::counters::{Traffic, TrafficWatch};
use crate::guest_context::GuestContext;
use crate::pattern::Pattern;
use crate::user_drivers::{address_space, open_gpu, vram};
use crate::user_gpu::UserGpu;

/// Reads of a launch, and bytes of each.
const READS: u64 = 1000;
const READ_BYTES: u64 = 4096;
const BYTES: u64 = READS * READ_BYTES;
/// Entries of each of the queues.
const ENTRIES: u16 = 256;
/// The queue pair that the GPU has. The first is the program's own.
const QUEUE: u16 = 2;
/// Where things are in VRAM, and how much of it is used.
const SUBMISSIONS: u64 = 0;
const COMPLETIONS: u64 = 0x8000;
const STATE: u64 = 0xa000;
const REQUESTS: u64 = 0x1_0000;
const DATA: u64 = 0x10_0000;
const USED: u64 = 8 << 20;
/// The kernel `nvme io`, which of its operands are in VRAM, and its time limit from one completion to the next.
const NVME_IO: u32 = 5;
const IN_VRAM: u16 = 0b11_0011;
const LIMIT_NS: u64 = 10_000_000_000;
/// Threads of a block.
const BLOCK: u64 = 1000;
/// Bytes of a doorbell.
const DOORBELL_BYTES: u64 = 4;

impl Run for GpuInitiated {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<Outcome> {
        let disk = guest.controller(&self.disk)?;
        let gpu = guest.gpu(&self.gpu)?;
        let mut watch = TrafficWatch::new(guest);
        let taken = TakenDevices::take(guest, VfioBackend::Type1, disk, Some(&self.gpu))?;
        let read = read(guest, &taken, self.depth, &mut watch);
        let read = taken.give_back(guest, read)?;
        measure.bytes = BYTES;
        watch.write_to(measure);
        judge(watch.traffic()?, (disk.number, gpu.number), read.doorbells)?;
        Ok(Outcome::Said(read.to_string()))
    }

    fn has_own_addresses(&self) -> bool {
        true
    }
}

/// What came of the reads.
struct Reads {
    /// Doorbells that the GPU says it has written.
    doorbells: u64,
    by_gpu: Duration,
    by_processor: Duration,
}

impl std::fmt::Display for Reads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rate = |time: Duration| READS as f64 / time.as_secs_f64();
        write!(
            f,
            "{READS} reads of 4 KiB: {:.0}/s by the GPU with {} doorbells, {:.0}/s by the processor",
            rate(self.by_gpu),
            self.doorbells,
            rate(self.by_processor)
        )
    }
}

/// Reads the same blocks by the GPU, which is watched, and by the processor.
fn read(
    guest: &GuestContext,
    taken: &TakenDevices<'_>,
    depth: u8,
    watch: &mut TrafficWatch<'_>,
) -> anyhow::Result<Reads> {
    let space = DmaSpace::new(address_space(VfioBackend::Type1)?);
    let mut disk = start(taken, &space, RegisterAccess::Mapped)?;
    let (_, binding) = taken.gpu.as_ref().context("a check without its GPU")?;
    let device = Arc::new(open_gpu(space.address_space(), binding)?);
    let memory = Arc::new(device.map(vram(USED))?);
    let iova = space.free_addresses(USED)?;
    space.map(iova, Arc::clone(&memory))?;
    let registers = map_registers(&space, &disk)?;
    let mut gpu = UserGpu::start(device, &space)?;
    let pattern = guest.fresh_pattern(taken.disk.0);
    write_pattern(&mut disk, &memory, iova, pattern)?;

    put_requests(&memory, &disk, iova)?;
    memory.write(COMPLETIONS, &vec![0; usize::from(ENTRIES) * 16])?;
    let doorbells = disk.create_queue(
        QUEUE,
        QueueMemory {
            submission: iova.saturating_add(SUBMISSIONS),
            completion: iova.saturating_add(COMPLETIONS),
            submission_entries: ENTRIES,
            completion_entries: ENTRIES,
        },
    )?;
    let operands = [
        SUBMISSIONS,
        COMPLETIONS,
        registers.saturating_add(doorbells.tail),
        registers.saturating_add(doorbells.head),
        STATE,
        REQUESTS,
        READS,
        u64::from(ENTRIES) << 32 | u64::from(ENTRIES),
        depth.into(),
        1,
        LIMIT_NS,
        READS.div_ceil(BLOCK),
        BLOCK,
    ];
    clear(&memory)?;
    let begun = Instant::now();
    let result = watch.watch(|| {
        gpu.launch(NVME_IO, IN_VRAM, &operands)?;
        gpu.wait()
    })?;
    let by_gpu = begun.elapsed();
    ensure!(
        result == READS,
        "request {} ends with status {:#x}",
        result & 0xffff_ffff,
        result >> 32
    );
    verify(&memory, pattern).context("what the GPU has read")?;
    disk.delete_queue(QUEUE)?;

    clear(&memory)?;
    let begun = Instant::now();
    read_by_processor(&mut disk, iova, depth)?;
    let by_processor = begun.elapsed();
    verify(&memory, pattern).context("what the processor has read")?;
    Ok(Reads {
        doorbells: word(&memory, STATE + 16)?,
        by_gpu,
        by_processor,
    })
}

/// The counters must show what the GPU did, and that nobody else did it.
fn judge(traffic: &Traffic, (disk, gpu): (u32, u32), doorbells: u64) -> anyhow::Result<()> {
    let failures = traffic.failures();
    ensure!(
        failures == 0,
        "{failures} DMA requests of the devices failed"
    );
    let of_disk = (
        traffic.commands_from_peers(disk),
        traffic.commands_from_guest_ram(disk),
        traffic.payload_to_devices(disk),
        traffic.payload_to_guest_ram(disk),
    );
    ensure!(
        of_disk == (READS, 0, BYTES, 0),
        "the disk's counters show {of_disk:?}: commands out of a peer's memory and out of guest RAM, bytes to peers and to \
         guest RAM; {READS} commands and {BYTES} bytes were to be of the GPU's memory"
    );
    let written = traffic.registers_written(gpu);
    ensure!(
        written == doorbells * DOORBELL_BYTES && doorbells > 0,
        "the GPU's counters show {written} bytes that it wrote to registers of other devices, and it says that it wrote {doorbells} doorbells"
    );
    Ok(())
}

/// Maps the disk's registers for the GPU.
fn map_registers(space: &DmaSpace, disk: &Disk) -> anyhow::Result<u64> {
    let device = disk.device();
    let registers = BarRange {
        bar: 0,
        offset: 0,
        length: device.bar_size(0)?,
    };
    let address = space.free_addresses(registers.length)?;
    let memory = Arc::new(device.map(registers)?);
    space.map(address, memory).context("the disk's registers")?;
    Ok(address)
}

fn write_pattern(
    disk: &mut Disk,
    memory: &Mapping,
    iova: u64,
    pattern: Pattern,
) -> anyhow::Result<()> {
    memory.write(DATA, &pattern.bytes(0, usize::try_from(BYTES)?))?;
    Ok(disk.transfer(Direction::Write, 0, iova.saturating_add(DATA), BYTES)?)
}

/// A request for each of the first blocks of the disk, by the addresses that the disk uses.
fn put_requests(memory: &Mapping, disk: &Disk, vram: u64) -> anyhow::Result<()> {
    const READ: u8 = 2;
    let blocks = READ_BYTES / disk.identity().block_bytes;
    let [low, high, ..] = blocks.saturating_sub(1).to_le_bytes();
    let mut requests = Vec::new();
    for index in 0..READS {
        let data = vram.saturating_add(DATA).saturating_add(index * READ_BYTES);
        for number in [index * blocks, data, 0] {
            requests.extend(number.to_le_bytes());
        }
        requests.extend([low, high, READ, 0, 0, 0, 0, 0]);
    }
    Ok(memory.write(REQUESTS, &requests)?)
}

fn clear(memory: &Mapping) -> anyhow::Result<()> {
    Ok(memory.write(DATA, &vec![0; usize::try_from(BYTES)?])?)
}

fn verify(memory: &Mapping, pattern: Pattern) -> anyhow::Result<()> {
    let mut seen = vec![0; usize::try_from(BYTES)?];
    memory.read(DATA, &mut seen)?;
    Ok(pattern.verify(0, &seen)?)
}

fn read_by_processor(disk: &mut Disk, iova: u64, depth: u8) -> anyhow::Result<()> {
    let blocks = READ_BYTES / disk.identity().block_bytes;
    let most = usize::from(depth).min(disk.depth());
    let (mut submitted, mut completed) = (0, 0);
    while completed < READS {
        while submitted < READS && disk.outstanding() < most {
            let data = iova
                .saturating_add(DATA)
                .saturating_add(submitted * READ_BYTES);
            disk.submit(Direction::Read, submitted * blocks, data, READ_BYTES)?;
            submitted += 1;
        }
        let (_, completion) = disk.wait()?;
        ensure!(
            completion.status == 0,
            "a read ends with {:#x}",
            completion.status
        );
        completed += 1;
    }
    Ok(())
}

fn word(memory: &Mapping, offset: u64) -> anyhow::Result<u64> {
    let mut word = [0; 8];
    memory.read(offset, &mut word)?;
    Ok(u64::from_le_bytes(word))
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::{Completer, Direction, DmaKind, Purpose, Route};

    use super::*;

    const DISK: u32 = 0;
    const GPU: u32 = 1;
    const COMMAND_BYTES: u64 = 64;

    fn kind(purpose: Purpose, completer: Completer) -> DmaKind {
        DmaKind {
            purpose,
            completer,
            route: Route::Peer,
            direction: Direction::Write,
        }
    }

    /// What the devices count when the GPU does everything, with 20 doorbells.
    fn by_gpu() -> Traffic {
        let mut traffic = Traffic::default();
        let of_peer = |purpose| kind(purpose, Completer::PeerBar);
        traffic.count(DISK, of_peer(Purpose::Command), READS * COMMAND_BYTES, 0);
        traffic.count(DISK, of_peer(Purpose::Payload), BYTES, 0);
        traffic.count(GPU, of_peer(Purpose::Register), 80, 0);
        traffic
    }

    fn judged(change: impl FnOnce(&mut Traffic), doorbells: u64) -> Result<(), String> {
        let mut traffic = by_gpu();
        change(&mut traffic);
        judge(&traffic, (DISK, GPU), doorbells).map_err(|error| error.to_string())
    }

    #[test]
    fn one_command_or_doorbell_of_the_processor_fails() {
        assert_eq!(judged(|_| {}, 20), Ok(()));
        let of_ram = kind(Purpose::Command, Completer::GuestRam);
        let by_processor = judged(|traffic| traffic.count(DISK, of_ram, COMMAND_BYTES, 0), 20);
        assert!(by_processor.unwrap_err().starts_with("the disk's counters"));
        let missing = judged(|_| {}, 21).unwrap_err();
        assert!(missing.starts_with("the GPU's counters show 80 bytes"));
    }

    #[test]
    fn failed_dma_or_payload_in_guest_ram_fails() {
        let of_ram = kind(Purpose::Payload, Completer::GuestRam);
        assert!(judged(|traffic| traffic.count(DISK, of_ram, 4096, 0), 20).is_err());
        let failed = judged(|traffic| traffic.count(GPU, of_ram, 0, 1), 20);
        assert_eq!(failed.unwrap_err(), "1 DMA requests of the devices failed");
    }
}
