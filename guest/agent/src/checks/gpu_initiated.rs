//! Reads that the GPU starts: it has queues of the disk in its memory, and writes the disk's
//! doorbells.

mod figures;
mod guest_time;
mod initiator;
mod judgement;
mod kernel_reads;
mod live;
mod own_driver;
mod revoked;
mod vfio_gpu;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use peerbar_report::{GpuDriver, GpuInitiated, Measure, QueueAddresses};
use peerbar_vfio_nvme::{Direction, Disk, DmaSpace, RegisterAccess};

use self::figures::{Figures, Measurement, Rate, busy_asleep};
use self::initiator::{
    BYTES, Initiator, QUEUE, READ_BYTES, READS, blocks_of_a_read, give_queues, launch, verify,
};
use self::judgement::{Devices, Done, ends_with, judge};
use self::own_driver::OwnDriverGpu;
use self::vfio_gpu::{BusAddresses, VfioGpu};
use super::linux_events;
use super::vfio_nvme::{TakenDevices, start, start_opened};
use super::{CheckOutcome, Run};
use crate::counters::TrafficWatch;
use crate::devices::bar_start;
use crate::gpus::Gpu;
use crate::guest_context::GuestContext;
use crate::user_drivers::address_space;
use peerbar_pattern::Pattern;

/// Target duration of a round of launches.
const ROUND: Duration = Duration::from_millis(250);

impl Run for GpuInitiated {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let disk = guest.controller(&self.disk)?;
        let gpu = guest.gpu(&self.gpu)?;
        let pattern = guest.fresh_pattern(disk);
        let measurement = Measurement {
            guest,
            figures: self.figures,
        };
        let by_kernel = linux_events::counted(guest, disk, || {
            kernel_reads::read(measurement, disk, gpu, pattern, self.depth)
        })?;
        if self.reset {
            return revoked::run(self, guest, disk, gpu, pattern);
        }
        let bus = match self.addresses {
            QueueAddresses::Io => None,
            QueueAddresses::Bus => Some(BusAddresses {
                vram: gpu.aperture_start()?,
                registers: bar_start(&disk.pci, 0)?,
            }),
        };
        let mut watch = TrafficWatch::new(guest);
        let gpu_by_vfio = (self.driver == GpuDriver::Vfio).then_some(self.gpu.as_str());
        let taken = TakenDevices::take(guest, self.backend, disk, gpu_by_vfio)?;
        let read = match self.driver {
            GpuDriver::Vfio => by_vfio(measurement, self, &taken, (pattern, bus), &mut watch),
            GpuDriver::PeerbarGpu => {
                by_own_driver(measurement, self, &taken, (pattern, gpu), &mut watch)
            }
        };
        let read = match self.fault {
            None => taken.give_back(guest, read)?,
            Some(code) => {
                let injected = watch.traffic()?.injected_faults(gpu.number);
                taken.give_back(guest, ends_with(code, read, injected))?;
                return Ok(CheckOutcome::Passed);
            }
        };
        measure.bytes = read.done.launches.saturating_mul(BYTES);
        watch.write_to(measure);
        let devices = Devices {
            disk: disk.number,
            gpu: gpu.number,
            counts_interrupts: guest.counts_interrupts(disk.number),
        };
        let of_processors = judge(watch.traffic()?, devices, self.addresses, &read.done)?;
        let figures = Figures {
            by_gpu: read.by_gpu,
            by_processor: read.by_processor,
            by_kernel,
            asleep: self.figures.then(|| busy_asleep(guest)).transpose()?,
            reads_a_doorbell: read.done.reads() / read.done.doorbells().max(1),
            of_processors,
        };
        Ok(CheckOutcome::Said(figures.to_string()))
    }

    fn has_own_addresses(&self) -> bool {
        self.addresses == QueueAddresses::Io
    }
}

/// The result of the reads.
struct Reads {
    done: Done,
    by_gpu: Rate,
    by_processor: Rate,
}

