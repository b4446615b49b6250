//! The ways that data can take between two devices, and the check that they have taken them.

use std::time::Duration;

use peerbar_nvme_spec::dma_log::Route;

use super::chain::{self, DiskStage, Stage};
use super::copy_engine::CopyEngine;
use super::fabric::{BLOCK_BYTES, DISK_BYTES, Device, Fabric, Traffic};
use crate::Error;
use crate::controller::Controller;
use crate::drive::drive;
use crate::jobs::{Extent, Fill, exact};
use crate::loaded_queue::{Buffer, Direction, DiskRange, LoadedQueue, Slot};
use crate::memory::{BusMemory, PAGE};
use crate::setup::entries;

/// Of what is outstanding, how many bytes there are for each nanosecond of a nap. One processor copies 20 to 30 in that time.
const NAP_BYTES: u64 = 256;
/// The shortest nap.
const SHORTEST_NAP: Duration = Duration::from_micros(20);

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
        usize::from(self.count) * self.bytes + CopyEngine::ROOM
    }

    /// For how long a driver may leave the devices alone that have commands for all of them: less than a quarter of the time in
    /// which one of them copies so much, with what the kernel adds. None if that is hardly worth the way to sleep and back.
    fn nap(self) -> Option<Duration> {
        let outstanding = u64::from(self.count) * u64::try_from(self.bytes).unwrap_or(u64::MAX);
        let nap = Duration::from_nanos(outstanding / NAP_BYTES);
        (nap >= SHORTEST_NAP).then_some(nap)
    }

    fn of(self, room: &BusMemory) -> impl Iterator<Item = Buffer> {
        let offsets = (0..usize::from(self.count)).map(move |index| index * self.bytes);
        offsets.map(move |offset| Buffer {
            memory: room.memory.clone(),
            offset,
            bytes: self.bytes,
        })
    }

    fn spoil(self, room: &BusMemory) -> Result<(), Error> {
        self.of(room).try_for_each(|buffer| buffer.spoil())
    }

    /// Disk commands, each with one of the buffers in `room`.
    fn load_queue(self, disk: &mut Controller, room: &BusMemory) -> Result<LoadedQueue, Error> {
        let pair = disk.create_queues(entries(self.count))?;
        let slots = (0..).zip(self.of(room)).map(|(cid, buffer)| {
            let offset = u64::try_from(buffer.offset).unwrap_or(u64::MAX);
            let first = room.address.saturating_add(offset);
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
        room: &BusMemory,
    ) -> Result<Box<dyn Stage>, Error> {
        let queue = self.load_queue(disk, room)?;
        Ok(Box::new(DiskStage::new(queue, direction)))
    }
}

/// Writes to the disks that are read from data that are found nowhere else, and to the other one what nobody takes for them.
pub(crate) fn fill(fabric: &mut Fabric, buffers: Buffers) -> Result<(), Error> {
    let extent = buffers.extent();
    for disk in [&mut fabric.near, &mut fabric.far] {
        let mut queues = [buffers.load_queue(disk, &fabric.ram)?];
        drive(&mut queues, &mut Fill { extent, begun: 0 })?;
    }
    buffers.spoil(&fabric.ram)?;
    let mut write = [buffers.stage(&mut fabric.other, Direction::Write, &fabric.ram)?];
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

    /// The three ways.
    pub(crate) fn ways(self, fabric: &mut Fabric, buffers: Buffers) -> Result<Ways, Error> {
        match self {
            Self::DiskToVram => to_vram(fabric, buffers),
            Self::DiskToDisk => to_disk(fabric, buffers),
        }
    }
}

/// The ways of one flow.
pub(crate) struct Ways {
    /// From device to device.
    pub(crate) straight: Way,
    /// Through guest RAM, by two commands.
    pub(crate) bounced: Way,
    /// By messages to the client.
    pub(crate) messages: Way,
}

fn to_vram(fabric: &mut Fabric, buffers: Buffers) -> Result<Ways, Error> {
    let Fabric {
        near,
        far,
        gpu,
        ram,
        vram,
        ..
    } = fabric;
    let way = |stages, routes| Way {
        stages,
        routes,
        buffers,
        room: vram.clone(),
        back: Vec::new(),
    };
    let engine = CopyEngine::enable(gpu.clone(), ram.clone(), buffers.bytes)?;
    let to_ram = buffers.stage(near, Direction::Read, ram)?;
    Ok(Ways {
        straight: way(
            vec![buffers.stage(near, Direction::Read, vram)?],
            vec![(Device::Near, Route::Peer)],
        ),
        bounced: way(
            vec![to_ram, Box::new(engine)],
            vec![
                (Device::Near, Route::GuestRam),
                (Device::Gpu, Route::GuestRam),
            ],
        ),
        messages: way(
            vec![buffers.stage(far, Direction::Read, vram)?],
            vec![(Device::Far, Route::Upstream)],
        ),
    })
}

fn to_disk(fabric: &mut Fabric, buffers: Buffers) -> Result<Ways, Error> {
    let Fabric {
        near,
        other,
        far,
        ram,
        cmb,
        ..
    } = fabric;
    let way = |stages, routes, back| Way {
        stages,
        routes,
        buffers,
        room: ram.clone(),
        back: vec![back],
    };
    Ok(Ways {
        straight: way(
            vec![
                buffers.stage(near, Direction::Read, cmb)?,
                buffers.stage(other, Direction::Write, cmb)?,
            ],
            vec![(Device::Near, Route::OwnBar), (Device::Other, Route::Peer)],
            buffers.stage(other, Direction::Read, ram)?,
        ),
        bounced: way(
            vec![
                buffers.stage(near, Direction::Read, ram)?,
                buffers.stage(other, Direction::Write, ram)?,
            ],
            vec![
                (Device::Near, Route::GuestRam),
                (Device::Other, Route::GuestRam),
            ],
            buffers.stage(other, Direction::Read, ram)?,
        ),
        messages: way(
            vec![
                buffers.stage(far, Direction::Read, cmb)?,
                buffers.stage(far, Direction::Write, cmb)?,
            ],
            vec![
                (Device::Far, Route::Upstream),
                (Device::Far, Route::Upstream),
            ],
            buffers.stage(far, Direction::Read, ram)?,
        ),
    })
}

/// One of them.
pub(crate) struct Way {
    stages: Vec<Box<dyn Stage>>,
    /// How the payload of each transfer must have been moved, by the devices' own record.
    routes: Vec<(Device, Route)>,
    buffers: Buffers,
    /// Where it can be seen what has come, if what is in `back` brings it there.
    room: BusMemory,
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

impl Way {
    /// Transfers once with each buffer, the first from place `first` on, and compares every byte that comes.
    pub(crate) fn check(&mut self, fabric: &mut Fabric, first: u64) -> Result<(), Error> {
        let extent = self.buffers.extent();
        let count = self.buffers.count;
        let places = || {
            (first..)
                .map_while(|number| extent.place(number))
                .take(count.into())
        };
        self.buffers.spoil(&self.room)?;
        let mut next = places();
        self.run(fabric, &mut || next.next())?;
        if !self.back.is_empty() {
            self.buffers.spoil(&self.room)?;
            let mut next = places();
            chain::run(&mut self.back, count.into(), None, &mut || next.next())?;
        }
        let mut compared = self.buffers.of(&self.room).zip(places());
        compared.try_for_each(|(buffer, place)| buffer.compare(place))
    }

    /// Transfers as long as `next` says what. An error if it did not go the way that it should have gone.
    pub(crate) fn run(
        &mut self,
        fabric: &mut Fabric,
        next: &mut dyn FnMut() -> Option<DiskRange>,
    ) -> Result<Done, Error> {
        let (traffic, cpu) = (fabric.traffic()?, fabric.cpu_time()?);
        let Buffers { count, .. } = self.buffers;
        let run = chain::run(&mut self.stages, count.into(), self.buffers.nap(), next)?;
        let cpu = fabric.cpu_time()?.saturating_sub(cpu);
        let moved = since(&traffic, fabric.traffic()?);
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
        let (near, far) = ((Device::Near, Route::Peer), (Device::Far, Route::Upstream));
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
