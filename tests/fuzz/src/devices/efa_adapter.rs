//! A guest that gives an EFA arbitrary admin commands, work requests, doorbells and register
//! accesses, and takes its memory away. Each command that the queue takes is completed with its
//! number and checksum, and a reset restores the adapter's initial state.

use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use peerbar_dma::MemoryFile;
use peerbar_efa::memory_bar::{self, Doorbell};
use peerbar_efa::{Config, Efa, SteppedEfa};
use peerbar_efa_spec::admin::{
    CompletionHeader, ENTRY_BYTES, Opcode, PAYLOAD_BYTES, Status, checksum,
};
use peerbar_efa_spec::registers::offset;
use peerbar_vfio_user::{CONFIG_REGION, Device};

use super::guest_ram;
use crate::input::Input;

/// Maximum number of steps of an input.
const STEPS: usize = 32;
const PAGE: u64 = 4096;
/// Guest memory: a page of admin queues that stays, which no input addresses, and pages that come
/// and go.
const QUEUES_AT: u64 = 0x5a5a_5a5a_0000_0000;
const COMPLETIONS: u64 = 0x800;
const RAM_AT: u64 = 0x20_0000;
const PAGES: u64 = 8;
/// Entries of the admin queues.
const DEPTH: u16 = 16;
const REGISTERS: u32 = 0;
/// Commands name one of the first objects, so that the object often exists.
const OBJECTS: u16 = 3;
/// Time from one step of the adapter to the next.
const STEP: Duration = Duration::from_millis(4);

struct Fixture {
    efa: SteppedEfa,
    queues: MemoryFile,
    ram: MemoryFile,
    is_present: [bool; PAGES as usize],
    /// Commands submitted since the last reset.
    submitted: u16,
    /// The adapter's time.
    now: Instant,
    known: Known,
}

/// Numbers that the adapter has chosen, for later words of an input.
#[derive(Clone, Copy, Default)]
struct Known {
    /// Numbers of the last queue pairs of even and of odd indices.
    pairs: [u32; 2],
    /// Local and remote key of the last memory region.
    keys: [u32; 2],
}

/// Executes the steps of `data`.
pub fn run(data: &[u8]) {
    static BENCH: OnceLock<Mutex<Fixture>> = OnceLock::new();
    let fixture = BENCH.get_or_init(|| Mutex::new(Fixture::new()));
    let mut fixture = fixture.lock().expect("no earlier failure");
    fixture.start();
    let mut input = Input::new(data);
    for _ in 0..STEPS {
        if fixture.step(&mut input).is_none() {
            break;
        }
    }
    fixture.start();
    assert_eq!(fixture.command(Opcode::AllocPd as u8, 0, &[]), 0, "a reset");
}

impl Fixture {
    fn new() -> Self {
        let config = Config {
            gid: Some("fe80::1".parse().expect("a GID")),
            ..Config::default()
        };
        let mut fixture = Self {
            efa: Efa::stepped(&config).expect("an adapter"),
            queues: MemoryFile::create("queues", PAGE).expect("memory"),
            ram: MemoryFile::create("ram", PAGES * PAGE).expect("memory"),
            is_present: [false; PAGES as usize],
            submitted: 0,
            now: Instant::now(),
            known: Known::default(),
        };
        let file = fixture.queues.file();
        guest_ram::map(&mut fixture.efa.endpoint, QUEUES_AT, PAGE, file, 0);
        fixture
    }

    /// Restores the start state of every input: reset, with empty queues and all of its memory.
    fn start(&mut self) {
        self.efa.endpoint.reset().expect("a reset");
        self.write_region(CONFIG_REGION, 4, &[6, 0]);
        self.work();
        self.set_queues();
        for page in 0..PAGES {
            self.set_page(page, true);
        }
    }

