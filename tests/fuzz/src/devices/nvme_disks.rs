//! An NVMe controller on disks that fail, compared with a model that knows every byte: of the
//! disks, of guest memory, and of stable storage. Blocks have 512 or 4096 bytes. Disks fail with
//! EIO, ENOSPC, EMFILE or short, at any of their operations; guest memory has a hole, so that DMA
//! fails too. Data also lies in a Persistent Memory Region, which comes and goes; Sanitize erases
//! everything.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, OnceLock};

use peerbar_dma::MemoryFile;
use peerbar_nvme::{Config, Disk, Source, SteppedController};
use peerbar_vfio_user::{CONFIG_REGION, Device};

use super::{guest_ram, ram_disk};
use crate::input::Input;

mod faulty_disk;
mod region;

use faulty_disk::{DISK, FaultyDisk, Kind, Shared};
use region::{REGION, REGION_BYTES, REGION_PAGES, Registers};

const REGISTERS: u32 = 0;
/// Controller Status.
const CSTS: u64 = 0x1c;
/// Maximum number of steps of an input.
const STEPS: usize = 32;
const NAMESPACES: usize = 2;

/// Guest memory: queues, a PRP list, the ranges of a Deallocate, and data. After its end nothing is
/// mapped.
const RAM: u64 = DATA + PAGES * PAGE;
const PAGE: u64 = 4096;
const ASQ: u64 = 0x1000;
const ACQ: u64 = 0x2000;
const SQ: u64 = 0x3000;
const CQ: u64 = 0x4000;
const LIST: u64 = 0x5000;
const RANGES: u64 = 0x6000;
const DATA: u64 = 0x10000;
const PAGES: u64 = 12;
const ENTRIES: u16 = 16;

const FLUSH: u8 = 0;
const WRITE: u8 = 1;
const READ: u8 = 2;
const COMPARE: u8 = 5;
const WRITE_ZEROES: u8 = 8;
const DATASET_MANAGEMENT: u8 = 9;
const VERIFY: u8 = 12;
const BROADCAST: u32 = u32::MAX;

/// Status codes and their types (NVMe Base 2.0, 4.2.3).
mod status {
    pub(super) const INVALID_FIELD: u16 = 0x002;
    pub(super) const DATA_TRANSFER: u16 = 0x004;
    pub(super) const INVALID_NAMESPACE: u16 = 0x00b;
    pub(super) const SANITIZE_FAILED: u16 = 0x01c;
    pub(super) const PROHIBITED_BY_PMR: u16 = 0x023;
    pub(super) const LBA_RANGE: u16 = 0x080;
    pub(super) const CAPACITY: u16 = 0x081;
    pub(super) const WRITE_FAULT: u16 = 0x280;
    pub(super) const UNRECOVERED_READ: u16 = 0x281;
    pub(super) const COMPARE_FAILED: u16 = 0x285;
}

/// A queue pair of the guest.
#[derive(Clone, Copy, Default)]
struct Queue {
    tail: u16,
    head: u16,
    /// The phase of old entries.
    phase: bool,
}

struct Fixture {
    controller: SteppedController,
    disks: [Arc<Shared>; NAMESPACES],
    block: u64,
    ram: MemoryFile,
    /// The file of the Persistent Memory Region, and the values of its registers.
    region_file: File,
    region: Registers,
    /// Content of the data part of guest memory, followed by that of the region.
    data: Vec<u8>,
    /// Content of the disks.
    blocks: [Vec<u8>; NAMESPACES],
    /// `true` if data of this namespace may be lost, because a sync has failed.
    is_lost: [bool; NAMESPACES],
    write_cache: bool,
    queues: [Queue; 2],
    commands: u16,
}

/// The place of a command's data in guest memory: runs of addresses and lengths.
struct Layout {
    runs: Vec<(u64, u64)>,
    prps: [u64; 2],
    has_hole: bool,
}

