//! A model of the GPU's commands (`devices/gpu/INTERFACE.md`), on plain vectors.

use crate::devices::gpu_bench::VRAM;
use crate::input::Input;

pub(super) const ENTRY_BYTES: usize = 128;
pub(super) const PAGE: u64 = 4096;
pub(super) const PAGES: u64 = 16;
/// Guest memory, and its bus address.
pub(super) const RAM: u64 = PAGES * PAGE;
pub(super) const RAM_AT: u64 = 0x10_0000;
/// Address of the rings, which are not in the model.
pub(super) const RINGS_AT: u64 = 0x7777_0000_0000;

/// Bytes of each operand in a step of the engine.
const STEP: u64 = 256 << 10;
const LENGTH_LIMIT: u64 = 1 << 30;
const THREAD_LIMIT: u64 = 1 << 24;
/// Maximum number of threads in the model, which is slow.
const THREADS: u64 = 4096;

const WRITE_WORD: u8 = 6;
const WAIT: u8 = 7;
/// A time limit of a wait, in nanoseconds, which is over after a few polls.
const SHORT: u64 = 100;

const DMA: u8 = 2;
const VRAM_RANGE: u8 = 3;
const BAD_COMMAND: u8 = 4;
const TOO_LONG: u8 = 6;
pub(super) const TIME_OUT: u8 = 7;

/// The start of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    /// An offset in VRAM.
    Vram(u64),
    /// An offset in guest memory.
    Ram(u64),
}

/// An address in a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    Vram(u64),
    Bus(u64),
}

/// A failed command, and the data that it may have written in part.
pub(super) struct BadCommand {
    pub(super) code: u8,
    pub(super) written: Option<(Space, Vec<u8>)>,
}

impl From<u8> for BadCommand {
    fn from(code: u8) -> Self {
        Self {
            code,
            written: None,
        }
    }
}

/// A command.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    opcode: u8,
    flags: u8,
    spaces: u16,
    kernel: u32,
    fence: u64,
    value: u64,
    operands: [u64; 13],
}

impl Entry {
    /// Returns a command whose addresses are near memory and whose lengths are small.
    pub(super) fn made_of(input: &mut Input<'_>) -> Option<Self> {
        // The last of each do not exist.
        let opcode = [0, 1, 2, 3, 4, 5, WRITE_WORD, WAIT, 8][usize::from(input.u8()? % 9)];
        let kernel = [0, 1, 2, 3, 4, 6][usize::from(input.u8()? % 6)];
        let (flags, spaces) = (input.u8()?, u16::from(input.u8()?));
        let mut addresses = [0; 3];
        for (bit, address) in addresses.iter_mut().enumerate() {
            *address = near(input.u16()?, spaces & 1 << bit != 0);
        }
        // Short ones reach every edge, too, and are faster.
        let length = match input.u16()? {
            length @ 0..0x4000 => length,
            length => length & 0x3ff,
        };
        let length = u64::from(length);
        let fence = near(input.u16()?, flags & 4 != 0);
        let fence = if flags & 0x80 == 0 {
            fence & !15
        } else {
            fence
        };
        let [grid, block] = input.array::<2>()?.map(u64::from);
        let value = input.u64()?;
        let mut operands = [0; 13];
        operands[..3].copy_from_slice(&addresses);
        match (opcode, kernel) {
            (1 | 3, _) => operands[2] = length,
            (2, _) => operands[1..3].copy_from_slice(&[length, value]),
            (4, _) => operands[1] = length,
            (WRITE_WORD, _) => operands[1..3].copy_from_slice(&[value, length & 12]),
            (WAIT, _) => {
                let mask = [0, 0xff, u64::MAX, value][usize::from(flags >> 5 & 3)];
                let wanted = if flags & 0x10 != 0 { value & mask } else { 0 };
                operands[1..5].copy_from_slice(&[wanted, length & 12, mask, SHORT]);
            }
            (_, 0) => operands[3] = length / 4,
            (_, 1) => operands[2..4].copy_from_slice(&[length / 4, value]),
            (_, 2) => operands[1] = length / 4,
            (_, 3) => operands[1] = length,
            _ => operands[1] = value,
        }
        // Rarely more threads to a block than are allowed, and rarely many: each thread of an
        // addition is a read and a write.
        let block = if block < 0xf0 { block & 0xf } else { block * 5 };
        let grid = if block <= 0xf { grid } else { grid & 3 };
        operands[11..].copy_from_slice(&[grid, block]);
        Some(Self {
            opcode,
            flags,
            spaces,
            kernel,
            fence,
            value,
            operands,
        })
    }

