//! A device's regions over its vfio-user socket, and their mappable parts.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Context;
use peerbar_nvme_driver::Registers;
use rustix::event::{EventfdFlags, eventfd};
use vfio_user::Client;
use vm_memory::FileOffset;

use crate::memory::SharedMemory;

/// The BAR with the registers.
pub(crate) const REGISTERS: u32 = 0;
/// VFIO_PCI_CONFIG_REGION_INDEX.
const CONFIG: u32 = 7;
/// VFIO_PCI_MSIX_IRQ_INDEX, and VFIO_IRQ_SET_DATA_EVENTFD with VFIO_IRQ_SET_ACTION_TRIGGER.
const MSI_X: u32 = 2;
const EVENTS: u32 = 1 << 2 | 1 << 5;
/// PCI Local Bus 3.0, 6.2.2: memory space and bus master.
const COMMAND: (u64, [u8; 2]) = (4, [0b110, 0]);

/// The registers of a controller: doorbells by a store if the server lends their page, everything
/// else by messages.
#[derive(Clone)]
pub(crate) struct VfioUser {
    pub(crate) client: Rc<RefCell<Client>>,
    /// The mapped page, and its offset in the BAR.
    page: Option<(Arc<SharedMemory>, u64)>,
}

impl VfioUser {
    /// Makes the registers of `client`, with the page of the doorbell at `doorbell` if it can be
    /// mapped.
    pub(crate) fn new(client: Client, doorbell: u64) -> anyhow::Result<Self> {
        let page = mappable(&client, doorbell)?;
        let client = Rc::new(RefCell::new(client));
        Ok(Self { client, page })
    }

    /// Returns `true` if doorbells are mapped.
    pub(crate) fn is_mapped(&self) -> bool {
        self.page.is_some()
    }
}

impl Registers for VfioUser {
    fn read_register(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let mut client = self.client.borrow_mut();
        let read = client.region_read(REGISTERS, offset, data);
        read.map_err(io::Error::other)
    }

    fn write_register(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut client = self.client.borrow_mut();
        let written = client.region_write(REGISTERS, offset, data);
        written.map_err(io::Error::other)
    }

    fn write_doorbell(&self, offset: u64, value: u32) -> io::Result<()> {
        if let Some((page, start)) = &self.page {
            let inside = offset.checked_sub(*start).map(usize_of);
            if let Some(inside) = inside.filter(|at| at.saturating_add(4) <= page.bytes()) {
                return page.store32(inside, value).map_err(io::Error::other);
            }
        }
        self.write_register(offset, &value.to_le_bytes())
    }
}

/// Enables memory space and bus mastering.
pub(crate) fn turn_on(client: &mut Client) -> anyhow::Result<()> {
    Ok(client.region_write(CONFIG, COMMAND.0, &COMMAND.1)?)
}

/// Enables MSI-X, since shadow doorbells do not work with pin interrupts. Returns the eventfd of
/// the first message, which nothing waits for.
pub(crate) fn take_messages(client: &mut Client) -> anyhow::Result<OwnedFd> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .context("cannot create an eventfd")?;
    client.set_irqs(MSI_X, EVENTS, 0, 1, &[event.as_raw_fd()])?;
    Ok(event)
}

/// Returns the part of the register BAR that the server lends, if it contains the register at
/// `wanted`, and its offset.
pub(crate) fn mappable(
    client: &Client,
    wanted: u64,
) -> anyhow::Result<Option<(Arc<SharedMemory>, u64)>> {
    let Some(region) = client.region(REGISTERS) else {
        return Ok(None);
    };
    let area = region
        .sparse_areas
        .iter()
        .find(|area| (area.offset..area.offset + area.size).contains(&wanted));
    let (Some(area), Some(file)) = (area, &region.file_offset) else {
        return Ok(None);
    };
    let page = map_lent(file, area.offset, area.size)?;
    Ok(Some((Arc::new(page), area.offset)))
}

fn map_lent(file: &FileOffset, offset: u64, bytes: u64) -> anyhow::Result<SharedMemory> {
    let copy = file
        .file()
        .try_clone()
        .context("cannot copy a descriptor")?;
    SharedMemory::map(
        FileOffset::new(copy, file.start() + offset),
        usize_of(bytes),
    )
}

/// Returns both have 64 bits on the machines that this runs on.
fn usize_of(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
