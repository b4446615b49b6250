//! The paths that data can take between two devices, and the check that they have taken them.

use std::time::Duration;

use peerbar_nvme_spec::dma_log::Route;

use super::chain::{self, DiskStage, Stage};
use super::copy_engine::CopyEngine;
use super::switch_setup::{BLOCK_BYTES, DISK_BYTES, PeerDevice, SwitchSetup, Traffic};
use crate::Error;
use crate::controller::Controller;
use crate::drive::drive;
use crate::jobs::{Extent, Fill, exact};
use crate::loaded_queue::{Buffer, Direction, DiskRange, LoadedQueue, Slot};
use crate::memory::{BusMemory, PAGE};
use crate::setup::entries;

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

    /// What all of them take of guest RAM, with what else has to be there.
    pub(crate) fn ram_bytes(self) -> usize {
        usize::from(self.count) * self.bytes + CopyEngine::BYTES_BESIDE_DATA
    }

    /// For how long a driver may leave the devices alone that have commands for all of them: less than a quarter of the time in
    /// which one of them copies so much, with what the kernel adds. None if that is hardly worth the way to sleep and back.
    fn sleep(self) -> Option<Duration> {
        let outstanding = u64::from(self.count) * u64::try_from(self.bytes).unwrap_or(u64::MAX);
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

    fn spoil(self, memory: &BusMemory) -> Result<(), Error> {
        self.of(memory).try_for_each(|buffer| buffer.spoil())
    }

    /// Disk commands, each with one of the buffers in `memory`.
    fn load_queue(self, disk: &mut Controller, memory: &BusMemory) -> Result<LoadedQueue, Error> {
        let pair = disk.create_queues(entries(self.count))?;
        let slots = (0..).zip(self.of(memory)).map(|(cid, buffer)| {
            let offset = u64::try_from(buffer.offset).unwrap_or(u64::MAX);
            let first = memory.address.saturating_add(offset);
            let pages: Vec<u64> = (first..).step_by(PAGE).take(self.bytes / PAGE).collect();
            let prps = disk.prps(&pages)?;
            Ok(Slot::new(cid, BLOCK_BYTES, buffer, prps))
        });
        let slots = slots.collect::<Result<_, Error>>()?;
        Ok(LoadedQueue { pair, slots })
    }

    fn stage(
        self,
        disk: &mut Controller,
        direction: Direction,
        memory: &BusMemory,
    ) -> Result<Box<dyn Stage>, Error> {
        let queue = self.load_queue(disk, memory)?;
        Ok(Box::new(DiskStage::new(queue, direction)))
    }
}

/// Writes to the disks that are read from data that are found nowhere else, and other bytes to the third.
pub(crate) fn fill(setup: &mut SwitchSetup, buffers: Buffers) -> Result<(), Error> {
    let extent = buffers.extent();
    for disk in [&mut setup.near, &mut setup.far] {
        let mut queues = [buffers.load_queue(disk, &setup.ram)?];
        drive(&mut queues, &mut Fill { extent, begun: 0 })?;
    }
    buffers.spoil(&setup.ram)?;
    let mut write = [buffers.stage(&mut setup.other, Direction::Write, &setup.ram)?];
    let mut places = (0..).map_while(|number| extent.place(number));
    chain::run(&mut write, buffers.count.into(), None, &mut || {
        places.next()
    })?;
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

    /// The three paths.
    pub(crate) fn paths(
        self,
        setup: &mut SwitchSetup,
        buffers: Buffers,
    ) -> Result<TransferPaths, Error> {
        match self {
            Self::DiskToVram => to_vram(setup, buffers),
            Self::DiskToDisk => to_disk(setup, buffers),
        }
    }
}

/// The paths of one flow.
pub(crate) struct TransferPaths {
    /// From device to device.
    pub(crate) straight: TransferPath,
    /// Through guest RAM, by two commands.
    pub(crate) bounced: TransferPath,
    /// By messages to the client.
    pub(crate) messages: TransferPath,
}

fn to_vram(setup: &mut SwitchSetup, buffers: Buffers) -> Result<TransferPaths, Error> {
    let SwitchSetup {
        near,
        far,
        gpu,
        ram,
        vram,
        ..
    } = setup;
    let way = |stages, routes| TransferPath {
        stages,
        routes,
        buffers,
        memory: vram.clone(),
        back: Vec::new(),
    };
    let engine = CopyEngine::enable(gpu.clone(), ram.clone(), buffers.bytes)?;
    let to_ram = buffers.stage(near, Direction::Read, ram)?;
    Ok(TransferPaths {
        straight: way(
            vec![buffers.stage(near, Direction::Read, vram)?],
            vec![(PeerDevice::Near, Route::Peer)],
        ),
        bounced: way(
            vec![to_ram, Box::new(engine)],
            vec![
                (PeerDevice::Near, Route::GuestRam),
                (PeerDevice::Gpu, Route::GuestRam),
            ],
        ),
        messages: way(
            vec![buffers.stage(far, Direction::Read, vram)?],
            vec![(PeerDevice::Far, Route::Upstream)],
        ),
    })
}

