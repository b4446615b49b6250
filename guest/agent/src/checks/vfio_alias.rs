//! An I/O address that is also the bus address of a peer's memory.

use std::sync::Arc;

use anyhow::{Context, ensure};
use peerbar_gds::Mapping;
use peerbar_report::{Measure, VfioAlias, VfioBackend};
use peerbar_vfio_nvme::{Direction, DmaSpace, RegisterAccess};

use super::vfio_nvme::{TakenDevices, fill, start};
use super::{CheckOutcome, Run};
use crate::counters::TrafficWatch;
use crate::devices::{have_common_switch, real_path};
use crate::guest_context::GuestContext;
use crate::user_drivers::{address_space, open_gpu, vram};

/// Bytes that are read to the address.
const LENGTH: u64 = 64 << 10;
const BYTES: usize = 64 << 10;

/// Previous content of the memory.
const BEFORE: u8 = 0x5a;

impl Run for VfioAlias {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let disk = guest.controller(&self.disk)?;
        let gpu = guest.gpu(&self.gpu)?;
        let have_switch = have_common_switch(&real_path(&disk.pci)?, &real_path(&gpu.pci)?);
        let address = gpu.aperture_start()?;
        let mut watch = TrafficWatch::new(guest);
        let taken = TakenDevices::take(guest, self.backend, disk, Some(&self.gpu))?;
        let arrived = read_at(guest, &taken, self.backend, address, &mut watch);
        let arrived = taken.give_back(guest, arrived)?;
        measure.bytes = LENGTH;
        watch.write_to(measure);
        let expected = match have_switch {
            true => Arrived::Peer,
            false => Arrived::OwnMemory,
        };
        ensure!(
            arrived == expected,
            "the data that the disk read to {address:#x} arrived at {arrived:?}, but the topology expects {expected:?}"
        );
        let traffic = watch.traffic()?;
        let seen = (
            traffic.payload_to_devices(disk.number),
            traffic.payload_to_guest_ram(disk.number),
        );
        let counted = match expected {
            Arrived::Peer => (LENGTH, 0),
            Arrived::OwnMemory => (0, LENGTH),
        };
        ensure!(
            seen == counted,
            "the counters of {} show {seen:?} bytes with devices and guest RAM, expected {counted:?}",
            self.disk
        );
        Ok(CheckOutcome::Passed)
    }

    fn has_own_addresses(&self) -> bool {
        true
    }
}

/// The place where data arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrived {
    /// The memory that has this bus address.
    Peer,
    /// The memory that has this address in the address space.
    OwnMemory,
}

/// Lets the disk read its first blocks to `address`, which refers to memory of this process.
fn read_at(
    guest: &GuestContext,
    taken: &TakenDevices<'_>,
    backend: VfioBackend,
    address: u64,
    watch: &mut TrafficWatch<'_>,
) -> anyhow::Result<Arrived> {
    let space = DmaSpace::new(address_space(backend)?);
    let mut disk = start(taken, &space, RegisterAccess::Mapped)?;
    let (_, binding) = taken.gpu.as_ref().context("a check without its GPU")?;
    let gpu = open_gpu(space.address_space(), binding)?;
    let aperture = gpu.map(vram(LENGTH))?;
    let own = Arc::new(Mapping::anonymous(LENGTH).context("cannot map memory")?);
    let pattern = guest.fresh_pattern(taken.disk.0);
    fill(&mut disk, pattern, LENGTH)?;
    for memory in [&aperture, &*own] {
        memory.write(0, &[BEFORE; BYTES])?;
    }
    space
        .map(address, Arc::clone(&own))
        .with_context(|| format!("the bus address {address:#x} as an I/O address"))?;
    watch.watch(|| disk.transfer(Direction::Read, 0, address, LENGTH))?;
    let mut seen = [vec![0; BYTES], vec![0; BYTES]];
    for (memory, seen) in [&aperture, &*own].into_iter().zip(&mut seen) {
        memory.read(0, seen)?;
    }
    let [at_peer, at_own] = seen;
    let is_untouched = |seen: &[u8]| seen.iter().all(|byte| *byte == BEFORE);
    if is_untouched(&at_own) {
        pattern.verify(0, &at_peer).context("at the peer")?;
        return Ok(Arrived::Peer);
    }
    pattern.verify(0, &at_own).context("in own memory")?;
    ensure!(is_untouched(&at_peer), "the peer's memory has changed too");
    Ok(Arrived::OwnMemory)
}
