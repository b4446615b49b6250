//! Tries one pair of devices: the client's DMA to the provider's memory, and the program's view of
//! it.
//!
//! Each direction is a move of data from one end to another with the provider's memory in between.
//! The client is at the near end. The far end is the provider's own disk if it has one, otherwise
//! its memory itself.

mod by_verbs;
mod pair;
mod user_driven;

use super::{CheckOutcome, Run};
use peerbar_report::{
    Measure, Probe, ProbeDriver, ProbeOutcome, Probed, Record, Transfer, VfioBackend, size_range,
};
use std::fs::File;
use std::io;

use anyhow::{Context, ensure};
use peerbar_gds::Mapping;
use peerbar_gds::{Buffer, Gpu as OpenedGpu, HostBuffer};

use self::pair::{BYTES, Direction, LENGTH, Pair};
use self::user_driven::UserDriven;
use super::vfio_nvme::TakenDevices;
use crate::counters::TrafficWatch;
use crate::devices::Controller;
use crate::disk;
use crate::guest_context::GuestContext;
use crate::kmsg::Expected;
use crate::mapped_buffer::MappedBuffer;
use peerbar_pattern::Pattern;

impl Run for Probe {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        measure.sizes = size_range(&[LENGTH]);
        let number = client_number(guest, self)?;
        let mut watch = TrafficWatch::new(guest);
        let (written, read) = match self.by {
            ProbeDriver::Kernel => both_ways(guest, number, &mut watch, pair(guest, self))?,
            ProbeDriver::Vfio => by_vfio(guest, self, number, &mut watch)?,
            ProbeDriver::Verbs => by_verbs::run(guest, self, &mut watch)?,
        };
        watch.write_to(measure);
        let wrong = [&written, &read]
            .into_iter()
            .find_map(|transfer| match transfer {
                Transfer::Wrong { message } => Some(message.clone()),
                Transfer::Right | Transfer::Failed { .. } => None,
            });
        let right = [&written, &read]
            .into_iter()
            .filter(|&transfer| *transfer == Transfer::Right);
        measure.bytes = LENGTH.saturating_mul(right.count() as u64);
        let probed = Probed {
            written,
            read,
            record: record(&watch, number),
            faults: 0,
            fault: None,
        };
        let unexpected = self
            .expect
            .and_then(|expected| unlike(&probed, measure.bytes, expected));
        measure.probe = Some(probed);
        ensure!(
            wrong.is_none(),
            "the transfer ended with success, but {}",
            wrong.unwrap_or_default()
        );
        ensure!(unexpected.is_none(), "{}", unexpected.unwrap_or_default());
        Ok(CheckOutcome::Passed)
    }

    fn expected_log(&self) -> Expected<'_> {
        Expected::FAULTS
    }

    fn has_own_addresses(&self) -> bool {
        self.by == ProbeDriver::Vfio
    }
}

/// Returns the record of the client, if all of its DMA is counted.
fn record(watch: &TrafficWatch<'_>, client: u32) -> Option<Record> {
    let traffic = watch.traffic().ok();
    let traffic = traffic.filter(|traffic| traffic.measures(client));
    traffic.map(|traffic| traffic.record(client))
}

/// Returns the difference between a probe that has moved `bytes` and the expected outcome.
fn unlike(probed: &Probed, bytes: u64, expected: ProbeOutcome) -> Option<String> {
    if probed.outcome(bytes) == Some(expected) {
        return None;
    }
    let routes = probed.record.iter().flat_map(|record| &record.routes);
    let routes = routes.filter(|(_, bytes)| **bytes > 0);
    let routes: Vec<String> = routes
        .map(|(route, bytes)| format!("{bytes} bytes {}", route.word()))
        .collect();
    let went = match routes.as_slice() {
        [] if probed.record.is_none() => {
            "nobody counted the route: a [[device]] needs `count = \"all\"`".to_owned()
        }
        [] => "nothing was transferred".to_owned(),
        routes => format!("the client transferred {}", routes.join(" and ")),
    };
    let errors = [&probed.written, &probed.read];
    let error = errors.into_iter().find_map(|transfer| match transfer {
        Transfer::Failed { message, .. } => Some(format!(": {message}")),
        Transfer::Right | Transfer::Wrong { .. } => None,
    });
    let expected = match expected {
        ProbeOutcome::Peer => "a direct transfer",
        ProbeOutcome::HostBridge => "a transfer through the root complex",
        ProbeOutcome::Refused => "a refusal by the kernel",
    };
    Some(format!(
        "expected {expected}, but {went}{}",
        error.unwrap_or_default()
    ))
}

