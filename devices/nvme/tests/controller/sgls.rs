//! Data in SGLs of every shape (NVMe Base 2.0, 4.1.2).

use std::time::Instant;

use peerbar_nvme::{Config, FaultKind, SeededFault};
use peerbar_rig::nvme::command::{
    BIT_BUCKET, COMPARE, Command, DATA_BLOCK, DATASET_MANAGEMENT, FLUSH, LAST_SEGMENT, READ,
    SEGMENT, WRITE, blocks, descriptor, get_feature, identify, sc,
};
use proptest::prelude::*;

use crate::driver::{DATA, Driver, enabled, enabled_with};
use crate::machine::{CMB, PAGE, TIMEOUT, config, pattern};

/// Address of segments that the driver's own transfers do not touch.
const LIST: u64 = crate::driver::LIST + 0x1_0000;
const BLOCK: usize = 512;

fn with_sgls() -> Driver {
    enabled_with(&Config {
        sgl: true,
        ..config()
    })
}

/// A descriptor of data.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// The address of a data block; `None` for a bit bucket.
    address: Option<u64>,
    len: usize,
}

impl Part {
    fn encode(&self) -> [u8; 16] {
        let len = self.len as u32;
        match self.address {
            Some(address) => descriptor(DATA_BLOCK, address, len),
            None => descriptor(BIT_BUCKET, 0, len),
        }
    }
}

fn part(address: impl Into<Option<u64>>, len: usize) -> Part {
    Part {
        address: address.into(),
        len,
    }
}

/// The parts of a block whose first 100 bytes the host does not want.
const FIRST_100_DISCARDED: [Part; 2] = [
    Part {
        address: None,
        len: 100,
    },
    Part {
        address: Some(DATA),
        len: 412,
    },
];

/// Puts these parts into segments of `sizes` descriptors of data, the last of them first, in turn
/// in guest RAM and in the CMB. The last size is repeated. Returns the command with that list.
fn with_parts(driver: &Driver, command: Command, parts: &[Part], sizes: &[usize]) -> Command {
    let (mut rest, mut first) = (parts, descriptor(BIT_BUCKET, 0, 0));
    for index in 0.. {
        let size = sizes.get(index).or(sizes.last()).copied().unwrap();
        let (before, here) = rest.split_at(rest.len().saturating_sub(size));
        let mut list: Vec<u8> = here.iter().flat_map(Part::encode).collect();
        list.extend(first.iter().filter(|_| index > 0));
        let memory = [LIST, CMB + 0x10_0000][index % 2];
        let at = memory + index as u64 / 2 * 0x200 + 8;
        driver.write(at, &list);
        let kind = if index == 0 { LAST_SEGMENT } else { SEGMENT };
        first = descriptor(kind, at, list.len() as u32);
        rest = before;
        if rest.is_empty() {
            break;
        }
    }
    command.with_sgl(first)
}

#[test]
fn sgls_are_announced_and_taken_only_if_configured() {
    let sgls = |mut driver: Driver| {
        let data = driver.fetch(identify(1, 0), 4096);
        u32::from_le_bytes(data[536..540].try_into().unwrap())
    };
    assert_eq!(sgls(enabled()), 0);
    // Any byte, bit buckets, PSDT 10b.
    assert_eq!(sgls(with_sgls()), 1 | 1 << 16 | 1 << 19);
    let read = blocks(READ, 0, 1).with_sgl(descriptor(DATA_BLOCK, DATA, 512));
    let flush = Command::new(FLUSH, 1, &[]);
    for (mut driver, offered) in [(enabled(), false), (with_sgls(), true)] {
        for flags in [0x40, 0x80, 0xc0] {
            for command in [read, flush] {
                let code = driver.code(1, Command { flags, ..command });
                let taken = offered && flags != 0xc0;
                let expected = if taken { 0 } else { sc::INVALID_FIELD };
                assert_eq!(code, expected, "{flags:#x}, offered: {offered}");
            }
        }
    }
}

#[test]
fn admin_commands_take_no_sgls() {
    let mut driver = with_sgls();
    for command in [identify(1, 0), get_feature(0x07, 0, 0)] {
        let by_sgl = command.with_sgl(descriptor(DATA_BLOCK, DATA, 4096));
        assert_eq!(driver.code(0, by_sgl), sc::INVALID_FIELD);
    }
}

