//! Words that other devices watch or write: writing, reading, and waiting for a value.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use peerbar_dma::{Purpose, RegisterValue};

use crate::faults::{Fault, FaultCode};
use crate::gpu_memory::{GpuAddress, GpuMemory};

/// Bytes of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordSize {
    Four,
    Eight,
}

/// A word of memory, or a register, at its natural alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    address: GpuAddress,
    size: WordSize,
}

/// A wait until `word & mask` is `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) word: Word,
    pub(crate) mask: u64,
    pub(crate) value: u64,
    /// Time limit, if it is shorter than that of a command.
    pub(crate) limit: Option<Duration>,
}

impl WordSize {
    fn bytes(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    /// Returns the value of a register of this size, the low bytes of `value`.
    fn register_value(self, value: u64) -> RegisterValue {
        let [a, b, c, d, ..] = value.to_le_bytes();
        match self {
            Self::Four => RegisterValue::Word(u32::from_le_bytes([a, b, c, d])),
            Self::Eight => RegisterValue::Quad(value),
        }
    }
}

impl Word {
    /// Returns the word at `address`, if that is aligned.
    pub(crate) fn new(address: GpuAddress, size: WordSize) -> Option<Self> {
        let is_aligned = address.raw() % size.bytes() as u64 == 0;
        is_aligned.then_some(Self { address, size })
    }

    /// Returns its address.
    pub(crate) fn address(self) -> GpuAddress {
        self.address
    }

    /// Writes it in one access, after all earlier writes. At a bus address it is a register write.
    pub(crate) fn write(self, memory: &GpuMemory, value: u64) -> Result<(), Fault> {
        memory.check(self.address, self.size.bytes() as u64, true)?;
        if let GpuAddress::Bus(bus_address) = self.address {
            return memory.write_register(bus_address, self.size.register_value(value));
        }
        // A reader that sees this word also sees the earlier writes.
        fence(Ordering::SeqCst);
        let bytes = value.to_le_bytes();
        let (bytes, _) = bytes.split_at(self.size.bytes());
        memory.write(Purpose::Payload, self.address, bytes)
    }

    /// Reads it in one access, before all later reads.
    pub(crate) fn read(self, memory: &GpuMemory) -> Result<u64, Fault> {
        memory.check(self.address, self.size.bytes() as u64, false)?;
        let mut value = [0; 8];
        let (bytes, _) = value.split_at_mut(self.size.bytes());
        memory.read(Purpose::Payload, self.address, bytes)?;
        fence(Ordering::SeqCst);
        Ok(u64::from_le_bytes(value))
    }
}

/// Fails if the time that has passed exceeds the limit. The engine adds the address of the
/// command's entry.
pub(crate) fn check_time(limit: Option<Duration>, over: Duration) -> Result<(), Fault> {
    match limit.is_some_and(|limit| over > limit) {
        false => Ok(()),
        true => Err(Fault {
            code: FaultCode::TimeOut,
            write: false,
            address: 0,
        }),
    }
}
