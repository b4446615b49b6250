//! Reads data from disks into GPU memory, compares it there by the GPU and by the processor, and
//! writes it back.

use super::{CheckOutcome, Run};
use peerbar_report::{Buffer as Through, Calls, GpuFile, Measure, Medium, size_range};
use std::fs::File;
use std::thread;

use anyhow::{Context, anyhow, bail, ensure};
use peerbar_gds::{
    Buffer, Direction, FileOptions, Gpu, GpuFile as GdsFile, Policy, Queue, Request, Traffic,
};

use super::layout::{CopyOffsets, Layout, rounds};
use super::route::judge;
use crate::counters::TrafficWatch;
use crate::devices::Controller;
use crate::devices::Share;
use crate::disk;
use crate::file_system::Volume;
use crate::guest_context::GuestContext;
use peerbar_pattern::Pattern;

/// Offset of each transfer in its buffer, in bytes: not a multiple of the 64 KiB in which GPUs pin
/// memory.
const LEAD: u64 = 3 * 4096;

/// Number of requests that io_uring gets at once for one transfer.
const REQUESTS: u64 = 8;

/// Content of GPU memory before a read, so that old data cannot pass for new.
const STALE: u64 = 0x5741_4c45_5741_4c45;

impl Run for GpuFile {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        if self.on != Medium::Raw && guest.tools()?.is_none() {
            return Ok(CheckOutcome::without_tools());
        }
        let layout = Layout::of(&self.sizes, &self.offsets, self.threads)?;
        measure.sizes = size_range(&self.sizes);
        let mut volumes = Vec::new();
        let outcome = prepare(guest, self, &layout, &mut volumes)
            .and_then(|()| transfer_all(guest, self, &layout, &volumes, measure));
        let closed = volumes.iter().try_for_each(|(_, volume)| volume.close());
        outcome.and(closed)?;
        Ok(CheckOutcome::Passed)
    }
}

fn prepare<'a>(
    guest: &'a GuestContext,
    check: &GpuFile,
    layout: &Layout,
    volumes: &mut Vec<(&'a Controller, Volume)>,
) -> anyhow::Result<()> {
    for name in &check.disks {
        let disk = guest.controller(name)?;
        let bytes = layout.bytes(check.threads);
        disk.disk.check(0, bytes)?;
        volumes.push((disk, Volume::prepare(guest, disk, check.on, bytes)?));
    }
    Ok(())
}

fn transfer_all(
    guest: &GuestContext,
    check: &GpuFile,
    layout: &Layout,
    volumes: &[(&Controller, Volume)],
    measure: &mut Measure,
) -> anyhow::Result<()> {
    let gpu = guest.gpu(&check.gpu)?.open()?;
    let mut threads = Vec::new();
    for (disk, volume) in volumes {
        for number in 0..check.threads {
            threads.push(TransferThread::open(
                &gpu, check, layout, disk, volume, number,
            )?);
        }
    }
    let expected = gpu.allocate(layout.largest)?;
    let mut watch = TrafficWatch::new(guest);
    for (size, offset) in rounds(&check.sizes, &check.offsets) {
        let round = Round {
            gpu: &gpu,
            expected: &expected,
            layout,
            size,
            offset,
        };
        round
            .run(guest, volumes, &threads, &mut watch)
            .with_context(|| format!("{size} bytes at offset {offset}"))?;
        let moved = size.saturating_mul(2).saturating_mul(threads.len() as u64);
        measure.bytes = measure.bytes.saturating_add(moved);
        watch.write_to(measure);
    }
    judge_library(check, &threads, measure.bytes)?;
    judge_devices(guest, check, volumes, measure.bytes, &watch)
}

