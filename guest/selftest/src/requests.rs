//! Random requests to the GPU's driver.

#![expect(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, ensure};
use peerbar_agent::gpus;
use peerbar_agent::mapped_buffer::MappedBuffer;
use peerbar_gds::uapi::{
    self, Alloc, EventFd, Export, Handle, Import, Operand, Query, Register, Submit, Wait,
};
use rustix::event::{EventfdFlags, eventfd};

use crate::Test;
use crate::random_requests::{self, NOTHING, Random, keep, low, make};

/// Host memory that is registered with the GPU.
const HOST_BYTES: usize = 256 << 10;
const PAGE: u64 = 4096;
/// The longest operand, and the maximum number of threads in a block of a launch.
const LONGEST: u64 = 64 << 10;
/// The longest wait for a command in nanoseconds.
const LONGEST_TIMEOUT: u64 = 2_000_000;

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let gpu = test.gpu()?;
    let free = free_bytes(gpu)?;
    let [requests, seed] = test.numbers([30_000, 1]);
    random_requests::run(requests, seed, |random| GpuProgram::new(gpu, random))?;
    let left = free_bytes(gpu)?;
    ensure!(
        left == free,
        "{left} bytes of VRAM can be had after all files are closed, not {free} as before"
    );
    computes(gpu).context("the GPU after all requests")?;
    Ok(())
}

/// Returns the VRAM that can be allocated, in pieces of 1 MiB.
fn free_bytes(gpu: &gpus::Gpu) -> anyhow::Result<u64> {
    const PIECE: u64 = 1 << 20;
    let opened = gpu.open()?;
    let mut pieces = Vec::new();
    while let Ok(piece) = opened.allocate(PIECE) {
        pieces.push(piece);
    }
    Ok(pieces.len() as u64 * PIECE)
}

fn computes(gpu: &gpus::Gpu) -> anyhow::Result<()> {
    let opened = gpu.open()?;
    let buffer = opened.allocate(LONGEST)?;
    opened.fill(buffer.span(..LONGEST)?, u64::from_le_bytes([0x5a; 8]))?;
    let right = crc32c::crc32c(&vec![0x5a; usize::try_from(LONGEST)?]);
    let sum = opened.crc32c(buffer.span(..LONGEST)?)?;
    ensure!(sum == right, "CRC-32C {sum:08x}, not {right:08x}");
    Ok(())
}

/// A program that makes arbitrary requests to the driver.
struct GpuProgram<'a> {
    gpu: &'a gpus::Gpu,
    random: Random,
    files: Vec<File>,
    /// Handles that files have returned, valid or not.
    handles: Vec<u32>,
    fences: Vec<u64>,
    /// dma-bufs and eventfds.
    descriptors: Vec<OwnedFd>,
    host: MappedBuffer,
}

impl random_requests::Program for GpuProgram<'_> {
    fn request(&mut self) -> anyhow::Result<bool> {
        if self.files.is_empty() || self.random.once_in(200) {
            let path = self.gpu.node_path();
            let opened = File::options().read(true).write(true).open(&path);
            match opened {
                Ok(file) => keep(&mut self.files, file),
                // All channels are in use by the other threads.
                Err(_) if !self.files.is_empty() => {}
                Err(_) => return Ok(false),
            }
        }
        match self.random.below(16) {
            0 | 1 => self.allocate(),
            2 => self.one_handle(uapi::FREE),
            3 if self.random.once_in(4) => self.one_handle(uapi::REVOKE),
            3 | 4 => self.query(),
            5 => self.register(),
            6..=8 => self.submit(),
            9 | 10 => self.wait(),
            11 => self.event(),
            12 => self.export(),
            13 => self.import(),
            14 => Ok(self.anything()),
            _ => Ok(self.map()),
        }
    }
}