    fn set_queues(&mut self) {
        self.queues.zero(0, PAGE).expect("queues");
        let depth = u32::from(DEPTH) | (ENTRY_BYTES as u32) << 16;
        for (register, value) in [
            (offset::AQ_BASE_LO, QUEUES_AT as u32),
            (offset::AQ_BASE_HI, (QUEUES_AT >> 32) as u32),
            (offset::AQ_CAPS, depth),
            (offset::ACQ_BASE_LO, (QUEUES_AT + COMPLETIONS) as u32),
            (offset::ACQ_BASE_HI, (QUEUES_AT >> 32) as u32),
            (offset::ACQ_CAPS, depth),
        ] {
            self.write_register(register, value);
        }
        self.submitted = 0;
        self.known = Known::default();
    }

    fn set_page(&mut self, page: u64, present: bool) {
        let is_present = &mut self.is_present[page as usize];
        if std::mem::replace(is_present, present) == present {
            return;
        }
        let iova = RAM_AT + page * PAGE;
        let endpoint = &mut self.efa.endpoint;
        if present {
            guest_ram::map(endpoint, iova, PAGE, self.ram.file(), page * PAGE);
        } else {
            guest_ram::unmap(endpoint, iova, PAGE);
        }
    }

    fn write_region(&mut self, region: u32, offset: u64, data: &[u8]) {
        let written = self.efa.endpoint.region_write(region, offset, data);
        written.expect("a region");
    }

    fn write_register(&mut self, offset: u64, value: u32) {
        self.write_region(REGISTERS, offset, &value.to_le_bytes());
    }

    /// Lets the adapter work. The time of each step is some milliseconds after the one before, so
    /// that messages that wait for a receive are sent again after a number of steps, on any
    /// machine.
    fn work(&mut self) {
        self.now += STEP;
        self.efa.work(self.now);
    }

