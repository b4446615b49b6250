//! The GPU's copy engine, which brings what lies in guest RAM into VRAM: the second half of a bounce.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use peerbar_nvme_spec::dma_log;
use vfio_user::Client;

use super::chain::Stage;
use crate::Error;
use crate::loaded_queue::DiskRange;
use crate::memory::{BusMemory, PAGE, SharedMemory};
use crate::vfio_user::{REGISTERS, mappable};

/// What is where in the BAR with the registers (devices/gpu/INTERFACE.md).
const DMA_LOG: u64 = 0x50;
const DMA_LOG_DATA: u64 = 0xc000;
const KICK: u64 = 0x2c;
const RING_ADDRESS: u64 = 0x1000;
const RING_ENTRIES: u64 = 0x100c;
const CONTROL: u64 = 0x1010;
const DOORBELL: u64 = 0x8000;
/// Entries of the ring, and bytes of each.
const ENTRIES: u32 = 64;
const ENTRY: usize = 128;
const RING_BYTES: usize = 2 * PAGE;
/// COPY, its fence written, its second operand an offset in VRAM.
const COPY: u64 = 1 | 1 << 8 | 0b10 << 16;
const FENCE_BYTES: usize = 16;

/// The GPU's record of its DMA.
pub(crate) fn dma_log(gpu: &mut Client) -> Result<Vec<u8>, Error> {
    gpu.region_write(REGISTERS, DMA_LOG, &1_u32.to_le_bytes())?;
    let mut log = vec![0; dma_log::MAX_SIZE];
    gpu.region_read(REGISTERS, DMA_LOG_DATA, &mut log)?;
    Ok(log)
}

/// Channel 0.
pub(crate) struct CopyEngine {
    gpu: Rc<RefCell<Client>>,
    /// The page of doorbells and where in the BAR it starts, if it may be mapped.
    doorbells: Option<(Arc<SharedMemory>, u64)>,
    /// Guest RAM, with the data from its start on.
    ram: BusMemory,
    /// Bytes of each buffer, in guest RAM and in VRAM.
    bytes: usize,
    /// Where in guest RAM ring and fences are.
    ring: usize,
    put: u32,
    /// Buffers that it has not done, in the order in which it does them, and what their fences will hold.
    waiting: VecDeque<(usize, u32)>,
}

impl CopyEngine {
    /// What it needs of guest RAM beside the data.
    pub(crate) const BYTES_BESIDE_DATA: usize = RING_BYTES + PAGE;

    /// For buffers of `bytes` bytes. The last [`Self::BYTES_BESIDE_DATA`] bytes of `ram` are its own.
    pub(crate) fn enable(
        gpu: Rc<RefCell<Client>>,
        ram: BusMemory,
        bytes: usize,
    ) -> Result<Self, Error> {
        let doorbells = mappable(&gpu.borrow(), DOORBELL)?;
        let engine = Self {
            gpu,
            doorbells,
            bytes,
            ring: ram.memory.bytes() - Self::BYTES_BESIDE_DATA,
            ram,
            put: 0,
            waiting: VecDeque::new(),
        };
        let ring = engine.address(engine.ring);
        engine.write(RING_ADDRESS, &ring.to_le_bytes())?;
        engine.write(RING_ENTRIES, &ENTRIES.to_le_bytes())?;
        engine.write(CONTROL, &1_u32.to_le_bytes())?;
        Ok(engine)
    }

    fn write(&self, register: u64, value: &[u8]) -> Result<(), Error> {
        let mut gpu = self.gpu.borrow_mut();
        Ok(gpu.region_write(REGISTERS, register, value)?)
    }

    fn address(&self, offset: usize) -> u64 {
        self.ram.address + u64::try_from(offset).unwrap_or(u64::MAX)
    }

    fn fence(&self, buffer: usize) -> usize {
        self.ring + RING_BYTES + buffer * FENCE_BYTES
    }
}

impl Stage for CopyEngine {
    fn submit(&mut self, buffer: usize, _: DiskRange) -> Result<(), Error> {
        let offset = buffer * self.bytes;
        let number = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let entry = [
            COPY,
            self.address(self.fence(buffer)),
            u64::from(self.put) + 1,
            self.address(offset),
            number(offset),
            number(self.bytes),
        ];
        let index = usize::try_from(self.put % ENTRIES).unwrap_or(0);
        for (word, value) in (0..).step_by(8).zip(entry) {
            let at = self.ring + index * ENTRY + word;
            self.ram.memory.store64(at, value)?;
        }
        self.put = self.put.wrapping_add(1);
        self.waiting.push_back((buffer, self.put));
        Ok(())
    }

    fn ring(&mut self) -> Result<(), Error> {
        let Some((doorbells, start)) = &self.doorbells else {
            return self.write(DOORBELL, &self.put.to_le_bytes());
        };
        let at = usize::try_from(DOORBELL - start).unwrap_or(usize::MAX);
        doorbells.store32(at, self.put)?;
        // The GPU says that it does not look any more before it looks a last time.
        fence(Ordering::SeqCst);
        if doorbells.load32(at + 4)? == 0 {
            return Ok(());
        }
        self.write(KICK, &1_u32.to_le_bytes())
    }

    fn pop(&mut self) -> Result<Option<usize>, Error> {
        let Some(&(buffer, value)) = self.waiting.front() else {
            return Ok(None);
        };
        if self.ram.memory.load32(self.fence(buffer))? != value {
            return Ok(None);
        }
        self.waiting.pop_front();
        Ok(Some(buffer))
    }
}
