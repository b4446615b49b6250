//! Access to a device's regions, as its driver has it.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use peerbar_nvme_driver::{DmaMemory, Registers};
use rustix::io::Errno;

use crate::guest_ram::GuestRam;
use crate::wire::CONFIG;

/// The BAR with the registers of every device here.
pub const REGISTERS: u32 = 0;
/// The BAR with the memory of every device here.
pub const MEMORY: u32 = 2;

/// The Command register (PCI Local Bus 3.0, 6.2.2).
const COMMAND: u64 = 0x04;
/// Memory space and bus mastering on.
const ENABLED: u16 = 0b110;
/// The first BAR.
const BARS: u64 = 0x10;
/// Capabilities Pointer (PCI Local Bus 3.0, 6.7).
const CAPABILITIES: u64 = 0x34;

/// A device whose regions can be accessed, in this process or over a socket.
pub trait Link {
    /// Reads from a region.
    fn try_read(&self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno>;

    /// Writes to a region.
    fn try_write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno>;

    /// Lends the device `ram` at its address.
    fn lend(&self, ram: &GuestRam) -> Result<(), Errno>;

    /// Writes to a region that can be mapped, in the way of a driver in user space.
    fn write_mapped(&self, region: u32, offset: u64, data: &[u8]) {
        self.write(region, offset, data);
    }

    /// Reads from a region, which must succeed.
    #[track_caller]
    fn read(&self, region: u32, offset: u64, data: &mut [u8]) {
        self.try_read(region, offset, data).unwrap();
    }

    /// Writes to a region, which must succeed.
    #[track_caller]
    fn write(&self, region: u32, offset: u64, data: &[u8]) {
        self.try_write(region, offset, data).unwrap();
    }

    /// Returns `N` bytes of a region.
    #[track_caller]
    fn bytes<const N: usize>(&self, region: u32, offset: u64) -> [u8; N] {
        let mut data = [0; N];
        self.read(region, offset, &mut data);
        data
    }

    /// Returns a register of 4 bytes.
    #[track_caller]
    fn register(&self, offset: u64) -> u32 {
        u32::from_le_bytes(self.bytes(REGISTERS, offset))
    }

    /// Returns a register of 8 bytes.
    #[track_caller]
    fn wide_register(&self, offset: u64) -> u64 {
        u64::from_le_bytes(self.bytes(REGISTERS, offset))
    }

    /// Writes a register of 4 bytes.
    #[track_caller]
    fn set_register(&self, offset: u64, value: u32) {
        self.write(REGISTERS, offset, &value.to_le_bytes());
    }

    /// Writes a register of 8 bytes.
    #[track_caller]
    fn set_wide_register(&self, offset: u64, value: u64) {
        self.write(REGISTERS, offset, &value.to_le_bytes());
    }

    /// Writes to configuration space.
    #[track_caller]
    fn configure(&self, offset: u64, data: &[u8]) {
        self.write(CONFIG, offset, data);
    }

    /// Writes the Command register: bit 1 is memory space, bit 2 bus mastering.
    #[track_caller]
    fn set_command(&self, command: u16) {
        self.configure(COMMAND, &command.to_le_bytes());
    }

    /// Turns memory space and bus mastering on.
    fn turn_on(&self) -> Result<(), Errno> {
        self.try_write(CONFIG, COMMAND, &ENABLED.to_le_bytes())
    }

    /// Sets the address of a 64-bit BAR, with memory space off for the time (PCI Local Bus 3.0,
    /// 6.2.5).
    fn set_bar(&self, bar: u32, address: u64) -> Result<(), Errno> {
        let register = BARS + 4 * u64::from(bar);
        self.try_write(CONFIG, COMMAND, &[0, 0])?;
        self.try_write(CONFIG, register, &address.to_le_bytes())?;
        self.turn_on()
    }

    /// Returns the offset in configuration space of the capability with this number, by a walk of
    /// the list (PCI Local Bus 3.0, 6.7).
    #[track_caller]
    fn capability(&self, id: u8) -> u64 {
        let [mut at] = self.bytes(CONFIG, CAPABILITIES);
        while at != 0 {
            let [found, next] = self.bytes(CONFIG, at.into());
            if found == id {
                return at.into();
            }
            at = next;
        }
        panic!("no capability {id:#x}")
    }
}

/// The client of the `vfio_user` crate, an independent implementation.
pub type ForeignClient = RefCell<vfio_user::Client>;

impl Link for ForeignClient {
    fn try_read(&self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        let read = self.borrow_mut().region_read(region, offset, data);
        read.map_err(|_| Errno::IO)
    }

    fn try_write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let written = self.borrow_mut().region_write(region, offset, data);
        written.map_err(|_| Errno::IO)
    }

    fn lend(&self, ram: &GuestRam) -> Result<(), Errno> {
        let fd = ram.file.as_raw_fd();
        let mapped = self.borrow_mut().dma_map(0, ram.address, ram.bytes, fd);
        mapped.map_err(|_| Errno::IO)
    }

    fn write_mapped(&self, region: u32, offset: u64, data: &[u8]) {
        let memory = foreign_memory(&self.borrow(), region);
        memory.write_all_at(data, offset).unwrap();
    }
}

/// Returns the memory of a region that the device lends.
#[track_caller]
pub fn foreign_memory(client: &vfio_user::Client, region: u32) -> File {
    let memory = client.region(region).unwrap().file_offset.as_ref();
    memory.unwrap().file().try_clone().unwrap()
}

impl<L: Link> Link for Rc<L> {
    fn try_read(&self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        (**self).try_read(region, offset, data)
    }

    fn try_write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        (**self).try_write(region, offset, data)
    }

    fn lend(&self, ram: &GuestRam) -> Result<(), Errno> {
        (**self).lend(ram)
    }

    fn write_mapped(&self, region: u32, offset: u64, data: &[u8]) {
        (**self).write_mapped(region, offset, data);
    }
}

/// A device and the guest RAM that it reaches: the surroundings of a driver.
#[derive(Clone, Debug)]
pub struct Guest<L> {
    /// The device.
    pub link: L,
    /// The memory that it has been lent.
    pub ram: GuestRam,
}

impl<L: Link> Guest<L> {
    /// Lends the device `bytes` bytes of new memory at `address`, and turns its memory space and
    /// bus mastering on: the state in which the kernel passes a function to its driver.
    #[track_caller]
    pub fn new(link: L, address: u64, bytes: u64) -> Self {
        let ram = GuestRam::new(address, bytes);
        link.lend(&ram).unwrap();
        link.turn_on().unwrap();
        Self { link, ram }
    }
}

impl<L: Link> Registers for Guest<L> {
    fn read_register(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        Ok(self.link.try_read(REGISTERS, offset, data)?)
    }

    fn write_register(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        Ok(self.link.try_write(REGISTERS, offset, data)?)
    }
}

impl<L> DmaMemory for Guest<L> {
    fn read(&self, address: u64, data: &mut [u8]) -> io::Result<()> {
        self.ram.read(address, data)
    }

    fn write(&self, address: u64, data: &[u8]) -> io::Result<()> {
        self.ram.write(address, data)
    }
}