    /// Returns any command, except one that reaches the rings, takes long or waits for another
    /// device.
    pub(super) fn raw(input: &mut Input<'_>) -> Option<Self> {
        let mut entry = Self {
            opcode: input.u8()?,
            flags: input.u8()?,
            spaces: input.u16()?,
            kernel: input.u32()?,
            fence: input.u64()?,
            value: input.u64()?,
            operands: [0; 13],
        };
        for operand in &mut entry.operands {
            *operand = input.u64()?;
        }
        let addresses = entry.operands.iter().chain([&entry.fence]);
        let are_far = addresses
            .map(|address| address.abs_diff(RINGS_AT))
            .all(|distance| distance > 2 * LENGTH_LIMIT);
        let threads = entry.operands[11].checked_mul(entry.operands[12]);
        let waits = entry.opcode == WAIT || (entry.opcode, entry.kernel) == (5, 5);
        let is_short = threads.is_none_or(|threads| threads <= THREADS);
        (are_far && is_short && !waits).then_some(entry)
    }

    /// Returns a wait without a separate time limit.
    pub(super) fn wait(input: &mut Input<'_>) -> Option<Self> {
        let mut entry = Self::made_of(input)?;
        let wanted = input.u64()?;
        entry.opcode = WAIT;
        entry.kernel = 0;
        entry.operands[0] &= !7;
        entry.operands[1..5].copy_from_slice(&[wanted, 8, entry.value, 0]);
        Some(entry)
    }

    /// Returns a write of the word that this waits for, at a possible address.
    pub(super) fn awaited_write(&self) -> Self {
        let [word, wanted, size, ..] = self.operands;
        let mut entry = Self {
            opcode: WRITE_WORD,
            spaces: self.spaces,
            ..Self::default()
        };
        entry.operands[..3].copy_from_slice(&[word, wanted, size]);
        entry
    }

    pub(super) fn bytes(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[0] = self.opcode;
        bytes[1] = self.flags;
        bytes[2..4].copy_from_slice(&self.spaces.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.kernel.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.fence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.value.to_le_bytes());
        for (field, operand) in bytes[24..].chunks_exact_mut(8).zip(self.operands) {
            field.copy_from_slice(&operand.to_le_bytes());
        }
        bytes
    }

    /// Returns `true` if it writes sums of f32, whose bits may differ if they are NaN.
    pub(super) fn writes_floats(&self) -> bool {
        self.opcode == 5 && self.kernel < 2
    }

    fn address(&self, operand: usize) -> Address {
        if self.spaces & 1 << operand != 0 {
            Address::Vram(self.operands[operand])
        } else {
            Address::Bus(self.operands[operand])
        }
    }

    /// Returns a count of elements of `bytes` bytes each.
    fn count(&self, operand: usize, bytes: u64) -> Result<u64, u8> {
        let count = self.operands[operand];
        if count > LENGTH_LIMIT / bytes {
            return Err(TOO_LONG);
        }
        Ok(count)
    }

    fn threads(&self) -> Result<u64, u8> {
        let (grid, block) = (self.operands[11], self.operands[12]);
        if block > 1024 {
            return Err(BAD_COMMAND);
        }
        let threads = grid.checked_mul(block);
        threads.filter(|all| *all <= THREAD_LIMIT).ok_or(TOO_LONG)
    }

    fn fence(&self) -> Result<Option<Address>, u8> {
        if self.flags & 1 == 0 {
            return Ok(None);
        }
        if self.fence % 16 != 0 {
            return Err(BAD_COMMAND);
        }
        let in_vram = self.flags & 4 != 0;
        Ok(Some(if in_vram {
            Address::Vram(self.fence)
        } else {
            Address::Bus(self.fence)
        }))
    }
}

/// Returns an address that is usually in memory: at VRAM's start or end, or around guest memory.
fn near(number: u16, in_vram: bool) -> u64 {
    let number = u64::from(number);
    match (in_vram, number & 0x8000) {
        (true, 0) => number,
        (true, _) => VRAM - 0x4000 + (number & 0x7fff),
        (false, _) => RAM_AT - 0x100 + number,
    }
}