/// Returns the outcome of both directions, through `pair` or the error in its place.
fn both_ways<'p>(
    guest: &GuestContext,
    number: u32,
    watch: &mut TrafficWatch<'_>,
    pair: anyhow::Result<Box<dyn Pair + 'p>>,
) -> anyhow::Result<(Transfer, Transfer)> {
    match pair {
        Ok(mut pair) => {
            let mut moved = |direction| {
                let pattern = guest.fresh_pattern_of(number);
                transfer(pair.as_mut(), direction, pattern, watch)
            };
            Ok((moved(Direction::There)?, moved(Direction::Back)?))
        }
        Err(refused) => Ok((failed(&refused), failed(&refused))),
    }
}

/// Returns the same, while vfio-pci drives both devices.
fn by_vfio(
    guest: &GuestContext,
    probe: &Probe,
    number: u32,
    watch: &mut TrafficWatch<'_>,
) -> anyhow::Result<(Transfer, Transfer)> {
    let disk = guest.controller(&probe.client)?;
    let taken = TakenDevices::take(guest, VfioBackend::Type1, disk, Some(&probe.provider));
    let taken = match taken {
        Ok(taken) => taken,
        Err(refused) if is_refusal(&refused) => {
            return Ok((failed(&refused), failed(&refused)));
        }
        Err(other) => return Err(other),
    };
    let pair = UserDriven::open(&taken).map(|pair| Box::new(pair) as Box<dyn Pair>);
    let outcome = both_ways(guest, number, watch, pair);
    taken.give_back(guest, outcome)
}

/// Returns `true` if VFIO refuses a device by its rule, `false` for any other failure.
fn is_refusal(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<peerbar_vfio_nvme::Error>(),
        Some(peerbar_vfio_nvme::Error::NoIommu { .. })
    )
}

fn client_number(guest: &GuestContext, probe: &Probe) -> anyhow::Result<u32> {
    if let Ok(gpu) = guest.gpu(&probe.client) {
        return Ok(gpu.number);
    }
    match guest.nic(&probe.client) {
        Ok(nic) => Ok(nic.number),
        Err(_) => Ok(guest.controller(&probe.client)?.number),
    }
}

fn pair(guest: &GuestContext, probe: &Probe) -> anyhow::Result<Box<dyn Pair>> {
    match guest.gpu(&probe.client) {
        Ok(gpu) => Ok(Box::new(CopyEngine::open(
            guest,
            gpu.open()?,
            &probe.provider,
        )?)),
        Err(_) => {
            let client = guest.controller(&probe.client)?;
            Ok(Box::new(DiskPair::open(guest, client, &probe.provider)?))
        }
    }
}

fn transfer(
    pair: &mut dyn Pair,
    direction: Direction,
    pattern: Pattern,
    watch: &mut TrafficWatch<'_>,
) -> anyhow::Result<Transfer> {
    pair.load(direction, &pattern.bytes(0, BYTES))?;
    let outcome = watch.watch(|| pair.carry(direction));
    Ok(judge(outcome, pattern, &pair.arrived(direction)?))
}

fn judge(outcome: anyhow::Result<()>, pattern: Pattern, seen: &[u8]) -> Transfer {
    match (outcome, pattern.verify(0, seen)) {
        (Err(error), _) => failed(&error),
        (Ok(()), Ok(())) => Transfer::Right,
        (Ok(()), Err(mismatch)) => Transfer::Wrong {
            message: mismatch.to_string(),
        },
    }
}

fn failed(error: &anyhow::Error) -> Transfer {
    let kernel = error.root_cause().downcast_ref::<io::Error>();
    Transfer::Failed {
        errno: kernel.and_then(io::Error::raw_os_error),
        message: format!("{error:#}"),
    }
}

/// A disk as the client: direct I/O between it and p2pmem.
struct DiskPair {
    client: File,
    memory: MappedBuffer,
    /// The provider's own disk, if the provider is not a GPU.
    provider: Option<File>,
}

impl DiskPair {
    /// Positions of the two ends on the disks, so that a disk can be both.
    const NEAR: u64 = 0;
    const FAR: u64 = LENGTH;

    fn open(guest: &GuestContext, client: &Controller, provider: &str) -> anyhow::Result<Self> {
        client.disk.check(Self::NEAR, LENGTH)?;
        let own_disk = guest.controller(provider).ok().map(|controller| {
            controller.disk.check(Self::FAR, LENGTH)?;
            controller.disk.open_direct()
        });
        Ok(Self {
            client: client.disk.open_direct()?,
            memory: guest.provider(provider)?.pool.map(BYTES)?,
            provider: own_disk.transpose()?,
        })
    }
}

impl Pair for DiskPair {
    fn load(&mut self, direction: Direction, bytes: &[u8]) -> anyhow::Result<()> {
        self.memory.copy_in(&[0; BYTES])?;
        match (direction, &self.provider) {
            (Direction::There, _) => disk::store(&self.client, bytes, Self::NEAR),
            (Direction::Back, Some(provider)) => disk::store(provider, bytes, Self::FAR),
            (Direction::Back, None) => self.memory.copy_in(bytes),
        }
    }

