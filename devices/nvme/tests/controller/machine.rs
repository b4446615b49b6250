//! The machine around the controller: guest RAM, bus addresses, registers, interrupts.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use peerbar_endpoint::Size;
use peerbar_nvme::{Config, Controller, PollPolicy, Source};
use peerbar_nvme_driver::{DmaMemory, Registers};
use peerbar_rig::wire::{INTX, MSI_X};
use peerbar_rig::{Link, LocalDevice, event, memory_file, signal};
use peerbar_vfio_user::{Device, IrqAction};
use rustix::fs::SealFlags;

pub(crate) use peerbar_rig::nvme::{CC, CSTS, PAGE, RAM, RAM_BYTES};
pub(crate) use peerbar_rig::{TIME_OUT as TIMEOUT, pattern, take_event, wait_for_event};

pub(crate) const MIB: u64 = 1 << 20;
/// The address of BAR2, and the address at which commands find the CMB. They differ, so that a
/// mix-up shows.
pub(crate) const BAR2: u64 = 0x40_0000_0000;
pub(crate) const CMB: u64 = 0x60_0000_0000;
pub(crate) const CMB_BYTES: u64 = 2 * MIB;

/// The admin queues' vector and one for each of 64 I/O queues.
const VECTORS: u32 = 65;

/// Registers (NVMe Base 2.0, 3.1.3).
pub(crate) const CMBLOC: u64 = 0x38;
pub(crate) const CMBSZ: u64 = 0x3c;
pub(crate) const CMBMSC: u64 = 0x50;

/// The layout of guest RAM in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Linear,
    /// Each page at an unrelated place.
    Scattered,
}

impl Layout {
    fn offset(self, address: u64) -> u64 {
        let at = address - RAM;
        match self {
            Self::Linear => at,
            Self::Scattered => at / PAGE * 1237 % (RAM_BYTES / PAGE) * PAGE + at % PAGE,
        }
    }
}

/// A handle of the machine.
#[derive(Clone)]
pub(crate) struct Machine {
    device: LocalDevice<Controller>,
    ram: Rc<Ram>,
}

struct Ram {
    file: File,
    layout: Cell<Layout>,
}

impl Deref for Machine {
    type Target = LocalDevice<Controller>;

    fn deref(&self) -> &Self::Target {
        &self.device
    }
}

/// Two namespaces of 4 MiB and 1 MiB, MDTS of 128 KiB, a CMB of 2 MiB that supports queues.
pub(crate) fn config() -> Config {
    Config {
        serial: "disk0".to_owned(),
        cmb: Some(Size(CMB_BYTES)),
        cmb_queues: true,
        mdts: 5,
        namespaces: vec![source(4 * MIB), source(MIB)],
        workers: from_environment("PEERBAR_TEST_WORKERS").map_or(1, |text| text.parse().unwrap()),
        poll: way_of_polling(),
        io_uring: from_environment("PEERBAR_TEST_NO_IO_URING").is_none(),
        ..Config::default()
    }
}

/// A namespace of `bytes` bytes: in RAM, or in a new image.
pub(crate) fn source(bytes: u64) -> Source {
    if from_environment("PEERBAR_TEST_IMAGES").is_none() {
        return Source::Ram(bytes);
    }
    let image = tempfile::tempfile().unwrap();
    image.set_len(bytes).unwrap();
    // Open until the test ends.
    Source::File(format!("/proc/self/fd/{}", image.into_raw_fd()).into())
}

/// The whole suite holds for every number of workers and every poll policy: these variables set
/// others than the usual.
fn from_environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn way_of_polling() -> PollPolicy {
    match from_environment("PEERBAR_TEST_POLL").as_deref() {
        None => PollPolicy::default(),
        Some("never") => PollPolicy::Never,
        Some("adaptive") => PollPolicy::Adaptive,
        Some("always") => PollPolicy::Always,
        Some(other) => panic!("PEERBAR_TEST_POLL={other}"),
    }
}

impl Machine {
    /// Makes a machine with guest RAM mapped, BARs assigned and vectors set: the state in which the
    /// kernel passes a function to its driver.
    pub(crate) fn new(config: &Config) -> Self {
        let machine = Self {
            device: LocalDevice::new(Controller::start(config).unwrap(), VECTORS),
            ram: Rc::new(Ram {
                file: memory_file(RAM_BYTES, SealFlags::SHRINK),
                layout: Cell::new(Layout::Linear),
            }),
        };
        machine.map(RAM, RAM_BYTES, true);
        machine.set_up_function();
        machine
    }

    /// Adds a fault rule.
    #[track_caller]
    pub(crate) fn inject(&self, rule: &str) {
        self.endpoint().add_fault(rule.parse().unwrap()).unwrap();
    }

    /// Removes all fault rules.
    pub(crate) fn clear_faults(&self) {
        self.endpoint().clear_faults();
    }

    /// Lends the device a part of guest RAM at its address.
    pub(crate) fn map(&self, address: u64, size: u64, writable: bool) {
        let offset = self.ram.layout.get().offset(address);
        let file = (&self.ram.file, offset);
        self.device.map((address, size), writable, file);
    }

    /// Lends the device the page of guest RAM at `page` once more, at another address, to be read
    /// only.
    pub(crate) fn map_read_only(&self, address: u64, page: u64) {
        let offset = self.ram.layout.get().offset(page);
        self.device
            .map((address, PAGE), false, (&self.ram.file, offset));
    }