#[test]
fn data_starts_and_ends_at_any_byte() {
    let mut driver = with_sgls();
    let data = pattern(8 * BLOCK, 3);
    for offset in [0, 1, 7, 511, 4095] {
        let (from, to) = (DATA + offset, CMB + 0x1_0000 + offset);
        driver.write(from, &data);
        let whole = |address| descriptor(DATA_BLOCK, address, data.len() as u32);
        driver.ok(1, blocks(WRITE, 0, 8).with_sgl(whole(from)));
        driver.write(to - 1, &vec![0xa5; data.len() + 2]);
        driver.ok(1, blocks(READ, 0, 8).with_sgl(whole(to)));
        let found = driver.read(to - 1, data.len() + 2);
        assert_eq!(found[1..=data.len()], data, "from {offset:#x} on");
        assert_eq!((found[0], found[data.len() + 1]), (0xa5, 0xa5));
        driver.ok(1, blocks(COMPARE, 0, 8).with_sgl(whole(to)));
    }
}

#[test]
fn largest_transfer_may_be_in_many_small_parts() {
    let mut driver = with_sgls();
    let len = 32 * 4096;
    let data = pattern(len, 5);
    // 8192 blocks of 16 bytes, no two of them adjacent, in two segments.
    let mut parts: Vec<Part> = (0..8192).map(|at| part(DATA + 32 * at, 16)).collect();
    let chunks = data.chunks(16);
    let spread: Vec<u8> = chunks
        .flat_map(|chunk| [chunk, &[0xa5; 16]].concat())
        .collect();
    driver.write(DATA, &spread);
    let write = |parts: &[Part], driver: &Driver| {
        let (before, last) = parts.split_at(4000);
        let list: Vec<u8> = last.iter().flat_map(Part::encode).collect();
        driver.write(LIST + 0x2_0000, &list);
        let link = descriptor(LAST_SEGMENT, LIST + 0x2_0000, list.len() as u32);
        let list: Vec<u8> = before.iter().flat_map(Part::encode).chain(link).collect();
        driver.write(CMB, &list);
        let first = descriptor(SEGMENT, CMB, list.len() as u32);
        blocks(WRITE, 0, 256).with_sgl(first)
    };
    let command = write(&parts, &driver);
    driver.ok(1, command);
    assert_eq!(driver.load(0, len), data);
    driver.write(DATA, &vec![0xa5; 2 * len]);
    let read = Command {
        opcode: READ,
        ..command
    };
    driver.ok(1, read);
    assert!(
        driver.read(DATA, 2 * len) == spread,
        "each part, and no more"
    );
    parts.push(part(DATA, 0));
    let command = write(&parts, &driver);
    assert_eq!(driver.code(1, command), sc::SGL_INVALID_COUNT);
    let more = blocks(READ, 0, 257).with_sgl(descriptor(DATA_BLOCK, DATA, 257 * 512));
    assert_eq!(driver.code(1, more), sc::INVALID_FIELD, "beyond MDTS");
}

#[test]
fn ranges_of_a_deallocate_may_be_in_an_sgl() {
    let mut driver = with_sgls();
    driver.store(0, &pattern(4 * BLOCK, 7));
    let mut range = [0; 16];
    range[4] = 2;
    range[8] = 1;
    driver.write(DATA + 3, &range[..9]);
    driver.write(DATA + 100, &range[9..]);
    let parts = [part(None, 5), part(DATA + 3, 9), part(DATA + 100, 7)];
    let deallocate = Command::new(DATASET_MANAGEMENT, 1, &[0, 1 << 2]);
    let deallocate = with_parts(&driver, deallocate, &parts, &[2]);
    driver.ok(1, deallocate);
    let stored = driver.load(0, 4 * BLOCK);
    assert_eq!(stored[BLOCK..3 * BLOCK], [0; 2 * BLOCK]);
    assert_eq!(stored[..BLOCK], pattern(4 * BLOCK, 7)[..BLOCK]);
    assert_eq!(stored[3 * BLOCK..], pattern(4 * BLOCK, 7)[3 * BLOCK..]);
}