    /// Executes a step. Returns `None` at the end of the input.
    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        match input.u8()? {
            0..=127 => {
                let (opcode, flags) = (input.u8()? % 32, input.u8()?);
                let payload: [u8; PAYLOAD_BYTES] = self.words(input)?;
                self.command(opcode, flags & 6, &payload);
            }
            128..=175 => {
                let (pair, index) = (input.u16()? % OBJECTS, u64::from(input.u8()? % 4));
                let entry: [u8; 64] = self.words(input)?;
                let offset = memory_bar::send_queue(pair) + index * 64;
                self.write_region(memory_bar::BAR.into(), offset, &entry);
            }
            176..=215 => {
                let (uar, queue) = (input.u8()?, u16::from(input.u8()?) % OBJECTS);
                let doorbell = match uar / 4 % 3 {
                    0 => Doorbell::Send(queue),
                    1 => Doorbell::Receive(queue),
                    _ => Doorbell::Completion(queue),
                };
                let at = doorbell.offset(u16::from(uar % 4));
                let value = input.u32()?.to_le_bytes();
                self.write_region(memory_bar::BAR.into(), at, &value);
            }
            216..=231 => {
                let (page, bytes) = (u64::from(input.u8()?), input.array::<16>()?);
                self.set_page(page % PAGES, page & 0x80 != 0);
                let at = page % PAGES * PAGE;
                self.ram.write(at, &bytes).expect("RAM");
            }
            _ => {
                let (register, value) = (input.u8()?, input.u32()?);
                self.write_register(u64::from(register) & 0x7c, value);
                self.work();
                // A reset restores the start state in any case.
                self.start();
            }
        }
        self.work();
        Some(())
    }

    /// Executes an admin command, which must be completed. Returns its status.
    fn command(&mut self, opcode: u8, flags: u8, payload: &[u8]) -> u8 {
        let index = u64::from(self.submitted % DEPTH);
        let phase = u8::from((self.submitted / DEPTH) % 2 == 0);
        let id = self.submitted & 0xfff;
        let mut entry = [0; ENTRY_BYTES];
        entry[..2].copy_from_slice(&id.to_le_bytes());
        entry[2] = opcode;
        entry[3] = flags | phase;
        entry[4..4 + payload.len()].copy_from_slice(payload);
        let bytes = ENTRY_BYTES as u64;
        self.queues.write(index * bytes, &entry).expect("a queue");
        self.submitted = self.submitted.wrapping_add(1);
        self.write_register(offset::AQ_PROD_DB, self.submitted.into());
        self.work();
        let mut completion = [0; ENTRY_BYTES];
        let at = COMPLETIONS + index * bytes;
        self.queues.read(at, &mut completion).expect("a queue");
        let (sum, status) = (
            u16::from_le_bytes([completion[4], completion[5]]),
            completion[2],
        );
        completion[4..6].fill(0);
        assert_eq!(completion[..2], id.to_le_bytes(), "opcode {opcode}");
        assert_eq!(completion[3], phase, "opcode {opcode}");
        assert_eq!(checksum(&completion), sum, "opcode {opcode}");
        assert!(status <= Status::ResourceBusy as u8, "opcode {opcode}");
        let is_empty = completion[size_of::<CompletionHeader>()..]
            .iter()
            .all(|byte| *byte == 0);
        assert!(status == 0 || is_empty, "a failure says no more");
        if status == 0 {
            self.learn(opcode, &completion[size_of::<CompletionHeader>()..]);
        }
        status
    }

    /// Remembers the numbers of an answer.
    fn learn(&mut self, opcode: u8, answer: &[u8]) {
        let word = |at: usize| {
            let bytes = answer.get(at..at + 4)?;
            bytes.try_into().ok().map(u32::from_le_bytes)
        };
        let words = [word(0), word(4)].map(Option::unwrap_or_default);
        if opcode == Opcode::CreateQp as u8 {
            self.known.pairs[words[0] as usize % 2] = words[0];
        } else if [Opcode::RegMr as u8, Opcode::AllocMr as u8].contains(&opcode) {
            self.known.keys = words;
        }
    }

    /// Returns words, each of which is small, an address of guest memory, a number that the adapter
    /// has chosen, or anything.
    fn words<const N: usize>(&self, input: &mut Input<'_>) -> Option<[u8; N]> {
        let mut words = [0; N];
        for word in words.chunks_exact_mut(4) {
            let kind = input.u8()?;
            let value = match kind {
                0..=99 => 0,
                100..=179 => u32::from(kind) % 4,
                180..=203 => RAM_AT as u32 + u32::from(kind % 8) * PAGE as u32,
                204..=219 => 1 << (kind % 16),
                220..=225 => self.known.pairs[usize::from(kind) % 2],
                226..=231 => self.known.keys[usize::from(kind) % 2],
                232..=239 => self.known.pairs[usize::from(kind) % 2] | 1 << 16,
                _ => input.u32()?,
            };
            word.copy_from_slice(&value.to_le_bytes());
        }
        Some(words)
    }
}

#[cfg(test)]
mod tests {
    use peerbar_efa_spec::admin::completion_queue::{CqCaps2, CreateCq};
    use peerbar_efa_spec::admin::event_counter::{
        AttachEventCounter, CreateEventCounter, ModifyEventCounter, QpEvents, operation,
    };
    use peerbar_efa_spec::admin::memory_region::{AllocMr, Permissions, RegMr, RegMrFlags};
    use peerbar_efa_spec::admin::queue_pair::{CreateQp, ModifyMask, ModifyQp, state, transport};
    use peerbar_efa_spec::admin::resource::CreateAh;
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;
    use crate::seed::Seed;

    /// Kinds of words.
    const ANY: u8 = 240;
    const PAIR: u8 = 220;
    const KEYS: u8 = 226;
    const PAIR_AND_ONE: u8 = 232;

    /// Adds words with their values, except at some indices, where they are of a kind.
    fn words(mut seed: Seed, bytes: &[u8], kinds: &[(usize, u8)]) -> Seed {
        for (index, word) in bytes.chunks_exact(4).enumerate() {
            let kind = kinds.iter().find(|(at, _)| *at == index);
            seed = match kind {
                Some((_, kind)) => seed.bytes(&[*kind]),
                None if word == [0; 4] => seed.bytes(&[0]),
                None => seed.bytes(&[ANY]).bytes(word),
            };
        }
        seed
    }

