//! Without a route between devices in the kernel, a transfer is refused with the reason, or bounces
//! if that is allowed.

use super::{CheckOutcome, Run};
use anyhow::{Context, bail, ensure};
use peerbar_gds::{
    Buffer, Direction, Error, ExportPolicy, Gpu, GpuFile, Policy, Queue, Request, Traffic,
};
use peerbar_report::{Buffer as Through, GpuRefused, Measure};

use super::route::judge;
use crate::counters::TrafficWatch;
use crate::devices::Controller;
use crate::disk;
use crate::dma_buf_importer::{Importer, Kind};
use crate::guest_context::GuestContext;
use crate::pci_function::PciFunction;

/// Size of each transfer in bytes.
const LENGTH: u64 = 256 << 10;

impl Run for GpuRefused {
    fn run(&self, guest: &GuestContext, measure: &mut Measure) -> anyhow::Result<CheckOutcome> {
        let (gpu, disk) = (guest.gpu(&self.gpu)?, guest.controller(&self.disk)?);
        disk.disk.check(0, 2 * LENGTH)?;
        let opened = gpu.open()?;
        let buffer = opened.allocate(LENGTH)?;
        refused(guest, &opened, disk, &buffer)?;
        mapping_is_refused(&opened, disk).context("a dma-buf for the disk")?;

        let pattern = guest.fresh_pattern(disk);
        let plain = disk.disk.open_direct()?;
        disk::fill(&plain, pattern, 0, usize::try_from(LENGTH)?)?;
        let file = disk.open_for(&opened, Policy::AllowBounce)?;
        let mut watch = TrafficWatch::new(guest);
        watch.watch(|| there_and_back(&file, &buffer))?;
        measure.bytes = LENGTH * 2;
        watch.write_to(measure);
        pattern.verify(0, &disk::read(&plain, LENGTH, usize::try_from(LENGTH)?)?)?;
        let right = Traffic {
            peer_bytes: 0,
            bounced_bytes: measure.bytes,
        };
        ensure!(
            file.traffic() == right,
            "the library counted {:?}, expected {right:?}",
            file.traffic()
        );
        let shares = [disk.share(measure.bytes), gpu.share(measure.bytes)];
        judge(&Through::GuestRam, &shares, watch.traffic()?)?;
        Ok(CheckOutcome::Passed)
    }
}

/// Checks that nothing moves if a bounce is not allowed, whichever call asks for it.
fn refused(
    guest: &GuestContext,
    gpu: &Gpu,
    disk: &Controller,
    buffer: &Buffer,
) -> anyhow::Result<()> {
    let file = disk.open_for(gpu, Policy::PeerOnly)?;
    let mut watch = TrafficWatch::new(guest);
    let outcomes = watch.watch(|| {
        [
            file.read_at(buffer, ..LENGTH, 0),
            file.write_at(buffer, ..LENGTH, 0).map(|()| LENGTH),
            through_queue(&file, buffer),
        ]
    });
    for outcome in outcomes {
        match outcome {
            Err(Error::PeerToPeer { .. }) => {}
            Err(error) => {
                bail!("a transfer should have been refused as peer-to-peer DMA, but: {error:#}")
            }
            Ok(moved) => bail!(
                "{moved} bytes have moved: the kernel has a route between these devices, so this check is out of place"
            ),
        }
    }
    let moved = watch.traffic()?.payload();
    ensure!(
        moved == 0,
        "transfers that were refused have moved {moved} bytes of payload"
    );
    Ok(())
}

/// Checks that an importer gets the refusal when it maps, and leaves no pin behind.
fn mapping_is_refused(gpu: &Gpu, disk: &Controller) -> anyhow::Result<()> {
    let (policy, kind) = match gpu.properties().window {
        true => (ExportPolicy::Revocable, Kind::Notified),
        false => (ExportPolicy::Static, Kind::Static),
    };
    let buffer = gpu.allocate(LENGTH)?;
    let dma_buf = buffer.export_as(policy)?;
    let importer = Importer::open()?;
    let import = importer.attach(&dma_buf, kind, Some(PciFunction::of(&disk.pci)?))?;
    match import.map() {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EREMOTEIO)) => {}
        other => bail!("a mapping should have been refused as peer-to-peer DMA, but: {other:?}"),
    }
    Ok(buffer.revoke()?)
}

fn through_queue(file: &GpuFile, buffer: &Buffer) -> peerbar_gds::Result<u64> {
    let mut queue = Queue::new(1)?;
    queue.push(Request {
        direction: Direction::Read,
        file: file.clone(),
        offset: 0,
        buffer: buffer.clone(),
        range: 0..LENGTH,
    })?;
    queue.wait()?.map_or(Ok(0), |completion| completion.result)
}

fn there_and_back(file: &GpuFile, buffer: &Buffer) -> anyhow::Result<()> {
    let read = file.read_at(buffer, ..LENGTH, 0)?;
    ensure!(read == LENGTH, "{read} bytes were read of {LENGTH}");
    Ok(file.write_at(buffer, ..LENGTH, LENGTH)?)
}
