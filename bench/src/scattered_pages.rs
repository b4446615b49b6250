//! Memory for data that the device sees in many pieces, each a mapping of its own.

use std::sync::Arc;

use anyhow::Context;

use crate::controller::Controller;
use crate::jobs::Spot;
use crate::loaded_queue::{Buffer, Slot};
use crate::memory::{PAGE, SharedMemory};

/// As many mappings as a client may have (vfio-user, VERSION, `max_dma_maps`), less the one that queues lie in.
pub(crate) const MOST: usize = 65534;
/// Where the device sees the first piece.
const BASE: u64 = 1 << 40;

/// The memory, and where its pages are.
pub(crate) struct ScatteredPages {
    memory: Arc<SharedMemory>,
    /// All of its pages.
    pub(crate) spots: Vec<Spot>,
}

impl ScatteredPages {
    /// Lends the device memory of about [`MOST`] pages in `pieces` mappings. As much lies between two of them, so that
    /// none can be joined with the next.
    pub(crate) fn map(controller: &Controller, pieces: usize) -> anyhow::Result<Self> {
        let bytes = MOST / pieces * PAGE;
        let (memory, file) = SharedMemory::create(pieces * bytes)?;
        let wide = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let mut spots = Vec::new();
        for piece in 0..pieces {
            let address = BASE + 2 * wide(piece * bytes);
            controller.map(&file, wide(piece * bytes), address, wide(bytes))?;
            spots.extend((0..bytes).step_by(PAGE).map(|inside| Spot {
                offset: piece * bytes + inside,
                address: address + wide(inside),
            }));
        }
        Ok(Self {
            memory: Arc::new(memory),
            spots,
        })
    }

    /// A command that uses a page of its own.
    pub(crate) fn slot(&self, cid: u16, block_bytes: u32) -> anyhow::Result<Slot> {
        let spot = self
            .spots
            .get(usize::from(cid))
            .context("there are more commands than pages")?;
        let buffer = Buffer {
            memory: self.memory.clone(),
            offset: spot.offset,
            bytes: PAGE,
        };
        Ok(Slot::new(cid, block_bytes, buffer, [spot.address, 0]))
    }
}