    fn command(seed: Seed, opcode: Opcode, payload: &[u8], kinds: &[(usize, u8)]) -> Seed {
        let mut bytes = payload.to_vec();
        bytes.resize(PAYLOAD_BYTES, 0);
        words(seed.bytes(&[0, opcode as u8, 0]), &bytes, kinds)
    }

    /// Makes two queue pairs that are ready to send.
    fn queue_pairs(mut seed: Seed) -> Seed {
        let mut queue = CreateCq::new_zeroed();
        queue.caps_2 = CqCaps2::new().with_entry_words(4);
        queue.depth = 16.into();
        queue.address = RAM_AT.into();
        queue.parts = 1.into();
        seed = command(seed, Opcode::CreateCq, queue.as_bytes(), &[]);
        for index in 0..2u8 {
            let mut pair = CreateQp::new_zeroed();
            pair.transport = transport::SRD;
            pair.sq_depth = 4.into();
            pair.sq_bytes = 256.into();
            pair.rq_depth = 4.into();
            pair.rq_bytes = 64.into();
            pair.rq_address = (RAM_AT + PAGE * (1 + u64::from(index))).into();
            seed = command(seed, Opcode::CreateQp, pair.as_bytes(), &[]);
            seed = states(seed, index, &[state::INIT, state::RTR, state::RTS]);
        }
        seed
    }

    /// Modifies a queue pair from state to state.
    fn states(mut seed: Seed, index: u8, all: &[u32]) -> Seed {
        for next in all {
            let mut modify = ModifyQp::new_zeroed();
            modify.mask = ModifyMask::new().with_state(true);
            modify.state = (*next).into();
            let kinds = [(1, PAIR + index)];
            seed = command(seed, Opcode::ModifyQp, modify.as_bytes(), &kinds);
        }
        seed
    }

    /// Returns 16 bytes of guest memory after a seed.
    fn found(seed: &[u8], at: u64) -> [u8; 16] {
        let mut fixture = Fixture::new();
        fixture.start();
        let mut input = Input::new(seed);
        while fixture.step(&mut input).is_some() {}
        let mut found = [0; 16];
        fixture.ram.read(at, &mut found).expect("RAM");
        found
    }

    /// Returns a seed that writes page 3 of guest memory to page 4 by RDMA.
    fn transfer() -> Seed {
        transfer_with(|seed| seed)
    }

    /// Returns the same, with further commands before the transfer.
    fn transfer_with(more: impl FnOnce(Seed) -> Seed) -> Seed {
        let mut seed = command(Seed::default(), Opcode::AllocUar, &[], &[]);
        seed = command(seed, Opcode::AllocPd, &[], &[]);
        seed = more(queue_pairs(seed));
        let mut handle = CreateAh::new_zeroed();
        handle.destination = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        seed = command(seed, Opcode::CreateAh, handle.as_bytes(), &[]);
        let mut region = RegMr::new_zeroed();
        region.length = (2 * PAGE).into();
        region.flags = RegMrFlags::new().with_page_shift(12);
        region.permissions = Permissions::new().with_remote_write(true);
        region.inline_pages[0] = (RAM_AT + 3 * PAGE).into();
        region.inline_pages[1] = (RAM_AT + 4 * PAGE).into();
        seed = command(seed, Opcode::RegMr, region.as_bytes(), &[]);
        // Page 3 gets its bytes, and stays.
        seed = seed.bytes(&[216, 0x83]).bytes(b"sixteen of bytes");
        let mut entry = [0; 64];
        // A write that requests a completion; remote and local buffer.
        entry[..4].copy_from_slice(&[7, 0, 0x82, 0x1d]);
        entry[32] = 16;
        entry[41] = 0x10;
        entry[48] = 16;
        let kinds = [(1, PAIR_AND_ONE + 1), (9, KEYS + 1), (13, KEYS)];
        seed = words(seed.bytes(&[128]).u16(0).bytes(&[0]), &entry, &kinds);
        // The doorbell of its send queue.
        seed.bytes(&[176, 0, 0]).u32(1)
    }

