//! A submission queue and its completion queue.

use std::io;

use crate::access::{DmaMemory, Registers};
use crate::doorbell::{Doorbell, write_both};

/// Bytes of a submission queue entry.
const SUBMISSION_BYTES: u64 = 64;
/// Bytes of a completion queue entry.
const COMPLETION_BYTES: u64 = 16;
/// Offset of a completion's last 8 bytes: SQHD, SQID, CID, status and phase (NVMe Base 2.0, 3.3.3.2).
const COMPLETION_TAIL: u64 = 8;

/// The memory of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueMemory {
    /// Address of the submission queue.
    pub submission: u64,
    /// Address of the completion queue.
    pub completion: u64,
    /// Entries of the submission queue.
    pub submission_entries: u16,
    /// Entries of the completion queue.
    pub completion_entries: u16,
}

/// The last 8 bytes of a completion queue entry (NVMe Base 2.0, 3.3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// SQHD: the head of the submission queue, up to which the controller has taken entries.
    pub sqhd: u16,
    /// SQID: the submission queue of the command.
    pub sqid: u16,
    /// CID: the command.
    pub cid: u16,
    /// The status field without the phase; 0 is success.
    pub status: u16,
}

/// A submission queue and its completion queue.
#[derive(Clone, Debug)]
pub struct QueuePair<R, M> {
    memory: M,
    at: QueueMemory,
    tail: u16,
    head: u16,
    /// The phase of new completions.
    phase: bool,
    /// The doorbells of tail and head.
    doorbells: [Doorbell<R, M>; 2],
}

impl<R: Registers, M: DmaMemory> QueuePair<R, M> {
    /// Makes an empty pair, before it is created in the controller. Zeroes the completion queue.
    pub fn new(memory: M, at: QueueMemory, doorbells: [Doorbell<R, M>; 2]) -> io::Result<Self> {
        let bytes = usize::from(at.completion_entries) * 16;
        memory.write(at.completion, &vec![0; bytes])?;
        Ok(Self {
            memory,
            at,
            tail: 0,
            head: 0,
            phase: true,
            doorbells,
        })
    }

    /// Returns the location of its memory.
    pub fn memory(&self) -> QueueMemory {
        self.at
    }

    /// Returns the next free entry of the submission queue.
    pub fn tail(&self) -> u16 {
        self.tail
    }

    /// Returns the next entry of the completion queue.
    pub fn head(&self) -> u16 {
        self.head
    }

    /// Puts a command into the next entry, which the controller does not see until the tail's
    /// doorbell is written. The caller must have fewer commands outstanding than the queue has
    /// entries.
    pub fn push(&mut self, entry: &[u8; 64]) -> io::Result<()> {
        let address = self.at.submission + u64::from(self.tail) * SUBMISSION_BYTES;
        self.memory.write(address, entry)?;
        self.tail = after(self.tail, self.at.submission_entries);
        Ok(())
    }

    /// Takes the next completion, if there is one.
    pub fn pop(&mut self) -> io::Result<Option<Completion>> {
        let tail = self
            .memory
            .load64(self.entry(self.head) + COMPLETION_TAIL)?;
        let [sqhd, sqid, cid, status] = words(tail);
        if (status & 1 == 1) != self.phase {
            return Ok(None);
        }
        self.head = after(self.head, self.at.completion_entries);
        self.phase ^= self.head == 0;
        Ok(Some(Completion {
            sqhd,
            sqid,
            cid,
            status: status >> 1,
        }))
    }

    /// Returns dword 0 of the completion that was taken last. The controller may overwrite it once
    /// the head's doorbell has been written.
    pub fn result(&self) -> io::Result<u32> {
        let last = match self.head {
            0 => self.at.completion_entries - 1,
            head => head - 1,
        };
        self.memory.load32(self.entry(last))
    }

    /// Rings both doorbells, each only if it is new: the controller sees the pushed commands, and
    /// gets back the entries of the completions that were taken.
    pub fn ring(&mut self) -> io::Result<()> {
        write_both(&mut self.doorbells, [self.tail, self.head])
    }

    /// Writes the tail's doorbell, even without new commands.
    pub fn ring_tail(&mut self) -> io::Result<()> {
        let [tail, _] = &mut self.doorbells;
        tail.write(self.tail)
    }

    /// Writes the head's doorbell, even if no completion has been taken.
    pub fn ring_head(&mut self) -> io::Result<()> {
        let [_, head] = &mut self.doorbells;
        head.write(self.head)
    }

    /// Returns the doorbells of tail and head, for writing any value.
    pub fn doorbells(&mut self) -> &mut [Doorbell<R, M>; 2] {
        &mut self.doorbells
    }

    fn entry(&self, index: u16) -> u64 {
        self.at.completion + u64::from(index) * COMPLETION_BYTES
    }
}

/// Returns the index after `index`.
fn after(index: u16, entries: u16) -> u16 {
    let next = index + 1;
    if next == entries { 0 } else { next }
}

/// Returns the four words of 8 bytes, little-endian.
fn words(bytes: u64) -> [u16; 4] {
    let [a0, a1, b0, b1, c0, c1, d0, d1] = bytes.to_le_bytes();
    [[a0, a1], [b0, b1], [c0, c1], [d0, d1]].map(u16::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doorbell::tests::Bytes;

    #[test]
    fn completion_of_next_phase_is_taken_once() {
        let (registers, memory) = (Bytes::new(), Bytes::new());
        let at = QueueMemory {
            submission: 0x1000,
            completion: 0x2000,
            submission_entries: 3,
            completion_entries: 2,
        };
        memory.write(0x2000, &[0xff; 32]).unwrap();
        let doorbells =
            [8, 12].map(|offset| Doorbell::new(registers.clone(), memory.clone(), offset, None));
        let mut pair = QueuePair::new(memory.clone(), at, doorbells).unwrap();
        assert_eq!(pair.pop().unwrap(), None, "what was there is cleared");
        for (number, phase) in [(1, 1), (2, 1), (3, 0), (4, 0)] {
            pair.push(&[number; 64]).unwrap();
            let slot = u64::from(number - 1);
            let entry = [
                number,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                5,
                0,
                1,
                0,
                number,
                0,
                8 | phase,
                0,
            ];
            let address = 0x2000 + slot % 2 * 16;
            memory.write(address, &entry).unwrap();
            let taken = pair.pop().unwrap().unwrap();
            let expected = Completion {
                sqhd: 5,
                sqid: 1,
                cid: number.into(),
                status: 4,
            };
            assert_eq!((taken, pair.result().unwrap()), (expected, number.into()));
            assert_eq!(pair.pop().unwrap(), None);
            let mut pushed = [0; 64];
            memory.read(0x1000 + slot % 3 * 64, &mut pushed).unwrap();
            assert_eq!(pushed, [number; 64]);
        }
        pair.ring().unwrap();
        let rung = [8, 12].map(|offset| registers.load32(offset).unwrap());
        assert_eq!(rung, [1, 0], "only the tail has changed");
        assert_eq!((pair.tail(), pair.head()), (1, 0));
    }
}
