//! Data must be in memory before its completion is.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use peerbar_gds::Mapping;
use peerbar_nvme_driver::Completion;
use peerbar_report::{Measure, QueueLocation, VfioBackend, VfioOrder};
use peerbar_vfio_nvme::{Direction, Disk, DmaSpace, RegisterAccess};

use super::vfio_nvme::{QUEUE_BYTES, TakenDevices, Vram, fill, judge_queues, queues_at, start};
use super::{CheckOutcome, Run};
use crate::counters::TrafficWatch;
use crate::guest_context::GuestContext;
use crate::user_drivers::address_space;
use peerbar_pattern::Pattern;

/// Number of reads, one after the other, and bytes of each.
const READS: u64 = 256;
const READ: u64 = 4096;
const READ_BYTES: usize = 4096;
/// Bytes that are read.
const LENGTH: u64 = READS * READ;
/// Number of the queue pair in the GPU's memory.
const QUEUE: u16 = 2;
/// Content of the memory before a read.
const BEFORE: [u8; READ_BYTES] = [0x5a; READ_BYTES];
/// Time limit for a completion, or for data that arrives after it.
const TIME_OUT: Duration = Duration::from_secs(20);

impl Run for VfioOrder {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let disk = guest.controller(&self.disk)?;
        let mut watch = TrafficWatch::new(guest);
        let taken = TakenDevices::take(guest, self.backend, disk, Some(&self.gpu))?;
        let late = read(guest, &taken, self.backend, &mut watch);
        let late = taken.give_back(guest, late)?;
        measure.bytes = LENGTH;
        watch.write_to(measure);
        let traffic = watch.traffic()?;
        judge_queues(QueueLocation::Vram, disk.number, traffic)?;
        let in_ram = traffic.payload_to_guest_ram(disk.number);
        ensure!(in_ram == 0, "{in_ram} bytes went to guest RAM");
        judge(&late, self.late)?;
        Ok(CheckOutcome::by_counters(traffic, disk.number))
    }

    fn has_own_addresses(&self) -> bool {
        true
    }
}

/// Checks that exactly this number of reads was late.
fn judge(late: &[u64], expected: u16) -> anyhow::Result<()> {
    ensure!(
        late.len() == usize::from(expected),
        "of {READS} reads the completions of {} were there before their data, numbers {late:?} from 0 on, expected {expected}",
        late.len()
    );
    Ok(())
}

/// Lets the disk read with its queues in the GPU's memory. Returns the numbers of the reads whose
/// data came after their completion.
fn read(
    guest: &GuestContext,
    taken: &TakenDevices<'_>,
    backend: VfioBackend,
    watch: &mut TrafficWatch<'_>,
) -> anyhow::Result<Vec<u64>> {
    let space = DmaSpace::new(address_space(backend)?);
    let mut disk = start(taken, &space, RegisterAccess::Mapped)?;
    let pattern = guest.fresh_pattern(taken.disk.0);
    fill(&mut disk, pattern, LENGTH)?;
    let (_, binding) = taken.gpu.as_ref().context("a check without its GPU")?;
    let vram = Vram::map(&space, backend, binding, LENGTH + QUEUE_BYTES)?;
    disk.use_queue(QUEUE, queues_at(vram.address.saturating_add(LENGTH)))?;
    let memory = space.memory(vram.address);
    let memory = memory.context("memory that is not there")?;
    watch.watch(|| {
        let mut late = Vec::new();
        for number in 0..READS {
            if !is_in_order(&mut disk, (&memory, vram.address), number, pattern)
                .with_context(|| format!("read {number}"))?
            {
                late.push(number);
            }
        }
        Ok(late)
    })
}

/// Reads into the read's part of `memory`, which is at `address`. Returns `true` if the data is
/// there with the completion.
fn is_in_order(
    disk: &mut Disk,
    (memory, address): (&Mapping, u64),
    number: u64,
    pattern: Pattern,
) -> anyhow::Result<bool> {
    let offset = number.saturating_mul(READ);
    memory.write(offset, &BEFORE)?;
    let block = offset / disk.identity().block_bytes;
    disk.submit(Direction::Read, block, address.saturating_add(offset), READ)?;
    let completion = completion(disk)?;
    let mut seen = [0; READ_BYTES];
    memory.read(offset, &mut seen)?;
    ensure!(
        completion.status == 0,
        "it ends with status {:#x}",
        completion.status
    );
    let is_complete = |seen: &[u8]| pattern.verify(offset, seen);
    let is_in_order = is_complete(&seen).is_ok();
    disk.give_back()?;
    let begun = Instant::now();
    while let Err(wrong) = is_complete(&seen) {
        if begun.elapsed() > TIME_OUT {
            return Err(wrong).context("its data have not come after its completion either");
        }
        std::thread::yield_now();
        memory.read(offset, &mut seen)?;
    }
    Ok(is_in_order)
}

/// Polls for the next completion, whose entry stays taken.
fn completion(disk: &mut Disk) -> anyhow::Result<Completion> {
    let begun = Instant::now();
    loop {
        if let Some((_, completion)) = disk.take()? {
            return Ok(completion);
        }
        ensure!(
            begun.elapsed() < TIME_OUT,
            "it has no completion {} s later",
            TIME_OUT.as_secs()
        );
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_reads_must_be_as_many_as_expected() {
        assert!(judge(&[], 0).is_ok() && judge(&[3, 7], 2).is_ok());
        let error = judge(&[3], 0).unwrap_err().to_string();
        assert!(
            error.contains("of 1 were there before their data, numbers [3]"),
            "{error}"
        );
        assert!(judge(&[], 4).is_err());
    }
}