#[test]
fn invalid_list_moves_nothing_and_has_its_status() {
    let mut driver = with_sgls();
    let before = pattern(2 * BLOCK, 11);
    driver.store(0, &before);
    let data = descriptor(DATA_BLOCK, DATA, 1024);
    let half = descriptor(DATA_BLOCK, DATA, 512);
    let nothing = descriptor(DATA_BLOCK, DATA, 0);
    let link = |kind, descriptors: u32| descriptor(kind, LIST, 16 * descriptors);
    let beyond = descriptor(LAST_SEGMENT, LIST + PAGE, 16);
    let mut offset = data;
    offset[15] = 0x01;
    let lists: [(_, &[[u8; 16]], u16); 14] = [
        (link(LAST_SEGMENT, 2), &[half, half, half], 0),
        (link(LAST_SEGMENT, 1), &[half], sc::SGL_INVALID_DATA),
        (link(LAST_SEGMENT, 3), &[half; 3], sc::SGL_INVALID_DATA),
        (
            descriptor(DATA_BLOCK, u64::MAX, 1024),
            &[],
            sc::SGL_INVALID_DATA,
        ),
        (
            descriptor(SEGMENT, u64::MAX - 7, 16),
            &[],
            sc::SGL_INVALID_DATA,
        ),
        (link(SEGMENT, 1), &[data], sc::SGL_INVALID_LAST),
        (link(LAST_SEGMENT, 2), &[data, beyond], sc::SGL_INVALID_LAST),
        (
            descriptor(LAST_SEGMENT, LIST + 4, 16),
            &[],
            sc::SGL_INVALID_LAST,
        ),
        (descriptor(LAST_SEGMENT, LIST, 0), &[], sc::SGL_INVALID_LAST),
        (
            descriptor(LAST_SEGMENT, LIST, 40),
            &[data; 3],
            sc::SGL_INVALID_LAST,
        ),
        (link(SEGMENT, 2), &[beyond, data], sc::SGL_INVALID_COUNT),
        (
            link(SEGMENT, 2),
            &[nothing, link(SEGMENT, 2)],
            sc::SGL_INVALID_COUNT,
        ),
        (descriptor(4, DATA, 1024), &[], sc::SGL_INVALID_TYPE),
        (offset, &[], sc::SGL_INVALID_TYPE),
    ];
    for (first, list, expected) in lists {
        driver.write(LIST, &list.concat());
        driver.write(LIST + PAGE, &data);
        driver.write(DATA, &[0xa5; 1024]);
        let write = blocks(WRITE, 0, 2).with_sgl(first);
        let read = Command {
            opcode: READ,
            ..write
        };
        assert_eq!(driver.code(1, read), expected, "{first:x?} {list:x?}");
        let untouched = driver.read(DATA, 1024) == [0xa5; 1024];
        assert_eq!(untouched, expected != 0, "{first:x?} {list:x?}");
        driver.write(DATA, &[0x5a; 1024]);
        assert_eq!(driver.code(1, write), expected, "{first:x?} {list:x?}");
        let is_old = driver.load(0, 1024) == before;
        assert_eq!(is_old, expected != 0, "{first:x?} {list:x?}");
        driver.store(0, &before);
    }
}

#[test]
fn late_data_lacks_the_part_that_a_bit_bucket_takes() {
    let mut driver = with_sgls();
    let data = pattern(BLOCK, 13);
    driver.store(0, &data);
    let read = with_parts(&driver, blocks(READ, 0, 1), &FIRST_100_DISCARDED, &[2]);
    driver.inject("reorder data lba=0..1 limit=1");
    driver.write(DATA, &[0xa5; BLOCK]);
    let cid = driver.submit(1, read);
    let entry = driver.take_silently(1);
    assert_eq!((entry.cid, entry.code()), (cid, 0));
    driver.let_every_queue_have_a_turn();
    assert_eq!(driver.read(DATA, BLOCK), [0xa5; BLOCK], "it comes later");
    driver.acknowledge(1);
    let start = Instant::now();
    while driver.read(DATA, 412) != data[100..] {
        assert!(start.elapsed() < TIMEOUT, "it does not come");
    }
    assert_eq!(driver.read(DATA + 412, 100), [0xa5; 100]);
}

#[test]
fn seeded_fault_moves_only_data_that_no_bit_bucket_takes() {
    let fault = SeededFault {
        kind: FaultKind::PastEnd,
        block: 8,
    };
    let mut driver = enabled_with(&Config {
        sgl: true,
        seeded_faults: vec![fault],
        ..config()
    });
    let data = pattern(2 * BLOCK, 17);
    driver.store(7, &data);
    driver.write(DATA, &[0xa5; 1024]);
    let read = with_parts(&driver, blocks(READ, 8, 1), &FIRST_100_DISCARDED, &[2]);
    driver.ok(1, read);
    // It starts in the middle of 412 bytes.
    let expected = [&[0xa5; 206], &data[BLOCK + 100..], &[0xa5; 406]].concat();
    assert_eq!(driver.read(DATA, 1024), expected);
}

