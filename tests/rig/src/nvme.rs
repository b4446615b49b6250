//! A driver of an NVMe controller for tests: bring-up, queues, commands and their completions. It
//! polls, and submits anything.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::path::Path;

use peerbar_nvme_driver::{DmaMemory, Doorbell, QueueMemory, QueuePair, Registers, Shadow};
use peerbar_nvme_spec::dma_log;

use crate::client::Client;
use crate::link::{Guest, Link};
use crate::{poll_until, wait_until};

pub mod command;

use command::{Command, Completion, READ, WRITE, blocks, create_cq, create_sq, get_log, identify};

/// Bytes of a memory page.
pub const PAGE: u64 = 4096;
/// The address of guest RAM.
pub const RAM: u64 = 0x1000_0000;
/// The size of guest RAM.
pub const RAM_BYTES: u64 = 16 << 20;
/// The address of a PRP list.
pub const LIST: u64 = RAM + (3 << 20);
/// The address of a transfer's data, away from the queues.
pub const DATA: u64 = RAM + (4 << 20);
/// Addresses of the queues, and of the answer to Identify Controller.
const QUEUES: u64 = RAM;
const IDENTIFY: u64 = DATA - PAGE;
/// Entries of the admin queues, and of I/O queues unless a test sets another number.
pub const ENTRIES: u16 = 16;

/// Controller Configuration (NVMe Base 2.0, 3.1.3.5).
pub const CC: u64 = 0x14;
/// Controller Status (NVMe Base 2.0, 3.1.3.6).
pub const CSTS: u64 = 0x1c;
/// Admin Queue Attributes, and the addresses of the admin queues (NVMe Base 2.0, 3.1.3.8).
const AQA: u64 = 0x24;
const ASQ: u64 = 0x28;
const ACQ: u64 = 0x30;
/// CC: enabled, submission entries of 64 bytes, completion entries of 16.
pub const ENABLED: u32 = 0x0046_0001;

/// Returns queues at these addresses.
pub fn queues(
    submission: u64,
    completion: u64,
    submission_entries: u16,
    completion_entries: u16,
) -> QueueMemory {
    QueueMemory {
        submission,
        completion,
        submission_entries,
        completion_entries,
    }
}

/// Returns the usual addresses of a pair in guest RAM: two pages for each pair.
pub fn usual(id: u16) -> QueueMemory {
    let submission = QUEUES + 2 * PAGE * u64::from(id);
    queues(submission, submission + PAGE, ENTRIES, ENTRIES)
}

/// Pages with the doorbells' values and with their event indexes.
const SHADOWS: [u64; 2] = [RAM + (2 << 20), RAM + (2 << 20) + PAGE];

/// A driver of the controller of `machine`, which is also the memory that the two share.
pub struct Driver<M> {
    machine: M,
    /// Doorbells are in memory.
    shadowed: bool,
    pairs: HashMap<u16, QueuePair<M, M>>,
    cid: u16,
}

impl<M> Deref for Driver<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.machine
    }
}

impl<M> DerefMut for Driver<M> {
    fn deref_mut(&mut self) -> &mut M {
        &mut self.machine
    }
}

/// Connects to the daemon at `socket`, and lends it guest RAM.
#[track_caller]
pub fn connect(socket: &Path) -> Guest<Client> {
    Guest::new(Client::connect(socket).unwrap(), RAM, RAM_BYTES)
}

impl<L: Link + Clone> Driver<Guest<L>> {
    /// Makes a driver whose controller is enabled, with queue pair 1.
    #[track_caller]
    pub fn enabled(guest: Guest<L>) -> Self {
        let mut driver = Self::new(guest);
        driver.enable_polled();
        driver
    }

    /// Turns the function on and enables the controller, with queue pair 1, whose completions raise
    /// no interrupts.
    #[track_caller]
    pub fn enable_polled(&mut self) {
        self.link.turn_on().unwrap();
        self.enable();
        let at = usual(1);
        self.know_pair(1, at);
        let mut completions = create_cq(1, ENTRIES.into(), 0, at.completion);
        completions.dwords[1] = 1;
        self.ok(0, completions);
        self.ok(0, create_sq(1, ENTRIES.into(), 1, at.submission));
    }

