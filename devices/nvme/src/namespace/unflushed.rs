//! Blocks that a power loss may affect: those that were written and not brought to stable storage
//! since.
//!
//! While a power loss may be injected, the contents that a block had before a write are kept until
//! a sync that began after the write has ended. A power loss restores former contents of each such
//! block, or leaves the block as it is. So a write is kept, lost or, at the limits of blocks, torn
//! (NVMe Base 2.0, AWUPF; NVM Command Set 1.0, 2.1.4.2).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::ops::Range;

use fastrand::Rng;
use parking_lot::Mutex;

use super::backend::Backend;
use super::syncs::Ticket;

/// The most bytes that are kept. The oldest are dropped in favour of newer ones: from then on their
/// blocks count as on stable storage, as if a full cache had written them back.
const MOST_BYTES: usize = 64 << 20;

/// Former contents of blocks of a namespace.
#[derive(Default)]
pub(crate) struct Unflushed(Mutex<UnflushedState>);

#[derive(Default)]
struct UnflushedState {
    /// In the order of their tickets.
    former: VecDeque<Former>,
    /// The ticket of the newest former contents of a block.
    newest: HashMap<u64, Ticket>,
    /// Parts of the blocks, for syncs of these only.
    parts: HashMap<Ticket, Range<u64>>,
    bytes: usize,
}

/// A block's contents before a write.
struct Former {
    /// The next sync when the write began: this sync, and later ones, bring the write to stable
    /// storage.
    ticket: Ticket,
    block: u64,
    contents: Box<[u8]>,
}

impl Unflushed {
    /// Keeps the contents of blocks from `first` on, each `block_bytes` long, which are about to be
    /// written. `ticket` is the next sync's.
    pub(crate) fn keep(&self, first: u64, block_bytes: usize, contents: &[u8], ticket: Ticket) {
        let mut state = self.0.lock();
        for (block, contents) in (first..).zip(contents.chunks(block_bytes.max(1))) {
            if state.newest.insert(block, ticket) == Some(ticket) {
                // One sync brings these contents and the newer ones to stable storage.
                continue;
            }
            state.bytes += contents.len();
            state.former.push_back(Former {
                ticket,
                block,
                contents: contents.into(),
            });
        }
        while state.bytes > MOST_BYTES {
            let Some(oldest) = state.former.pop_front() else {
                break;
            };
            state.gave_up(&oldest);
        }
    }

    /// Records that the sync with this ticket covers these blocks only.
    pub(crate) fn is_part(&self, ticket: Ticket, blocks: Range<u64>) {
        self.0.lock().parts.insert(ticket, blocks);
    }

    /// Records that the sync with this ticket has ended. With `is_ok`, earlier writes are on stable
    /// storage.
    pub(crate) fn synced(&self, ticket: Ticket, is_ok: bool) {
        let mut state = self.0.lock();
        let part = state.parts.remove(&ticket);
        if is_ok && !state.former.is_empty() {
            state.give_up(ticket, part);
        }
    }

    /// Records that earlier writes to these blocks, or to all if `None`, are on stable storage.
    pub(crate) fn settle(&self, blocks: Option<Range<u64>>) {
        self.0.lock().give_up(Ticket::MAX, blocks);
    }

    /// Loses power: gives each block one of the contents that it had since it was last on stable
    /// storage, chosen by `rng`.
    pub(crate) fn lose(
        &self,
        backend: &dyn Backend,
        block_bytes: u64,
        rng: &mut Rng,
    ) -> io::Result<()> {
        let state = std::mem::take(&mut *self.0.lock());
        let mut versions: BTreeMap<u64, Vec<Box<[u8]>>> = BTreeMap::new();
        for former in state.former {
            let of_block = versions.entry(former.block).or_default();
            of_block.push(former.contents);
        }
        for (block, contents) in versions {
            // An index after the last of them leaves the block as it is.
            if let Some(former) = contents.get(rng.usize(0..=contents.len())) {
                backend.write(block.saturating_mul(block_bytes), former)?;
            }
        }
        Ok(())
    }
}