#[test]
fn segment_whose_read_is_made_to_fail_is_a_transfer_error() {
    let mut driver = with_sgls();
    let data = pattern(BLOCK, 19);
    driver.store(0, &data);
    let read = with_parts(&driver, blocks(READ, 0, 1), &FIRST_100_DISCARDED, &[1]);
    driver.inject("fail dma read purpose=list nth=2");
    driver.write(DATA, &[0xa5; 412]);
    assert_eq!(driver.code(1, read), sc::DATA_XFER_ERROR);
    assert_eq!(driver.read(DATA, 412), [0xa5; 412]);
    driver.ok(1, read);
    assert_eq!(driver.read(DATA, 412), data[100..]);
}

#[test]
fn list_or_data_that_cannot_be_read_is_a_transfer_error() {
    const UNMAPPED: u64 = 1 << 45;
    let mut driver = with_sgls();
    driver.write(LIST, &descriptor(DATA_BLOCK, DATA, 511));
    driver.write(LIST + 16, &descriptor(DATA_BLOCK, UNMAPPED, 1));
    for first in [
        descriptor(LAST_SEGMENT, UNMAPPED, 32),
        descriptor(LAST_SEGMENT, LIST, 32),
    ] {
        for opcode in [READ, WRITE, COMPARE] {
            let command = blocks(opcode, 0, 1).with_sgl(first);
            assert_eq!(driver.code(1, command), sc::DATA_XFER_ERROR, "{opcode}");
        }
    }
}

/// Blocks of the model's disk.
const BLOCKS: usize = 48;
/// The areas of memory for data, at odd addresses.
const AREAS: [u64; 2] = [DATA + 0x10_0003, CMB + 0x2_0001];
const AREA_BYTES: usize = 128 << 10;

#[derive(Clone, Copy, Debug)]
enum Action {
    Write,
    Read,
    Compare {
        equal: bool,
    },
    /// A Read or Write whose list describes one byte more, or one less, than the command transfers.
    Wrong {
        opcode: u8,
        longer: bool,
    },
    /// Write by PRPs.
    WriteByPrps,
}

/// A command with a list of random parts: for each a memory or none, a gap before it, and a length.
#[derive(Clone, Debug)]
struct Step {
    action: Action,
    start: usize,
    count: usize,
    parts: Vec<(Option<usize>, usize, usize)>,
    sizes: Vec<usize>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let action = prop_oneof![
        3 => Just(Action::Write),
        5 => Just(Action::Read),
        2 => any::<bool>().prop_map(|equal| Action::Compare { equal }),
        1 => (prop_oneof![Just(READ), Just(WRITE)], any::<bool>())
            .prop_map(|(opcode, longer)| Action::Wrong { opcode, longer }),
        1 => Just(Action::WriteByPrps),
    ];
    let range = (0..BLOCKS, 0..BLOCKS).prop_map(|(a, b)| (a.min(b), a.abs_diff(b) + 1));
    let part = (
        prop::option::weighted(0.85, 0..2_usize),
        0..300_usize,
        0..2500_usize,
    );
    let parts = prop::collection::vec(part, 0..24);
    let sizes = prop::collection::vec(1..7_usize, 1..12);
    let step = (action, range, parts, sizes);
    let step = step.prop_map(|(action, (start, count), parts, sizes)| Step {
        action,
        start,
        count,
        parts,
        sizes,
    });
    prop::collection::vec(step, 1..30)
}

impl Step {
    /// Returns `len` bytes of data, in parts that do not overlap. Bit buckets count only if the
    /// data goes to the host.
    fn cut(&self, len: usize, to_host: bool) -> Vec<Part> {
        let mut next = AREAS;
        let mut left = len;
        let mut parts = Vec::new();
        let last = (Some(0), 1, len);
        for (memory, gap, len) in self.parts.iter().copied().chain([last]) {
            let counts = memory.is_some() || to_host;
            let len = if counts { len.min(left) } else { len };
            left -= if counts { len } else { 0 };
            let address = memory.map(|memory| {
                let at = next[memory] + gap as u64;
                next[memory] = at + len as u64;
                at
            });
            parts.push(part(address, len));
        }
        parts
    }
}

/// A controller, and all that its memory and its disk should contain.
struct Model {
    driver: Driver,
    disk: Vec<u8>,
    areas: [Vec<u8>; 2],
    filled: u8,
}

impl Model {
    fn new() -> Self {
        let mut driver = with_sgls();
        let disk = pattern(BLOCKS * BLOCK, 1);
        driver.store(0, &disk);
        Self {
            driver,
            disk,
            areas: [const { Vec::new() }; 2],
            filled: 0,
        }
    }