/// Executes the steps of `data`.
pub fn run(data: &[u8]) {
    static BENCHES: OnceLock<[Mutex<Fixture>; 2]> = OnceLock::new();
    let benches = BENCHES.get_or_init(|| [512, 4096].map(|block| Mutex::new(Fixture::new(block))));
    let mut input = Input::new(data);
    let Some(choice) = input.u8() else {
        return;
    };
    let fixture = &benches[usize::from(choice & 1)];
    let mut fixture = fixture.lock().expect("no earlier failure");
    fixture.start();
    for _ in 0..STEPS {
        if fixture.step(&mut input).is_none() {
            break;
        }
    }
    fixture.check_all();
}

impl Fixture {
    fn new(block: u64) -> Self {
        let (region_file, path) = ram_disk::region(REGION_BYTES);
        let config = Config {
            pmr: Some(path),
            cmb: None,
            cmb_queues: false,
            cmb_legacy: false,
            block_bytes: u32::try_from(block).expect("a block's size"),
            // There must be one, and no command addresses it.
            namespaces: vec![Source::Null(4096)],
            ..ram_disk::config()
        };
        let disks: [Arc<Shared>; NAMESPACES] = Default::default();
        let behind = disks
            .iter()
            .map(|disk| -> Box<dyn Disk> { Box::new(FaultyDisk(disk.clone())) });
        let controller = SteppedController::start(&config, behind.collect()).expect("a controller");
        let ram = MemoryFile::create("ram", RAM).expect("memory");
        let mut fixture = Self {
            controller,
            disks,
            block,
            ram,
            region_file,
            region: Registers::default(),
            data: vec![0; ((PAGES + REGION_PAGES) * PAGE) as usize],
            blocks: std::array::from_fn(|_| vec![0; DISK]),
            is_lost: [false; NAMESPACES],
            write_cache: true,
            queues: Default::default(),
            commands: 0,
        };
        guest_ram::map(
            &mut fixture.controller.endpoint,
            0,
            RAM,
            fixture.ram.file(),
            0,
        );
        fixture.write(CONFIG_REGION, 4, &[6, 0]);
        fixture
    }

    fn write(&mut self, region: u32, offset: u64, bytes: &[u8]) {
        let written = self.controller.endpoint.region_write(region, offset, bytes);
        written.expect("a register");
    }

    fn register(&mut self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        let endpoint = &mut self.controller.endpoint;
        let read = endpoint.region_read(REGISTERS, offset, &mut bytes);
        read.expect("a register");
        u32::from_le_bytes(bytes)
    }

    /// Restores the start state of every input: everything is zero, and the queues exist.
    fn start(&mut self) {
        self.write(REGISTERS, 0x14, &0_u32.to_le_bytes());
        self.controller.work();
        assert_eq!(self.register(CSTS) & 1, 0, "it is disabled");
        for (disk, blocks) in self.disks.iter().zip(&mut self.blocks) {
            disk.clear();
            blocks.fill(0);
        }
        self.controller.renew_disks();
        self.is_lost = [false; NAMESPACES];
        self.set_region(Registers::default());
        self.data.fill(0);
        let region = vec![0; (REGION_PAGES * PAGE) as usize];
        self.region_file.write_all_at(&region, 0).expect("memory");
        self.ram.write(0, &vec![0; RAM as usize]).expect("memory");
        self.queues = Default::default();
        self.write_cache = true;
        let size = u32::from(ENTRIES - 1);
        self.write(REGISTERS, 0x24, &(size << 16 | size).to_le_bytes());
        self.write(REGISTERS, 0x28, &ASQ.to_le_bytes());
        self.write(REGISTERS, 0x30, &ACQ.to_le_bytes());
        self.write(REGISTERS, 0x14, &0x0046_0001_u32.to_le_bytes());
        self.controller.work();
        assert_eq!(self.register(CSTS) & 3, 1, "it is ready");
        let queue = |opcode, base, more| {
            let mut command = Command::new(opcode, 0);
            command.prps = [base, 0];
            command.dwords[0] = size << 16 | 1;
            command.dwords[1] = more;
            command
        };
        assert_eq!(self.execute(0, &queue(5, CQ, 1)).0, 0);
        assert_eq!(self.execute(0, &queue(1, SQ, 1 << 16 | 1)).0, 0);
    }

