//! The cost of a command, from its doorbell to its completion, on one processor:
//! `cargo bench -p peerbar-nvme --features stepped --bench commands`.

#![allow(clippy::unwrap_used, reason = "a benchmark panics if it fails")]

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use divan::Bencher;
use peerbar_dma::MemoryFile;
use peerbar_nvme::{Config, Source, SteppedController};
use peerbar_nvme_driver::{Controller, DmaMemory, QueueMemory, QueuePair, Registers};
use peerbar_nvme_spec::command::nvm::BlockRange;
use peerbar_nvme_spec::command::{NvmOpcode, SubmissionEntry};
use peerbar_pci::{Iova, Range};
use peerbar_vfio_user::{CONFIG_REGION, Device, DmaMap};
use zerocopy::{FromZeros, transmute};

/// BAR 0.
const REGISTERS: u32 = 0;
const RAM: u64 = 1 << 20;
const DATA: u64 = 0x4_0000;
const ENTRIES: u16 = 256;
/// Commands that are submitted together.
const DEPTHS: [u16; 2] = [1, 32];

fn main() {
    divan::main();
}

/// A controller, and the host's memory.
#[derive(Clone)]
struct Machine {
    controller: Rc<RefCell<SteppedController>>,
    ram: Rc<MemoryFile>,
}

impl Machine {
    /// A controller with one namespace.
    fn new(namespace: Source) -> Self {
        let config = Config {
            serial: "bench".to_owned(),
            block_bytes: 4096,
            mdts: 5,
            namespaces: vec![namespace],
            io_uring: false,
            ..Config::default()
        };
        let mut controller = SteppedController::start(&config, Vec::new()).unwrap();
        let ram = MemoryFile::create("ram", RAM).unwrap();
        let endpoint = &mut controller.endpoint;
        let map = DmaMap {
            range: Range::new(Iova(0), RAM).expect("some RAM"),
            readable: true,
            writable: true,
            memory: Some((ram.file().try_clone().unwrap().into(), 0)),
        };
        endpoint.dma_map(map).unwrap();
        // Memory Space Enable, Bus Master Enable.
        endpoint.region_write(CONFIG_REGION, 4, &[6, 0]).unwrap();
        Self {
            controller: Rc::new(RefCell::new(controller)),
            ram: Rc::new(ram),
        }
    }

    /// An I/O queue pair with shadow doorbells.
    fn queues(&self) -> QueuePair<Self, Self> {
        let memory = |submission, completion| QueueMemory {
            submission,
            completion,
            submission_entries: ENTRIES,
            completion_entries: ENTRIES,
        };
        let admin = memory(0x1_0000, 0x1_8000);
        let mut driver = Controller::enable(self.clone(), self.clone(), admin).unwrap();
        driver.request_all_queues().unwrap();
        driver.use_shadow_doorbells([0x1000, 0x2000]).unwrap();
        driver.create_queues(1, memory(0x2_0000, 0x2_8000)).unwrap()
    }

    fn work(&self) {
        self.controller.borrow_mut().work();
    }
}

impl Registers for Machine {
    fn read_register(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let mut controller = self.controller.borrow_mut();
        let read = controller.endpoint.region_read(REGISTERS, offset, data);
        read.map_err(io::Error::other)
    }

    fn write_register(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut controller = self.controller.borrow_mut();
        let written = controller.endpoint.region_write(REGISTERS, offset, data);
        written.map_err(io::Error::other)?;
        controller.work();
        Ok(())
    }
}

impl DmaMemory for Machine {
    fn read(&self, address: u64, data: &mut [u8]) -> io::Result<()> {
        self.ram.read(address, data).map_err(io::Error::other)
    }

    fn write(&self, address: u64, data: &[u8]) -> io::Result<()> {
        self.ram.write(address, data).map_err(io::Error::other)
    }
}

/// Reads of 4 KiB.
fn reads(bencher: Bencher<'_, '_>, depth: u16, namespace: Source) {
    let machine = Machine::new(namespace);
    let mut queues = machine.queues();
    let entries = (0..depth).map(|cid| {
        let mut entry = SubmissionEntry::new_zeroed();
        entry.opcode = NvmOpcode::Read as u8;
        entry.nsid = 1.into();
        entry.cid = cid.into();
        entry.prp1 = (DATA + 4096 * u64::from(cid)).into();
        let mut range = BlockRange::from(&entry);
        range.slba = u64::from(cid).into();
        range.apply_to(&mut entry);
        let bytes: [u8; 64] = transmute!(entry);
        bytes
    });
    let entries: Vec<_> = entries.collect();
    bencher.counter(u64::from(depth)).bench_local(|| {
        for entry in &entries {
            queues.push(entry).unwrap();
        }
        queues.ring().unwrap();
        machine.work();
        for _ in 0..depth {
            let completion = queues.pop().unwrap().unwrap();
            assert_eq!(completion.status, 0);
        }
    });
}

#[divan::bench(args = DEPTHS)]
fn of_nothing(bencher: Bencher<'_, '_>, depth: u16) {
    reads(bencher, depth, Source::Null(1 << 20));
}

#[divan::bench(args = DEPTHS)]
fn of_memory(bencher: Bencher<'_, '_>, depth: u16) {
    reads(bencher, depth, Source::Ram(1 << 20));
}