    /// Fills the areas with bytes that no earlier step had there.
    fn fill(&mut self) {
        self.filled = self.filled.wrapping_add(1);
        self.areas = [1, 101].map(|seed| pattern(AREA_BYTES, self.filled.wrapping_add(seed)));
        for (area, bytes) in AREAS.into_iter().zip(&self.areas) {
            self.driver.write(area, bytes);
        }
    }

    /// Returns the model's bytes of a data block.
    fn bytes_of(&mut self, address: u64, len: usize) -> &mut [u8] {
        let area = usize::from(address >= AREAS[1]);
        let at = (address - AREAS[area]) as usize;
        &mut self.areas[area][at..at + len]
    }

    /// Returns the data in the memory of these parts, as a Write takes it.
    fn gathered(&mut self, parts: &[Part]) -> Vec<u8> {
        let blocks = parts
            .iter()
            .filter_map(|part| Some((part.address?, part.len)));
        let blocks: Vec<_> = blocks.collect();
        let bytes = blocks
            .into_iter()
            .map(|(at, len)| self.bytes_of(at, len).to_vec());
        bytes.collect::<Vec<_>>().concat()
    }

    fn take(&mut self, step: &Step) {
        self.fill();
        let range = step.start * BLOCK..(step.start + step.count) * BLOCK;
        let command = |opcode| blocks(opcode, step.start as u64, step.count as u32);
        let sizes = &step.sizes;
        match step.action {
            Action::Write => {
                let parts = step.cut(range.len(), false);
                let write = with_parts(&self.driver, command(WRITE), &parts, sizes);
                self.driver.ok(1, write);
                let data = self.gathered(&parts);
                self.disk[range].copy_from_slice(&data);
            }
            Action::Read => {
                let parts = step.cut(range.len(), true);
                let read = with_parts(&self.driver, command(READ), &parts, sizes);
                self.driver.ok(1, read);
                let mut data = self.disk[range].to_vec();
                for part in parts {
                    let rest = data.split_off(part.len);
                    if let Some(address) = part.address {
                        self.bytes_of(address, part.len).copy_from_slice(&data);
                    }
                    data = rest;
                }
            }
            Action::Compare { equal } => self.compare(step, equal),
            Action::Wrong { opcode, longer } => {
                let len = if longer {
                    range.len() + 1
                } else {
                    range.len() - 1
                };
                let parts = step.cut(len, opcode == READ);
                let wrong = with_parts(&self.driver, command(opcode), &parts, sizes);
                assert_eq!(self.driver.code(1, wrong), sc::SGL_INVALID_DATA);
            }
            Action::WriteByPrps => {
                let from = DATA + 0x20_0204;
                let data = pattern(range.len(), self.filled);
                self.driver.write(from, &data);
                let list = crate::driver::LIST;
                let write = self.driver.prps(command(WRITE), from, data.len(), list);
                self.driver.ok(1, write);
                self.disk[range].copy_from_slice(&data);
            }
        }
        for (area, expected) in AREAS.into_iter().zip(&self.areas) {
            let found = self.driver.read(area, AREA_BYTES);
            assert!(found == *expected, "memory at {area:#x} after {step:x?}");
        }
    }

    /// Compares the disk with its own data in memory, in which the last byte may differ.
    fn compare(&mut self, step: &Step, equal: bool) {
        let mut data = self.disk[step.start * BLOCK..][..step.count * BLOCK].to_vec();
        *data.last_mut().unwrap() ^= u8::from(!equal);
        let parts = step.cut(data.len(), false);
        let mut rest = &data[..];
        for part in &parts {
            if let Some(address) = part.address {
                let (here, after) = rest.split_at(part.len);
                self.bytes_of(address, part.len).copy_from_slice(here);
                self.driver.write(address, here);
                rest = after;
            }
        }
        let command = blocks(COMPARE, step.start as u64, step.count as u32);
        let compare = with_parts(&self.driver, command, &parts, &step.sizes);
        let expected = if equal { 0 } else { sc::COMPARE_FAILED };
        assert_eq!(self.driver.code(1, compare), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_lists_move_exactly_the_bytes_of_a_model(steps in steps()) {
        let mut model = Model::new();
        for step in &steps {
            model.take(step);
        }
        let stored = model.driver.load(0, BLOCKS * BLOCK);
        prop_assert!(stored == model.disk, "blocks after {:x?}", steps);
    }
}