    /// Executes a command. Returns its status code, and dword 0 of its completion.
    fn execute(&mut self, queue: usize, command: &Command) -> (u16, u32) {
        self.commands = self.commands.wrapping_add(1);
        let id = self.commands;
        let (base, completions) = [(ASQ, ACQ), (SQ, CQ)][queue];
        let Queue { tail, head, phase } = self.queues[queue];
        let put = self
            .ram
            .write(base + u64::from(tail) * 64, &command.bytes(id));
        put.expect("memory");
        let tail = (tail + 1) % ENTRIES;
        let doorbell = 0x1000 + 8 * queue as u64;
        self.write(REGISTERS, doorbell, &u32::from(tail).to_le_bytes());
        self.controller.work();
        let mut entry = [0; 16];
        let at = completions + u64::from(head) * 16;
        self.ram.read(at, &mut entry).expect("memory");
        let [dw0, _, dw2, dw3] =
            std::array::from_fn(|n| u32::from_le_bytes(std::array::from_fn(|b| entry[4 * n + b])));
        assert_eq!(
            dw3 >> 16 & 1 == 1,
            !phase,
            "there is no completion of {command:x?}"
        );
        assert_eq!(dw3 & 0xffff, u32::from(id));
        assert_eq!(dw2, u32::from(tail) | (queue as u32) << 16);
        let head = (head + 1) % ENTRIES;
        self.queues[queue] = Queue {
            tail,
            head,
            phase: phase ^ (head == 0),
        };
        self.write(REGISTERS, doorbell + 4, &u32::from(head).to_le_bytes());
        ((dw3 >> 17 & 0x7ff) as u16, dw0)
    }