/// A decoded command.
enum Operation {
    Nop,
    Copy(Address, Address, u64),
    Fill(Address, u64, [u8; 8]),
    Compare(Address, Address, u64),
    Crc(Address, u64),
    /// `to[i] = scale * one[i] + other[i]`.
    Elements(Address, Address, Address, u64, Option<f32>),
    Sum(Address, u64),
    Histogram(Address, u64, Address),
    Add(Address, u64, u64),
    Write(Address, u64, u64),
    /// Address, bytes, mask and value: waits until the word under the mask is the value.
    Wait(Address, u64, u64, u64),
}

fn decode(entry: &Entry) -> Result<Operation, u8> {
    Ok(match entry.opcode {
        0 => Operation::Nop,
        1 => {
            let (from, to, length) = (entry.address(0), entry.address(1), entry.count(2, 1)?);
            let distance = match (from, to) {
                (Address::Vram(a), Address::Vram(b)) | (Address::Bus(a), Address::Bus(b)) => {
                    a.abs_diff(b)
                }
                _ => 0,
            };
            if distance != 0 && distance < length {
                return Err(BAD_COMMAND);
            }
            Operation::Copy(from, to, length)
        }
        2 => Operation::Fill(
            entry.address(0),
            entry.count(1, 1)?,
            entry.operands[2].to_le_bytes(),
        ),
        3 => Operation::Compare(entry.address(0), entry.address(1), entry.count(2, 1)?),
        4 => Operation::Crc(entry.address(0), entry.count(1, 1)?),
        5 => launch(entry)?,
        WRITE_WORD | WAIT => {
            let [at, value, size, mask, ..] = entry.operands;
            if !matches!(size, 4 | 8) || at % size != 0 {
                return Err(BAD_COMMAND);
            }
            match entry.opcode {
                WAIT => Operation::Wait(entry.address(0), size, mask, value),
                _ => Operation::Write(entry.address(0), value, size),
            }
        }
        _ => return Err(BAD_COMMAND),
    })
}

fn launch(entry: &Entry) -> Result<Operation, u8> {
    let threads = entry.threads()?;
    let elements = |operand, bytes| Ok::<_, u8>(entry.count(operand, bytes)?.min(threads));
    Ok(match entry.kernel {
        0 => Operation::Elements(
            entry.address(0),
            entry.address(1),
            entry.address(2),
            elements(3, 4)?,
            None,
        ),
        1 => {
            let factor = f32::from_bits((entry.operands[3] & 0xffff_ffff) as u32);
            let (x, y) = (entry.address(0), entry.address(1));
            Operation::Elements(x, y, y, elements(2, 4)?, Some(factor))
        }
        2 => Operation::Sum(entry.address(0), elements(1, 4)?),
        3 => Operation::Histogram(entry.address(0), elements(1, 1)?, entry.address(2)),
        4 => Operation::Add(entry.address(0), entry.operands[1], threads),
        _ => return Err(BAD_COMMAND),
    })
}

/// The expected content of VRAM and guest memory.
pub(super) struct Memories {
    vram: Vec<u8>,
    ram: Vec<u8>,
    /// Pages of guest memory that the GPU reaches.
    present: [bool; PAGES as usize],
    /// The range of f32 that the last command wrote.
    pub(super) floats: Option<(Space, usize)>,
    /// Ranges that may be other than zero.
    touched: Vec<(Space, usize)>,
}

impl Memories {
    /// Makes memories without a page of guest memory.
    pub(super) fn new() -> Self {
        Self {
            vram: vec![0; VRAM as usize],
            ram: vec![0; RAM as usize],
            present: [false; PAGES as usize],
            floats: None,
            touched: Vec::new(),
        }
    }

    /// Maps or unmaps a page of guest memory. Returns `false` if it was so already.
    pub(super) fn set_page(&mut self, page: u64, present: bool) -> bool {
        let known = &mut self.present[page as usize];
        std::mem::replace(known, present) != present
    }

    /// Sets all memory to zero. Returns the ranges to write for that.
    pub(super) fn clear(&mut self) -> Vec<(Space, &[u8])> {
        for (start, len) in std::mem::take(&mut self.touched) {
            self.at(start, len).fill(0);
        }
        let touched = std::mem::take(&mut self.touched);
        let bytes = |(start, len): &(Space, usize)| (*start, self.slice(*start, *len));
        touched.iter().map(bytes).collect()
    }

    /// Returns everything that may be other than zero.
    pub(super) fn touched(&self) -> impl Iterator<Item = (Space, &[u8])> {
        let touched = self.touched.iter();
        touched.map(|(start, len)| (*start, self.slice(*start, *len)))
    }

    fn slice(&self, start: Space, len: usize) -> &[u8] {
        match start {
            Space::Vram(at) => &self.vram[at as usize..][..len],
            Space::Ram(at) => &self.ram[at as usize..][..len],
        }
    }

