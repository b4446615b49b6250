//! Reads that the GPU starts: it has queues of the disk in its memory, and writes the disk's doorbells.

mod figures;
mod kernel_reads;
mod own_driver;
mod vfio_gpu;

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use peerbar_nvme_driver::QueueMemory;
use peerbar_report::{GpuDriver, GpuInitiated, Measure, QueueAddresses};
use peerbar_vfio_nvme::{Direction, Disk, DmaSpace, QueueDoorbells, RegisterAccess};

use self::figures::{Figures, Rate};
use self::own_driver::OwnDriverGpu;
use self::vfio_gpu::{BusAddresses, VfioGpu};
use super::vfio_nvme::{TakenDevices, start};
use super::{Outcome, Run};
use crate::counters::{Traffic, TrafficWatch};
use crate::devices::bar_start;
use crate::gpus::Gpu;
use crate::guest_context::GuestContext;
use crate::pattern::Pattern;
use crate::user_drivers::address_space;
use crate::user_gpu::GpuFault;

/// Reads of a launch, and bytes of each.
const READS: u16 = 1000;
const READ_BYTES: u64 = 4096;
const BYTES: u64 = READS as u64 * READ_BYTES;
/// The queue pair that the GPU has. The first is the program's own.
const QUEUE: u16 = 2;
/// How long it may take from one completion to the next.
const LIMIT: Duration = Duration::from_secs(10);
/// How long the GPU reads for its figure, at least.
const MEASURED: Duration = Duration::from_secs(1);
/// The most launches that are waited for together.
const LAUNCHES: u16 = 16;
/// Bytes of a doorbell.
const DOORBELL_BYTES: u64 = 4;

impl Run for GpuInitiated {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<Outcome> {
        let disk = guest.controller(&self.disk)?;
        let gpu = guest.gpu(&self.gpu)?;
        let bus = match self.addresses {
            QueueAddresses::Io => None,
            QueueAddresses::Bus => Some(BusAddresses {
                vram: gpu.aperture_start()?,
                registers: bar_start(&disk.pci, 0)?,
            }),
        };
        let pattern = guest.fresh_pattern(disk);
        let by_kernel = kernel_reads::read(disk, gpu, pattern, self.depth)?;
        let mut watch = TrafficWatch::new(guest);
        let gpu_by_vfio = (self.driver == GpuDriver::Vfio).then_some(self.gpu.as_str());
        let taken = TakenDevices::take(guest, self.backend, disk, gpu_by_vfio)?;
        let read = match self.driver {
            GpuDriver::Vfio => by_vfio(self, &taken, pattern, bus, &mut watch),
            GpuDriver::PeerbarGpu => by_own_driver(self, &taken, pattern, gpu, &mut watch),
        };
        let read = match self.fault {
            None => taken.give_back(guest, read)?,
            Some(code) => {
                taken.give_back(guest, ends_with(code, read))?;
                return Ok(Outcome::Passed);
            }
        };
        measure.bytes = read.launches.saturating_mul(BYTES);
        watch.write_to(measure);
        judge(watch.traffic()?, (disk.number, gpu.number), &read)?;
        if self.addresses == QueueAddresses::Bus {
            stays_below(watch.traffic()?)?;
        }
        let figures = Figures {
            by_gpu: read.by_gpu,
            by_processor: read.by_processor,
            by_kernel,
            reads_a_doorbell: read.launches.saturating_mul(READS.into()) / read.doorbells.max(1),
        };
        Ok(Outcome::Said(figures.to_string()))
    }

    fn has_own_addresses(&self) -> bool {
        self.addresses == QueueAddresses::Io
    }
}

/// The launch must have ended with this fault.
fn ends_with(code: u8, read: anyhow::Result<Reads>) -> anyhow::Result<()> {
    match read {
        Ok(_) => bail!("the GPU's launch ends well, where fault {code} was to be"),
        Err(error) if error.downcast_ref() == Some(&GpuFault(code)) => Ok(()),
        Err(error) => Err(error.context(format!("fault {code} was to be"))),
    }
}

/// A GPU that drives a pair of queues of a disk, with whatever driver of its own.
trait Initiator {
    /// The queues, by addresses that the disk uses.
    fn queues(&self) -> anyhow::Result<QueueMemory>;

    /// Where the doorbells are. Comes before the first launch.
    fn use_doorbells(&mut self, disk: &Disk, doorbells: QueueDoorbells) -> anyhow::Result<()>;