    /// Executes a step. Returns `None` at the end of the input.
    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        let kind = input.u8()?;
        match kind {
            0..=23 => {
                let [which, after, fault] = input.array()?;
                let disk = &self.disks[usize::from(which) % NAMESPACES];
                disk.fail_after(after & 7, Kind::of(fault));
            }
            24..=31 => self.set_write_cache(kind & 1 == 1),
            32..=39 => self.unknown(input)?,
            40..=71 => self.flush(input.u8()?),
            244..=251 => self.change_region(input)?,
            252.. => self.sanitize(input)?,
            _ => {
                let work = Work::made_of(input, self.block)?;
                match kind {
                    72..=119 => self.write_blocks(&work, input.u8()?),
                    120..=175 => self.read_blocks(&work),
                    176..=199 => self.compare(&work, input.u8()?),
                    200..=215 => self.verify(&work),
                    216..=231 => self.zero(&work),
                    _ => self.deallocate(&work, input)?,
                }
            }
        }
        Some(())
    }

    /// Executes a command that does not exist, or names no namespace, or is fused. It must be
    /// refused without an effect.
    fn unknown(&mut self, input: &mut Input<'_>) -> Option<()> {
        let [opcode, nsid, fuse] = input.array()?;
        let mut command = Command::new(opcode, nsid.into());
        command.flags = fuse & 3;
        let known = [
            FLUSH,
            WRITE,
            READ,
            COMPARE,
            WRITE_ZEROES,
            DATASET_MANAGEMENT,
            VERIFY,
        ];
        let (code, _) = if command.flags != 0 {
            let outcome = self.execute(1, &command);
            assert_eq!(outcome.0, status::INVALID_FIELD);
            outcome
        } else if !known.contains(&opcode) {
            self.execute(1, &command)
        } else {
            command.nsid = u32::from(nsid).max(NAMESPACES as u32 + 2);
            let outcome = self.execute(1, &command);
            assert_eq!(outcome.0, status::INVALID_NAMESPACE);
            outcome
        };
        assert_ne!(code, 0, "{command:x?}");
        Some(())
    }

    fn set_write_cache(&mut self, on: bool) {
        let mut command = Command::new(9, 0);
        command.dwords[0] = 6;
        command.dwords[1] = on.into();
        let fired = self.fired();
        let (code, _) = self.execute(0, &command);
        let new = self.fired();
        if !on {
            let lost = self.is_lost.contains(&true);
            self.lose(fired, new);
            let failed = fired != new || lost;
            assert_eq!(code != 0, failed, "{code:#x}");
        } else {
            assert_eq!(code, 0);
        }
        // Features, Get Features, Volatile Write Cache.
        let mut get = Command::new(10, 0);
        get.dwords[0] = 6;
        let (read, value) = self.execute(0, &get);
        assert_eq!(read, 0);
        if code == 0 {
            assert_eq!(value & 1 == 1, on);
        }
        self.write_cache = value & 1 == 1;
        if code == 0 && !on {
            assert!(self.disks.iter().all(|disk| disk.is_durable()));
        }
    }

    /// Returns the number of faults of each disk.
    fn fired(&self) -> [u64; NAMESPACES] {
        std::array::from_fn(|n| self.disks[n].fired())
    }

    /// Notes that data may be lost on the disks with new faults, whose syncs have failed.
    fn lose(&mut self, before: [u64; NAMESPACES], after: [u64; NAMESPACES]) {
        for (lost, (before, after)) in self.is_lost.iter_mut().zip(before.into_iter().zip(after)) {
            *lost |= before != after;
        }
    }

    fn flush(&mut self, choice: u8) {
        let nsid = match choice % 3 {
            0 => BROADCAST,
            which => u32::from(which),
        };
        let meant = match nsid {
            BROADCAST => 0..NAMESPACES,
            one => one as usize - 1..one as usize,
        };
        let before = self.fired();
        let (code, _) = self.execute(1, &Command::new(FLUSH, nsid));
        let after = self.fired();
        let was_lost = meant.clone().any(|n| self.is_lost[n]);
        self.lose(before, after);
        let failed = before != after || was_lost;
        assert_eq!(failed, code != 0, "{code:#x}");
        self.check_write_error(code);
        if code == 0 {
            assert!(meant.clone().all(|n| self.disks[n].is_durable()));
        }
    }

    fn check_write_error(&self, code: u16) {
        let known = [0, status::WRITE_FAULT, status::CAPACITY];
        assert!(known.contains(&code), "{code:#x}");
    }

    /// Checks the end of a command that writes: it has failed if its disk has, or has lost data
    /// before.
    fn written(&mut self, work: &Work, code: u16, expected: Vec<u8>, syncs: bool, fired: u64) {
        let n = work.namespace;
        let disk = self.disks[n].clone();
        let was_lost = self.is_lost[n];
        let has_fired = disk.fired() != fired;
        self.check_write_error(code);
        assert_eq!(code != 0, has_fired || was_lost, "{work:?}: {code:#x}");
        if disk.has_failed_to_flush() {
            self.is_lost[n] = true;
        }
        let range = work.range();
        let known = &mut self.blocks[n][range.clone()];
        match (code, was_lost) {
            (0, _) => known.copy_from_slice(&expected),
            (_, true) => {}
            (_, false) => {
                let found = disk.bytes(range);
                assert!(is_mix(&found, known, &expected), "{work:?}");
                known.copy_from_slice(&found);
            }
        }
        if code == 0 && (syncs || !self.write_cache) {
            assert!(disk.is_durable(), "{work:?} is not on stable storage");
        }
        self.check_disk(n);
    }

    fn write_blocks(&mut self, work: &Work, seed: u8) {
        let layout = self.lay_out(work);
        let data: Vec<u8> = (0..work.len())
            .map(|at| seed.wrapping_add(at as u8))
            .collect();
        self.put(&layout, &data);
        let fired = self.disks[work.namespace].fired();
        let (code, _) = self.execute(1, &work.command(WRITE, &layout));
        if self.is_refused(work, &layout, code, true) {
            return;
        }
        self.written(work, code, data, work.fua, fired);
    }

    fn read_blocks(&mut self, work: &Work) {
        let layout = self.lay_out(work);
        let fired = self.disks[work.namespace].fired();
        let (code, _) = self.execute(1, &work.command(READ, &layout));
        if work.is_beyond() {
            assert_eq!(code, status::LBA_RANGE);
            return;
        }
        if self.disks[work.namespace].fired() != fired {
            assert_eq!(code, status::UNRECOVERED_READ);
            return;
        }
        assert_eq!(
            code,
            if layout.has_hole {
                status::DATA_TRANSFER
            } else {
                0
            }
        );
        let new = self.blocks[work.namespace][work.range()].to_vec();
        let mut new = new.as_slice();
        for (address, len) in layout.runs {
            let (new_run, rest) = new.split_at(len as usize);
            new = rest;
            let Some(at) = self.model_range(address, len) else {
                continue;
            };
            let mut found = vec![0; len as usize];
            self.load(address, &mut found);
            if code == 0 {
                assert!(found == new_run, "{work:?}: other data");
            }
            let known = &mut self.data[at];
            assert!(is_mix(&found, known, new_run), "{work:?}");
            known.copy_from_slice(&found);
        }
    }

    fn compare(&mut self, work: &Work, change: u8) {
        let layout = self.lay_out(work);
        let is_beyond = work.is_beyond();
        let mut data = match is_beyond {
            true => vec![0; work.len()],
            false => self.blocks[work.namespace][work.range()].to_vec(),
        };
        let differs = change & 1 == 1;
        if differs {
            let at = usize::from(change) * 131 % data.len();
            data[at] ^= 1;
        }
        self.put(&layout, &data);
        let fired = self.disks[work.namespace].fired();
        let (code, _) = self.execute(1, &work.command(COMPARE, &layout));
        if self.is_refused(work, &layout, code, false) {
            return;
        }
        if self.disks[work.namespace].fired() != fired {
            return assert_eq!(code, status::UNRECOVERED_READ);
        }
        assert_eq!(code, if differs { status::COMPARE_FAILED } else { 0 });
    }

    fn verify(&mut self, work: &Work) {
        let fired = self.disks[work.namespace].fired();
        let (code, _) = self.execute(1, &work.plain(VERIFY));
        let has_fired = self.disks[work.namespace].fired() != fired;
        let expected = match (work.is_beyond(), has_fired) {
            (true, _) => status::LBA_RANGE,
            (false, true) => status::UNRECOVERED_READ,
            (false, false) => 0,
        };
        assert_eq!(code, expected, "{work:?}");
    }

    fn zero(&mut self, work: &Work) {
        let mut command = work.plain(WRITE_ZEROES);
        command.dwords[2] |= u32::from(work.offset & 4 != 0) << 25;
        let fired = self.disks[work.namespace].fired();
        let (code, _) = self.execute(1, &command);
        if work.is_beyond() {
            return assert_eq!(code, status::LBA_RANGE);
        }
        self.written(work, code, vec![0; work.len()], work.fua, fired);
    }

    /// Deallocates up to four ranges. If one is beyond the end, none is deallocated.
    fn deallocate(&mut self, first: &Work, input: &mut Input<'_>) -> Option<()> {
        let mut ranges = vec![*first];
        let more = input.u8()?;
        for _ in 0..more & 3 {
            let work = Work::made_of(input, self.block)?;
            ranges.push(Work {
                namespace: first.namespace,
                ..work
            });
        }
        let mut bytes = Vec::new();
        for range in &ranges {
            bytes.extend_from_slice(&[0; 4]);
            bytes.extend_from_slice(&(range.count as u32).to_le_bytes());
            bytes.extend_from_slice(&range.start.to_le_bytes());
        }
        self.ram.write(RANGES, &bytes).expect("memory");
        let mut command = Command::new(DATASET_MANAGEMENT, first.namespace as u32 + 1);
        command.prps = [RANGES, 0];
        command.dwords[0] = ranges.len() as u32 - 1;
        let is_meant = more & 0x80 == 0;
        command.dwords[1] = if is_meant { 4 } else { 3 };
        let n = first.namespace;
        let fired = self.disks[n].fired();
        let (code, _) = self.execute(1, &command);
        if ranges.iter().any(Work::is_beyond) {
            assert_eq!(code, status::LBA_RANGE);
            self.check_disk(n);
            return Some(());
        }
        self.check_write_error(code);
        let has_fired = self.disks[n].fired() != fired;
        assert_eq!(code != 0, has_fired || self.is_lost[n], "{code:#x}");
        for range in ranges.iter().filter(|_| is_meant) {
            let found = self.disks[n].bytes(range.range());
            let known = &mut self.blocks[n][range.range()];
            let zeros = vec![0; found.len()];
            let is_right = found == zeros || code != 0 && is_mix(&found, known, &zeros);
            assert!(is_right, "{range:?}");
            known.copy_from_slice(&found);
        }
        self.check_disk(n);
        Some(())
    }

    /// Returns `true` if a command that takes data from the host has been refused, which must be
    /// correct and without an effect.
    fn is_refused(&mut self, work: &Work, layout: &Layout, code: u16, writes: bool) -> bool {
        let n = work.namespace;
        let expected = match () {
            () if work.is_beyond() => status::LBA_RANGE,
            () if writes && self.is_lost[n] => status::WRITE_FAULT,
            () if layout.has_hole => status::DATA_TRANSFER,
            () => return false,
        };
        assert_eq!(code, expected, "{work:?}");
        self.check_disk(n);
        true
    }

    /// Lays out the data of a command, with its PRPs in guest memory.
    fn lay_out(&mut self, work: &Work) -> Layout {
        let mut left = work.len() as u64;
        let mut runs = Vec::new();
        let mut address = self.page(work, 0) + work.offset;
        let prp1 = address;
        let mut prps = Vec::new();
        while left > 0 {
            let len = left.min(PAGE - address % PAGE);
            runs.push((address, len));
            left -= len;
            if left > 0 {
                address = self.page(work, runs.len() as u64);
                prps.push(address);
            }
        }
        let prp2 = match prps.as_slice() {
            [] => 0,
            [only] => *only,
            list => {
                let bytes: Vec<u8> = list.iter().flat_map(|prp| prp.to_le_bytes()).collect();
                self.ram.write(LIST, &bytes).expect("memory");
                LIST
            }
        };
        Layout {
            has_hole: runs.iter().any(|(address, _)| !self.is_there(*address)),
            runs,
            prps: [prp1, prp2],
        }
    }

    /// Returns the page of a command's data. Each is another one, and one may be where no memory
    /// is.
    fn page(&self, work: &Work, number: u64) -> u64 {
        if work.hole == Some(number) {
            return RAM + 16 * PAGE;
        }
        match (work.first_page + number * work.stride) % (PAGES + REGION_PAGES) {
            page @ 0..PAGES => DATA + page * PAGE,
            page => REGION + (page - PAGES) * PAGE,
        }
    }

    /// Returns `true` if commands reach memory at an address of data.
    fn is_there(&self, address: u64) -> bool {
        address < RAM || address >= REGION && self.region.is_open()
    }

    /// Returns the range of the model with the bytes at an address, if they are outside the region
    /// or it is open.
    fn model_range(&self, address: u64, len: u64) -> Option<std::ops::Range<usize>> {
        let at = match address.checked_sub(REGION) {
            Some(at) => PAGES * PAGE + at,
            None => address
                .checked_sub(DATA)
                .filter(|at| at + len <= PAGES * PAGE)?,
        };
        Some(at as usize..(at + len) as usize)
    }

    /// Stores bytes at an address, as the guest's processor does.
    fn store(&mut self, address: u64, bytes: &[u8]) {
        match address.checked_sub(REGION) {
            Some(at) => self.region_file.write_all_at(bytes, at).expect("memory"),
            None => self.ram.write(address, bytes).expect("memory"),
        }
    }

    fn load(&self, address: u64, bytes: &mut [u8]) {
        match address.checked_sub(REGION) {
            Some(at) => self.region_file.read_exact_at(bytes, at).expect("memory"),
            None => self.ram.read(address, bytes).expect("memory"),
        }
    }

    fn put(&mut self, layout: &Layout, mut bytes: &[u8]) {
        for (address, len) in &layout.runs {
            let (run, rest) = bytes.split_at(*len as usize);
            bytes = rest;
            if let Some(at) = self.model_range(*address, *len) {
                self.data[at].copy_from_slice(run);
                self.store(*address, run);
            }
        }
    }

    fn check_disk(&self, n: usize) {
        assert!(self.disks[n].holds(&self.blocks[n]), "disk {n} differs");
    }

    fn check_all(&mut self) {
        (0..NAMESPACES).for_each(|n| self.check_disk(n));
        let (memory, region) = self.data.split_at((PAGES * PAGE) as usize);
        for (address, known) in [(DATA, memory), (REGION, region)] {
            let mut found = vec![0; known.len()];
            self.load(address, &mut found);
            assert!(found == known, "memory at {address:#x} differs");
        }
    }
}

