//! Devices that a check itself drives, by vfio-pci, in place of their own drivers.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use peerbar_gds::Mapping;
use peerbar_report::VfioBackend;
use peerbar_vfio_nvme::{AddressSpace, BarRange, Binding, DmaSpace, VfioDevice};

use crate::devices::{Controller, attribute};
use crate::gpus::{APERTURE, Gpu};
use crate::guest_context::GuestContext;

/// Time limit for the return of a driver.
const TIME_OUT: Duration = Duration::from_secs(30);

/// Takes the device with this directory in sysfs from its driver.
pub fn take(guest: &GuestContext, backend: VfioBackend, pci: &Path) -> anyhow::Result<Binding> {
    for module in backend.modules() {
        guest.load_module(module)?;
    }
    Ok(Binding::bind(pci)?)
}

/// Makes a new address space.
pub(crate) fn address_space(backend: VfioBackend) -> anyhow::Result<AddressSpace> {
    Ok(match backend {
        VfioBackend::Type1 => AddressSpace::type1()?,
        VfioBackend::Iommufd => AddressSpace::iommufd()?,
    })
}

/// Returns the start of a GPU's memory.
pub(crate) fn vram(length: u64) -> BarRange {
    BarRange {
        bar: APERTURE,
        offset: 0,
        length,
    }
}

/// Maps `memory`, which is that `range` of a device, by its pages, or with iommufd as a dma-buf.
/// Returns the first I/O address.
pub(crate) fn map_bar(
    space: &DmaSpace,
    backend: VfioBackend,
    device: &VfioDevice,
    range: BarRange,
    memory: Arc<Mapping>,
) -> anyhow::Result<u64> {
    let address = space.free_addresses(range.length)?;
    match backend {
        VfioBackend::Type1 => space.map(address, memory)?,
        VfioBackend::Iommufd => {
            let dma_buf = device.export(range)?;
            space.map_dma_buf(address, dma_buf.as_fd(), memory)?;
        }
    }
    Ok(address)
}

/// Opens a GPU, with its memory decoded.
pub(crate) fn open_gpu(space: &AddressSpace, binding: &Binding) -> anyhow::Result<VfioDevice> {
    let device = space.open(binding)?;
    device.decode(true)?;
    Ok(device)
}

/// Returns a disk to its own driver, and waits until the driver has its namespace.
pub(crate) fn give_back_disk(
    guest: &GuestContext,
    disk: &Controller,
    binding: Binding,
) -> anyhow::Result<()> {
    binding.release()?;
    disk_is_back(guest, disk)
}

/// Waits until a disk's own driver has its namespace.
pub fn disk_is_back(guest: &GuestContext, disk: &Controller) -> anyhow::Result<()> {
    let back = guest.uevents.wait_for(TIME_OUT, || {
        let serial = attribute(&disk.directory, "serial");
        ensure!(
            serial == disk.serial,
            "{} has the serial number {serial:?}",
            disk.directory.display()
        );
        disk.ensure_live()?;
        disk.disk.open_direct()
    });
    back.map(drop)
        .with_context(|| format!("{} is not back with its own driver", disk.name))
}

/// Returns a GPU to its own driver, and waits until the driver can use its memory.
pub fn give_back_gpu(guest: &GuestContext, gpu: &Gpu, binding: Binding) -> anyhow::Result<()> {
    const BYTES: u64 = 512 << 10;
    binding.release()?;
    let opened = guest.uevents.wait_for(TIME_OUT, || gpu.open());
    let opened = opened.with_context(|| format!("{} is not back with its own driver", gpu.name))?;
    let buffer = opened.allocate(BYTES)?;
    let different = opened.compare(buffer.span(..BYTES)?, buffer.span(..BYTES)?)?;
    ensure!(different.is_none(), "its memory is not equal to itself");
    Ok(())
}
