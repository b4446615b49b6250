//! The writes to persistent memory that a power loss may affect: those since the last barrier.
//!
//! The guest and the peers write the memory without a message, so the controller sees no single
//! write. While a power loss may be injected, a barrier therefore copies the whole region. A power
//! loss compares the copy with the region. It restores the former contents of each line that
//! differs, or leaves the line. So a write that no barrier followed may be torn between lines.

use fastrand::Rng;
use peerbar_dma::{MemoryError, MemoryFile};

/// The unit of a power loss: a cache line, because memory controllers write whole lines.
const LINE: usize = 64;

/// The largest memory for which a power loss may be injected: two copies of it are kept.
pub(crate) const LARGEST_UNSYNCED: u64 = 256 << 20;

/// Bytes that are compared at a time, a multiple of a line.
const STEP: usize = 1 << 16;

/// The contents of persistent memory at its last barrier.
#[derive(Default)]
pub(super) struct Unsynced {
    /// The contents. `None`, in which case no write is lost, until the first barrier while a power
    /// loss may be injected.
    durable: Option<Vec<u8>>,
    /// The contents at a barrier in progress.
    next: Option<Vec<u8>>,
}

impl Unsynced {
    /// Begins a barrier. Copies the memory that it covers; or forgets the copies, if no power loss
    /// may come.
    pub(super) fn prepare(&mut self, may_lose_power: bool, memory: &MemoryFile) {
        if !may_lose_power {
            *self = Self::default();
            return;
        }
        let mut contents = self.next.take().unwrap_or_default();
        contents.resize(usize::try_from(memory.size()).unwrap_or(0), 0);
        // If the memory is gone, no write can be lost any more.
        self.next = memory.read(0, &mut contents).is_ok().then_some(contents);
    }

    /// Ends the barrier: the data that it covers is durable.
    pub(super) fn synced(&mut self) {
        if self.next.is_some() {
            std::mem::swap(&mut self.durable, &mut self.next);
        }
    }

    /// Loses power: each line that was written since the last barrier gets its former contents, or
    /// keeps the new ones, as `rng` decides. The remaining contents are durable.
    pub(super) fn lose(&mut self, memory: &MemoryFile, rng: &mut Rng) -> Result<(), MemoryError> {
        let Some(durable) = &mut self.durable else {
            return Ok(());
        };
        let mut now = vec![0; STEP];
        for (step, former) in (0..).step_by(STEP).zip(durable.chunks_mut(STEP)) {
            let now = now.get_mut(..former.len()).unwrap_or_default();
            memory.read(step, now)?;
            let lines = former.chunks_mut(LINE).zip(now.chunks(LINE));
            for (line, (former, now)) in (step..).step_by(LINE).zip(lines) {
                if former == now {
                    continue;
                }
                match rng.bool() {
                    true => memory.write(line, former)?,
                    false => former.copy_from_slice(now),
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 1 << 18;

    fn memory() -> MemoryFile {
        MemoryFile::create("pmr", BYTES).unwrap()
    }

    fn barrier(unsynced: &mut Unsynced, memory: &MemoryFile) {
        unsynced.prepare(true, memory);
        unsynced.synced();
    }

    /// Returns the first byte of each line from `offset` on. No line may be torn.
    fn lines(memory: &MemoryFile, offset: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        memory.read(offset, &mut data).unwrap();
        let lines = data.chunks(LINE).map(|line| {
            assert_eq!(line, [line[0]; LINE]);
            line[0]
        });
        lines.collect()
    }

    #[test]
    fn only_writes_since_the_last_barrier_are_lost() {
        let (memory, mut unsynced) = (memory(), Unsynced::default());
        memory.write(0x1_0000, &[1; 0x8000]).unwrap();
        barrier(&mut unsynced, &memory);
        memory.write(0x1_4000, &[2; 0x8000]).unwrap();
        unsynced.lose(&memory, &mut Rng::with_seed(1)).unwrap();
        assert_eq!(lines(&memory, 0, 0x1_0000), [0; 0x400]);
        assert_eq!(lines(&memory, 0x1_0000, 0x4000), [1; 0x100]);
        for (offset, former) in [(0x1_4000, 1), (0x1_8000, 0)] {
            let lines = lines(&memory, offset, 0x4000);
            assert!(lines.contains(&former) && lines.contains(&2), "{lines:?}");
            assert!(lines.iter().all(|byte| [former, 2].contains(byte)));
        }
        let left = lines(&memory, 0, 0x2_0000);
        unsynced.lose(&memory, &mut Rng::with_seed(4)).unwrap();
        assert_eq!(lines(&memory, 0, 0x2_0000), left, "nothing more is lost");
    }

    #[test]
    fn barrier_that_fails_or_keeps_nothing_covers_nothing() {
        let (memory, mut unsynced) = (memory(), Unsynced::default());
        barrier(&mut unsynced, &memory);
        memory.write(0, &[1; 0x8000]).unwrap();
        unsynced.prepare(true, &memory);
        unsynced.lose(&memory, &mut Rng::with_seed(2)).unwrap();
        assert!(lines(&memory, 0, 0x8000).contains(&0));
        memory.write(0, &[1; 0x8000]).unwrap();
        unsynced.prepare(false, &memory);
        unsynced.synced();
        unsynced.lose(&memory, &mut Rng::with_seed(3)).unwrap();
        assert_eq!(lines(&memory, 0, 0x8000), [1; 0x200]);
    }
}