/// Returns `true` if each byte is the old or the new one. Compares runs first: with coverage a
/// comparison of one byte costs a call.
fn is_mix(found: &[u8], old: &[u8], new: &[u8]) -> bool {
    let runs = |bytes| <[u8]>::chunks(bytes, 256);
    let mut runs = runs(found).zip(runs(old).zip(runs(new)));
    runs.all(|(found, (old, new))| {
        let mut bytes = found.iter().zip(old.iter().zip(new));
        found == new || found == old || bytes.all(|(byte, (old, new))| byte == old || byte == new)
    })
}

/// A range of blocks, and the place of their data.
#[derive(Clone, Copy, Debug)]
struct Work {
    namespace: usize,
    start: u64,
    count: u64,
    block: u64,
    offset: u64,
    first_page: u64,
    stride: u64,
    /// The missing page, if any.
    hole: Option<u64>,
    fua: bool,
}

impl Work {
    fn made_of(input: &mut Input<'_>, block: u64) -> Option<Self> {
        let blocks = DISK as u64 / block;
        let [choice, start, count, page, hole] = input.array()?.map(u64::from);
        let offset = u64::from(input.u16()?);
        let longest = (16 << 10) / block;
        Some(Self {
            namespace: (choice & 1) as usize,
            // Sometimes at or beyond the end.
            start: start % (blocks + 2),
            count: 1 + count % longest,
            block,
            offset: offset & 0xffc,
            first_page: page % (PAGES + REGION_PAGES),
            stride: [1, 5, 7, 11][(choice >> 1 & 3) as usize],
            hole: (hole < 32).then_some(hole % 5),
            fua: choice & 0x80 != 0,
        })
    }

