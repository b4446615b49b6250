//! Copies from disk to disk, and the route of the bytes.

use super::{CheckOutcome, Run};
use peerbar_report::{Buffer, Copy, Measure, size_range};
use std::fs::File;
use std::thread;

use anyhow::{Context, anyhow};

use super::layout::{CopyOffsets, Layout, rounds};
use super::route::{explain, judge};
use crate::counters::TrafficWatch;
use crate::devices::Controller;
use crate::devices::Share;
use crate::disk;
use crate::guest_context::GuestContext;
use crate::mapped_buffer::MappedBuffer;
use peerbar_pattern::Pattern;

impl Run for Copy {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let (from, to) = (guest.controller(&self.from)?, guest.controller(&self.to)?);
        let layout = Layout::of(&self.sizes, &self.offsets, self.threads)?;
        measure.sizes = size_range(&self.sizes);
        let mut threads = (0..self.threads)
            .map(|number| CopyThread::open(guest, self, &layout, number))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut watch = TrafficWatch::new(guest);
        for (size, offset) in rounds(&self.sizes, &self.offsets) {
            for offsets in threads
                .iter()
                .map(|thread| layout.offsets(thread.number, offset))
            {
                from.disk.check(offsets.source, size)?;
                to.disk.check(offsets.target, size)?;
            }
            let moved = round(guest, from, &layout, &mut threads, &mut watch, size, offset)
                .map_err(|error| explain(&self.through, error))
                .with_context(|| format!("copying {size} bytes at offset {offset}"))?;
            measure.bytes = measure.bytes.saturating_add(moved);
            watch.write_to(measure);
        }
        judge(
            &self.through,
            &expected(from, to, measure.bytes),
            watch.traffic()?,
        )?;
        Ok(CheckOutcome::Passed)
    }
}

/// Fills the sources, copies in all threads at once, and compares the targets. Only the copying is
/// watched.
fn round(
    guest: &GuestContext,
    from: &Controller,
    layout: &Layout,
    threads: &mut [CopyThread],
    watch: &mut TrafficWatch<'_>,
    size: u64,
    offset: u64,
) -> anyhow::Result<u64> {
    let length = usize::try_from(size)?;
    let pattern = guest.fresh_pattern(from);
    for thread in &*threads {
        disk::fill(
            &thread.source,
            pattern,
            layout.offsets(thread.number, offset).source,
            length,
        )?;
    }
    watch.watch(|| transfer(layout, threads, offset, length))?;
    for thread in &*threads {
        thread
            .compare(pattern, layout.offsets(thread.number, offset), length)
            .with_context(|| format!("the data that thread {} copied is wrong", thread.number))?;
    }
    Ok(size.saturating_mul(threads.len() as u64))
}

fn transfer(
    layout: &Layout,
    threads: &mut [CopyThread],
    offset: u64,
    length: usize,
) -> anyhow::Result<()> {
    thread::scope(|scope| {
        let handles: Vec<_> = threads
            .iter_mut()
            .map(|thread| {
                let offsets = layout.offsets(thread.number, offset);
                scope.spawn(move || thread.carry(offsets, length))
            })
            .collect();
        handles.into_iter().try_for_each(|handle| {
            handle
                .join()
                .map_err(|_| anyhow!("a copying thread panicked"))?
        })
    })
}

/// One thread's part: its handles on both disks and its own buffer.
#[derive(Debug)]
struct CopyThread {
    number: u32,
    source: File,
    target: File,
    buffer: MappedBuffer,
}

impl CopyThread {
    fn open(
        guest: &GuestContext,
        copy: &Copy,
        layout: &Layout,
        number: u32,
    ) -> anyhow::Result<Self> {
        let length = usize::try_from(layout.largest)?;
        let buffer = match &copy.through {
            Buffer::P2pmem(name) => guest.provider(name)?.pool.map(length)?,
            Buffer::GuestRam => {
                MappedBuffer::guest_ram(length).context("cannot get memory to copy through")?
            }
        };
        let source = guest.controller(&copy.from)?.disk.open_direct()?;
        let target = guest.controller(&copy.to)?.disk.open_direct()?;
        Ok(CopyThread {
            number,
            source,
            target,
            buffer,
        })
    }

    fn carry(&mut self, offsets: CopyOffsets, length: usize) -> anyhow::Result<()> {
        self.buffer
            .read_from(&self.source, offsets.source, length)
            .context("from the source")?;
        self.buffer
            .write_to(&self.target, offsets.target, length)
            .context("to the target")
    }

    /// Reads the target back through guest RAM.
    fn compare(&self, pattern: Pattern, offsets: CopyOffsets, length: usize) -> anyhow::Result<()> {
        let seen = disk::read(&self.target, offsets.target, length).context("reading it back")?;
        Ok(pattern.verify(offsets.source, &seen)?)
    }
}

/// Returns the payload that each device of the copy must have moved. The source reads as much as it
/// writes to the buffer, and the target writes as much as it reads from there. If they are one
/// device, it does both.
fn expected(from: &Controller, to: &Controller, bytes: u64) -> Vec<Share> {
    if from.number == to.number {
        return vec![from.share(bytes.saturating_mul(2))];
    }
    vec![from.share(bytes), to.share(bytes)]
}
