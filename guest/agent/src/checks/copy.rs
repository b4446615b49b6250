//! Copies from disk to disk, and who carried the bytes.

use super::{Outcome, Run};
use peerbar_report::{Buffer, Copy, Measure};
use std::fs::File;
use std::thread;

use anyhow::{Context, anyhow};

use super::layout::{Layout, Place, size_range};
use super::route::{Share, explain, judge};
use crate::counters::Witness;
use crate::devices::Controller;
use crate::disk;
use crate::guest_context::GuestContext;
use crate::memory::Memory;
use crate::pattern::Pattern;

impl Run for Copy {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<Outcome> {
        let (from, to) = (guest.controller(&self.from)?, guest.controller(&self.to)?);
        let layout = Layout::of(&self.sizes, &self.offsets, self.threads)?;
        measure.sizes = size_range(&self.sizes);
        let mut lanes = (0..self.threads)
            .map(|number| Lane::open(guest, self, &layout, number))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut witness = Witness::new(guest);
        for (size, offset) in self
            .sizes
            .iter()
            .flat_map(|size| self.offsets.iter().map(move |offset| (*size, *offset)))
        {
            for place in lanes.iter().map(|lane| layout.place(lane.number, offset)) {
                from.disk.check(place.source, size)?;
                to.disk.check(place.target, size)?;
            }
            let moved = round(guest, from, &layout, &mut lanes, &mut witness, size, offset)
                .map_err(|error| explain(&self.through, error))
                .with_context(|| format!("copying {size} bytes at offset {offset}"))?;
            measure.bytes = measure.bytes.saturating_add(moved);
            witness.tell(measure);
        }
        judge(
            &self.through,
            &expected(from, to, measure.bytes),
            witness.traffic()?,
        )?;
        Ok(Outcome::Passed)
    }
}

/// Fills the sources, copies in all lanes at once, and compares the targets. Only the copying is watched.
fn round(
    guest: &GuestContext,
    from: &Controller,
    layout: &Layout,
    lanes: &mut [Lane],
    witness: &mut Witness<'_>,
    size: u64,
    offset: u64,
) -> anyhow::Result<u64> {
    let length = usize::try_from(size)?;
    let pattern = guest.fresh_pattern(from);
    for lane in &*lanes {
        disk::fill(
            &lane.source,
            pattern,
            layout.place(lane.number, offset).source,
            length,
        )?;
    }
    witness.watch(|| transfer(layout, lanes, offset, length))?;
    for lane in &*lanes {
        lane.compare(pattern, layout.place(lane.number, offset), length)
            .with_context(|| format!("the data that thread {} copied is wrong", lane.number))?;
    }
    Ok(size.saturating_mul(lanes.len() as u64))
}

fn transfer(layout: &Layout, lanes: &mut [Lane], offset: u64, length: usize) -> anyhow::Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = lanes
            .iter_mut()
            .map(|lane| {
                let place = layout.place(lane.number, offset);
                scope.spawn(move || lane.carry(place, length))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .map_err(|_| anyhow!("a copying thread panicked"))?
        })
    })
}

/// One thread's part: its handles on both disks and a buffer of its own.
#[derive(Debug)]
struct Lane {
    number: u32,
    source: File,
    target: File,
    buffer: Memory,
}

impl Lane {
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
                Memory::guest_ram(length).context("cannot get memory to copy through")?
            }
        };
        let source = guest.controller(&copy.from)?.disk.open_direct()?;
        let target = guest.controller(&copy.to)?.disk.open_direct()?;
        Ok(Lane {
            number,
            source,
            target,
            buffer,
        })
    }

    fn carry(&mut self, place: Place, length: usize) -> anyhow::Result<()> {
        self.buffer
            .read_from(&self.source, place.source, length)
            .context("from the source")?;
        self.buffer
            .write_to(&self.target, place.target, length)
            .context("to the target")
    }

    /// Reads the target back through guest RAM.
    fn compare(&self, pattern: Pattern, place: Place, length: usize) -> anyhow::Result<()> {
        let seen = disk::read(&self.target, place.target, length).context("reading it back")?;
        Ok(pattern.verify(place.source, &seen)?)
    }
}

/// Payload that each device of the copy must have moved: the one reads what it writes to the buffer, the other
/// writes what it reads from there; both if they are one.
fn expected(from: &Controller, to: &Controller, bytes: u64) -> Vec<Share> {
    if from.number == to.number {
        return vec![from.share(bytes.saturating_mul(2))];
    }
    vec![from.share(bytes), to.share(bytes)]
}
