//! The path of the data between two devices, and the check that they have taken it.

use std::time::Duration;

use anyhow::ensure;
use peerbar_nvme_spec::dma_log::Route;

use super::chain::{self, DiskStage};
use super::setup::{Disk, SwitchSetup, Traffic};
use crate::controller::Controller;
use crate::drive::drive;
use crate::jobs::{Extent, Fill, exact};
use crate::loaded_queue::{Buffer, Direction, DiskAddress, LoadedQueue, Slot};
use crate::memory::{BusMemory, PAGE};
use crate::server::BLOCK_BYTES;
use crate::setup::{DISK_BYTES, entries};

/// Of what is outstanding, how many bytes there are for each nanosecond of a sleep. One processor copies 20 to 30 in that time.
const BYTES_PER_NANOSECOND: u64 = 256;
/// The shortest sleep.
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);

/// How many buffers there are in each memory, from its start on, and how large they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    pub(crate) count: u16,
    pub(crate) bytes: usize,
}

impl Buffers {
    /// The disks.
    pub(crate) fn extent(self) -> Extent {
        let bytes = u64::try_from(self.bytes).unwrap_or(u64::MAX);
        Extent {
            namespaces: 1,
            bytes,
            transfers: DISK_BYTES / bytes,
        }
    }

    /// What all of them take of a memory.
    pub(crate) fn total_bytes(self) -> usize {
        usize::from(self.count) * self.bytes
    }

    /// For how long a driver may leave the devices alone that have commands for all of them: less than a quarter of the time in
    /// which one of them copies so much, with what the kernel adds. None if that is hardly worth the way to sleep and back.
    fn sleep(self) -> Option<Duration> {
        let outstanding = u64::try_from(self.total_bytes()).unwrap_or(u64::MAX);
        let sleep = Duration::from_nanos(outstanding / BYTES_PER_NANOSECOND);
        (sleep >= SHORTEST_SLEEP).then_some(sleep)
    }

    fn of(self, memory: &BusMemory) -> impl Iterator<Item = Buffer> {
        let offsets = (0..usize::from(self.count)).map(move |index| index * self.bytes);
        offsets.map(move |offset| Buffer {
            memory: memory.memory.clone(),
            offset,
            bytes: self.bytes,
        })
    }

    fn overwrite(self, memory: &BusMemory) -> anyhow::Result<()> {
        self.of(memory).try_for_each(|buffer| buffer.overwrite())
    }

    /// Disk commands, each with one of the buffers in `memory`.
    fn load_queue(self, disk: &mut Controller, memory: &BusMemory) -> anyhow::Result<LoadedQueue> {
        let pair = disk.create_queues(entries(self.count))?;
        let slots = (0..).zip(self.of(memory)).map(|(cid, buffer)| {
            let offset = u64::try_from(buffer.offset).unwrap_or(u64::MAX);
            let first = memory.address.saturating_add(offset);
            let pages: Vec<u64> = (first..).step_by(PAGE).take(self.bytes / PAGE).collect();
            let prps = disk.prps(&pages)?;
            Ok(Slot::new(cid, BLOCK_BYTES, buffer, prps))
        });
        let slots = slots.collect::<anyhow::Result<_>>()?;
        Ok(LoadedQueue { pair, slots })
    }

    fn stage(
        self,
        disk: &mut Controller,
        direction: Direction,
        memory: &BusMemory,
    ) -> anyhow::Result<DiskStage> {
        let queue = self.load_queue(disk, memory)?;
        Ok(DiskStage::new(queue, direction))
    }
}

/// Writes to the disk that is read data that are found nowhere else, and other bytes to the other.
pub(crate) fn fill(setup: &mut SwitchSetup, buffers: Buffers) -> anyhow::Result<()> {
    let extent = buffers.extent();
    let mut queues = [buffers.load_queue(&mut setup.source, &setup.ram)?];
    drive(&mut queues, &mut Fill { extent, begun: 0 })?;
    buffers.overwrite(&setup.ram)?;
    let mut write = [buffers.stage(&mut setup.target, Direction::Write, &setup.ram)?];
    let mut addresses = (0..).map_while(|number| extent.transfer(number));
    chain::run(&mut write, buffers.count, None, &mut || addresses.next())?;
    Ok(())
}

/// From where to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// From a disk to VRAM.
    DiskToVram,
    /// From a disk to a CMB, and from there to a disk.
    DiskToDisk,
}

impl Flow {
    pub(crate) const ALL: [Self; 2] = [Self::DiskToVram, Self::DiskToDisk];

