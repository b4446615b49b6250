//! A driver with a few commands, over any client that reaches the controller.

use std::cell::{RefCell, RefMut};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use peerbar_nvme_driver::{Controller, DmaMemory, QueueMemory, QueuePair, Registers, prps};
use peerbar_nvme_spec::command::{AdminOpcode, SubmissionEntry};
use peerbar_nvme_spec::identify::cns;
use peerbar_vfio_user::CONFIG_REGION;
use rustix::fs::{MemfdFlags, SealFlags};
use zerocopy::{FromZeros, transmute};

use crate::wait_until;

/// The BAR with the registers.
pub(crate) const REGISTERS: u32 = 0;

/// Start and size of guest RAM.
pub(crate) const RAM: u64 = 0x1000_0000;
pub(crate) const RAM_BYTES: u64 = 4 << 20;
/// Address of a transfer's data in RAM, away from the queues.
pub(crate) const DATA: u64 = RAM + (1 << 20);
const LIST: u64 = RAM + 0x8000;
const IDENTIFY: u64 = RAM + 0x9000;
const QUEUES: u64 = RAM;
const ENTRIES: u16 = 16;

/// Status of a completion as Linux has it, without phase, More and Do Not Retry.
pub(crate) const SUCCESS: u16 = 0;
/// NVME_SC_DATA_XFER_ERROR.
pub(crate) const DATA_TRANSFER_ERROR: u16 = 4;

/// The functions of a client that a driver needs.
pub(crate) trait Link {
    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]);
    fn write(&mut self, region: u32, offset: u64, data: &[u8]);
}

/// Zeroed guest RAM.
pub(crate) fn ram(seals: SealFlags) -> File {
    let fd: OwnedFd = rustix::fs::memfd_create("guest", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, RAM_BYTES).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd.into()
}

/// The controller's registers over a link.
pub(crate) struct Bar<L>(Rc<RefCell<L>>);

impl<L> Clone for Bar<L> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<L: Link> Registers for Bar<L> {
    fn read_register(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.0.borrow_mut().read(REGISTERS, offset, data);
        Ok(())
    }

    fn write_register(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.borrow_mut().write(REGISTERS, offset, data);
        Ok(())
    }
}

/// Guest RAM at [`RAM`].
#[derive(Clone)]
pub(crate) struct GuestRam(Rc<File>);

impl DmaMemory for GuestRam {
    fn read(&self, address: u64, data: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(data, address - RAM)
    }

    fn write(&self, address: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, address - RAM)
    }
}

/// A controller that has been brought up: an admin and an I/O queue pair, one command at a time.
pub(crate) struct Driver<L> {
    link: Rc<RefCell<L>>,
    pub(crate) memory: Rc<File>,
    controller: Controller<Bar<L>, GuestRam>,
    io: QueuePair<Bar<L>, GuestRam>,
}

impl<L: Link> Driver<L> {
    /// Brings the controller up, its queues in `memory`, which the client has mapped at [`RAM`].
    #[track_caller]
    pub(crate) fn bring_up(link: L, memory: File) -> Self {
        let (link, memory) = (Rc::new(RefCell::new(link)), Rc::new(memory));
        link.borrow_mut()
            .write(CONFIG_REGION, 4, &0b110_u16.to_le_bytes());
        let queues = |at| QueueMemory {
            submission: at,
            completion: at + 0x1000,
            submission_entries: ENTRIES,
            completion_entries: ENTRIES,
        };
        let registers = Bar(link.clone());
        let ram = GuestRam(memory.clone());
        let mut controller = Controller::enable(registers, ram, queues(QUEUES)).unwrap();
        let io = controller
            .create_queues(1, queues(QUEUES + 0x2000))
            .unwrap();
        Self {
            link,
            memory,
            controller,
            io,
        }
    }