/// Judges the counters of the library.
fn judge_library(
    check: &GpuFile,
    threads: &[TransferThread<'_>],
    bytes: u64,
) -> anyhow::Result<()> {
    let mut sum = Traffic::default();
    for thread in threads {
        let traffic = thread.file.traffic();
        sum.peer_bytes = sum.peer_bytes.saturating_add(traffic.peer_bytes);
        sum.bounced_bytes = sum.bounced_bytes.saturating_add(traffic.bounced_bytes);
    }
    let (peer_bytes, bounced_bytes) = if check.bounce { (0, bytes) } else { (bytes, 0) };
    let wanted = Traffic {
        peer_bytes,
        bounced_bytes,
    };
    ensure!(
        sum == wanted,
        "the library counted {sum:?}, expected {wanted:?}"
    );
    Ok(())
}

/// Judges the devices' counters. Peer to peer, the disks do all the DMA. Of a bounce they do half,
/// and the GPU's copy engine does the other half.
fn judge_devices(
    guest: &GuestContext,
    check: &GpuFile,
    volumes: &[(&Controller, Volume)],
    bytes: u64,
    watch: &TrafficWatch<'_>,
) -> anyhow::Result<()> {
    let each = bytes / volumes.len().max(1) as u64;
    let mut shares: Vec<Share> = volumes.iter().map(|(disk, _)| disk.share(each)).collect();
    let through = if check.bounce {
        shares.push(guest.gpu(&check.gpu)?.share(bytes));
        Through::GuestRam
    } else {
        Through::P2pmem(check.gpu.clone())
    };
    judge(&through, &shares, watch.traffic()?)
}

/// One size at one offset.
struct Round<'a> {
    gpu: &'a Gpu,
    /// GPU memory with the expected data of each transfer.
    expected: &'a Buffer,
    layout: &'a Layout,
    size: u64,
    offset: u64,
}

impl Round<'_> {
    fn run(
        &self,
        guest: &GuestContext,
        volumes: &[(&Controller, Volume)],
        threads: &[TransferThread<'_>],
        watch: &mut TrafficWatch<'_>,
    ) -> anyhow::Result<()> {
        let mut contents = Vec::new();
        for thread in threads {
            let offsets = self.offsets(thread);
            let content =
                Content::new(guest.fresh_pattern(thread.disk), offsets.source, self.size)?;
            disk::store(&thread.plain, &content.bytes, offsets.source)?;
            self.gpu.fill(thread.buffer.span(..)?, STALE)?;
            contents.push(content);
        }
        settle(volumes)?;
        watch.watch(|| self.in_all(threads, Direction::Read))?;
        for (thread, content) in threads.iter().zip(&contents) {
            self.inspect(thread, content).with_context(|| {
                format!("the data that {} read into VRAM is wrong", thread.name())
            })?;
        }
        settle(volumes)?;
        watch.watch(|| self.in_all(threads, Direction::Write))?;
        for (thread, content) in threads.iter().zip(&contents) {
            let target = self.offsets(thread).target;
            let seen = disk::read(&thread.plain, target, content.bytes.len());
            content
                .verify(&seen.context("reading it back")?)
                .with_context(|| {
                    format!("the data that {} wrote from VRAM is wrong", thread.name())
                })?;
        }
        Ok(())
    }

    fn offsets(&self, thread: &TransferThread<'_>) -> CopyOffsets {
        self.layout.offsets(thread.number, self.offset)
    }

    fn in_all(&self, threads: &[TransferThread<'_>], direction: Direction) -> anyhow::Result<()> {
        thread::scope(|scope| {
            let handles: Vec<_> = threads
                .iter()
                .map(|thread| {
                    let offsets = self.offsets(thread);
                    scope.spawn(move || thread.carry(direction, offsets, self.size))
                })
                .collect();
            handles.into_iter().try_for_each(|handle| {
                handle
                    .join()
                    .map_err(|_| anyhow!("a transferring thread panicked"))?
            })
        })
    }

    /// Compares GPU memory as the GPU reads it, then as the processor does.
    fn inspect(&self, thread: &TransferThread<'_>, content: &Content) -> anyhow::Result<()> {
        let seen = thread.buffer.span(LEAD..LEAD.saturating_add(self.size))?;
        let (crc, right) = (self.gpu.crc32c(seen)?, crc32c::crc32c(&content.bytes));
        self.expected.mapping().write(0, &content.bytes)?;
        let difference = self.gpu.compare(seen, self.expected.span(..self.size)?)?;
        let mut loaded = vec![0; content.bytes.len()];
        thread.buffer.mapping().read(LEAD, &mut loaded)?;
        content.verify(&loaded).context("to the processor")?;
        ensure!(
            crc == right && difference.is_none(),
            "the GPU sees CRC-32C {crc:08x}, not {right:08x}, and the first difference at {difference:?}, where the \
             processor sees none"
        );
        Ok(())
    }
}

/// The data of one transfer.
struct Content {
    pattern: Pattern,
    /// The start of the pattern.
    source: u64,
    bytes: Vec<u8>,
}

impl Content {
    fn new(pattern: Pattern, source: u64, size: u64) -> anyhow::Result<Self> {
        Ok(Content {
            pattern,
            source,
            bytes: pattern.bytes(source, usize::try_from(size)?),
        })
    }

    /// Compares the data. The pattern is only needed to describe a difference.
    fn verify(&self, seen: &[u8]) -> anyhow::Result<()> {
        if self.bytes != seen {
            self.pattern.verify(self.source, seen)?;
            bail!("{} bytes are there of {}", seen.len(), self.bytes.len());
        }
        Ok(())
    }
}

/// Settles the file systems: nothing else may move while the devices are watched.
fn settle(volumes: &[(&Controller, Volume)]) -> anyhow::Result<()> {
    volumes.iter().try_for_each(|(_, volume)| volume.settle())
}

/// One thread's part of one disk.
struct TransferThread<'a> {
    disk: &'a Controller,
    number: u32,
    calls: Calls,
    /// For transfers without GPU memory.
    plain: File,
    file: GdsFile,
    buffer: Buffer,
}