impl<'a> GpuProgram<'a> {
    fn new(gpu: &'a gpus::Gpu, random: Random) -> anyhow::Result<Self> {
        Ok(Self {
            gpu,
            random,
            files: Vec::new(),
            handles: Vec::new(),
            fences: Vec::new(),
            descriptors: Vec::new(),
            host: MappedBuffer::guest_ram(HOST_BYTES)?,
        })
    }

    /// Makes a request with this structure. Returns the driver's output if it has accepted the
    /// request. Other writes of the driver go only to memory that it was given: to `host`, which is
    /// not read.
    fn make<T: Copy>(&mut self, number: u32, structure: T) -> Option<T> {
        let file = self.random.below(self.files.len() as u64);
        let file = self.files.get(usize::try_from(file).ok()?)?;
        make(file, number, structure)
    }

    fn handle(&mut self) -> u32 {
        self.random.known(&self.handles, 20)
    }

    fn remember(&mut self, handle: u32) {
        keep(&mut self.handles, handle);
    }

    fn allocate(&mut self) -> anyhow::Result<bool> {
        let size = match self.random.below(20) {
            0 => self.random.next(),
            1 => self.random.below(PAGE),
            _ => PAGE * self.random.below(64),
        };
        let flags = u32::from(self.random.once_in(20));
        let answer = self.make(
            uapi::ALLOC,
            Alloc {
                size,
                flags,
                ..Alloc::default()
            },
        );
        answer.inspect(|answer| self.remember(answer.handle));
        Ok(answer.is_some())
    }

    fn one_handle(&mut self, number: u32) -> anyhow::Result<bool> {
        let handle = self.handle();
        let pad = u32::from(self.random.once_in(40));
        Ok(self.make(number, Handle { handle, pad }).is_some())
    }

    fn query(&mut self) -> anyhow::Result<bool> {
        let mut query = Query {
            handle: self.handle(),
            offset: PAGE * self.random.below(64),
            ..Query::default()
        };
        if self.random.once_in(10) {
            query.offset = self.random.next();
        }
        Ok(self.make(uapi::QUERY, query).is_some())
    }

    /// Registers a part of the host's memory, or an invalid range, but no other memory of this
    /// process, since the GPU will write there.
    fn register(&mut self) -> anyhow::Result<bool> {
        let pages = HOST_BYTES as u64 / PAGE;
        let (first, count) = (self.random.below(pages), self.random.below(pages));
        let start = self.host.address(0, HOST_BYTES)?.addr().get() as u64;
        let address = match self.random.below(12) {
            0 => 0,
            1 => 0x7fff_ffff_f000,
            2 => 0xffff_8880_0000_0000,
            3 => start + 1,
            _ => start + first * PAGE,
        };
        let answer = self.make(
            uapi::REGISTER,
            Register {
                address,
                size: count.min(pages - first) * PAGE,
                ..Register::default()
            },
        );
        answer.inspect(|answer| self.remember(answer.handle));
        Ok(answer.is_some())
    }

    fn submit(&mut self) -> anyhow::Result<bool> {
        let (opcode, kernel) = (self.random.below(7), self.random.below(6));
        let length = self.random.below(LONGEST);
        // As for the device's commands: the operands that are addresses, and the one that is the
        // length.
        let (addresses, count) = match (opcode, kernel) {
            (1 | 3, _) => (0b11, Some(2)),
            (2 | 4, _) => (0b1, Some(1)),
            (5, 0) => (0b111, Some(3)),
            (5, 1) => (0b11, Some(2)),
            (5, 2) => (0b1, Some(1)),
            (5, 3) => (0b101, Some(1)),
            (5, _) | (6, _) => (0b1, None),
            _ => (0, None),
        };
        let address_mask = match self.random.once_in(16) {
            true => low(self.random.next()) & 0x1fff,
            false => addresses,
        };
        let mut submit = Submit {
            opcode: low(opcode),
            kernel: low(kernel),
            address_mask,
            ..Submit::default()
        };
        let operands = submit.operand.iter_mut().zip(&mut submit.length);
        for (number, (operand, span)) in operands.enumerate() {
            if address_mask >> number & 1 == 1 {
                let spaces = if self.random.once_in(16) { 5 } else { 3 };
                *operand = Operand {
                    space: low(self.random.below(spaces)),
                    handle: self.handle(),
                    offset: self.random.below(LONGEST) & !3,
                };
                *span = if self.random.once_in(8) {
                    LONGEST
                } else {
                    length
                };
            } else {
                operand.offset = match number {
                    11 => self.random.below(64),
                    12 => self.random.below(32),
                    _ if count == Some(number) => length,
                    // The size of a word.
                    2 if opcode == 6 => 4 << self.random.below(2),
                    _ => self.random.next(),
                };
            }
        }
        let answer = self.make(uapi::SUBMIT, submit);
        answer.inspect(|answer| keep(&mut self.fences, answer.fence));
        Ok(answer.is_some())
    }