    /// Returns the client.
    pub(crate) fn link(&self) -> RefMut<'_, L> {
        self.link.borrow_mut()
    }

    /// Returns the client and guest RAM, for another bring-up.
    pub(crate) fn into_parts(self) -> (L, File) {
        let Self {
            link,
            memory,
            controller,
            io,
        } = self;
        drop((controller, io));
        let link = Rc::into_inner(link).unwrap().into_inner();
        (link, Rc::into_inner(memory).unwrap())
    }

    /// Waits until CSTS has these bits.
    #[track_caller]
    pub(crate) fn wait_for_csts(&mut self, mask: u32, value: u32) {
        wait_until("CSTS", || {
            let csts = self.controller.status().unwrap().into_bits();
            (csts & mask == value).then_some(())
        });
    }

    /// Reads or writes `blocks` blocks of 512 bytes from block 0 on, the data at [`DATA`] or `at`.
    /// Returns the status.
    #[track_caller]
    pub(crate) fn io(&mut self, opcode: u8, at: u64, blocks: u32) -> u16 {
        self.io_from(0, opcode, at, blocks)
    }

    /// The same from another block on.
    #[track_caller]
    pub(crate) fn io_from(&mut self, first: u32, opcode: u8, at: u64, blocks: u32) -> u16 {
        self.submit_io_from(first, opcode, at, blocks);
        self.wait()
    }

    /// Like [`Driver::io`], without waiting.
    pub(crate) fn submit_io(&mut self, opcode: u8, at: u64, blocks: u32) {
        self.submit_io_from(0, opcode, at, blocks);
    }

    fn submit_io_from(&mut self, first: u32, opcode: u8, at: u64, blocks: u32) {
        let pages = (0..u64::from(blocks) * 512).step_by(4096);
        let pages: Vec<u64> = pages.map(|offset| at.wrapping_add(offset)).collect();
        let list = || Ok::<_, io::Error>(LIST);
        let mut entry = SubmissionEntry::new_zeroed();
        entry.opcode = opcode;
        entry.cid = self.io.tail().into();
        entry.nsid = 1.into();
        let [prp1, prp2] = prps(&pages, self.controller.memory(), list).unwrap();
        [entry.prp1, entry.prp2] = [prp1, prp2].map(Into::into);
        [entry.cdw10, entry.cdw12] = [first, blocks - 1].map(Into::into);
        self.io.push(&transmute!(entry)).unwrap();
        self.io.ring_tail().unwrap();
    }

    /// Writes any value to the tail's doorbell of the I/O queue.
    pub(crate) fn ring(&mut self, tail: u16) {
        let [doorbell, _] = self.io.doorbells();
        doorbell.write(tail).unwrap();
    }

    /// Waits for the next completion of the I/O queue. Returns its status.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> u16 {
        let slot = self.io.head();
        let completion = wait_until("a completion", || self.io.pop().unwrap());
        assert_eq!(completion.cid, slot, "the command's identifier");
        self.io.ring_head().unwrap();
        completion.status & 0x7ff
    }

    /// Executes Identify Controller. Returns the serial number.
    #[track_caller]
    pub(crate) fn serial(&mut self) -> String {
        let mut entry = SubmissionEntry::new_zeroed();
        entry.opcode = AdminOpcode::Identify as u8;
        entry.prp1 = IDENTIFY.into();
        entry.cdw10 = u32::from(cns::CONTROLLER).into();
        self.controller.admin(entry).unwrap();
        let mut serial = [0; 20];
        self.memory
            .read_exact_at(&mut serial, IDENTIFY - RAM + 4)
            .unwrap();
        String::from_utf8(serial.to_vec())
            .unwrap()
            .trim_end()
            .to_owned()
    }

    /// Sets the data that a write takes.
    pub(crate) fn fill(&self, byte: u8, len: usize) {
        self.memory
            .write_all_at(&vec![byte; len], DATA - RAM)
            .unwrap();
    }

    /// Returns the data that a read has brought.
    pub(crate) fn data(&self, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.memory.read_exact_at(&mut data, DATA - RAM).unwrap();
        data
    }
}