    /// Returns a range, to change it.
    pub(super) fn at(&mut self, start: Space, len: usize) -> &mut [u8] {
        if self.touched.last() != Some(&(start, len)) {
            self.touched.push((start, len));
        }
        match start {
            Space::Vram(at) => &mut self.vram[at as usize..][..len],
            Space::Ram(at) => &mut self.ram[at as usize..][..len],
        }
    }

    /// Returns `true` if a command waits for a value that its word does not have.
    pub(super) fn is_in_vain(&mut self, entry: &Entry) -> bool {
        let is_possible = |fence: Option<Address>| fence.is_none_or(|at| check(at, 16).is_ok());
        let fence = entry.fence().is_ok_and(is_possible);
        let operation = decode(entry).map_err(BadCommand::from);
        let outcome = operation.and_then(|operation| self.operate(&operation));
        fence && outcome.is_err_and(|bad| bad.code == TIME_OUT)
    }

    /// Executes a command with its fence.
    pub(super) fn execute(&mut self, entry: &Entry) -> Result<(), BadCommand> {
        let operation = decode(entry)?;
        let fence = entry.fence()?;
        if let Some(fence) = fence {
            check(fence, 16)?;
        }
        let result = self.operate(&operation)?;
        if let Some(fence) = fence {
            self.store(after(fence, 8), &result.to_le_bytes())?;
            self.store(fence, &entry.value.to_le_bytes())?;
        }
        Ok(())
    }

    fn operate(&mut self, operation: &Operation) -> Result<u64, BadCommand> {
        match *operation {
            Operation::Nop => Ok(0),
            Operation::Copy(from, to, length) => {
                check(from, length)?;
                check(to, length)?;
                for (start, len) in steps(length) {
                    let data = self.fetch(after(from, start), len)?;
                    self.store(after(to, start), &data)?;
                }
                Ok(0)
            }
            Operation::Fill(to, length, pattern) => {
                check(to, length)?;
                for (start, len) in steps(length) {
                    let data: Vec<u8> =
                        pattern.iter().copied().cycle().take(len as usize).collect();
                    self.store(after(to, start), &data)?;
                }
                Ok(0)
            }
            Operation::Compare(first, second, length) => {
                check(first, length)?;
                check(second, length)?;
                for (start, len) in steps(length) {
                    let one = self.fetch(after(first, start), len)?;
                    let other = self.fetch(after(second, start), len)?;
                    if let Some(at) = one.iter().zip(&other).position(|(a, b)| a != b) {
                        return Ok(start + at as u64);
                    }
                }
                Ok(length)
            }
            Operation::Write(to, value, size) => {
                check(to, size)?;
                self.store(to, &value.to_le_bytes()[..size as usize])?;
                Ok(0)
            }
            Operation::Wait(from, size, mask, value) => {
                check(from, size)?;
                let mut word = [0; 8];
                word[..size as usize].copy_from_slice(&self.fetch(from, size)?);
                let word = u64::from_le_bytes(word);
                match word & mask == value {
                    true => Ok(word),
                    false => Err(TIME_OUT.into()),
                }
            }
            Operation::Crc(from, length) => {
                check(from, length)?;
                let mut sum = 0;
                for (start, len) in steps(length) {
                    sum = crc32c::crc32c_append(sum, &self.fetch(after(from, start), len)?);
                }
                Ok(sum.into())
            }
            Operation::Elements(one, other, to, count, scale) => {
                self.elements((one, other, to), count * 4, scale)
            }
            Operation::Sum(from, count) => {
                check(from, count * 4)?;
                let mut sum = 0_u64;
                for (start, len) in steps(count * 4) {
                    let data = self.fetch(after(from, start), len)?;
                    let words = data.chunks_exact(4).filter_map(<[u8]>::first_chunk);
                    let numbers = words.map(|word| u64::from(u32::from_le_bytes(*word)));
                    sum = numbers.fold(sum, u64::wrapping_add);
                }
                Ok(sum)
            }
            Operation::Histogram(from, count, bins) => {
                check(from, count)?;
                check(bins, 1024)?;
                for (start, len) in steps(count) {
                    let data = self.fetch(after(from, start), len)?;
                    let mut table = self.fetch(bins, 1024)?;
                    let mut words: Vec<&mut [u8; 4]> = table
                        .chunks_exact_mut(4)
                        .filter_map(<[u8]>::first_chunk_mut)
                        .collect();
                    for byte in data {
                        let word = &mut *words[usize::from(byte)];
                        *word = u32::from_le_bytes(*word).wrapping_add(1).to_le_bytes();
                    }
                    self.store(bins, &table)?;
                }
                Ok(0)
            }
            Operation::Add(counter, value, threads) => {
                check(counter, 8)?;
                let first = self.fetch(counter, 8)?;
                let first = u64::from_le_bytes(first.try_into().expect("8 bytes"));
                let sum = first.wrapping_add(value.wrapping_mul(threads));
                if threads > 0 {
                    self.store(counter, &sum.to_le_bytes())?;
                }
                Ok(first)
            }
        }
    }