fn to_disk(setup: &mut SwitchSetup, buffers: Buffers) -> Result<TransferPaths, Error> {
    let SwitchSetup {
        near,
        other,
        far,
        ram,
        cmb,
        ..
    } = setup;
    let way = |stages, routes, back| TransferPath {
        stages,
        routes,
        buffers,
        memory: ram.clone(),
        back: vec![back],
    };
    Ok(TransferPaths {
        straight: way(
            vec![
                buffers.stage(near, Direction::Read, cmb)?,
                buffers.stage(other, Direction::Write, cmb)?,
            ],
            vec![
                (PeerDevice::Near, Route::OwnBar),
                (PeerDevice::Other, Route::Peer),
            ],
            buffers.stage(other, Direction::Read, ram)?,
        ),
        bounced: way(
            vec![
                buffers.stage(near, Direction::Read, ram)?,
                buffers.stage(other, Direction::Write, ram)?,
            ],
            vec![
                (PeerDevice::Near, Route::GuestRam),
                (PeerDevice::Other, Route::GuestRam),
            ],
            buffers.stage(other, Direction::Read, ram)?,
        ),
        messages: way(
            vec![
                buffers.stage(far, Direction::Read, cmb)?,
                buffers.stage(far, Direction::Write, cmb)?,
            ],
            vec![
                (PeerDevice::Far, Route::Upstream),
                (PeerDevice::Far, Route::Upstream),
            ],
            buffers.stage(far, Direction::Read, ram)?,
        ),
    })
}

/// One of them.
pub(crate) struct TransferPath {
    stages: Vec<Box<dyn Stage>>,
    /// How the payload of each transfer must have been moved, by the devices' own record.
    routes: Vec<(PeerDevice, Route)>,
    buffers: Buffers,
    /// Where it can be seen what has come, if what is in `back` brings it there.
    memory: BusMemory,
    back: Vec<Box<dyn Stage>>,
}

/// What came of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    /// Bytes transferred in a second.
    pub(crate) rate: f64,
    /// Bytes that devices moved for each that was transferred.
    pub(crate) moved: f64,
    /// Time on a processor of all servers for each transfer, in nanoseconds.
    pub(crate) cpu_ns: f64,
}

impl TransferPath {
    /// Transfers once with each buffer, the first from place `first` on, and compares every byte that comes.
    pub(crate) fn check(&mut self, setup: &mut SwitchSetup, first: u64) -> Result<(), Error> {
        let extent = self.buffers.extent();
        let count = self.buffers.count;
        let places = || {
            (first..)
                .map_while(|number| extent.place(number))
                .take(count.into())
        };
        self.buffers.spoil(&self.memory)?;
        let mut next = places();
        self.run(setup, &mut || next.next())?;
        if !self.back.is_empty() {
            self.buffers.spoil(&self.memory)?;
            let mut next = places();
            chain::run(&mut self.back, count.into(), None, &mut || next.next())?;
        }
        let mut compared = self.buffers.of(&self.memory).zip(places());
        compared.try_for_each(|(buffer, place)| buffer.compare(place))
    }

    /// Transfers as long as `next` says what. An error if it did not go the way that it should have gone.
    pub(crate) fn run(
        &mut self,
        setup: &mut SwitchSetup,
        next: &mut dyn FnMut() -> Option<DiskRange>,
    ) -> Result<Done, Error> {
        let (traffic, cpu) = (setup.traffic()?, setup.cpu_time()?);
        let Buffers { count, .. } = self.buffers;
        let run = chain::run(&mut self.stages, count.into(), self.buffers.sleep(), next)?;
        let cpu = setup.cpu_time()?.saturating_sub(cpu);
        let moved = since(&traffic, setup.traffic()?);
        let bytes = run.transfers * self.buffers.extent().bytes;
        let expected = self.expected(bytes);
        if moved != expected {
            return Err(Error::Route {
                found: format!("{moved:?}"),
                expected: format!("{expected:?}"),
            });
        }
        Ok(Done {
            rate: exact(bytes) / run.time.as_secs_f64(),
            moved: exact(moved.values().sum()) / exact(bytes),
            cpu_ns: cpu.as_secs_f64() * 1e9 / exact(run.transfers),
        })
    }

    fn expected(&self, bytes: u64) -> Traffic {
        let mut traffic = Traffic::new();
        for moved in &self.routes {
            *traffic.entry(*moved).or_default() += bytes;
        }
        traffic
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
    fn only_what_has_been_moved_meanwhile_is_told() {
        let (near, far) = (
            (PeerDevice::Near, Route::Peer),
            (PeerDevice::Far, Route::Upstream),
        );
        let before = Traffic::from([(near, 10)]);
        let now = Traffic::from([(near, 10), (far, 5)]);
        assert_eq!(since(&before, now), Traffic::from([(far, 5)]));
    }

    #[test]
    fn guest_ram_has_room_for_every_buffer() {
        let buffers = Buffers {
            count: 32,
            bytes: 4096,
        };
        assert!(buffers.ram_bytes() > 32 * 4096);
        assert_eq!(buffers.extent().transfers * 4096, DISK_BYTES);
    }
}
