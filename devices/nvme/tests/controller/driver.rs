//! A driver of the controller: bring-up, queues, commands and their completions.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use peerbar_nvme::Config;
use peerbar_nvme_spec::dma_log;

use crate::command::{Command, Completion, READ, WRITE, blocks, create_cq, create_sq, get_log};
use crate::machine::{ACQ, AQA, ASQ, CC, CMB, CMBMSC, CSTS, Machine, PAGE, PATIENCE, RAM, config};

/// Where the driver's memory is: admin queues, I/O queues, a PRP list, data.
const QUEUES: u64 = RAM;
pub(crate) const LIST: u64 = RAM + (3 << 20);
pub(crate) const DATA: u64 = RAM + (4 << 20);
/// Entries of the admin queues, and of I/O queues unless a test says otherwise.
pub(crate) const ENTRIES: u32 = 16;
/// CC: enabled, submission entries of 64 bytes, completion entries of 16.
pub(crate) const ENABLED: u32 = 0x0046_0001;

/// A queue pair as the driver sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) sq: u64,
    pub(crate) cq: u64,
    pub(crate) sq_entries: u32,
    pub(crate) cq_entries: u32,
    pub(crate) tail: u32,
    pub(crate) head: u32,
    phase: bool,
}

impl Pair {
    pub(crate) fn new(sq: u64, cq: u64, sq_entries: u32, cq_entries: u32) -> Self {
        Self {
            sq,
            cq,
            sq_entries,
            cq_entries,
            tail: 0,
            head: 0,
            phase: true,
        }
    }

    /// The usual place of a pair in guest RAM: two pages of its own.
    pub(crate) fn usual(id: u16) -> Self {
        let sq = QUEUES + 2 * PAGE * u64::from(id);
        Self::new(sq, sq + PAGE, ENTRIES, ENTRIES)
    }
}

/// Pages with the doorbells' values and with their event indexes.
const SHADOWS: [u64; 2] = [RAM + (2 << 20), RAM + (2 << 20) + PAGE];

pub(crate) struct Driver {
    machine: Machine,
    /// The last values of doorbells in memory, by their place in it; `None`: they are registers.
    shadowed: Option<HashMap<u64, u32>>,
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
    /// An enabled controller with the CMB open and queue pair 1.
    pub(crate) fn new() -> Self {
        Self::with(&config())
    }

    pub(crate) fn with(config: &Config) -> Self {
        let mut driver = Self::bare(config);
        driver.open_cmb();
        driver.bring_up();
        driver
    }

