//! A queue pair with its outstanding commands.

use std::sync::Arc;
use std::time::Instant;

use anyhow::bail;
use peerbar_nvme_driver::QueuePair;
use peerbar_nvme_spec::command::nvm::BlockRange;
use peerbar_nvme_spec::command::{NvmOpcode, SubmissionEntry};
use vm_memory::VolatileSlice;
use zerocopy::{FromZeros, transmute_ref};

use crate::jobs::data;
use crate::memory::{BusMemory, SharedMemory};
use crate::vfio_user::VfioUser;

/// The direction of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// Memory for the data of one command.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    pub(crate) memory: Arc<SharedMemory>,
    /// Offset of the data.
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

impl Buffer {
    /// Returns the data.
    pub(crate) fn data(&self) -> anyhow::Result<VolatileSlice<'_>> {
        self.memory.slice(self.offset, self.bytes)
    }

    /// Overwrites the buffer with bytes that no disk contains.
    pub(crate) fn overwrite(&self) -> anyhow::Result<()> {
        self.data()?.copy_from(&vec![u64::MAX; self.bytes / 8]);
        Ok(())
    }

    /// Fails unless the data is what [`Fill`](crate::jobs::Fill) has written at this offset.
    pub(crate) fn compare(&self, offset: u64) -> anyhow::Result<()> {
        let mut found = vec![0_u64; self.bytes / 8];
        self.data()?.copy_to(&mut found);
        if found.into_iter().eq(data(offset, self.bytes)) {
            Ok(())
        } else {
            bail!("the disk's data at byte {offset} differs from the data written there")
        }
    }
}

/// One of the commands.
pub(crate) struct Slot {
    entry: SubmissionEntry,
    block_bytes: u64,
    pub(crate) buffer: Buffer,
    pub(crate) offset: u64,
    /// The time of submission, or `None` if it is not outstanding.
    pub(crate) since: Option<Instant>,
}

impl Slot {
    /// Makes a command for `buffer`, which the device reaches by `prps`.
    pub(crate) fn new(cid: u16, block_bytes: u32, buffer: Buffer, prps: [u64; 2]) -> Self {
        let mut entry = SubmissionEntry::new_zeroed();
        entry.cid = cid.into();
        [entry.prp1, entry.prp2] = prps.map(Into::into);
        let block_bytes = u64::from(block_bytes);
        let blocks = u64::try_from(buffer.bytes).unwrap_or(0) / block_bytes;
        let mut range = BlockRange::from(&entry);
        range.nlb = u16::try_from(blocks.saturating_sub(1))
            .unwrap_or(u16::MAX)
            .into();
        range.apply_to(&mut entry);
        Self {
            entry,
            block_bytes,
            buffer,
            offset: 0,
            since: None,
        }
    }

    /// Sets the offset and the direction of the transfer.
    pub(crate) fn set_target(&mut self, direction: Direction, offset: u64) {
        let opcode = match direction {
            Direction::Read => NvmOpcode::Read,
            Direction::Write => NvmOpcode::Write,
        };
        self.offset = offset;
        self.entry.opcode = opcode as u8;
        self.entry.nsid = 1.into();
        let block = offset / self.block_bytes;
        let [b0, b1, b2, b3, b4, b5, b6, b7] = block.to_le_bytes();
        self.entry.cdw10 = u32::from_le_bytes([b0, b1, b2, b3]).into();
        self.entry.cdw11 = u32::from_le_bytes([b4, b5, b6, b7]).into();
    }

    /// Returns the submission queue entry.
    pub(crate) fn entry(&self) -> &[u8; 64] {
        transmute_ref!(&self.entry)
    }

    /// Returns its opcode.
    pub(crate) fn opcode(&self) -> u8 {
        self.entry.opcode
    }
}

/// A pair of I/O queues of a server's controller.
pub(crate) type Queue = QueuePair<VfioUser, BusMemory>;

/// A queue pair and its commands. The identifier of a command is its index.
pub(crate) struct LoadedQueue<R = VfioUser> {
    pub(crate) pair: QueuePair<R, BusMemory>,
    pub(crate) slots: Vec<Slot>,
}
