//! The machine around the controller: guest RAM, bus addresses, registers, interrupts.

use std::cell::{Cell, RefCell, RefMut};
use std::fs::File;
use std::io;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use peerbar_endpoint::{Running, Size};
use peerbar_nvme::{Config, Controller, PollPolicy, Source};
use peerbar_nvme_driver::{DmaMemory, Registers};
use peerbar_pci::find_capability;
use peerbar_vfio_user::{CONFIG_REGION, Device, DmaMap, DmaSpan, IrqAction, RegionMapping};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{MemfdFlags, SealFlags};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const PAGE: u64 = 4096;
/// Start and size of guest RAM.
pub(crate) const RAM: u64 = 0x1000_0000;
pub(crate) const RAM_BYTES: u64 = 16 * MIB;
/// The address of BAR2, and the address at which commands find the CMB. They differ, so that a
/// mix-up shows.
pub(crate) const BAR2: u64 = 0x40_0000_0000;
pub(crate) const CMB: u64 = 0x60_0000_0000;
pub(crate) const CMB_BYTES: u64 = 2 * MIB;

const INTX: u32 = 0;
const MSI_X: u32 = 2;
/// The admin queues' vector and one for each of 64 I/O queues.
const VECTORS: u32 = 65;
/// Longest wait of any test.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Registers (NVMe Base 2.0, 3.1.3).
pub(crate) const CC: u64 = 0x14;
pub(crate) const CSTS: u64 = 0x1c;
pub(crate) const AQA: u64 = 0x24;
pub(crate) const ASQ: u64 = 0x28;
pub(crate) const ACQ: u64 = 0x30;
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
pub(crate) struct Machine(Rc<MachineState>);

