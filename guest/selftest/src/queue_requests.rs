//! Random requests for queues of a disk in addition to those of Linux' nvme.

#![expect(unsafe_code)]

use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, ensure};
use peerbar_agent::devices::Controller;
use peerbar_agent::user_drivers::disk_is_back;
use peerbar_agent::{disk, gpus};
use peerbar_gds::disk_uapi::{self as uapi, Attach, Create, Delete, Descriptor, Map, Query, Unmap};
use peerbar_gds::{Buffer, DiskQueues, ExportPolicy, Gpu, GpuQueue, QueueState};

use crate::random_requests::{self, NOTHING, Random, keep, low, make};
use crate::{Test, say};

const NODE: &str = "/dev/peerbar-nvme-queues";
const PAGE: u64 = 4096;
/// The largest buffer in pages.
const MOST_PAGES: u64 = 16;
/// At least one in this number of requests creates queues.
const REQUESTS_PER_CREATION: u32 = 200;
/// Number of entries of the queues at the end.
const ENTRIES: u16 = 8;

pub(crate) fn run(test: &Test<'_>) -> anyhow::Result<()> {
    let guest = test.guest;
    guest.load_module(crate::beside_nvme::MODULE)?;
    let (disk, gpu) = (test.disk()?, test.gpu()?);
    let free = gpu.free_vram()?;
    let created = AtomicU32::new(0);
    let [requests, seed] = test.numbers([6000, 1]);
    random_requests::run(requests, seed, |random| {
        QueueProgram::new(disk, gpu, &created, random)
    })?;
    let created = created.into_inner();
    ensure!(
        created >= requests / REQUESTS_PER_CREATION,
        "{created} of {requests} requests have created queues: they test little"
    );
    gpu.check_free_vram(free)?;
    disk_is_back(guest, disk)?;
    all_queues_can_be_had(disk, gpu).context("after all requests")?;
    gpu.check_free_vram(free)?;
    let block = usize::try_from(disk.disk.block)?;
    disk::read(&disk.disk.open_direct()?, 0, block).context("Linux' own read")?;
    say(&format!("{created} pairs of queues were created"));
    Ok(())
}

/// Makes all queues that the disk grants in addition to those of Linux, and releases them.
fn all_queues_can_be_had(disk: &Controller, gpu: &gpus::Gpu) -> anyhow::Result<()> {
    let queues = DiskQueues::open(&disk.node)?;
    let gpu = gpu.open()?;
    let spare = queues.granted().saturating_sub(queues.of_linux());
    ensure!(spare > 0, "the disk grants no queues but those of Linux");
    let mut made = Vec::new();
    for number in 1..=spare {
        let memory = GpuQueue::allocate(&gpu, ENTRIES, ENTRIES)?;
        let pair = queues.create(&memory);
        let pair = pair.with_context(|| format!("pair {number} of {spare} spare ones"))?;
        ensure!(
            pair.state()? == QueueState::Live,
            "pair {number} is not live"
        );
        made.push((pair, memory));
    }
    for (pair, memory) in made {
        drop(pair);
        memory.release();
    }
    Ok(())
}

/// A program that makes arbitrary requests to the module.
struct QueueProgram<'a> {
    disk: &'a Controller,
    gpu: Gpu,
    created: &'a AtomicU32,
    random: Random,
    files: Vec<File>,
    controller: File,
    buffers: Vec<Buffer>,
    /// dma-bufs of buffers and of doorbells.
    descriptors: Vec<OwnedFd>,
    /// Identifiers of mappings and numbers of queues, valid or not.
    memories: Vec<u32>,
    queues: Vec<u32>,
}

impl random_requests::Program for QueueProgram<'_> {
    fn request(&mut self) -> anyhow::Result<bool> {
        if self.files.is_empty() || self.random.once_in(30) {
            let opened = File::options().read(true).write(true).open(NODE);
            let opened = opened.with_context(|| format!("cannot open {NODE}"))?;
            keep(&mut self.files, opened);
        }
        if self.descriptors.is_empty() || self.random.once_in(8) {
            self.lend()?;
        }
        if self.random.once_in(400) {
            // Refused while another thread resets it.
            drop(fs::write(self.disk.directory.join("reset_controller"), "1"));
        }
        Ok(match self.random.below(16) {
            0 | 1 => self.attach(),
            2..=4 => self.map(),
            5 => self.unmap(),
            6..=10 => self.create(),
            11 => self.delete(),
            12 => self.query(),
            13 => self.doorbells(),
            14 => self.revoke(),
            _ => self.anything(),
        })
    }
}