    /// Reads or writes `count` blocks of 512 bytes from block 0 on, with the data at `at`. Returns
    /// the status.
    #[track_caller]
    pub fn io(&mut self, opcode: u8, at: u64, count: u32) -> u16 {
        self.io_from(0, opcode, at, count)
    }

    /// The same from another block on.
    #[track_caller]
    pub fn io_from(&mut self, first: u64, opcode: u8, at: u64, count: u32) -> u16 {
        self.submit_io_from(first, opcode, at, count);
        self.wait()
    }

    /// Like [`Driver::io`], without waiting.
    pub fn submit_io(&mut self, opcode: u8, at: u64, count: u32) {
        self.submit_io_from(0, opcode, at, count);
    }

    fn submit_io_from(&mut self, first: u64, opcode: u8, at: u64, count: u32) {
        let command = blocks(opcode, first, count);
        let command = self.prps(command, at, count as usize * 512, LIST);
        self.submit(1, command);
    }

    /// Waits for the next completion of queue pair 1. Returns its status.
    #[track_caller]
    pub fn wait(&mut self) -> u16 {
        let completion = self.take(1);
        assert_eq!(completion.cid, self.cid, "the command's identifier");
        completion.code()
    }

    /// Executes Identify Controller. Returns the serial number.
    #[track_caller]
    pub fn serial(&mut self) -> String {
        self.ok(0, identify(1, 0).at(IDENTIFY, 0));
        let serial = self.ram.load(IDENTIFY + 4, 20);
        String::from_utf8(serial).unwrap().trim_end().to_owned()
    }

    /// Sets the data that a write takes.
    pub fn fill(&self, byte: u8, len: usize) {
        self.ram.store(DATA, &vec![byte; len]);
    }

    /// Returns the data that a read has brought.
    pub fn data(&self, len: usize) -> Vec<u8> {
        self.ram.load(DATA, len)
    }
}

impl<M: Registers + DmaMemory + Clone> Driver<M> {
    /// Makes a driver of a controller that is not enabled.
    pub fn new(machine: M) -> Self {
        Self {
            machine,
            shadowed: false,
            pairs: HashMap::new(),
            cid: 0,
        }
    }

    /// Enables the controller and creates queue pair 1.
    pub fn bring_up(&mut self) {
        self.bring_up_by_registers();
        if std::env::var_os("PEERBAR_TEST_SHADOW").is_some() {
            self.use_shadow_doorbells();
        }
    }

    /// The same, but the doorbells are registers, regardless of the suite's environment.
    pub fn bring_up_by_registers(&mut self) {
        self.enable();
        self.create_pair(1, usual(1));
    }

    /// Keeps the doorbells of I/O queues in memory from now on, if the controller can.
    pub fn use_shadow_doorbells(&mut self) {
        let [values, events] = SHADOWS;
        self.store_bytes(values, &[0; 2 * PAGE as usize]);
        let config = command::doorbell_buffer(values, events);
        if self.code(0, config) == 0 {
            self.shadowed = true;
            let ids: Vec<u16> = self.pairs.keys().copied().filter(|id| *id > 0).collect();
            for id in ids {
                *self.pair(id).doorbells() = self.doorbells(id);
            }
        }
    }

    /// Writes the doorbells of a queue pair as registers from now on.
    pub fn ring_by_registers(&mut self, id: u16) {
        let doorbells = self.doorbells_in(id, false);
        *self.pair(id).doorbells() = doorbells;
    }

    /// Makes doorbells for a queue pair: in memory if those of I/O queues are.
    fn doorbells(&self, id: u16) -> [Doorbell<M, M>; 2] {
        self.doorbells_in(id, self.shadowed && id > 0)
    }

    fn doorbells_in(&self, id: u16, shadowed: bool) -> [Doorbell<M, M>; 2] {
        let first = 8 * u64::from(id);
        [first, first + 4].map(|offset| {
            let [value, event] = SHADOWS.map(|page| page + offset);
            let shadow = shadowed.then_some(Shadow { value, event });
            let [registers, memory] = [(); 2].map(|()| self.machine.clone());
            Doorbell::new(registers, memory, 0x1000 + offset, shadow)
        })
    }

    /// Writes any value to a doorbell, given the offset of its register.
    pub fn write_doorbell(&mut self, register: u64, value: u16) {
        let number = (register - 0x1000) / 4;
        let id = (number / 2) as u16;
        let mut unknown = self.doorbells(id);
        let pair = self.pairs.get_mut(&id);
        let doorbells = pair.map_or(&mut unknown, QueuePair::doorbells);
        doorbells[number as usize % 2].write(value).unwrap();
    }

