//! A GPU that this process drives by vfio-pci.

use std::sync::Arc;

use anyhow::{Context, ensure};
use peerbar_mapping::Mapping;
use peerbar_nvme_driver::QueueMemory;
use peerbar_report::VfioBackend;
use peerbar_vfio_nvme::{BarRange, Binding, Disk, DmaSpace, QueueDoorbells};

use super::{BYTES, Initiator, LIMIT, READ_BYTES, READS};
use crate::user_drivers::{map_bar, open_gpu, vram};
use crate::user_gpu::UserGpu;

/// Entries of each of the queues.
const ENTRIES: u16 = 256;
/// Where things are in VRAM, and how much of it is used.
const SUBMISSIONS: u64 = 0;
const COMPLETIONS: u64 = 0x8000;
const STATE: u64 = 0xa000;
const REQUESTS: u64 = 0x1_0000;
const DATA: u64 = 0x10_0000;
const USED: u64 = 8 << 20;
/// The kernel `nvme io`, and which of its operands are in VRAM.
const NVME_IO: u32 = 5;
const IN_VRAM: u16 = 0b11_0011;
/// Threads of a block.
const BLOCK: u64 = 1000;

/// Where devices find each other on the bus.
#[derive(Clone, Copy, Debug)]
pub(super) struct BusAddresses {
    /// The GPU's memory.
    pub(super) vram: u64,
    /// BAR 0 of the disk.
    pub(super) registers: u64,
}

/// The GPU with its memory.
pub(super) struct VfioGpu {
    gpu: UserGpu,
    memory: Arc<Mapping>,
    space: DmaSpace,
    backend: VfioBackend,
    /// None if the devices use I/O addresses.
    bus: Option<BusAddresses>,
    /// Where VRAM is for the disk.
    vram: u64,
    /// Where the doorbells are for the GPU.
    doorbells: Option<QueueDoorbells>,
    destinations: Vec<u64>,
    depth: u8,
}

impl VfioGpu {
    /// Opens the GPU in an address space of this `backend`, whose I/O addresses the devices use unless `bus` has others.
    pub(super) fn open(
        space: &DmaSpace,
        binding: &Binding,
        backend: VfioBackend,
        bus: Option<BusAddresses>,
        depth: u8,
    ) -> anyhow::Result<Self> {
        let device = Arc::new(open_gpu(space.address_space(), binding)?);
        let memory = Arc::new(device.map(vram(USED))?);
        memory.write(COMPLETIONS, &vec![0; usize::from(ENTRIES) * 16])?;
        memory.write(STATE, &[0; 32])?;
        let vram = match bus {
            Some(bus) => bus.vram,
            None => map_bar(space, backend, &device, vram(USED), Arc::clone(&memory))?,
        };
        let data = vram.saturating_add(DATA);
        let destinations =
            (0..u64::from(READS)).map(|index| data.saturating_add(index * READ_BYTES));
        Ok(Self {
            gpu: UserGpu::start(device, space)?,
            memory,
            space: space.clone(),
            backend,
            bus,
            vram,
            doorbells: None,
            destinations: destinations.collect(),
            depth,
        })
    }

    /// A request for each of the first blocks of the disk.
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
        Ok(self.memory.write(REQUESTS, &requests)?)
    }
}

impl Initiator for VfioGpu {
    fn queues(&self) -> anyhow::Result<QueueMemory> {
        Ok(QueueMemory {
            submission: self.vram.saturating_add(SUBMISSIONS),
            completion: self.vram.saturating_add(COMPLETIONS),
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

    fn read(&mut self, launches: u16, blocks: u16) -> anyhow::Result<()> {
        let doorbells = self.doorbells.context("queues without doorbells")?;
        self.put_requests(blocks)?;
        let reads = u64::from(READS);
        let operands = [
            SUBMISSIONS,
            COMPLETIONS,
            doorbells.tail,
            doorbells.head,
            STATE,
            REQUESTS,
            reads,
            u64::from(ENTRIES) << 32 | u64::from(ENTRIES),
            self.depth.into(),
            1,
            u64::try_from(LIMIT.as_nanos())?,
            reads.div_ceil(BLOCK),
            BLOCK,
        ];
        for _ in 0..launches {
            self.gpu.launch(NVME_IO, IN_VRAM, &operands)?;
        }
        let result = self.gpu.wait()?;
        ensure!(
            result == reads,
            "request {} ends with status {:#x}",
            result & 0xffff_ffff,
            result >> 32
        );
        Ok(())
    }

    fn doorbells(&self) -> anyhow::Result<u64> {
        let mut word = [0; 8];
        self.memory.read(STATE + 16, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    fn clear(&self) -> anyhow::Result<()> {
        Ok(self.memory.write(DATA, &vec![0; usize::try_from(BYTES)?])?)
    }

    fn data(&self) -> anyhow::Result<Vec<u8>> {
        let mut seen = vec![0; usize::try_from(BYTES)?];
        self.memory.read(DATA, &mut seen)?;
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
