//! A driver of the adapter, and the machine around it: guest RAM, registers, interrupts.

use peerbar_efa::{Config, Efa};
use peerbar_efa_spec::admin::{
    ANSWER_BYTES, CompletionHeader, ENTRY_BYTES, Opcode, Status, WIDE_ENTRY_BYTES, checksum,
};
use peerbar_efa_spec::registers::offset;
use peerbar_rig::{GuestRam, LocalDevice, wait_until};
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub(crate) use peerbar_rig::{Link, MEMORY, REGISTERS};

/// Address and size of guest RAM.
pub(crate) const RAM: u64 = 0x1000_0000;
pub(crate) const RAM_BYTES: u64 = 16 << 20;
/// Address of the tests' own data.
pub(crate) const DATA: u64 = RAM + (1 << 20);
/// Addresses of answers to read requests, and of the queues.
const ANSWERS: u64 = RAM;
pub(crate) const SUBMISSION: u64 = RAM + 0x1000;
pub(crate) const COMPLETION: u64 = RAM + 0x2000;
pub(crate) const EVENTS: u64 = RAM + 0x3000;
/// As in Linux' driver.
pub(crate) const DEPTH: u16 = 32;
pub(crate) const EVENT_DEPTH: u16 = 16;
const VECTORS: u32 = 33;

/// The GID of the adapters of these tests.
pub(crate) const GID: &str = "fe80::e0fa:1";

/// An adapter in this process.
pub(crate) type Local = LocalDevice<Efa>;

fn local() -> Local {
    let config = Config {
        gid: Some(GID.parse().unwrap()),
        ..Config::default()
    };
    LocalDevice::new(Efa::start(&config).unwrap(), VECTORS)
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) status: u8,
    pub(crate) answer: [u8; ANSWER_BYTES],
}

impl Completion {
    /// Returns the answer to a command that succeeded.
    #[track_caller]
    pub(crate) fn view<T: FromBytes>(&self) -> T {
        assert_eq!(self.status, Status::Success as u8);
        T::read_from_prefix(&self.answer).unwrap().0
    }

    #[track_caller]
    pub(crate) fn expect(&self, status: Status) {
        assert_eq!(self.status, status as u8, "{status:?}");
    }
}

/// A driver that polls, with one command at a time.
pub(crate) struct Driver<L> {
    pub(crate) link: L,
    pub(crate) ram: GuestRam,
    pub(crate) entry_bytes: usize,
    reads: u16,
    /// Number of commands submitted, and of completions taken.
    pub(crate) submitted: u16,
    taken: u16,
}

impl Driver<Local> {
    /// Brings an adapter up as Linux' driver does.
    pub(crate) fn new() -> Self {
        let mut driver = Self::of(local());
        driver.bring_up();
        driver
    }
}

impl<L: Link> Driver<L> {
    /// Takes an adapter in the state in which Linux leaves it to its driver.
    pub(crate) fn of(link: L) -> Self {
        let ram = GuestRam::new(RAM, RAM_BYTES);
        link.lend(&ram).unwrap();
        link.turn_on().unwrap();
        Self {
            link,
            ram,
            entry_bytes: WIDE_ENTRY_BYTES,
            reads: 0,
            submitted: 0,
            taken: 0,
        }
    }

    pub(crate) fn set_command(&mut self, command: u16) {
        self.link.set_command(command);
    }

    /// Resets the adapter and sets up its queues.
    pub(crate) fn bring_up(&mut self) {
        self.set_answers(ANSWERS);
        self.reset();
        self.set_queues(DEPTH, SUBMISSION, COMPLETION);
    }

    pub(crate) fn set_answers(&mut self, address: u64) {
        self.write_register(offset::MMIO_RESP_HI, (address >> 32) as u32);
        self.write_register(offset::MMIO_RESP_LO, address as u32);
    }

    /// Resets the device (efa_com.c, `efa_com_dev_reset`).
    pub(crate) fn reset(&mut self) {
        self.write_register(offset::DEV_CTL, 1);
        self.set_answers(ANSWERS);
        let is_in_progress = |status: u32| status & 8 != 0;
        self.wait_for_register(offset::DEV_STS, is_in_progress);
        self.write_register(offset::DEV_CTL, 0);
        self.wait_for_register(offset::DEV_STS, |status| !is_in_progress(status));
        (self.submitted, self.taken) = (0, 0);
        self.ram.store(SUBMISSION, &[0; 0x3000]);
    }

    pub(crate) fn set_queues(&mut self, depth: u16, submission: u64, completion: u64) {
        let caps = u32::from(depth) | (self.entry_bytes as u32) << 16;
        self.set_queue(offset::AQ_BASE_LO, submission, offset::AQ_CAPS, caps);
        let caps = u32::from(depth) | (ENTRY_BYTES as u32) << 16;
        self.set_queue(offset::ACQ_BASE_LO, completion, offset::ACQ_CAPS, caps);
        let caps = u32::from(EVENT_DEPTH) | (ENTRY_BYTES as u32) << 16;
        self.set_queue(offset::AENQ_BASE_LO, EVENTS, offset::AENQ_CAPS, caps);
        self.write_register(offset::AENQ_CONS_DB, 0);
    }