    /// Enables the controller, and waits until it is ready.
    pub fn enable(&mut self) {
        self.start_enable();
        self.wait_for_status(1, 1);
    }

    /// Sets up empty admin queues and CC.EN, and does not wait.
    pub fn start_enable(&mut self) {
        self.start_enable_with(ENABLED);
    }

    /// Sets up empty admin queues and CC, and does not wait.
    pub fn start_enable_with(&mut self, configuration: u32) {
        self.pairs.clear();
        self.shadowed = false;
        let admin = usual(0);
        self.know_pair(0, admin);
        let last = u32::from(ENTRIES - 1);
        self.set(AQA, &(last << 16 | last).to_le_bytes());
        self.set(ASQ, &admin.submission.to_le_bytes());
        self.set(ACQ, &admin.completion.to_le_bytes());
        self.set(CC, &configuration.to_le_bytes());
    }

    /// Disables the controller, and waits until it is not ready.
    pub fn disable(&mut self) {
        self.set(CC, &(ENABLED & !1).to_le_bytes());
        self.wait_for_status(1, 0);
    }

    /// Creates a queue pair whose vector has its number.
    #[track_caller]
    pub fn create_pair(&mut self, id: u16, at: QueueMemory) {
        self.know_pair(id, at);
        let [sq, cq] = [at.submission_entries, at.completion_entries].map(u32::from);
        self.ok(0, create_cq(id, cq, id, at.completion));
        self.ok(0, create_sq(id, sq, id, at.submission));
    }

    /// Begins to use a queue pair, and clears its completion queue.
    pub fn know_pair(&mut self, id: u16, at: QueueMemory) {
        let doorbells = self.doorbells(id);
        let pair = QueuePair::new(self.machine.clone(), at, doorbells).unwrap();
        self.pairs.insert(id, pair);
    }

    /// Returns a queue pair.
    pub fn pair(&mut self, id: u16) -> &mut QueuePair<M, M> {
        self.pairs.get_mut(&id).unwrap()
    }

    /// Puts a command on a queue. Returns its CID.
    pub fn put(&mut self, id: u16, command: Command) -> u16 {
        self.cid = self.cid.wrapping_add(1);
        let entry = command.encode(self.cid);
        self.pair(id).push(&entry).unwrap();
        self.cid
    }

    /// Rings the doorbell for the commands that were put on a queue.
    pub fn ring(&mut self, id: u16) {
        self.pair(id).ring_tail().unwrap();
    }

    /// Rings the doorbell for the completions that were taken.
    pub fn acknowledge(&mut self, id: u16) {
        self.pair(id).ring_head().unwrap();
    }

    /// Puts a command on a queue and rings its doorbell. Returns its CID.
    pub fn submit(&mut self, id: u16, command: Command) -> u16 {
        let cid = self.put(id, command);
        self.ring(id);
        cid
    }

    /// Returns the next completion of a queue, if there is one. It is not acknowledged.
    pub fn poll(&mut self, id: u16) -> Option<Completion> {
        let pair = self.pair(id);
        let taken = pair.pop().unwrap()?;
        Some(Completion::new(taken, pair.result().unwrap()))
    }

    /// Waits for the next completion of a queue and acknowledges it.
    #[track_caller]
    pub fn take(&mut self, id: u16) -> Completion {
        let entry = self.take_silently(id);
        self.acknowledge(id);
        entry
    }

    /// Waits for the next completion of a queue.
    #[track_caller]
    pub fn take_silently(&mut self, id: u16) -> Completion {
        let taken = poll_until(|| self.poll(id));
        taken.unwrap_or_else(|| panic!("no completion on queue {id}, CSTS {:#x}", self.status()))
    }

    /// Executes a command and takes its completion.
    #[track_caller]
    pub fn run(&mut self, id: u16, command: Command) -> Completion {
        let cid = self.submit(id, command);
        let entry = self.take(id);
        assert_eq!((entry.cid, entry.sqid), (cid, id));
        entry
    }

    /// Executes a command, which must succeed. Returns dword 0 of its completion.
    #[track_caller]
    pub fn ok(&mut self, id: u16, command: Command) -> u32 {
        let entry = self.run(id, command);
        assert_eq!(entry.code(), 0, "{command:x?}");
        entry.dw0
    }