    fn carry(&mut self, direction: Direction) -> anyhow::Result<()> {
        let (client, provider) = ("the client's disk", "the provider's own disk");
        match direction {
            Direction::There => {
                let read = self.memory.read_from(&self.client, Self::NEAR, BYTES);
                read.context(client)?;
                let Some(disk) = &self.provider else {
                    return Ok(());
                };
                self.memory
                    .write_to(disk, Self::FAR, BYTES)
                    .context(provider)
            }
            Direction::Back => {
                if let Some(disk) = &self.provider {
                    let read = self.memory.read_from(disk, Self::FAR, BYTES);
                    read.context(provider)?;
                }
                self.memory
                    .write_to(&self.client, Self::NEAR, BYTES)
                    .context(client)
            }
        }
    }

    fn arrived(&mut self, direction: Direction) -> anyhow::Result<Vec<u8>> {
        match (direction, &self.provider) {
            (Direction::There, Some(provider)) => disk::read(provider, Self::FAR, BYTES),
            (Direction::There, None) => self.memory.to_vec(BYTES),
            (Direction::Back, _) => disk::read(&self.client, Self::NEAR, BYTES),
        }
    }
}

/// A GPU as the client: its copy engine, between its memory and another device's.
struct CopyEngine {
    gpu: OpenedGpu,
    vram: Buffer,
    other: HostBuffer,
}

impl CopyEngine {
    fn open(guest: &GuestContext, gpu: OpenedGpu, provider: &str) -> anyhow::Result<Self> {
        let allocate = guest.provider(provider)?.pool.open()?;
        Ok(Self {
            vram: gpu.allocate(LENGTH)?,
            other: gpu.allocate_peer(&allocate, LENGTH)?,
            gpu,
        })
    }
}

impl CopyEngine {
    /// Returns the start and the end of `direction`.
    fn mappings(&self, direction: Direction) -> (&Mapping, &Mapping) {
        let (vram, other) = (self.vram.mapping(), self.other.mapping());
        match direction {
            Direction::There => (vram, other),
            Direction::Back => (other, vram),
        }
    }
}

impl Pair for CopyEngine {
    fn load(&mut self, direction: Direction, bytes: &[u8]) -> anyhow::Result<()> {
        let (from, to) = self.mappings(direction);
        to.write(0, &[0; BYTES])?;
        Ok(from.write(0, bytes)?)
    }

    fn carry(&mut self, direction: Direction) -> anyhow::Result<()> {
        let (vram, other) = (self.vram.span(..)?, self.other.span(..)?);
        match direction {
            Direction::There => self.gpu.copy(vram, other)?,
            Direction::Back => self.gpu.copy(other, vram)?,
        }
        Ok(())
    }

    fn arrived(&mut self, direction: Direction) -> anyhow::Result<Vec<u8>> {
        let (_, to) = self.mappings(direction);
        let mut bytes = vec![0; BYTES];
        to.read(0, &mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    const PATTERN: Pattern = Pattern { disk: 1, round: 2 };

    #[test]
    fn only_a_missing_iommu_is_vfio_s_refusal() {
        let source = || io::Error::from_raw_os_error(libc::EINVAL);
        let pci = || "/sys/devices/pci0000:00/0000:00:03.0".into();
        let refused = peerbar_vfio_nvme::Error::NoIommu {
            pci: pci(),
            source: source(),
        };
        let refused = anyhow!(refused);
        assert!(is_refusal(&refused));
        let transfer = failed(&refused);
        let Transfer::Failed { errno, .. } = transfer else {
            panic!("{transfer:?}");
        };
        assert_eq!(errno, Some(libc::EINVAL));
        let mistaken = peerbar_vfio_nvme::Error::File {
            action: "write",
            path: pci(),
            source: source(),
        };
        assert!(!is_refusal(&anyhow!(mistaken)));
    }

    #[test]
    fn program_with_an_error_sees_no_wrong_data() {
        let right = PATTERN.bytes(0, 512);
        assert_eq!(judge(Ok(()), PATTERN, &right), Transfer::Right);
        let wrong = judge(Ok(()), PATTERN, &[0; 512]);
        assert!(matches!(wrong, Transfer::Wrong { .. }), "{wrong:?}");
        let refused = anyhow!(io::Error::from_raw_os_error(libc::EINVAL)).context("read failed");
        let Transfer::Failed { errno, message } = judge(Err(refused), PATTERN, &[0; 512]) else {
            panic!("an error is no success");
        };
        assert_eq!(errno, Some(libc::EINVAL));
        assert!(message.starts_with("read failed: "), "{message}");
    }
}
