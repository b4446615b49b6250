//! Namespaces: blocks on a backend.

mod backend;
mod block_locks;
mod file;
mod null;
mod ram;
mod syncs;
mod unflushed;

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use fastrand::Rng;
use thiserror::Error;

use block_locks::BlockLocks;
use syncs::Syncs;

pub(crate) use backend::{Backend, DirectAccess, Extent};
pub(crate) use block_locks::LockMode;
pub(crate) use file::FileBackend;
pub use file::ImageError;
pub(crate) use null::NullBackend;
pub(crate) use ram::RamBackend;
pub(crate) use syncs::Ticket;
use unflushed::Unflushed;

/// Bytes of former contents that are read at once; a multiple of all block sizes.
const KEPT_AT_ONCE: usize = 1 << 16;

/// A range of blocks that does not lie in the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("blocks {start:#x}+{count:#x} exceed a namespace of {blocks:#x} blocks")]
pub(crate) struct OutOfRange {
    /// First block.
    pub(crate) start: u64,
    /// Number of blocks in the range.
    pub(crate) count: u64,
    /// Number of blocks in the namespace.
    pub(crate) blocks: u64,
}

/// A sync has failed, and the kernel may have dropped the data that it should have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("data that was written may be lost: check the host's disk, then start this server again")]
struct DataLost;

/// One namespace.
pub(crate) struct Namespace {
    backend: Box<dyn Backend>,
    block_bytes: u32,
    blocks: u64,
    locks: Option<BlockLocks>,
    syncs: Syncs,
    unflushed: Unflushed,
    complained: AtomicBool,
}

impl Namespace {
    /// Makes a namespace of as many whole blocks of `block_bytes` (a power of two) as the backend
    /// holds. `is_shared`: several threads execute its commands.
    pub(crate) fn new(backend: Box<dyn Backend>, block_bytes: u32, is_shared: bool) -> Self {
        let blocks = backend.size() / u64::from(block_bytes.max(1));
        let overlaps = match backend.direct() {
            DirectAccess::Nothing => false,
            DirectAccess::Memory(_) => is_shared,
            DirectAccess::File(_) => true,
        };
        Self {
            backend,
            block_bytes,
            blocks,
            locks: overlaps.then(BlockLocks::new),
            syncs: Syncs::default(),
            unflushed: Unflushed::default(),
            complained: AtomicBool::new(false),
        }
    }

    /// Tells the user that the backend has failed. The guest can make it fail at will, so only the
    /// first failure is logged as an error.
    pub(crate) fn complain(&self, action: &str, error: &io::Error) {
        let first = !self.complained.swap(true, Ordering::Relaxed);
        let level = if first {
            log::Level::Error
        } else {
            log::Level::Debug
        };
        log::log!(level, "a namespace cannot be {action}: {error}");
    }

    /// Returns the size in blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the bytes in a block, a power of two.
    pub(crate) fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Returns the storage of the blocks.
    pub(crate) fn backend(&self) -> &dyn Backend {
        self.backend.as_ref()
    }

    /// Returns the locks of its blocks, if several threads execute its commands.
    pub(crate) fn locks(&self) -> Option<&BlockLocks> {
        self.locks.as_ref()
    }

    /// Returns its syncs to stable storage.
    pub(crate) fn syncs(&self) -> &Syncs {
        &self.syncs
    }

    /// Keeps the contents of an extent that a command is about to write, which a power loss may
    /// bring back.
    pub(crate) fn keep_former(&self, extent: Extent) -> io::Result<()> {
        let bytes = usize::try_from(self.block_bytes.max(1)).unwrap_or(usize::MAX);
        let ticket = self.syncs.next();
        let mut contents = vec![0; KEPT_AT_ONCE];
        let (mut offset, mut left) = (extent.offset, extent.len);
        while left > 0 {
            let len = usize::try_from(left).map_or(KEPT_AT_ONCE, |left| left.min(KEPT_AT_ONCE));
            let part = contents.get_mut(..len).unwrap_or_default();
            self.backend.read(offset, part)?;
            let first = offset / u64::from(self.block_bytes.max(1));
            self.unflushed.keep(first, bytes, part, ticket);
            offset += len as u64;
            left -= len as u64;
        }
        Ok(())
    }

    /// Records that a sync of a part of the blocks has begun.
    pub(crate) fn syncs_part(&self, ticket: Ticket, part: Extent) {
        self.unflushed.is_part(ticket, self.blocks_of(part));
    }

    /// Records that a sync has ended.
    pub(crate) fn synced(&self, ticket: Ticket, is_ok: bool) {
        self.unflushed.synced(ticket, is_ok);
    }

    /// Marks earlier writes to a part, or to the whole namespace, as durable without a sync: the
    /// blocks are in memory.
    pub(crate) fn settle(&self, part: Option<Extent>) {
        self.unflushed.settle(part.map(|part| self.blocks_of(part)));
    }

    /// Loses power: writes that were not synced may be lost, as `rng` decides. No command may be in
    /// progress.
    pub(crate) fn lose_power(&self, rng: &mut Rng) -> io::Result<()> {
        self.unflushed
            .lose(self.backend(), self.block_bytes.into(), rng)
    }

    fn blocks_of(&self, extent: Extent) -> Range<u64> {
        let bytes = u64::from(self.block_bytes.max(1));
        let first = extent.offset / bytes;
        first..first.saturating_add(extent.len / bytes)
    }

    /// Fails once written data may be lost. From then on, commands are refused.
    pub(crate) fn check_kept(&self) -> io::Result<()> {
        if self.syncs.have_failed() {
            return Err(io::Error::other(DataLost));
        }
        Ok(())
    }

    /// Returns `true` if its blocks are in a file, so that the kernel can move them.
    pub(crate) fn is_file(&self) -> bool {
        matches!(self.backend.direct(), DirectAccess::File(_))
    }

    /// Returns `true` if the kernel uses virtual addresses to transfer its blocks, however late the
    /// transfers end ([`RingFile::is_cached`](peerbar_file_ring::RingFile::is_cached)).
    pub(crate) fn is_cached(&self) -> bool {
        match self.backend.direct() {
            DirectAccess::File(file) => file.is_cached(),
            _ => true,
        }
    }

    /// Returns the bytes of `count` blocks from `start` on.
    pub(crate) fn extent(&self, start: u64, count: u64) -> Result<Extent, OutOfRange> {
        let error = OutOfRange {
            start,
            count,
            blocks: self.blocks,
        };
        start
            .checked_add(count)
            .filter(|end| *end <= self.blocks)
            .ok_or(error)?;
        let bytes = u64::from(self.block_bytes);
        Ok(Extent {
            offset: start * bytes,
            len: count * bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_checked_without_overflow() {
        let namespace = Namespace::new(Box::new(RamBackend::new(0x10200).unwrap()), 512, false);
        assert_eq!(namespace.blocks(), 0x81);
        assert_eq!(
            namespace.extent(0x80, 1),
            Ok(Extent {
                offset: 0x10000,
                len: 0x200
            })
        );
        for (start, count) in [
            (0x81, 1),
            (0x80, 2),
            (u64::MAX, 1),
            (u64::MAX, u64::MAX),
            (0, 0x82),
        ] {
            assert!(
                namespace.extent(start, count).is_err(),
                "{start:#x}+{count:#x}"
            );
        }
    }
}