    /// A controller that is not enabled.
    pub(crate) fn bare(config: &Config) -> Self {
        Self {
            machine: Machine::new(config),
            shadowed: None,
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

    /// The same, with doorbells that are registers whatever the suite is run with.
    pub(crate) fn bring_up_by_registers(&mut self) {
        self.enable();
        self.create_pair(1, Pair::usual(1));
    }

    /// Keeps the doorbells of I/O queues in memory from now on, if the controller can.
    pub(crate) fn use_shadow_doorbells(&mut self) {
        let [values, events] = SHADOWS;
        self.write(values, &[0; 2 * PAGE as usize]);
        let config = crate::command::doorbell_buffer(values, events);
        if self.code(0, config) == 0 {
            self.shadowed = Some(HashMap::new());
        }
    }

    /// Writes a doorbell, given the offset of its register.
    pub(crate) fn write_doorbell(&mut self, register: u64, value: u32) {
        let place = register - 0x1000;
        let [values, events] = SHADOWS;
        let last = match &mut self.shadowed {
            Some(last) if place >= 8 => last.insert(place, value).unwrap_or(0),
            _ => return self.set_register(register, value),
        };
        self.write(values + place, &value.to_le_bytes());
        fence(Ordering::SeqCst);
        let event = self.read(events + place, 4);
        let event = u32::from_le_bytes(event.try_into().unwrap());
        // Linux nvme_dbbuf_need_event
        let distance = |from: u32| value.wrapping_sub(from) as u16;
        if distance(event.wrapping_add(1)) < distance(last) {
            self.set_register(register, value);
        }
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
        self.shadowed = None;
        let admin = Pair::usual(0);
        self.pairs.insert(0, admin);
        self.write(admin.cq, &[0; 16 * ENTRIES as usize]);
        self.set_register(AQA, (ENTRIES - 1) << 16 | (ENTRIES - 1));
        self.set_wide_register(ASQ, admin.sq);
        self.set_wide_register(ACQ, admin.cq);
        self.set_register(CC, configuration);
    }

    pub(crate) fn disable(&mut self) {
        self.set_register(CC, ENABLED & !1);
        self.wait_for_status(1, 0);
    }

    /// Creates a queue pair whose vector has its number.
    #[track_caller]
    pub(crate) fn create_pair(&mut self, id: u16, pair: Pair) {
        self.write(pair.cq, &vec![0; 16 * pair.cq_entries as usize]);
        self.ok(0, create_cq(id, pair.cq_entries, id, pair.cq));
        self.ok(0, create_sq(id, pair.sq_entries, id, pair.sq));
        if let Some(last) = &mut self.shadowed {
            last.retain(|place, _| place / 8 != u64::from(id));
        }
        self.pairs.insert(id, pair);
    }

    pub(crate) fn pair(&mut self, id: u16) -> &mut Pair {
        self.pairs.get_mut(&id).unwrap()
    }

    /// Puts a command on a queue; its CID.
    pub(crate) fn put(&mut self, id: u16, command: Command) -> u16 {
        self.cid = self.cid.wrapping_add(1);
        let pair = *self.pair(id);
        let at = pair.sq + 64 * u64::from(pair.tail);
        self.write(at, &command.encode(self.cid));
        self.pair(id).tail = (pair.tail + 1) % pair.sq_entries;
        self.cid
    }

    /// Tells the controller of the commands that were put on a queue.
    pub(crate) fn ring(&mut self, id: u16) {
        let tail = self.pair(id).tail;
        self.write_doorbell(0x1000 + 8 * u64::from(id), tail);
    }

    /// Tells the controller of the completions that were taken.
    pub(crate) fn acknowledge(&mut self, id: u16) {
        let head = self.pair(id).head;
        self.write_doorbell(0x1004 + 8 * u64::from(id), head);
    }

    pub(crate) fn submit(&mut self, id: u16, command: Command) -> u16 {
        let cid = self.put(id, command);
        self.ring(id);
        cid
    }

    /// The next completion of a queue, if it is there. It is not acknowledged.
    pub(crate) fn poll(&mut self, id: u16) -> Option<Completion> {
        let pair = *self.pair(id);
        let at = pair.cq + 16 * u64::from(pair.head);
        let posted = |entry: &[u8]| entry[14] & 1 == u8::from(pair.phase);
        if !posted(&self.read(at, 16)) {
            return None;
        }
        // Read again: what was read before the phase may be older than it.
        let entry = Completion::decode(&self.read(at, 16));
        assert_eq!(entry.phase(), pair.phase);
        let pair = self.pair(id);
        pair.head = (pair.head + 1) % pair.cq_entries;
        pair.phase ^= pair.head == 0;
        Some(entry)
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
            let patient = start.elapsed() < PATIENCE;
            assert!(patient, "no completion on queue {id}, CSTS {csts:#x}");
            std::thread::yield_now();
        }
    }

    /// Has a command done and takes its completion.
    #[track_caller]
    pub(crate) fn run(&mut self, id: u16, command: Command) -> Completion {
        let cid = self.submit(id, command);
        let entry = self.take(id);
        assert_eq!((entry.cid, entry.sqid), (cid, id));
        entry
    }

    /// Has a command done well; dword 0 of its completion.
    #[track_caller]
    pub(crate) fn ok(&mut self, id: u16, command: Command) -> u32 {
        let entry = self.run(id, command);
        assert_eq!(entry.code(), 0, "{command:x?}");
        entry.dw0
    }

    /// Has a command done well, and does not acknowledge its completion.
    #[track_caller]
    pub(crate) fn ok_silently(&mut self, id: u16, command: Command) {
        self.submit(id, command);
        assert_eq!(self.take_silently(id).code(), 0, "{command:x?}");
    }

    /// The status that a command comes to.
    #[track_caller]
    pub(crate) fn code(&mut self, id: u16, command: Command) -> u16 {
        self.run(id, command).code()
    }

    /// Has an admin command that returns one page or less done well.
    #[track_caller]
    pub(crate) fn fetch(&mut self, command: Command, len: usize) -> Vec<u8> {
        self.write(DATA, &vec![0xa5; len]);
        self.ok(0, command.at(DATA, DATA + PAGE));
        self.read(DATA, len)
    }

    /// Returns when every queue has had its turn with what was rung before: queues are served one after the other, so
    /// the second of two commands is taken in a later round.
    #[track_caller]
    pub(crate) fn let_every_queue_have_a_turn(&mut self) {
        for _ in 0..2 {
            self.ok(0, crate::command::get_feature(0x07, 0, 0));
        }
    }

    /// Puts `len` bytes at `data` into PRPs, with a list at `list` if it takes one.
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

    /// The DMA log. Fetching it is in it already, but for its own data and completion.
    #[track_caller]
    pub(crate) fn ats_log(&mut self) -> Vec<u64> {
        let page = self.fetch(get_log(dma_log::ATS_LID, 0, 64), 64);
        let words = page.as_chunks::<8>().0.iter();
        words.map(|word| u64::from_le_bytes(*word)).collect()
    }

    pub(crate) fn dma_log(&mut self) -> Vec<dma_log::Entry> {
        let len = dma_log::MAX_SIZE;
        let page = self.fetch(get_log(dma_log::LID, 0, len as u32), len);
        dma_log::parse(&page).unwrap()
    }
}