impl<'a> QueueProgram<'a> {
    fn new(
        disk: &'a Controller,
        gpu: &gpus::Gpu,
        created: &'a AtomicU32,
        random: Random,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            disk,
            gpu: gpu.open()?,
            created,
            random,
            files: Vec::new(),
            controller: File::open(&disk.node)?,
            buffers: Vec::new(),
            descriptors: Vec::new(),
            memories: Vec::new(),
            queues: Vec::new(),
        })
    }

    /// Exports a new buffer, or one that was exported before.
    fn lend(&mut self) -> anyhow::Result<()> {
        if self.buffers.is_empty() || self.random.once_in(2) {
            let pages = 1 + self.random.below(MOST_PAGES);
            keep(&mut self.buffers, self.gpu.allocate(pages * PAGE)?);
        }
        let policies = [
            ExportPolicy::Revocable,
            ExportPolicy::Pinned,
            ExportPolicy::Static,
        ];
        let policy = self.random.of(&policies).unwrap_or_default();
        if let Some(buffer) = self.buffers.last() {
            // A revoked buffer cannot be exported.
            drop(
                buffer
                    .export_as(policy)
                    .map(|lent| keep(&mut self.descriptors, lent)),
            );
        }
        Ok(())
    }

    /// Makes a request with this structure. Returns the module's output if it has accepted the
    /// request.
    fn make<T: Copy>(&mut self, number: u32, structure: T) -> Option<T> {
        let file = self.random.below(self.files.len() as u64);
        let file = self.files.get(usize::try_from(file).ok()?)?;
        make(file, number, structure)
    }

    fn attach(&mut self) -> bool {
        let fd = match self.random.below(12) {
            0 => -1,
            1 => self.files.first().map_or(-1, AsRawFd::as_raw_fd),
            2 => self.descriptors.first().map_or(-1, AsRawFd::as_raw_fd),
            _ => self.controller.as_raw_fd(),
        };
        let attach = Attach {
            fd,
            ..Attach::default()
        };
        self.make(uapi::ATTACH, attach).is_some()
    }

    fn map(&mut self) -> bool {
        let known: Vec<i32> = self.descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let fd = match self.random.below(12) {
            0 => 1 << 20,
            1 => self.controller.as_raw_fd(),
            _ => self.random.of(&known).unwrap_or(-1),
        };
        let answer = self.make(
            uapi::MAP,
            Map {
                fd,
                ..Map::default()
            },
        );
        answer.inspect(|answer| keep(&mut self.memories, answer.id));
        answer.is_some()
    }

    fn memory(&mut self) -> u32 {
        self.random.known(&self.memories, 16)
    }

    fn queue(&mut self) -> u32 {
        self.random.known(&self.queues, 8)
    }

    fn unmap(&mut self) -> bool {
        let (id, pad) = (self.memory(), u32::from(self.random.once_in(40)));
        self.make(uapi::UNMAP, Unmap { id, pad }).is_some()
    }

    fn create(&mut self) -> bool {
        let mut create = Create {
            memory: self.memory(),
            entries: 2 + low(self.random.below(62)),
            submission: PAGE * self.random.below(3),
            completion: PAGE * self.random.below(4),
            ..Create::default()
        };
        match self.random.below(16) {
            0 => create.submission = self.random.next(),
            1 => create.completion = self.random.next() & !(PAGE - 1),
            2 => create.entries = self.random.word(),
            3 => create.pad = 1,
            _ => {}
        }
        let answer = self.make(uapi::CREATE, create);
        if let Some(Create { queue, .. }) = answer {
            keep(&mut self.queues, queue);
            self.created.fetch_add(1, Ordering::Relaxed);
        }
        answer.is_some()
    }

    fn delete(&mut self) -> bool {
        let (queue, pad) = (self.queue(), u32::from(self.random.once_in(40)));
        self.make(uapi::DELETE, Delete { queue, pad }).is_some()
    }

    fn query(&mut self) -> bool {
        let (queue, state) = (self.queue(), 0);
        self.make(uapi::QUERY, Query { queue, state }).is_some()
    }

    /// Requests doorbells. No program writes to them.
    fn doorbells(&mut self) -> bool {
        let answer = self.make(uapi::DOORBELLS, Descriptor::default());
        if let Some(Descriptor { fd, .. }) = answer {
            // SAFETY: the module has just returned it to this process, and no other part of it
            // knows it.
            keep(&mut self.descriptors, unsafe { OwnedFd::from_raw_fd(fd) });
        }
        answer.is_some()
    }

    /// Revokes a buffer, which may have queues in it.
    fn revoke(&mut self) -> bool {
        let buffer = self.random.below(self.buffers.len().max(1) as u64);
        let buffer = usize::try_from(buffer)
            .ok()
            .and_then(|buffer| self.buffers.get(buffer));
        buffer.is_some_and(|buffer| buffer.revoke().is_ok())
    }

    /// Makes an unknown request, or one with another size or direction.
    fn anything(&mut self) -> bool {
        let number = match self.random.below(3) {
            0 => uapi::ATTACH ^ 1 << self.random.below(32),
            1 => uapi::CREATE ^ 1 << (16 + self.random.below(14)),
            _ => u32::from(b'P') << 8 | self.random.word(),
        };
        // That would return a descriptor that no part of this process knows.
        number != uapi::DOORBELLS && self.make(number, NOTHING).is_some()
    }
}