    /// Where the data of each read goes, by addresses that the disk uses.
    fn destinations(&self) -> &[u64];

    /// Has the GPU read `blocks` logical blocks to each destination, `launches` times, and waits.
    fn read(&mut self, launches: u16, blocks: u16) -> anyhow::Result<()>;

    /// Doorbells that the GPU says it has written.
    fn doorbells(&self) -> anyhow::Result<u64>;

    /// Makes all data zeros.
    fn clear(&self) -> anyhow::Result<()>;

    /// The data.
    fn data(&self) -> anyhow::Result<Vec<u8>>;
}

/// What came of the reads.
struct Reads {
    launches: u64,
    doorbells: u64,
    by_gpu: Rate,
    by_processor: Rate,
}

/// Disk and GPU are both this process'.
fn by_vfio(
    check: &GpuInitiated,
    taken: &TakenDevices<'_>,
    pattern: Pattern,
    bus: Option<BusAddresses>,
    watch: &mut TrafficWatch<'_>,
) -> anyhow::Result<Reads> {
    let space = DmaSpace::new(address_space(check.backend)?);
    let (_, binding) = taken.gpu.as_ref().context("a check without its GPU")?;
    let mut gpu = VfioGpu::open(&space, binding, check.backend, bus, check.depth)?;
    // Is dropped before the GPU's memory, which it uses.
    let mut disk = start(taken, &space, RegisterAccess::Mapped)?;
    read(&mut gpu, &mut disk, pattern, check.depth, watch)
}

/// The disk is this process', and the GPU its own driver's.
fn by_own_driver(
    check: &GpuInitiated,
    taken: &TakenDevices<'_>,
    pattern: Pattern,
    gpu: &Gpu,
    watch: &mut TrafficWatch<'_>,
) -> anyhow::Result<Reads> {
    let space = DmaSpace::new(address_space(check.backend)?);
    let mut gpu = OwnDriverGpu::open(gpu, check.depth)?;
    // Is dropped before the GPU's memory, which it uses.
    let mut disk = start(taken, &space, RegisterAccess::Mapped)?;
    read(&mut gpu, &mut disk, pattern, check.depth, watch)
}

/// Reads the same blocks by the GPU, which is watched, and by the processor.
fn read(
    gpu: &mut impl Initiator,
    disk: &mut Disk,
    pattern: Pattern,
    depth: u8,
    watch: &mut TrafficWatch<'_>,
) -> anyhow::Result<Reads> {
    let doorbells = disk.create_queue(QUEUE, gpu.queues()?)?;
    gpu.use_doorbells(disk, doorbells)?;
    let blocks = READ_BYTES / disk.identity().block_bytes;
    gpu.clear()?;
    let (launches, by_gpu) = watch.watch(|| read_by_gpu(gpu, u16::try_from(blocks)?))?;
    verify(gpu, pattern).context("what the GPU has read")?;
    disk.delete_queue(QUEUE)?;

    gpu.clear()?;
    let by_processor = Rate::measure(|| read_by_processor(disk, gpu.destinations(), depth))?;
    verify(gpu, pattern).context("what the processor has read")?;
    Ok(Reads {
        launches,
        doorbells: gpu.doorbells()?,
        by_gpu,
        by_processor,
    })
}

/// Has the GPU read for some time; how many launches that were in all.
fn read_by_gpu(gpu: &mut impl Initiator, blocks: u16) -> anyhow::Result<(u64, Rate)> {
    let first = Rate::measure(|| {
        gpu.read(1, blocks)?;
        Ok(READS.into())
    })?;
    let together = first.fitting(MEASURED).clamp(1, LAUNCHES);
    let mut launches = 0_u64;
    let by_gpu = Rate::measure(|| {
        let begun = Instant::now();
        while begun.elapsed() < MEASURED {
            gpu.read(together, blocks)?;
            launches = launches.saturating_add(together.into());
        }
        Ok(launches.saturating_mul(READS.into()))
    })?;
    Ok((launches.saturating_add(1), by_gpu))
}