impl<'a> TransferThread<'a> {
    fn open(
        gpu: &Gpu,
        check: &GpuFile,
        layout: &Layout,
        disk: &'a Controller,
        volume: &Volume,
        number: u32,
    ) -> anyhow::Result<Self> {
        let policy = if check.bounce {
            Policy::BounceOnly
        } else {
            Policy::PeerOnly
        };
        let options = FileOptions::new().write(true).policy(policy);
        Ok(TransferThread {
            disk,
            number,
            calls: check.by,
            plain: volume.open()?,
            file: options.open(gpu, &volume.path)?,
            buffer: gpu.allocate(LEAD.saturating_add(layout.largest))?,
        })
    }

    fn name(&self) -> String {
        format!("thread {} of {}", self.number, self.disk.name)
    }

    fn carry(&self, direction: Direction, offsets: CopyOffsets, size: u64) -> anyhow::Result<()> {
        let offset = match direction {
            Direction::Read => offsets.source,
            Direction::Write => offsets.target,
        };
        let moved = match self.calls {
            Calls::Pread => self.in_one_call(direction, offset, size)?,
            Calls::IoUring => self.in_many_requests(direction, offset, size)?,
        };
        ensure!(
            moved == size,
            "{direction} of {size} bytes at offset {offset} moved {moved}"
        );
        Ok(())
    }

    fn in_one_call(&self, direction: Direction, offset: u64, size: u64) -> anyhow::Result<u64> {
        let range = LEAD..LEAD.saturating_add(size);
        match direction {
            Direction::Read => Ok(self.file.read_at(&self.buffer, range, offset)?),
            Direction::Write => {
                self.file.write_at(&self.buffer, range, offset)?;
                Ok(size)
            }
        }
    }

    fn in_many_requests(
        &self,
        direction: Direction,
        offset: u64,
        size: u64,
    ) -> anyhow::Result<u64> {
        let step = size.div_ceil(REQUESTS).next_multiple_of(super::PAGE);
        let mut queue = Queue::new(u32::try_from(REQUESTS)?)?;
        let mut start = 0;
        while start < size {
            let end = start.saturating_add(step).min(size);
            queue.push(Request {
                direction,
                file: self.file.clone(),
                offset: offset.saturating_add(start),
                buffer: self.buffer.clone(),
                range: LEAD.saturating_add(start)..LEAD.saturating_add(end),
            })?;
            start = end;
        }
        let mut moved: u64 = 0;
        while let Some(completion) = queue.wait()? {
            moved = moved.saturating_add(completion.result?);
        }
        Ok(moved)
    }
}
