//! A GPU that this process drives by vfio-pci.

use std::sync::Arc;

use anyhow::{Context, ensure};
use peerbar_gds::Mapping;
use peerbar_nvme_driver::QueueMemory;
use peerbar_report::{GpuInitiated, VfioBackend};
use peerbar_vfio_nvme::{BarRange, Binding, Disk, DmaSpace, QueueDoorbells};

use super::initiator::{BYTES, Initiator, LIMIT, READ_BYTES, READS};
use crate::user_drivers::{map_bar, open_gpu, vram};
use crate::user_gpu::UserGpu;

/// Entries of each of the queues.
const ENTRIES: u16 = 512;
/// Part of VRAM that a channel uses, and the offsets in it.
const AREA: u64 = 8 << 20;
const SUBMISSIONS: u64 = 0;
const COMPLETIONS: u64 = 0x8000;
const STATE: u64 = 0xa000;
const REQUESTS: u64 = 0x1_0000;
const DATA: u64 = 0x10_0000;
/// The kernel `nvme io`, and the mask of its operands that are in VRAM.
const NVME_IO: u32 = 5;
const IN_VRAM: u16 = 0b11_0011;
/// Threads of a block.
const BLOCK: u64 = 1000;

/// Bus addresses by which devices find each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct BusAddresses {
    /// The GPU's memory.
    pub(super) vram: u64,
    /// BAR 0 of the disk.
    pub(super) registers: u64,
}

/// A channel of the GPU with its memory.
pub(super) struct VfioGpu {
    gpu: UserGpu,
    memory: Arc<Mapping>,
    space: DmaSpace,
    backend: VfioBackend,
    /// `None` if the devices use I/O addresses.
    bus: Option<BusAddresses>,
    /// Start of the channel's part of VRAM, and the disk's address for it.
    area: u64,
    at_disk: u64,
    /// The GPU's addresses for the doorbells.
    doorbells: Option<QueueDoorbells>,
    destinations: Vec<u64>,
    /// Logical blocks of each request, once the requests are in VRAM: all launches use the same.
    requested: Option<u16>,
    depth: u16,
}

impl VfioGpu {
    /// Opens the GPU in an address space, with a channel for each queue. The devices use I/O
    /// addresses of this space, unless `bus` has others.
    pub(super) fn open(
        space: &DmaSpace,
        binding: &Binding,
        check: &GpuInitiated,
        bus: Option<BusAddresses>,
    ) -> anyhow::Result<Vec<Self>> {
        let device = Arc::new(open_gpu(space.address_space(), binding)?);
        let used = vram(AREA.saturating_mul(check.queues.into()));
        let memory = Arc::new(device.map(used)?);
        let at_disk = match bus {
            Some(bus) => bus.vram,
            None => map_bar(space, check.backend, &device, used, Arc::clone(&memory))?,
        };
        let channel = |channel: u8| {
            let area = AREA.saturating_mul(channel.into());
            let at_disk = at_disk.saturating_add(area);
            let data = at_disk.saturating_add(DATA);
            let destinations =
                (0..u64::from(READS)).map(|index| data.saturating_add(index * READ_BYTES));
            let completions = vec![0; usize::from(ENTRIES) * 16];
            memory.write(area.saturating_add(COMPLETIONS), &completions)?;
            memory.write(area.saturating_add(STATE), &[0; 32])?;
            Ok(Self {
                gpu: UserGpu::start(Arc::clone(&device), space, channel)?,
                memory: Arc::clone(&memory),
                space: space.clone(),
                backend: check.backend,
                bus,
                area,
                at_disk,
                doorbells: None,
                destinations: destinations.collect(),
                requested: None,
                depth: check.depth,
            })
        };
        (0..check.queues).map(channel).collect()
    }

    /// Returns the offset in VRAM of that part of the area.
    fn at(&self, offset: u64) -> u64 {
        self.area.saturating_add(offset)
    }

    /// Writes a request for each of the first blocks of the disk.
    fn put_requests(&self, blocks: u16) -> anyhow::Result<()> {
        const READ: u8 = 2;
        let [low, high] = blocks.saturating_sub(1).to_le_bytes();
        let mut requests = Vec::new();
        for (index, data) in (0..).zip(&self.destinations) {
            for number in [index * u64::from(blocks), *data, 0] {
                requests.extend(number.to_le_bytes());
            }
            requests.extend([low, high, READ, 0, 0, 0, 0, 0]);
        }
        Ok(self.memory.write(self.at(REQUESTS), &requests)?)
    }
}

impl Initiator for VfioGpu {
    const LAUNCHES: u16 = 16;

    fn queues(&self) -> anyhow::Result<QueueMemory> {
        Ok(QueueMemory {
            submission: self.at_disk.saturating_add(SUBMISSIONS),
            completion: self.at_disk.saturating_add(COMPLETIONS),
            submission_entries: ENTRIES,
            completion_entries: ENTRIES,
        })
    }

    fn use_doorbells(&mut self, disk: &Disk, doorbells: QueueDoorbells) -> anyhow::Result<()> {
        let registers = match self.bus {
            Some(bus) => bus.registers,
            None => map_registers(&self.space, self.backend, disk)?,
        };
        self.doorbells = Some(QueueDoorbells {
            tail: registers.saturating_add(doorbells.tail),
            head: registers.saturating_add(doorbells.head),
        });
        Ok(())
    }

    fn destinations(&self) -> &[u64] {
        &self.destinations
    }

    fn launch(&mut self, blocks: u16) -> anyhow::Result<()> {
        let doorbells = self.doorbells.context("queues without doorbells")?;
        if self.requested != Some(blocks) {
            self.put_requests(blocks)?;
            self.requested = Some(blocks);
        }
        let reads = u64::from(READS);
        let operands = [
            self.at(SUBMISSIONS),
            self.at(COMPLETIONS),
            doorbells.tail,
            doorbells.head,
            self.at(STATE),
            self.at(REQUESTS),
            reads,
            u64::from(ENTRIES) << 32 | u64::from(ENTRIES),
            self.depth.into(),
            1,
            u64::try_from(LIMIT.as_nanos())?,
            reads.div_ceil(BLOCK),
            BLOCK,
        ];
        self.gpu.launch(NVME_IO, IN_VRAM, &operands)
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let result = self.gpu.wait()?;
        ensure!(
            result == u64::from(READS),
            "request {} ends with status {:#x}",
            result & 0xffff_ffff,
            result >> 32
        );
        Ok(())
    }

    fn doorbells(&self) -> anyhow::Result<u64> {
        let mut word = [0; 8];
        self.memory.read(self.at(STATE + 16), &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    fn clear(&self) -> anyhow::Result<()> {
        let zeros = vec![0; usize::try_from(BYTES)?];
        Ok(self.memory.write(self.at(DATA), &zeros)?)
    }

    fn data(&self) -> anyhow::Result<Vec<u8>> {
        let mut seen = vec![0; usize::try_from(BYTES)?];
        self.memory.read(self.at(DATA), &mut seen)?;
        Ok(seen)
    }
}

/// Maps the disk's registers for the GPU.
fn map_registers(space: &DmaSpace, backend: VfioBackend, disk: &Disk) -> anyhow::Result<u64> {
    let device = disk.device();
    let registers = BarRange {
        bar: 0,
        offset: 0,
        length: device.bar_size(0)?,
    };
    let memory = Arc::new(device.map(registers)?);
    map_bar(space, backend, device, registers, memory).context("the disk's registers")
}
