//! A driver of few commands, over whatever client reaches the controller.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags};

use crate::wait_until;

/// VFIO_PCI_CONFIG_REGION_INDEX.
pub(crate) const CONFIG: u32 = 7;
/// The BAR with the registers.
pub(crate) const REGISTERS: u32 = 0;

/// Where guest RAM is, and how much of it there is.
pub(crate) const RAM: u64 = 0x1000_0000;
pub(crate) const RAM_BYTES: u64 = 4 << 20;
/// Where a transfer's data lies in RAM, away from the queues.
pub(crate) const DATA: u64 = RAM + (1 << 20);
const LIST: u64 = RAM + 0x8000;
const IDENTIFY: u64 = RAM + 0x9000;
const QUEUES: u64 = RAM;
const ENTRIES: u16 = 16;

/// Status of a completion as Linux has it, without phase, More and Do Not Retry.
pub(crate) const SUCCESS: u16 = 0;
/// NVME_SC_DATA_XFER_ERROR.
pub(crate) const DATA_TRANSFER_ERROR: u16 = 4;

/// What a driver needs of a client.
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

/// A controller that has been brought up: an admin and an I/O queue pair, one command at a time.
pub(crate) struct Driver<L> {
    pub(crate) link: L,
    pub(crate) memory: File,
    slots: [u16; 2],
}

impl<L: Link> Driver<L> {
    /// Brings the controller up, its queues in `memory`, which the client has mapped at [`RAM`].
    #[track_caller]
    pub(crate) fn bring_up(mut link: L, memory: File) -> Self {
        link.write(CONFIG, 4, &0b110_u16.to_le_bytes());
        link.write(REGISTERS, 0x24, &0x000f_000f_u32.to_le_bytes());
        link.write(REGISTERS, 0x28, &QUEUES.to_le_bytes());
        link.write(REGISTERS, 0x30, &(QUEUES + 0x1000).to_le_bytes());
        link.write(REGISTERS, 0x14, &0x0046_0001_u32.to_le_bytes());
        let mut driver = Self {
            link,
            memory,
            slots: [0; 2],
        };
        driver.wait_for_csts(1, 1);
        let pair = |opcode, page, cdw11| Command {
            opcode,
            prp: [QUEUES + page, 0],
            cdw: [0x000f_0001, cdw11, 0],
            ..IDENTIFY_CONTROLLER
        };
        assert_eq!(
            driver.admin(&pair(0x05, 0x3000, 1)),
            SUCCESS,
            "Create I/O Completion Queue"
        );
        assert_eq!(
            driver.admin(&pair(0x01, 0x2000, 1 | 1 << 16)),
            SUCCESS,
            "Create I/O Submission Queue"
        );
        driver
    }

    /// Waits until CSTS has these bits.
    #[track_caller]
    pub(crate) fn wait_for_csts(&mut self, mask: u8, value: u8) {
        wait_until("CSTS", || {
            let mut csts = [0; 4];
            self.link.read(REGISTERS, 0x1c, &mut csts);
            (csts[0] & mask == value).then_some(())
        });
    }

    /// Does a command of the admin queue; its status.
    #[track_caller]
    pub(crate) fn admin(&mut self, command: &Command) -> u16 {
        self.submit(0, command);
        self.wait(0)
    }

    /// Reads or writes so many blocks of 512 bytes from block 0 on, the data at [`DATA`] or `at`; the status.
    #[track_caller]
    pub(crate) fn io(&mut self, opcode: u8, at: u64, blocks: u32) -> u16 {
        self.io_from(0, opcode, at, blocks)
    }

    /// The same from another block on.
    #[track_caller]
    pub(crate) fn io_from(&mut self, first: u32, opcode: u8, at: u64, blocks: u32) -> u16 {
        self.submit_io_from(first, opcode, at, blocks);
        self.wait(1)
    }