impl UnflushedState {
    /// Drops the former contents of blocks that this sync, or an earlier one, has brought to stable
    /// storage.
    fn give_up(&mut self, ticket: Ticket, blocks: Option<Range<u64>>) {
        let is_kept = |former: &Former| {
            let blocks = blocks.as_ref();
            former.ticket > ticket || blocks.is_some_and(|blocks| !blocks.contains(&former.block))
        };
        for former in std::mem::take(&mut self.former) {
            if is_kept(&former) {
                self.former.push_back(former);
            } else {
                self.gave_up(&former);
            }
        }
    }

    fn gave_up(&mut self, former: &Former) {
        self.bytes = self.bytes.saturating_sub(former.contents.len());
        if self.newest.get(&former.block) == Some(&former.ticket) {
            self.newest.remove(&former.block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ram::RamBackend;
    use super::*;

    const BLOCK: usize = 512;

    struct Disk(RamBackend, Unflushed);

    impl Disk {
        fn new() -> Self {
            Self(RamBackend::new(64 * 512).unwrap(), Unflushed::default())
        }

        /// Writes a byte to blocks, before the sync with this ticket begins.
        fn write(&self, blocks: Range<u64>, byte: u8, ticket: Ticket) {
            for block in blocks {
                let mut former = [0; BLOCK];
                self.0.read(block * 512, &mut former).unwrap();
                self.1.keep(block, BLOCK, &former, ticket);
                self.0.write(block * 512, &[byte; BLOCK]).unwrap();
            }
        }

        /// Loses power. Returns the bytes of the blocks afterwards.
        fn lose(&self, pattern: u64) -> Vec<u8> {
            let mut rng = Rng::with_seed(pattern);
            self.1.lose(&self.0, 512, &mut rng).unwrap();
            let bytes = (0..64).map(|block| {
                let mut contents = [0; BLOCK];
                self.0.read(block * 512, &mut contents).unwrap();
                let [first, ..] = contents;
                assert_eq!(contents, [first; BLOCK], "a block is not torn");
                first
            });
            bytes.collect()
        }
    }

    #[test]
    fn unflushed_blocks_have_one_of_their_contents() {
        let mut seen = [0; 3];
        for pattern in 0..4 {
            let disk = Disk::new();
            disk.write(0..64, 1, 0);
            disk.1.synced(0, true);
            disk.write(0..64, 2, 1);
            disk.write(0..64, 3, 2);
            for byte in disk.lose(pattern) {
                seen[usize::from(byte - 1)] += 1;
            }
        }
        assert!(seen.iter().all(|count| *count > 30), "{seen:?}");
    }

    #[test]
    fn synced_blocks_stay_and_those_written_later_need_not() {
        let disk = Disk::new();
        disk.write(0..32, 1, 0);
        disk.write(0..8, 2, 1);
        disk.write(32..64, 1, 1);
        disk.1.synced(0, true);
        let bytes = disk.lose(5);
        assert!(bytes[..8].iter().all(|byte| [1, 2].contains(byte)));
        assert_eq!(bytes[8..32], [1; 24]);
        assert!(bytes[32..].contains(&0) && bytes[32..].contains(&1));
        assert_eq!(disk.lose(6), bytes, "nothing more is lost");
    }

    #[test]
    fn failed_sync_and_sync_of_a_part_keep_the_rest() {
        let disk = Disk::new();
        disk.write(0..64, 1, 0);
        disk.1.synced(0, false);
        disk.1.is_part(1, 16..32);
        disk.1.synced(1, true);
        disk.1.settle(Some(32..48));
        let bytes = disk.lose(7);
        assert_eq!(bytes[16..48], [1; 32]);
        assert!(bytes[..16].contains(&0) && bytes[48..].contains(&0));
    }

    #[test]
    fn more_than_a_limit_is_not_kept() {
        let unflushed = Unflushed::default();
        let contents = vec![0; 1 << 20];
        for first in 0..100 {
            unflushed.keep(first * 2048, BLOCK, &contents, 0);
        }
        let state = unflushed.0.lock();
        assert_eq!(state.bytes, MOST_BYTES);
        assert_eq!(state.newest.len(), MOST_BYTES / BLOCK);
    }
}