    /// Executes a command, which must succeed, and does not acknowledge its completion.
    #[track_caller]
    pub fn ok_silently(&mut self, id: u16, command: Command) {
        self.submit(id, command);
        assert_eq!(self.take_silently(id).code(), 0, "{command:x?}");
    }

    /// Executes a command. Returns its status.
    #[track_caller]
    pub fn code(&mut self, id: u16, command: Command) -> u16 {
        self.run(id, command).code()
    }

    /// Executes an admin command that returns one page or less, and must succeed.
    #[track_caller]
    pub fn fetch(&mut self, command: Command, len: usize) -> Vec<u8> {
        self.store_bytes(DATA, &vec![0xa5; len]);
        self.ok(0, command.at(DATA, DATA + PAGE));
        self.load_bytes(DATA, len)
    }

    /// Returns when every queue has had a turn since the last doorbell: queues are served one after
    /// the other, so the second of two commands is fetched in a later round.
    #[track_caller]
    pub fn let_every_queue_have_a_turn(&mut self) {
        for _ in 0..2 {
            self.ok(0, command::get_feature(0x07, 0, 0));
        }
    }

    /// Puts `len` bytes at `data` into PRPs, with a list at `list` if one is needed.
    pub fn prps(&mut self, command: Command, data: u64, len: usize, list: u64) -> Command {
        let first = PAGE - data % PAGE;
        let rest = (len as u64).saturating_sub(first).div_ceil(PAGE);
        let pages = (0..rest).map(|page| data.wrapping_add(first + page * PAGE));
        match rest {
            0 => command.at(data, 0),
            1 => command.at(data, data.wrapping_add(first)),
            _ => {
                let entries: Vec<u8> = pages.flat_map(u64::to_le_bytes).collect();
                self.store_bytes(list, &entries);
                command.at(data, list)
            }
        }
    }

    /// Writes bytes to namespace 1 through guest RAM, up to MDTS.
    #[track_caller]
    pub fn store(&mut self, start: u64, data: &[u8]) {
        self.store_bytes(DATA, data);
        let command = blocks(WRITE, start, data.len() as u32 / 512);
        let command = self.prps(command, DATA, data.len(), LIST);
        self.ok(1, command);
    }

    /// Reads bytes of namespace 1 through guest RAM, up to MDTS.
    #[track_caller]
    pub fn load(&mut self, start: u64, len: usize) -> Vec<u8> {
        self.store_bytes(DATA, &vec![0xa5; len]);
        let command = blocks(READ, start, len as u32 / 512);
        let command = self.prps(command, DATA, len, LIST);
        self.ok(1, command);
        self.load_bytes(DATA, len)
    }

    /// Returns the words of the ATS log.
    #[track_caller]
    pub fn ats_log(&mut self) -> Vec<u64> {
        let page = self.fetch(get_log(dma_log::ATS_LID, 0, 64), 64);
        let words = page.chunks_exact(8).filter_map(<[u8]>::first_chunk);
        words.map(|word| u64::from_le_bytes(*word)).collect()
    }

    /// Returns the DMA log. It includes its own fetch, except for the page's data and completion.
    pub fn dma_log(&mut self) -> Vec<dma_log::Entry> {
        let len = dma_log::MAX_SIZE;
        let page = self.fetch(get_log(dma_log::LID, 0, len as u32), len);
        dma_log::parse(&page).unwrap()
    }

    /// Waits until CSTS has `value` in the bits of `mask`.
    #[track_caller]
    pub fn wait_for_status(&self, mask: u32, value: u32) {
        wait_until(&format!("{value:#x} of {mask:#x} in CSTS"), || {
            (self.status() & mask == value).then_some(())
        });
    }

    fn status(&self) -> u32 {
        let mut csts = [0; 4];
        self.machine.read_register(CSTS, &mut csts).unwrap();
        u32::from_le_bytes(csts)
    }

    fn set(&self, register: u64, value: &[u8]) {
        self.machine.write_register(register, value).unwrap();
    }

    fn store_bytes(&self, address: u64, data: &[u8]) {
        self.machine.write(address, data).unwrap();
    }

    fn load_bytes(&self, address: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.machine.read(address, &mut data).unwrap();
        data
    }
}