    /// Like [`Driver::io`], without waiting.
    pub(crate) fn submit_io(&mut self, opcode: u8, at: u64, blocks: u32) {
        self.submit_io_from(0, opcode, at, blocks);
    }

    fn submit_io_from(&mut self, first: u32, opcode: u8, at: u64, blocks: u32) {
        let pages = (u64::from(blocks) * 512).div_ceil(4096);
        let list: Vec<u8> = (1..pages)
            .flat_map(|page| at.wrapping_add(page * 4096).to_le_bytes())
            .collect();
        self.memory.write_all_at(&list, LIST - RAM).unwrap();
        let second = if pages <= 2 {
            at.wrapping_add(4096)
        } else {
            LIST
        };
        let command = Command {
            opcode,
            nsid: 1,
            prp: [at, second],
            cdw: [first, 0, blocks - 1],
        };
        self.submit(1, &command);
    }

    /// Puts a command on a queue and rings its doorbell.
    pub(crate) fn submit(&mut self, queue: u16, command: &Command) {
        let slot = self.slots[usize::from(queue)];
        let place = QUEUES - RAM + u64::from(queue) * 0x2000 + u64::from(slot) * 64;
        self.memory
            .write_all_at(&command.bytes(slot), place)
            .unwrap();
        self.ring(queue, (slot + 1) % ENTRIES);
    }

    /// Writes the tail doorbell of a queue.
    pub(crate) fn ring(&mut self, queue: u16, tail: u16) {
        let doorbell = 0x1000 + u64::from(queue) * 8;
        self.link
            .write(REGISTERS, doorbell, &u32::from(tail).to_le_bytes());
    }

    /// Waits for the next completion of a queue; its status.
    #[track_caller]
    pub(crate) fn wait(&mut self, queue: u16) -> u16 {
        let slot = self.slots[usize::from(queue)];
        assert!(
            slot < ENTRIES - 1,
            "a test has more commands than its queue has entries"
        );
        let place = QUEUES - RAM + 0x1000 + u64::from(queue) * 0x2000 + u64::from(slot) * 16;
        let entry = wait_until("a completion", || {
            let mut entry = [0; 16];
            self.memory.read_exact_at(&mut entry, place).unwrap();
            (entry[14] & 1 == 1).then_some(entry)
        });
        assert_eq!(
            entry[12..14],
            slot.to_le_bytes(),
            "the command's identifier"
        );
        self.slots[usize::from(queue)] += 1;
        let head = u32::from(slot + 1);
        self.link.write(
            REGISTERS,
            0x1004 + u64::from(queue) * 8,
            &head.to_le_bytes(),
        );
        u16::from_le_bytes([entry[14], entry[15]]) >> 1 & 0x7ff
    }

    /// Identify Controller; its serial number.
    #[track_caller]
    pub(crate) fn serial(&mut self) -> String {
        assert_eq!(self.admin(&IDENTIFY_CONTROLLER), SUCCESS);
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

    /// The data that a read has brought.
    pub(crate) fn data(&self, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.memory.read_exact_at(&mut data, DATA - RAM).unwrap();
        data
    }
}

/// The parts of a command that matter here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub(crate) opcode: u8,
    pub(crate) nsid: u32,
    pub(crate) prp: [u64; 2],
    pub(crate) cdw: [u32; 3],
}

const IDENTIFY_CONTROLLER: Command = Command {
    opcode: 0x06,
    nsid: 0,
    prp: [IDENTIFY, 0],
    cdw: [1, 0, 0],
};

impl Command {
    fn bytes(&self, cid: u16) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[0] = self.opcode;
        bytes[2..4].copy_from_slice(&cid.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.nsid.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.prp[0].to_le_bytes());
        bytes[32..40].copy_from_slice(&self.prp[1].to_le_bytes());
        // Dwords 10 and 11, then 12.
        for (place, dword) in bytes[40..52].chunks_exact_mut(4).zip(self.cdw) {
            place.copy_from_slice(&dword.to_le_bytes());
        }
        bytes
    }
}