    fn elements(
        &mut self,
        (one, other, to): (Address, Address, Address),
        length: u64,
        scale: Option<f32>,
    ) -> Result<u64, BadCommand> {
        check(one, length)?;
        check(other, length)?;
        check(to, length)?;
        for (start, len) in steps(length) {
            let mut left = self.fetch(after(one, start), len)?;
            let right = self.fetch(after(other, start), len)?;
            let words = left.chunks_exact_mut(4).filter_map(<[u8]>::first_chunk_mut);
            let others = right.chunks_exact(4).filter_map(<[u8]>::first_chunk);
            for (left, right) in words.zip(others) {
                let (a, b) = (f32::from_le_bytes(*left), f32::from_le_bytes(*right));
                *left = scale.map_or(a + b, |scale| scale * a + b).to_le_bytes();
            }
            self.store(after(to, start), &left)?;
            self.floats = self.touched.last().copied().filter(|_| len > 0);
        }
        Ok(0)
    }

    fn fetch(&self, from: Address, len: u64) -> Result<Vec<u8>, BadCommand> {
        if len == 0 {
            return Ok(Vec::new());
        }
        match from {
            Address::Vram(at) => Ok(self.slice(Space::Vram(at), len as usize).to_vec()),
            Address::Bus(at) => {
                let at = self.reach(at, len).ok_or(DMA)?;
                Ok(self.slice(Space::Ram(at), len as usize).to_vec())
            }
        }
    }

    fn store(&mut self, to: Address, data: &[u8]) -> Result<(), BadCommand> {
        if data.is_empty() {
            return Ok(());
        }
        let start = match to {
            Address::Vram(at) => Space::Vram(at),
            Address::Bus(at) => match self.reach(at, data.len() as u64) {
                Some(at) => Space::Ram(at),
                None => return Err(half_written(at, data)),
            },
        };
        self.at(start, data.len()).copy_from_slice(data);
        Ok(())
    }

    /// Returns the offset in guest memory of a bus address, if all pages are there.
    fn reach(&self, address: u64, len: u64) -> Option<u64> {
        let at = address.checked_sub(RAM_AT)?;
        let end = at.checked_add(len).filter(|end| *end <= RAM)?;
        let mut pages = at / PAGE..=(end - 1) / PAGE;
        pages.all(|page| self.present[page as usize]).then_some(at)
    }
}

/// Returns the failure of a write to guest memory, which may have written some of its pages.
fn half_written(address: u64, data: &[u8]) -> BadCommand {
    let end = address.saturating_add(data.len() as u64);
    let inside = address.max(RAM_AT)..end.min(RAM_AT + RAM);
    let written = (inside.start < inside.end).then(|| {
        let from = (inside.start - address) as usize;
        let len = (inside.end - inside.start) as usize;
        let start = Space::Ram(inside.start - RAM_AT);
        (start, data[from..from + len].to_vec())
    });
    BadCommand { code: DMA, written }
}

/// Fails unless a range is inside VRAM, or inside the address space.
fn check(address: Address, len: u64) -> Result<(), u8> {
    match address {
        Address::Vram(at) if at.checked_add(len).is_none_or(|end| end > VRAM) => Err(VRAM_RANGE),
        Address::Bus(at) if len > 0 && at.checked_add(len - 1).is_none() => Err(DMA),
        _ => Ok(()),
    }
}

fn after(address: Address, bytes: u64) -> Address {
    match address {
        Address::Vram(at) => Address::Vram(at + bytes),
        Address::Bus(at) => Address::Bus(at.wrapping_add(bytes)),
    }
}

/// Returns start and length of each step. There is at least one.
fn steps(length: u64) -> impl Iterator<Item = (u64, u64)> {
    let starts = (0..length.max(1)).step_by(STEP as usize);
    starts.map(move |start| (start, (length - start).min(STEP)))
}