    /// Writes a register in the page of doorbells like a guest that has mapped it: without a
    /// message.
    pub(crate) fn write_mapped(&self, offset: u64, value: u32) {
        let page = self.memory(0);
        page.write_all_at(&value.to_le_bytes(), offset).unwrap();
    }

    /// Maps guest RAM again, page by page, with adjacent pages far from each other.
    pub(crate) fn scatter_ram(&self) {
        self.unmap(RAM, RAM_BYTES);
        self.ram.layout.set(Layout::Scattered);
        for page in 0..RAM_BYTES / PAGE {
            self.map(RAM + page * PAGE, PAGE, true);
        }
    }

    /// Offers ATS, and turns it on as the guest does: ATS Control in the first extended capability.
    pub(crate) fn turn_ats_on(&self) {
        self.endpoint().offer_ats();
        self.configure(0x106, &0x8000_u16.to_le_bytes());
    }

    /// Assigns BAR2 and turns memory space and bus mastering on.
    pub(crate) fn set_up_function(&self) {
        self.assign_bar(2, BAR2);
        self.set_command(0b110);
    }

    /// CMBMSC: registers on, memory space on, at an address that is not the BAR's.
    pub(crate) fn open_cmb(&self) {
        self.set_wide_register(CMBMSC, CMB | 0b11);
    }

    /// Gives a 64-bit BAR its bus address.
    pub(crate) fn assign_bar(&self, bar: u8, address: u64) {
        self.configure(0x10 + 4 * u64::from(bar), &address.to_le_bytes());
    }

    /// Reads from a region, in any way that a client may.
    pub(crate) fn read_region(&self, region: u32, offset: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0xa5; len];
        Link::read(&self.device, region, offset, &mut data);
        data
    }

    /// Writes to a region, in any way that a client may.
    pub(crate) fn write_region(&self, region: u32, offset: u64, data: &[u8]) {
        Link::write(&self.device, region, offset, data);
    }

    /// Gives up the vectors in favour of the INTx pin. Returns the event that the pin signals.
    pub(crate) fn use_pin(&self) -> OwnedFd {
        let event = event();
        let pin = IrqAction::Events(vec![signal(&event)]);
        let mut device = self.endpoint();
        device.set_irqs(MSI_X, 0, 0, IrqAction::Disable).unwrap();
        device.set_irqs(INTX, 0, 1, pin).unwrap();
        event
    }

    /// Tells the INTx pin that its interrupt has been handled, as the guest's interrupt controller
    /// does.
    pub(crate) fn end_interrupt(&self) {
        self.endpoint()
            .set_irqs(INTX, 0, 1, IrqAction::Unmask)
            .unwrap();
    }

    /// Function-level reset: Device Control of the PCI Express capability, bit 15.
    pub(crate) fn reset_function(&self) {
        let express = self.capability(0x10);
        self.configure(express + 8, &0x8000_u16.to_le_bytes());
    }

    /// Resets the whole machine, as the client reports it.
    pub(crate) fn reset_by_client(&self) {
        self.endpoint().reset().unwrap();
    }

    pub(crate) fn wide_register(&self, offset: u64) -> u64 {
        u64::from(self.register(offset)) | u64::from(self.register(offset + 4)) << 32
    }

    /// Writes memory as a driver's CPU would: in guest RAM or in the CMB, by the addresses that
    /// commands use.
    pub(crate) fn write(&self, address: u64, data: &[u8]) {
        match self.cmb_offset(address) {
            (Some(cmb), at) => cmb.write_all_at(data, at).unwrap(),
            (None, _) => self.each_page(address, data.len(), |at, range| {
                self.ram.file.write_all_at(&data[range], at).unwrap();
            }),
        }
    }

    pub(crate) fn read(&self, address: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        match self.cmb_offset(address) {
            (Some(cmb), at) => cmb.read_exact_at(&mut data, at).unwrap(),
            (None, _) => self.each_page(address, len, |at, range| {
                self.ram.file.read_exact_at(&mut data[range], at).unwrap();
            }),
        }
        data
    }

    /// Returns all of guest RAM, in the order of its file.
    pub(crate) fn ram_image(&self) -> Vec<u8> {
        let mut image = vec![0; RAM_BYTES as usize];
        self.ram.file.read_exact_at(&mut image, 0).unwrap();
        image
    }

    fn cmb_offset(&self, address: u64) -> (Option<File>, u64) {
        match (CMB..CMB + CMB_BYTES).contains(&address) {
            true => (Some(self.memory(2)), address - CMB),
            false => (None, 0),
        }
    }

    /// Calls `each` with an offset in the RAM's file and the part of the data that lies there.
    fn each_page(&self, address: u64, len: usize, mut each: impl FnMut(u64, Range<usize>)) {
        let mut done = 0;
        while done < len {
            let here = address + done as u64;
            let part = ((PAGE - here % PAGE) as usize).min(len - done);
            each(self.ram.layout.get().offset(here), done..done + part);
            done += part;
        }
    }
}

impl Registers for Machine {
    fn read_register(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        Link::read(&self.device, 0, offset, data);
        Ok(())
    }

    fn write_register(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        Link::write(&self.device, 0, offset, data);
        Ok(())
    }
}

impl DmaMemory for Machine {
    fn read(&self, address: u64, data: &mut [u8]) -> io::Result<()> {
        data.copy_from_slice(&self.read(address, data.len()));
        Ok(())
    }

    fn write(&self, address: u64, data: &[u8]) -> io::Result<()> {
        self.write(address, data);
        Ok(())
    }
}