    /// What it goes through, as figures are called.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::DiskToVram => "vram",
            Self::DiskToDisk => "cmb",
        }
    }

    /// How often its bytes are copied.
    pub(crate) fn copies(self) -> f64 {
        match self {
            Self::DiskToVram => 1.0,
            Self::DiskToDisk => 2.0,
        }
    }

    pub(crate) fn path(
        self,
        setup: &mut SwitchSetup,
        buffers: Buffers,
    ) -> anyhow::Result<TransferPath> {
        let SwitchSetup { source, target, .. } = setup;
        let (ram, vram, cmb) = (&setup.ram, &setup.vram, &setup.cmb);
        Ok(match self {
            Self::DiskToVram => TransferPath {
                stages: vec![buffers.stage(source, Direction::Read, vram)?],
                routes: &[(Disk::Source, Route::Peer)],
                buffers,
                seen: vram.clone(),
                back: None,
            },
            Self::DiskToDisk => TransferPath {
                stages: vec![
                    buffers.stage(source, Direction::Read, cmb)?,
                    buffers.stage(target, Direction::Write, cmb)?,
                ],
                routes: &[(Disk::Source, Route::OwnBar), (Disk::Target, Route::Peer)],
                buffers,
                seen: ram.clone(),
                back: Some(buffers.stage(target, Direction::Read, ram)?),
            },
        })
    }
}

/// The path of a flow.
pub(crate) struct TransferPath {
    stages: Vec<DiskStage>,
    /// How the payload of each transfer must have been moved, by the disks' own record.
    routes: &'static [(Disk, Route)],
    buffers: Buffers,
    /// The memory in which the result of a transfer is compared.
    seen: BusMemory,
    /// Brings the result there, if the transfer itself does not.
    back: Option<DiskStage>,
}

/// What a measurement of a path found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    /// Bytes transferred in a second.
    pub(crate) rate: f64,
    /// Time on a processor of all servers for each transfer, in nanoseconds.
    pub(crate) cpu_ns: f64,
}

impl TransferPath {
    /// Transfers once with each buffer, and compares every byte.
    pub(crate) fn check(&mut self, setup: &mut SwitchSetup) -> anyhow::Result<()> {
        let extent = self.buffers.extent();
        let count = self.buffers.count;
        let addresses = || (0..u64::from(count)).map_while(|number| extent.transfer(number));
        self.buffers.overwrite(&self.seen)?;
        let mut next = addresses();
        self.run(setup, &mut || next.next())?;
        if let Some(back) = &mut self.back {
            let mut next = addresses();
            chain::run(std::slice::from_mut(back), count, None, &mut || next.next())?;
        }
        let mut compared = self.buffers.of(&self.seen).zip(addresses());
        compared.try_for_each(|(buffer, address)| buffer.compare(address))
    }

    /// Transfers as long as `next` has addresses. An error if the data did not take this path.
    pub(crate) fn run(
        &mut self,
        setup: &mut SwitchSetup,
        next: &mut dyn FnMut() -> Option<DiskAddress>,
    ) -> anyhow::Result<Done> {
        let (traffic, cpu) = (setup.traffic()?, setup.cpu_time()?);
        let Buffers { count, .. } = self.buffers;
        let run = chain::run(&mut self.stages, count, self.buffers.sleep(), next)?;
        let cpu = setup.cpu_time()?.saturating_sub(cpu);
        let moved = since(&traffic, setup.traffic()?);
        let bytes = run.transfers * self.buffers.extent().bytes;
        let expected: Traffic = self.routes.iter().map(|route| (*route, bytes)).collect();
        ensure!(
            moved == expected,
            "the disks moved {moved:?}, not {expected:?}"
        );
        Ok(Done {
            rate: exact(bytes) / run.time.as_secs_f64(),
            cpu_ns: cpu.as_secs_f64() * 1e9 / exact(run.transfers),
        })
    }
}

/// What has been moved since `before`.
fn since(before: &Traffic, mut now: Traffic) -> Traffic {
    now.retain(|moved, bytes| {
        *bytes -= before.get(moved).copied().unwrap_or(0);
        *bytes > 0
    });
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_since_before_is_only_what_was_moved_meanwhile() {
        let (source, target) = ((Disk::Source, Route::Peer), (Disk::Target, Route::Upstream));
        let before = Traffic::from([(source, 10)]);
        let now = Traffic::from([(source, 10), (target, 5)]);
        assert_eq!(since(&before, now), Traffic::from([(target, 5)]));
    }

    #[test]
    fn extent_of_small_buffers_covers_the_disk() {
        let buffers = Buffers {
            count: 32,
            bytes: 4096,
        };
        assert_eq!(buffers.total_bytes(), 32 * 4096);
        assert_eq!(buffers.extent().transfers * 4096, DISK_BYTES);
    }
}