    #[test]
    fn seed_moves_bytes_from_region_to_region() {
        let seed = transfer().in_corpus("efa_adapter", "transfer");
        assert_eq!(&found(&seed, 4 * PAGE), b"sixteen of bytes");
        run(&seed);
    }

    #[test]
    fn seed_counts_a_transfer_in_guest_memory() {
        let seed = transfer_with(|mut seed| {
            let mut counter = CreateEventCounter::new_zeroed();
            counter.address = (RAM_AT + 5 * PAGE).into();
            seed = command(seed, Opcode::CreateEventCounter, counter.as_bytes(), &[]);
            seed = states(seed, 0, &[state::RESET]);
            let mut attach = AttachEventCounter::new_zeroed();
            attach.events = QpEvents::ALL;
            let kinds = [(2, PAIR)];
            seed = command(seed, Opcode::AttachEventCounter, attach.as_bytes(), &kinds);
            let mut add = ModifyEventCounter::new_zeroed();
            (add.operation, add.value) = (operation::ADD, 7.into());
            seed = command(seed, Opcode::ModifyEventCounter, add.as_bytes(), &[]);
            states(seed, 0, &[state::INIT, state::RTR, state::RTS])
        });
        let seed = seed.in_corpus("efa_adapter", "counter");
        assert_eq!(&found(&seed, 4 * PAGE), b"sixteen of bytes");
        let counted: [u8; 8] = found(&seed, 5 * PAGE)[..8].try_into().expect("8 bytes");
        assert_eq!(u64::from_le_bytes(counted), 8);
        run(&seed);
    }

    #[test]
    fn seed_gives_memory_to_a_region_and_reads_it() {
        let mut seed = command(Seed::default(), Opcode::AllocUar, &[], &[]);
        seed = command(seed, Opcode::AllocPd, &[], &[]);
        seed = queue_pairs(seed);
        let mut handle = CreateAh::new_zeroed();
        handle.destination = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        seed = command(seed, Opcode::CreateAh, handle.as_bytes(), &[]);
        let mut region = AllocMr::new_zeroed();
        region.max_pages = 1.into();
        seed = command(seed, Opcode::AllocMr, region.as_bytes(), &[]);
        seed = seed.bytes(&[216, 0x83]).bytes(b"sixteen of bytes");
        // The registration of page 3 for all accesses.
        let mut entry = [0; 64];
        entry[..4].copy_from_slice(&[1, 0, 0x83, 0x1d]);
        (entry[36], entry[37]) = (7, 12);
        entry[48..50].copy_from_slice(&[0, 0x10]);
        let page = RAM_AT + 3 * PAGE;
        entry[56..].copy_from_slice(&page.to_le_bytes());
        seed = words(seed.bytes(&[128]).u16(0).bytes(&[0]), &entry, &[(8, KEYS)]);
        // A read from its start to its byte 512.
        let mut entry = [0; 64];
        entry[..4].copy_from_slice(&[2, 0, 0x81, 0x1d]);
        (entry[32], entry[48], entry[57]) = (16, 16, 2);
        let kinds = [(1, PAIR_AND_ONE + 1), (9, KEYS + 1), (13, KEYS)];
        seed = words(seed.bytes(&[128]).u16(0).bytes(&[1]), &entry, &kinds);
        let seed = seed.bytes(&[176, 0, 0]).u32(2);
        let seed = seed.in_corpus("efa_adapter", "fast_region");
        assert_eq!(&found(&seed, 3 * PAGE + 512), b"sixteen of bytes");
        run(&seed);
    }
}