    fn wait(&mut self) -> anyhow::Result<bool> {
        let known = self.random.of(&self.fences);
        let wait = Wait {
            fence: known.unwrap_or_else(|| self.random.next() >> 32),
            timeout_ns: self.random.below(LONGEST_TIMEOUT),
            ..Wait::default()
        };
        Ok(self.make(uapi::WAIT, wait).is_some())
    }

    /// Returns a descriptor of any kind for the driver: only ones of this program, since the driver
    /// signals those that it gets.
    fn descriptor(&mut self) -> i32 {
        let known: Vec<i32> = self.descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let gpu = self.files.first().map_or(-1, AsRawFd::as_raw_fd);
        match self.random.below(8) {
            0 => -1,
            1 => gpu,
            2 => 1 << 20,
            _ => self.random.of(&known).unwrap_or(-1),
        }
    }

    fn event(&mut self) -> anyhow::Result<bool> {
        if self.random.once_in(2) {
            keep(&mut self.descriptors, eventfd(0, EventfdFlags::NONBLOCK)?);
        }
        let fd = self.descriptor();
        Ok(self.make(uapi::EVENTFD, EventFd { fd, pad: 0 }).is_some())
    }

    fn export(&mut self) -> anyhow::Result<bool> {
        let handle = self.handle();
        let policies = if self.random.once_in(16) { 5 } else { 3 };
        let export = Export {
            handle,
            policy: low(self.random.below(policies)),
            ..Export::default()
        };
        let answer = self.make(uapi::EXPORT, export);
        if let Some(Export { fd, .. }) = answer {
            // SAFETY: the driver has just returned it to this process, and no other part of it
            // knows it.
            keep(&mut self.descriptors, unsafe { OwnedFd::from_raw_fd(fd) });
        }
        Ok(answer.is_some())
    }

    fn import(&mut self) -> anyhow::Result<bool> {
        let fd = self.descriptor();
        let answer = self.make(
            uapi::IMPORT,
            Import {
                fd,
                ..Import::default()
            },
        );
        answer.inspect(|answer| self.remember(answer.handle));
        Ok(answer.is_some())
    }

    /// Makes an unknown request, or one with another size or direction. Its structure is all zeros:
    /// if the request exists after all, it has no address to write to.
    fn anything(&mut self) -> bool {
        let number = match self.random.below(3) {
            0 => uapi::ALLOC ^ 1 << self.random.below(32),
            1 => uapi::SUBMIT ^ 1 << (16 + self.random.below(14)),
            _ => u32::from(b'P') << 8 | self.random.word(),
        };
        // EXPORT of handle 0 would return a descriptor that no part of this process knows.
        number != uapi::EXPORT && self.make(number, NOTHING).is_some()
    }

    /// Maps a part of a file, and unmaps it without an access.
    fn map(&mut self) -> bool {
        let offset = PAGE * (self.random.next() >> 20 >> self.random.below(44));
        let length = usize::try_from(PAGE * (1 + self.random.below(64))).unwrap_or(0);
        let file = self.files.first();
        file.is_some_and(|file| MappedBuffer::shared(file, offset, length).is_ok())
    }
}