    fn len(&self) -> usize {
        (self.count * self.block) as usize
    }

    fn range(&self) -> std::ops::Range<usize> {
        let start = (self.start * self.block) as usize;
        start..start + self.len()
    }

    fn is_beyond(&self) -> bool {
        self.range().end > DISK
    }

    /// Returns the command without data.
    fn plain(&self, opcode: u8) -> Command {
        let mut command = Command::new(opcode, self.namespace as u32 + 1);
        command.dwords[0] = self.start as u32;
        command.dwords[2] = (self.count - 1) as u32 | u32::from(self.fua) << 30;
        command
    }

    fn command(&self, opcode: u8, layout: &Layout) -> Command {
        let mut command = self.plain(opcode);
        command.prps = layout.prps;
        command
    }
}

/// A submission entry.
#[derive(Clone, Debug)]
struct Command {
    opcode: u8,
    flags: u8,
    nsid: u32,
    prps: [u64; 2],
    dwords: [u32; 6],
}

impl Command {
    fn new(opcode: u8, nsid: u32) -> Self {
        Self {
            opcode,
            flags: 0,
            nsid,
            prps: [0; 2],
            dwords: [0; 6],
        }
    }

    fn bytes(&self, id: u16) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[0] = self.opcode;
        bytes[1] = self.flags;
        bytes[2..4].copy_from_slice(&id.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.nsid.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.prps[0].to_le_bytes());
        bytes[32..40].copy_from_slice(&self.prps[1].to_le_bytes());
        for (field, dword) in bytes[40..].chunks_exact_mut(4).zip(self.dwords) {
            field.copy_from_slice(&dword.to_le_bytes());
        }
        bytes
    }
}