/// The counters must show what the GPU did, and that nobody else did it.
fn judge(traffic: &Traffic, (disk, gpu): (u32, u32), read: &Reads) -> anyhow::Result<()> {
    let failures = traffic.failures();
    ensure!(
        failures == 0,
        "{failures} DMA requests of the devices failed"
    );
    let reads = read.launches.saturating_mul(READS.into());
    let bytes = read.launches.saturating_mul(BYTES);
    let of_disk = (
        traffic.commands_from_peers(disk),
        traffic.commands_from_guest_ram(disk),
        traffic.payload_to_devices(disk),
        traffic.payload_to_guest_ram(disk),
    );
    ensure!(
        of_disk == (reads, 0, bytes, 0),
        "the disk's counters show {of_disk:?}: commands out of a peer's memory and out of guest RAM, bytes to peers and to \
         guest RAM; {reads} commands and {bytes} bytes were to be of the GPU's memory"
    );
    let (written, doorbells) = (traffic.registers_written(gpu), read.doorbells);
    ensure!(
        written == doorbells * DOORBELL_BYTES && doorbells > 0,
        "the GPU's counters show {written} bytes that it wrote to registers of other devices, and it says that it wrote {doorbells} doorbells"
    );
    Ok(())
}

/// Nothing may have gone up to the root: neither data nor entries of queues nor doorbells.
fn stays_below(traffic: &Traffic) -> anyhow::Result<()> {
    let upstream = traffic.upstream_bytes();
    ensure!(
        upstream == 0,
        "{upstream} bytes went by way of the root, where bus addresses below one switch lead from device to device"
    );
    Ok(())
}

fn verify(gpu: &impl Initiator, pattern: Pattern) -> anyhow::Result<()> {
    Ok(pattern.verify(0, &gpu.data()?)?)
}

/// Reads all blocks by the driver in this process; how many that were.
fn read_by_processor(disk: &mut Disk, destinations: &[u64], depth: u8) -> anyhow::Result<u64> {
    let blocks = READ_BYTES / disk.identity().block_bytes;
    let most = usize::from(depth).min(disk.depth());
    let mut left = (0..).zip(destinations).peekable();
    let mut completed = 0;
    while left.peek().is_some() || disk.outstanding() > 0 {
        while disk.outstanding() < most {
            let Some((index, destination)) = left.next() else {
                break;
            };
            disk.submit(Direction::Read, index * blocks, *destination, READ_BYTES)?;
        }
        let (_, completion) = disk.wait()?;
        ensure!(
            completion.status == 0,
            "a read ends with {:#x}",
            completion.status
        );
        completed += 1;
    }
    Ok(completed)
}

#[cfg(test)]
mod tests {
    use peerbar_dma_log::{Completer, Direction, DmaKind, Purpose, Route};

    use super::*;

    const DISK: u32 = 0;
    const GPU: u32 = 1;
    const COMMAND_BYTES: u64 = 64;
    const LAUNCHES: u64 = 3;

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
        let commands = LAUNCHES * u64::from(READS) * COMMAND_BYTES;
        traffic.count(DISK, of_peer(Purpose::Command), commands, 0);
        traffic.count(DISK, of_peer(Purpose::Payload), LAUNCHES * BYTES, 0);
        traffic.count(GPU, of_peer(Purpose::Register), 80, 0);
        traffic
    }

    fn judged(change: impl FnOnce(&mut Traffic), doorbells: u64) -> Result<(), String> {
        let mut traffic = by_gpu();
        change(&mut traffic);
        let read = Reads {
            launches: LAUNCHES,
            doorbells,
            by_gpu: Rate::default(),
            by_processor: Rate::default(),
        };
        judge(&traffic, (DISK, GPU), &read).map_err(|error| error.to_string())
    }

    #[test]
    fn command_of_guest_ram_or_missing_doorbell_fails() {
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

    #[test]
    fn launch_ends_with_the_fault_that_is_wanted() {
        let fault = |code| Err(anyhow::Error::new(GpuFault(code)).context("a launch"));
        assert!(ends_with(8, fault(8)).is_ok());
        let other = format!("{:#}", ends_with(8, fault(7)).unwrap_err());
        assert_eq!(
            other,
            "fault 8 was to be: a launch: the GPU ends its command with fault 7"
        );
        let rate = Rate::default();
        let well = Reads {
            launches: 1,
            doorbells: 1,
            by_gpu: rate,
            by_processor: rate,
        };
        assert!(ends_with(8, Ok(well)).is_err());
    }

    #[test]
    fn one_completion_by_way_of_the_root_fails() {
        let mut traffic = by_gpu();
        assert!(stays_below(&traffic).is_ok());
        let up = DmaKind {
            route: Route::Upstream,
            ..kind(Purpose::Completion, Completer::PeerBar)
        };
        traffic.count(DISK, up, 16, 0);
        let error = stays_below(&traffic).unwrap_err().to_string();
        assert!(
            error.starts_with("16 bytes went by way of the root"),
            "{error}"
        );
    }
}
