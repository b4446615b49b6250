//! A driver of the controller: bring-up, queues, commands and their completions.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::time::Instant;

use peerbar_nvme::Config;
use peerbar_nvme_driver::{Doorbell, QueueMemory, QueuePair, Shadow};
use peerbar_nvme_spec::dma_log;

use crate::command::{Command, Completion, READ, WRITE, blocks, create_cq, create_sq, get_log};
use crate::machine::{ACQ, AQA, ASQ, CC, CMB, CMBMSC, CSTS, Machine, PAGE, RAM, TIMEOUT, config};

/// Addresses of the driver's memory: admin queues, I/O queues, a PRP list, data.
const QUEUES: u64 = RAM;
pub(crate) const LIST: u64 = RAM + (3 << 20);
pub(crate) const DATA: u64 = RAM + (4 << 20);
/// Entries of the admin queues, and of I/O queues unless a test sets another number.
pub(crate) const ENTRIES: u16 = 16;
/// CC: enabled, submission entries of 64 bytes, completion entries of 16.
pub(crate) const ENABLED: u32 = 0x0046_0001;

/// A queue pair as the driver sees it.
pub(crate) type Pair = QueuePair<Machine, Machine>;

/// Queues at these addresses.
pub(crate) fn queues(
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

/// The usual addresses of a pair in guest RAM: two pages for each pair.
pub(crate) fn usual(id: u16) -> QueueMemory {
    let submission = QUEUES + 2 * PAGE * u64::from(id);
    queues(submission, submission + PAGE, ENTRIES, ENTRIES)
}

/// Pages with the doorbells' values and with their event indexes.
const SHADOWS: [u64; 2] = [RAM + (2 << 20), RAM + (2 << 20) + PAGE];

pub(crate) struct Driver {
    machine: Machine,
    /// Doorbells are in memory.
    shadowed: bool,
    pairs: HashMap<u16, Pair>,
    cid: u16,
}

impl Deref for Driver {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl DerefMut for Driver {
    fn deref_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }
}

impl Driver {
    /// Returns an enabled controller with the CMB open and queue pair 1.
    pub(crate) fn new() -> Self {
        Self::with(&config())
    }

    pub(crate) fn with(config: &Config) -> Self {
        let mut driver = Self::bare(config);
        driver.open_cmb();
        driver.bring_up();
        driver
    }

    /// Returns a controller that is not enabled.
    pub(crate) fn bare(config: &Config) -> Self {
        Self {
            machine: Machine::new(config),
            shadowed: false,
            pairs: HashMap::new(),
            cid: 0,
        }
    }

    /// CMBMSC: registers on, memory space on, at an address that is not the BAR's.
    pub(crate) fn open_cmb(&mut self) {
        self.set_wide_register(CMBMSC, CMB | 0b11);
    }

    /// Enables the controller and creates queue pair 1.
    pub(crate) fn bring_up(&mut self) {
        self.bring_up_by_registers();
        if std::env::var_os("PEERBAR_TEST_SHADOW").is_some() {
            self.use_shadow_doorbells();
        }
    }

    /// The same, but the doorbells are registers, regardless of the suite's environment.
    pub(crate) fn bring_up_by_registers(&mut self) {
        self.enable();
        self.create_pair(1, usual(1));
    }

    /// Keeps the doorbells of I/O queues in memory from now on, if the controller can.
    pub(crate) fn use_shadow_doorbells(&mut self) {
        let [values, events] = SHADOWS;
        self.write(values, &[0; 2 * PAGE as usize]);
        let config = crate::command::doorbell_buffer(values, events);
        if self.code(0, config) == 0 {
            self.shadowed = true;
            let ids: Vec<u16> = self.pairs.keys().copied().filter(|id| *id > 0).collect();
            for id in ids {
                *self.pair(id).doorbells() = self.doorbells(id);
            }
        }
    }

    /// Writes the doorbells of a queue pair as registers from now on.
    pub(crate) fn ring_by_registers(&mut self, id: u16) {
        let doorbells = self.doorbells_in(id, false);
        *self.pair(id).doorbells() = doorbells;
    }

    /// Makes doorbells for a queue pair: in memory if those of I/O queues are.
    fn doorbells(&self, id: u16) -> [Doorbell<Machine, Machine>; 2] {
        self.doorbells_in(id, self.shadowed && id > 0)
    }

    fn doorbells_in(&self, id: u16, shadowed: bool) -> [Doorbell<Machine, Machine>; 2] {
        let first = 8 * u64::from(id);
        [first, first + 4].map(|offset| {
            let [value, event] = SHADOWS.map(|page| page + offset);
            let shadow = shadowed.then_some(Shadow { value, event });
            let [registers, memory] = [(); 2].map(|()| self.machine.clone());
            Doorbell::new(registers, memory, 0x1000 + offset, shadow)
        })
    }

    /// Writes any value to a doorbell, given the offset of its register.
    pub(crate) fn write_doorbell(&mut self, register: u64, value: u16) {
        let number = (register - 0x1000) / 4;
        let id = (number / 2) as u16;
        let mut unknown = self.doorbells(id);
        let pair = self.pairs.get_mut(&id);
        let doorbells = pair.map_or(&mut unknown, QueuePair::doorbells);
        doorbells[number as usize % 2].write(value).unwrap();
    }

    pub(crate) fn enable(&mut self) {
        self.start_enable();
        self.wait_for_status(1, 1);
    }

    /// Sets up empty admin queues and CC.EN, and does not wait.
    pub(crate) fn start_enable(&mut self) {
        self.start_enable_with(ENABLED);
    }

    /// Sets up empty admin queues and CC, and does not wait.
    pub(crate) fn start_enable_with(&mut self, configuration: u32) {
        self.pairs.clear();
        self.shadowed = false;
        let admin = usual(0);
        self.know_pair(0, admin);
        let last = u32::from(ENTRIES - 1);
        self.set_register(AQA, last << 16 | last);
        self.set_wide_register(ASQ, admin.submission);
        self.set_wide_register(ACQ, admin.completion);
        self.set_register(CC, configuration);
    }

    pub(crate) fn disable(&mut self) {
        self.set_register(CC, ENABLED & !1);
        self.wait_for_status(1, 0);
    }

    /// Creates a queue pair whose vector has its number.
    #[track_caller]
    pub(crate) fn create_pair(&mut self, id: u16, at: QueueMemory) {
        self.know_pair(id, at);
        let [sq, cq] = [at.submission_entries, at.completion_entries].map(u32::from);
        self.ok(0, create_cq(id, cq, id, at.completion));
        self.ok(0, create_sq(id, sq, id, at.submission));
    }

    /// Begins to use a queue pair, and clears its completion queue.
    pub(crate) fn know_pair(&mut self, id: u16, at: QueueMemory) {
        let doorbells = self.doorbells(id);
        let pair = Pair::new(self.machine.clone(), at, doorbells).unwrap();
        self.pairs.insert(id, pair);
    }

    pub(crate) fn pair(&mut self, id: u16) -> &mut Pair {
        self.pairs.get_mut(&id).unwrap()
    }

    /// Puts a command on a queue. Returns its CID.
    pub(crate) fn put(&mut self, id: u16, command: Command) -> u16 {
        self.cid = self.cid.wrapping_add(1);
        let entry = command.encode(self.cid);
        self.pair(id).push(&entry).unwrap();
        self.cid
    }

    /// Rings the doorbell for the commands that were put on a queue.
    pub(crate) fn ring(&mut self, id: u16) {
        self.pair(id).ring_tail().unwrap();
    }

    /// Rings the doorbell for the completions that were taken.
    pub(crate) fn acknowledge(&mut self, id: u16) {
        self.pair(id).ring_head().unwrap();
    }

    pub(crate) fn submit(&mut self, id: u16, command: Command) -> u16 {
        let cid = self.put(id, command);
        self.ring(id);
        cid
    }

    /// Returns the next completion of a queue, if there is one. It is not acknowledged.
    pub(crate) fn poll(&mut self, id: u16) -> Option<Completion> {
        let pair = self.pair(id);
        let taken = pair.pop().unwrap()?;
        Some(Completion::of(taken, pair.result().unwrap()))
    }

    /// Waits for the next completion of a queue and acknowledges it.
    #[track_caller]
    pub(crate) fn take(&mut self, id: u16) -> Completion {
        let entry = self.take_silently(id);
        self.acknowledge(id);
        entry
    }

    /// Waits for the next completion of a queue.
    #[track_caller]
    pub(crate) fn take_silently(&mut self, id: u16) -> Completion {
        let start = Instant::now();
        loop {
            if let Some(entry) = self.poll(id) {
                return entry;
            }
            let csts = self.register(CSTS);
            let in_time = start.elapsed() < TIMEOUT;
            assert!(in_time, "no completion on queue {id}, CSTS {csts:#x}");
            std::thread::yield_now();
        }
    }

    /// Executes a command and takes its completion.
    #[track_caller]
    pub(crate) fn run(&mut self, id: u16, command: Command) -> Completion {
        let cid = self.submit(id, command);
        let entry = self.take(id);
        assert_eq!((entry.cid, entry.sqid), (cid, id));
        entry
    }

    /// Executes a command, which must succeed. Returns dword 0 of its completion.
    #[track_caller]
    pub(crate) fn ok(&mut self, id: u16, command: Command) -> u32 {
        let entry = self.run(id, command);
        assert_eq!(entry.code(), 0, "{command:x?}");
        entry.dw0
    }

    /// Executes a command, which must succeed, and does not acknowledge its completion.
    #[track_caller]
    pub(crate) fn ok_silently(&mut self, id: u16, command: Command) {
        self.submit(id, command);
        assert_eq!(self.take_silently(id).code(), 0, "{command:x?}");
    }

    /// Executes a command. Returns its status.
    #[track_caller]
    pub(crate) fn code(&mut self, id: u16, command: Command) -> u16 {
        self.run(id, command).code()
    }

    /// Executes an admin command that returns one page or less, and must succeed.
    #[track_caller]
    pub(crate) fn fetch(&mut self, command: Command, len: usize) -> Vec<u8> {
        self.write(DATA, &vec![0xa5; len]);
        self.ok(0, command.at(DATA, DATA + PAGE));
        self.read(DATA, len)
    }

    /// Returns when every queue has had a turn since the last doorbell: queues are served one after
    /// the other, so the second of two commands is fetched in a later round.
    #[track_caller]
    pub(crate) fn let_every_queue_have_a_turn(&mut self) {
        for _ in 0..2 {
            self.ok(0, crate::command::get_feature(0x07, 0, 0));
        }
    }

    /// Puts `len` bytes at `data` into PRPs, with a list at `list` if one is needed.
    pub(crate) fn prps(&mut self, command: Command, data: u64, len: usize, list: u64) -> Command {
        let end = data + len as u64;
        let next = (data / PAGE + 1) * PAGE;
        if end <= next + PAGE {
            return command.at(data, if end > next { next } else { 0 });
        }
        let pages = (next..end).step_by(PAGE as usize);
        let entries: Vec<u8> = pages.flat_map(u64::to_le_bytes).collect();
        self.write(list, &entries);
        command.at(data, list)
    }

    /// Writes bytes to namespace 1 through guest RAM, up to MDTS.
    #[track_caller]
    pub(crate) fn store(&mut self, start: u64, data: &[u8]) {
        self.write(DATA, data);
        let command = blocks(WRITE, start, data.len() as u32 / 512);
        let command = self.prps(command, DATA, data.len(), LIST);
        self.ok(1, command);
    }

    /// Reads bytes of namespace 1 through guest RAM, up to MDTS.
    #[track_caller]
    pub(crate) fn load(&mut self, start: u64, len: usize) -> Vec<u8> {
        self.write(DATA, &vec![0xa5; len]);
        let command = blocks(READ, start, len as u32 / 512);
        let command = self.prps(command, DATA, len, LIST);
        self.ok(1, command);
        self.read(DATA, len)
    }

    #[track_caller]
    pub(crate) fn ats_log(&mut self) -> Vec<u64> {
        let page = self.fetch(get_log(dma_log::ATS_LID, 0, 64), 64);
        let words = page.chunks_exact(8).filter_map(<[u8]>::first_chunk);
        words.map(|word| u64::from_le_bytes(*word)).collect()
    }

    /// Returns the DMA log. It includes its own fetch, except for the page's data and completion.
    pub(crate) fn dma_log(&mut self) -> Vec<dma_log::Entry> {
        let len = dma_log::MAX_SIZE;
        let page = self.fetch(get_log(dma_log::LID, 0, len as u32), len);
        dma_log::parse(&page).unwrap()
    }
}