/// This process drives both the disk and the GPU.
fn by_vfio(
    measurement: Measurement<'_>,
    check: &GpuInitiated,
    taken: &TakenDevices<'_>,
    (pattern, bus): (Pattern, Option<BusAddresses>),
    watch: &mut TrafficWatch<'_>,
) -> anyhow::Result<Reads> {
    let space = DmaSpace::new(address_space(check.backend)?);
    // Opened before the GPU's memory is mapped: with AMD's IOMMU, QEMU 11.1 sends a device no
    // mappings that are older than its attachment, so its counters would not know the owner of the
    // memory.
    let device = Arc::new(space.address_space().open(&taken.disk.1)?);
    let (_, binding) = taken.gpu.as_ref().context("a check without its GPU")?;
    let mut gpus = VfioGpu::open(&space, binding, check, bus)?;
    // Dropped before the GPU's memory, which it uses.
    let mut disk = start_opened(taken, device, &space, RegisterAccess::Mapped)?;
    read(
        measurement,
        &mut gpus,
        &mut disk,
        (pattern, check.depth),
        watch,
    )
}

/// This process drives the disk; the GPU has its own driver.
fn by_own_driver(
    measurement: Measurement<'_>,
    check: &GpuInitiated,
    taken: &TakenDevices<'_>,
    (pattern, gpu): (Pattern, &Gpu),
    watch: &mut TrafficWatch<'_>,
) -> anyhow::Result<Reads> {
    let space = DmaSpace::new(address_space(check.backend)?);
    let mut gpus = Vec::new();
    for _ in 0..check.queues {
        gpus.push(OwnDriverGpu::open(gpu, check.depth)?);
    }
    let mut disk = start(taken, &space, RegisterAccess::Mapped)?;
    let reads = read(
        measurement,
        &mut gpus,
        &mut disk,
        (pattern, check.depth),
        watch,
    );
    // The device is reset, and uses the queues no more.
    drop(disk);
    gpus.into_iter().for_each(OwnDriverGpu::release);
    reads
}

/// Reads the same blocks by the GPU, which is watched, and by the processor.
fn read(
    measurement: Measurement<'_>,
    gpus: &mut [impl Initiator],
    disk: &mut Disk,
    (pattern, depth): (Pattern, u16),
    watch: &mut TrafficWatch<'_>,
) -> anyhow::Result<Reads> {
    give_queues(gpus, disk)?;
    let (launches, by_gpu) =
        watch.watch(|| read_by_gpu(measurement, gpus, blocks_of_a_read(disk)?, depth))?;
    for gpu in &*gpus {
        verify(gpu, pattern).context("the data that the GPU read")?;
    }
    let doorbells = gpus
        .iter()
        .map(Initiator::doorbells)
        .collect::<Result<_, _>>()?;
    for (queue, _) in (QUEUE..).zip(&*gpus) {
        disk.delete_queue(queue)?;
    }

    let gpu = gpus.first().context("a check without queues")?;
    gpu.clear()?;
    let depth = u64::from(depth).min(disk.depth() as u64);
    let by_processor = Rate::measure(measurement, depth, || {
        read_by_processor(disk, gpu.destinations(), depth)
    })?;
    verify(gpu, pattern).context("the data that the processor read")?;
    Ok(Reads {
        done: Done {
            launches,
            doorbells,
        },
        by_gpu,
        by_processor,
    })
}

/// Lets all channels of the GPU read at once for some time. Returns the total number of launches.
fn read_by_gpu<I: Initiator>(
    measurement: Measurement<'_>,
    gpus: &mut [I],
    blocks: u16,
    depth: u16,
) -> anyhow::Result<(u64, Rate)> {
    let begun = Instant::now();
    let mut launches = launch(gpus, blocks, 1)?;
    let fitting = match measurement.figures {
        true => ROUND.as_nanos() / begun.elapsed().as_nanos().max(1),
        false => 1,
    };
    let together = u16::try_from(fitting).unwrap_or(u16::MAX);
    let together = together.clamp(1, I::LAUNCHES);
    let in_progress = u64::from(depth).saturating_mul(gpus.len() as u64);
    let by_gpu = Rate::measure(measurement, in_progress, || {
        let more = launch(gpus, blocks, together)?;
        launches = launches.saturating_add(more);
        Ok(more.saturating_mul(READS.into()))
    })?;
    Ok((launches, by_gpu))
}

/// Reads all blocks by the driver in this process. Returns their number.
fn read_by_processor(disk: &mut Disk, destinations: &[u64], depth: u64) -> anyhow::Result<u64> {
    let blocks = READ_BYTES / disk.identity().block_bytes;
    let mut left = (0..).zip(destinations).peekable();
    let mut completed = 0;
    while left.peek().is_some() || disk.outstanding() > 0 {
        while (disk.outstanding() as u64) < depth {
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