    fn set_queue(&mut self, base: u64, address: u64, caps_offset: u64, caps: u32) {
        self.write_register(base, address as u32);
        self.write_register(base + 4, (address >> 32) as u32);
        self.write_register(caps_offset, caps);
    }

    pub(crate) fn write_register(&mut self, offset: u64, value: u32) {
        self.link.set_register(offset, value);
    }

    /// Requests a register, and waits for the answer.
    #[track_caller]
    pub(crate) fn read_register(&mut self, offset: u64) -> u32 {
        self.reads = self.reads.wrapping_add(1);
        let request = u32::from(self.reads) | (offset as u32) << 16;
        self.write_register(offset::MMIO_REG_READ, request);
        wait_until(&format!("the answer to {offset:#x}"), || {
            let answer = self.ram.load(ANSWERS, 8);
            let (found, value) = answer.split_at(4);
            (found == request.to_le_bytes()).then(|| u32::read_from_bytes(value).unwrap())
        })
    }

    #[track_caller]
    pub(crate) fn wait_for_register(&mut self, offset: u64, is_done: impl Fn(u32) -> bool) {
        wait_until(&format!("register {offset:#x}"), || {
            is_done(self.read_register(offset)).then_some(())
        });
    }

    /// Executes a command without a control buffer.
    #[track_caller]
    pub(crate) fn execute(
        &mut self,
        opcode: Opcode,
        payload: &(impl IntoBytes + Immutable + ?Sized),
    ) -> Completion {
        self.execute_with(0, opcode, payload.as_bytes())
    }

    /// Executes a command with these flags in addition to its phase.
    #[track_caller]
    pub(crate) fn execute_with(&mut self, flags: u8, opcode: Opcode, payload: &[u8]) -> Completion {
        let entry = self.entry(flags, opcode as u8, payload);
        self.submit(&entry);
        self.completion()
    }

    /// Returns the entry of a command, as the next one of the queue.
    pub(crate) fn entry(&self, flags: u8, opcode: u8, payload: &[u8]) -> Vec<u8> {
        let mut entry = vec![0; self.entry_bytes];
        let phase = u8::from((self.submitted / DEPTH) % 2 == 0);
        entry[..2].copy_from_slice(&self.command_id().to_le_bytes());
        entry[2] = opcode;
        entry[3] = flags | phase;
        let start = if self.entry_bytes == WIDE_ENTRY_BYTES {
            12
        } else {
            4
        };
        entry[start..start + payload.len()].copy_from_slice(payload);
        if self.entry_bytes == WIDE_ENTRY_BYTES {
            let sum = checksum(&entry);
            entry[4..6].copy_from_slice(&sum.to_le_bytes());
        }
        entry
    }

    fn command_id(&self) -> u16 {
        self.submitted & 0xfff
    }

    /// Puts an entry into the queue and rings its doorbell.
    pub(crate) fn submit(&mut self, entry: &[u8]) {
        let index = u64::from(self.submitted % DEPTH);
        let address = SUBMISSION + index * self.entry_bytes as u64;
        self.ram.store(address, entry);
        self.submitted = self.submitted.wrapping_add(1);
        self.write_register(offset::AQ_PROD_DB, self.submitted.into());
    }

    /// Waits for the next completion, which belongs to the last command.
    #[track_caller]
    pub(crate) fn completion(&mut self) -> Completion {
        let address = COMPLETION + u64::from(self.taken % DEPTH) * ENTRY_BYTES as u64;
        let phase = u8::from((self.taken / DEPTH) % 2 == 0);
        wait_until("a completion", || {
            let header = self.ram.load(address, 8);
            (header[3] & 1 == phase).then_some(())
        });
        let mut entry = [0; ENTRY_BYTES];
        self.read_ram(address, &mut entry);
        let (header, answer) = CompletionHeader::read_from_prefix(&entry).unwrap();
        assert_eq!(header.command_id.get(), self.taken & 0xfff);
        let answer = answer.try_into().unwrap();
        entry[4..6].fill(0);
        assert_eq!(header.checksum.get(), checksum(&entry), "checksum");
        self.taken = self.taken.wrapping_add(1);
        Completion {
            status: header.status,
            answer,
        }
    }

    pub(crate) fn write_ram(&self, address: u64, data: &[u8]) {
        self.ram.store(address, data);
    }

    pub(crate) fn read_ram(&self, address: u64, data: &mut [u8]) {
        data.copy_from_slice(&self.ram.load(address, data.len()));
    }
}