struct MachineState {
    controller: RefCell<Running<Controller>>,
    ram: File,
    layout: Cell<Layout>,
    events: Vec<OwnedFd>,
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
        let fd = rustix::fs::memfd_create("ram", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, RAM_BYTES).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let machine = Self(Rc::new(MachineState {
            controller: RefCell::new(Controller::start(config).unwrap()),
            ram: File::from(fd),
            layout: Cell::new(Layout::Linear),
            events: (0..VECTORS)
                .map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap())
                .collect(),
        }));
        machine.map(RAM, RAM_BYTES, true);
        machine.set_up_function();
        machine.set_up_vectors();
        machine
    }

    pub(crate) fn device(&self) -> RefMut<'_, impl Device> {
        RefMut::map(self.0.controller.borrow_mut(), |running| {
            &mut running.endpoint
        })
    }

    /// Adds a fault rule.
    #[track_caller]
    pub(crate) fn inject(&self, rule: &str) {
        let rule = rule.parse().unwrap();
        self.0.controller.borrow().endpoint.add_fault(rule).unwrap();
    }

    /// Removes all fault rules.
    pub(crate) fn clear_faults(&self) {
        self.0.controller.borrow().endpoint.clear_faults();
    }

    /// Lends the device a part of guest RAM at its address.
    pub(crate) fn map(&self, address: u64, size: u64, writable: bool) {
        self.map_at(address, size, writable, self.0.layout.get().offset(address));
    }

    /// Lends the device the page of guest RAM at `page` once more, at another address, to be read
    /// only.
    pub(crate) fn map_read_only(&self, address: u64, page: u64) {
        self.map_at(address, PAGE, false, self.0.layout.get().offset(page));
    }

    fn map_at(&self, address: u64, size: u64, writable: bool, offset: u64) {
        let fd = self.0.ram.try_clone().unwrap().into();
        let map = DmaMap {
            iova: address,
            size,
            readable: true,
            writable,
            memory: Some((fd, offset)),
        };
        self.device().dma_map(map).unwrap();
    }

    /// Writes a register in the page of doorbells like a guest that has mapped it: without a
    /// message.
    pub(crate) fn write_mapped(&self, offset: u64, value: u32) {
        let controller = self.0.controller.borrow();
        let region = controller.endpoint.region(0).unwrap();
        let RegionMapping::Areas(fd, _) = region.mapping else {
            panic!("{region:?}");
        };
        File::from(fd.try_clone_to_owned().unwrap())
            .write_all_at(&value.to_le_bytes(), offset)
            .unwrap();
    }

    pub(crate) fn unmap(&self, address: u64, size: u64) {
        let last = address + (size - 1);
        let span = DmaSpan {
            iova: address,
            last,
        };
        self.device().dma_unmap(span).unwrap();
    }

    /// Maps guest RAM again, page by page, with adjacent pages far from each other.
    pub(crate) fn scatter_ram(&self) {
        self.unmap(RAM, RAM_BYTES);
        self.0.layout.set(Layout::Scattered);
        for page in 0..RAM_BYTES / PAGE {
            self.map(RAM + page * PAGE, PAGE, true);
        }
    }

    /// Offers ATS, and turns it on as the guest does: ATS Control in the first extended capability.
    pub(crate) fn turn_ats_on(&self) {
        self.0.controller.borrow_mut().endpoint.offer_ats();
        self.configure(0x106, &0x8000_u16.to_le_bytes());
    }

    /// Assigns BAR2 and turns memory space and bus mastering on.
    pub(crate) fn set_up_function(&self) {
        self.assign_bar(2, BAR2);
        self.set_command(0b110);
    }

    /// Gives a 64-bit BAR its bus address.
    pub(crate) fn assign_bar(&self, bar: u8, address: u64) {
        self.configure(0x10 + 4 * u64::from(bar), &address.to_le_bytes());
    }

    /// The Command register of configuration space: bit 1 memory space, bit 2 bus mastering.
    pub(crate) fn set_command(&self, command: u16) {
        self.configure(0x04, &command.to_le_bytes());
    }

    fn configure(&self, offset: u64, data: &[u8]) {
        self.device()
            .region_write(CONFIG_REGION, offset, data)
            .unwrap();
    }

    fn set_up_vectors(&self) {
        let events = self.0.events.iter();
        let events = events
            .map(|event| Some(event.try_clone().unwrap().try_into().unwrap()))
            .collect();
        self.device()
            .set_irqs(MSI_X, 0, VECTORS, IrqAction::Events(events))
            .unwrap();
    }

    /// Reads from a region, in any way that a client may.
    pub(crate) fn read_region(&self, region: u32, offset: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0xa5; len];
        self.device()
            .region_read(region, offset, &mut data)
            .unwrap();
        data
    }

    /// Writes to a region, in any way that a client may.
    pub(crate) fn write_region(&self, region: u32, offset: u64, data: &[u8]) {
        self.device().region_write(region, offset, data).unwrap();
    }

    /// Gives up the vectors in favour of the INTx pin. Returns the event that the pin signals.
    pub(crate) fn use_pin(&self) -> OwnedFd {
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let pin = IrqAction::Events(vec![Some(event.try_clone().unwrap().try_into().unwrap())]);
        let mut device = self.device();
        device.set_irqs(MSI_X, 0, 0, IrqAction::Disable).unwrap();
        device.set_irqs(INTX, 0, 1, pin).unwrap();
        event
    }

    /// Tells the INTx pin that its interrupt has been handled, as the guest's interrupt controller
    /// does.
    pub(crate) fn end_interrupt(&self) {
        self.device()
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
        self.device().reset().unwrap();
    }

    /// Returns the offset in configuration space of the capability with this number.
    fn capability(&self, id: u8) -> u64 {
        let read = |offset| {
            let mut bytes = [0; 2];
            let read = self.device().region_read(CONFIG_REGION, offset, &mut bytes);
            read.map(|()| bytes).unwrap()
        };
        find_capability(id, read).unwrap()
    }

    pub(crate) fn register(&self, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.device().region_read(0, offset, &mut data).unwrap();
        u32::from_le_bytes(data)
    }

    pub(crate) fn wide_register(&self, offset: u64) -> u64 {
        u64::from(self.register(offset)) | u64::from(self.register(offset + 4)) << 32
    }

    pub(crate) fn set_register(&self, offset: u64, value: u32) {
        self.device()
            .region_write(0, offset, &value.to_le_bytes())
            .unwrap();
    }

    pub(crate) fn set_wide_register(&self, offset: u64, value: u64) {
        self.device()
            .region_write(0, offset, &value.to_le_bytes())
            .unwrap();
    }

    /// Waits until CSTS has `value` in the bits of `mask`.
    #[track_caller]
    pub(crate) fn wait_for_status(&self, mask: u32, value: u32) {
        let start = Instant::now();
        loop {
            let now = self.register(CSTS);
            if now & mask == value {
                return;
            }
            let in_time = start.elapsed() < TIMEOUT;
            assert!(in_time, "CSTS is {now:#x}, not {value:#x} of {mask:#x}");
            std::thread::yield_now();
        }
    }

    /// Waits until a vector has been raised, and takes it.
    #[track_caller]
    pub(crate) fn wait_for_vector(&self, vector: usize) {
        wait_for_event(&self.0.events[vector], &format!("vector {vector}"));
    }

    /// Waits until a vector has been raised. Returns the number of times it has been raised since
    /// the last call.
    #[track_caller]
    pub(crate) fn wait_for_messages(&self, vector: usize) -> u64 {
        wait_for_events(&self.0.events[vector], &format!("vector {vector}"))
    }

    /// Returns `true` if a vector has been raised since the last call.
    pub(crate) fn take_vector(&self, vector: usize) -> bool {
        take_event(&self.0.events[vector])
    }

    /// Writes memory as a driver's CPU would: in guest RAM or in the CMB, by the addresses that
    /// commands use.
    pub(crate) fn write(&self, address: u64, data: &[u8]) {
        match self.cmb_offset(address) {
            (Some(cmb), at) => cmb.write_all_at(data, at).unwrap(),
            (None, _) => self.each_page(address, data.len(), |at, range| {
                self.0.ram.write_all_at(&data[range], at).unwrap();
            }),
        }
    }

    pub(crate) fn read(&self, address: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        match self.cmb_offset(address) {
            (Some(cmb), at) => cmb.read_exact_at(&mut data, at).unwrap(),
            (None, _) => self.each_page(address, len, |at, range| {
                self.0.ram.read_exact_at(&mut data[range], at).unwrap();
            }),
        }
        data
    }

    /// Returns all of guest RAM, in the order of its file.
    pub(crate) fn ram_image(&self) -> Vec<u8> {
        let mut image = vec![0; RAM_BYTES as usize];
        self.0.ram.read_exact_at(&mut image, 0).unwrap();
        image
    }

    fn cmb_offset(&self, address: u64) -> (Option<File>, u64) {
        if !(CMB..CMB + CMB_BYTES).contains(&address) {
            return (None, 0);
        }
        let controller = self.0.controller.borrow();
        let region = controller.endpoint.region(2).unwrap();
        let RegionMapping::Whole(fd) = region.mapping else {
            panic!("{region:?}");
        };
        let file = File::from(fd.try_clone_to_owned().unwrap());
        (Some(file), address - CMB)
    }

    /// Calls `each` with an offset in the RAM's file and the part of the data that lies there.
    fn each_page(
        &self,
        address: u64,
        len: usize,
        mut each: impl FnMut(u64, std::ops::Range<usize>),
    ) {
        let mut done = 0;
        while done < len {
            let here = address + done as u64;
            let part = ((PAGE - here % PAGE) as usize).min(len - done);
            each(self.0.layout.get().offset(here), done..done + part);
            done += part;
        }
    }
}

impl Registers for Machine {
    fn read_register(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.device().region_read(0, offset, data).unwrap();
        Ok(())
    }

    fn write_register(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.device().region_write(0, offset, data).unwrap();
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

/// Waits until an interrupt has come, and takes it.
#[track_caller]
pub(crate) fn wait_for_event(event: &OwnedFd, name: &str) {
    assert!(wait_for_events(event, name) > 0);
}

#[track_caller]
fn wait_for_events(event: &OwnedFd, name: &str) -> u64 {
    let mut fds = [PollFd::new(event, PollFlags::IN)];
    let timeout = TIMEOUT.try_into().unwrap();
    let ready = poll(&mut fds, Some(&timeout)).unwrap();
    assert_eq!(ready, 1, "{name} is not raised");
    let mut count = [0; 8];
    rustix::io::read(event, &mut count).unwrap();
    u64::from_ne_bytes(count)
}

/// Returns `true` if an interrupt has come since the last call.
pub(crate) fn take_event(event: &OwnedFd) -> bool {
    rustix::io::read(event, &mut [0; 8]).is_ok()
}

/// Returns bytes that identify their own position.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i % 251) as u8 ^ (i / 251) as u8 ^ seed)
        .collect()
}
